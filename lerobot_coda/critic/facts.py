"""What is known of one goal predicate of an episode: events with their instants, no verdict yet.

Distances are metres and horizontal unless said otherwise; instants count control steps, 0 is the start.
"""

from dataclasses import dataclass

import numpy as np

LIFTED = 0.02  # an origin risen this much while held is off its support


@dataclass(frozen=True)
class Hold:
    """An object between both pads from instant `first` to `last`, the gripper commanded closed at some time.

    rise    its highest point over where it stood at the start;  at_end: it was held when the episode ended
    opened  the fingers were told to open before it was lost;  fall: how far it fell, from where they were told to (else
            from where it was lost), to its last place
    """

    name: str
    first: int
    last: int
    rise: float
    at_end: bool
    opened: bool
    fall: float


@dataclass(frozen=True)
class Closing:
    """The gripper was told to close at `first` and kept so until `last`.

    distance   of the hand from the target's middle, or from the part;  `beyond` how far from being at it, 0 at it
    other      the nearest object that the goal does not speak of;  `other_beyond` how far from being at that
    touching   the gripper touched it meanwhile, as far as that was recorded
    abandoned  it opened again before the fingers had come together, and the hand came clearly nearer to the target
    """

    first: int
    last: int
    distance: float
    beyond: float
    other: str | None
    other_beyond: float
    touching: bool
    abandoned: bool


@dataclass(frozen=True)
class Facts:
    """What is known of one unsatisfied predicate. `target` and `receptacle` are None where they are no objects.

    holds            of the target, in time;  `others` of objects that the goal does not speak of, longest first
    destination      (T+1,) horizontal distance of the target from its destination's middle, inf without any
    outside          (T+1,) distance from the region that the goal names, 0 within; without a region as `destination`
    rest_object      what the target lies on at the end besides its destination and the table; None for nothing
    displaced        how far the target moved;  `pushed` the first instant at which it had moved, -1 for never
    released         the last instant at which the gripper touched the target or part, -1 for never
    closings         of the gripper;  `attempt` the one that counts: it came nearest to the target, or was the last
    nearest          the least that the hand was from being at the target or part, 0: it was at it
    progress         (T+1,) of a part towards its threshold, 0 at the start and 1 there; zeros for objects
    other_part       another part that was moved: its name, the share of its way at the end, its first and last instant
    still            the instant from which the hand stood still, the episode's length if it did not
    late_path        path length of the hand in the last second;  `late_command` its mean command meanwhile
    away             how much farther (3-D) the hand ended from every place where an object stood than it began
    left             the instant from which it went away from all of them
    """

    predicate: tuple[str, ...]
    target: str | None
    receptacle: str | None
    steps: int
    holds: tuple[Hold, ...]
    others: tuple[Hold, ...]
    other_to_receptacle: float
    destination: np.ndarray
    outside: np.ndarray
    rest_object: str | None
    displaced: float
    pushed: int
    released: int
    closings: tuple[Closing, ...]
    attempt: Closing | None
    nearest: float
    progress: np.ndarray
    other_part: tuple[str, float, int, int] | None
    still: int
    late_path: float
    late_command: float
    away: float
    left: int

    @property
    def hold(self) -> Hold | None:
        """The hold that counts: the last in which the target was lifted, else the last one."""
        lifted = [hold for hold in self.holds if hold.rise >= LIFTED]
        return (lifted or self.holds or (None,))[-1]

    @property
    def lifted(self) -> float:
        """The highest rise of the target while it was held."""
        return max((hold.rise for hold in self.holds), default=0.0)

    @property
    def held_steps(self) -> int:
        """Instants at which the target was held."""
        return sum(hold.last - hold.first + 1 for hold in self.holds)

    @property
    def held_at_end(self) -> bool:
        """The target was held when the episode ended."""
        return bool(self.holds and self.holds[-1].at_end)

    @property
    def commanded_open_at_loss(self) -> bool:
        """The fingers were told to open before the target was lost."""
        return bool(self.hold and self.hold.opened)

    @property
    def receptacle_at_loss(self) -> float:
        """The target's distance from its destination when it was last held."""
        return float(self.destination[self.hold.last]) if self.hold else float("inf")

    @property
    def receptacle_at_end(self) -> float:
        """The same at the end;  `receptacle_least` the least of all."""
        return float(self.destination[-1])

    @property
    def receptacle_least(self) -> float:
        """The target's least distance from its destination."""
        return float(self.destination.min())

    @property
    def rest_object_distance(self) -> float:
        """0 where the target lies on `rest_object`, else infinite."""
        return 0.0 if self.rest_object else float("inf")

    @property
    def attempt_step(self) -> int:
        """When the gripper closed in the attempt that counts, -1 without any."""
        return self.attempt.first if self.attempt else -1

    @property
    def attempt_distance(self) -> float:
        """Distance of the hand from the target's middle, or from the part, in that attempt."""
        return self.attempt.distance if self.attempt else float("inf")

    @property
    def attempt_object(self) -> str | None:
        """The object nearest to that attempt that the goal does not speak of."""
        return self.attempt.other if self.attempt else None

    @property
    def attempt_object_distance(self) -> float:
        """How far the hand was from being at that object."""
        return self.attempt.other_beyond if self.attempt else float("inf")

    @property
    def other_held(self) -> str | None:
        """The object that was held longest and that the goal does not speak of."""
        return self.others[0].name if self.others else None

    @property
    def other_held_steps(self) -> int:
        """How long it was held."""
        return self.others[0].last - self.others[0].first + 1 if self.others else 0

    @property
    def other_lifted(self) -> float:
        """How high."""
        return self.others[0].rise if self.others else 0.0

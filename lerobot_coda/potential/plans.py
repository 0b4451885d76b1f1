"""Canonical plans: a potential from a BDDL goal alone, for every form of goal in the 200 tasks.

In and On: reach, grasp, lift, carry, place. Open, Close, Turnon and Turnoff: reach, touch, move. What must be open to
put something inside is opened first; what is closed is closed last; the rest may be done in any order.
"""

from collections.abc import Collection

from lerobot_coda.potential.staged import Stage, StagedPotential
from lerobot_coda.potential.terms import Clause, Term
from libero_pro.episode import Episode
from libero_pro.goals import owner
from libero_pro.record import RecordError
from libero_pro.scene import Goal

REACH, LIFT, CARRY, PLACE = 0.30, 0.10, 0.35, 0.30  # metres over which each stage makes progress
REACHED, CARRIED = 0.04, 0.05  # metres: at the object's origin; over the receptacle's
LIFTED = 0.08  # metres over its place: clear of what stands around
LET_GO, ON_TOP = 0.25, 0.01  # metres: falls from no higher over its receptacle than the first, no lower than the second
HANDLED = 0.06  # metres: at a handle, whose point is a middle of what is up to 9 cm long
ENOUGH_OPEN = 0.8  # of the way: an object fits in
MOVED = 0.15  # of the way: a part so far from its end was moved, also where the hand bounces on it
_ENCLOSED = ("top_region", "middle_region", "bottom_region", "heating_region")  # drawers and the microwave's inside
_STAGE_OF: dict[str, tuple[str, ...]] = {
    "reach": ("reach",), "grasp": ("grasp", "touch"), "lift": ("lift", "move"), "carry": ("carry", "move"),
    "place": ("place", "move"),
}  # fmt: skip


def from_goal(
    goal: Goal,
    object_names: Collection[str],
    *,
    scale: float = 0.5,
    parts: Collection[str] | None = None,
) -> StagedPotential:
    """The canonical plan of a goal.

    object_names  movable objects;  parts  articulated parts of the scene, guessed from the names where None
    Raises RecordError for a predicate that there is no plan for, or one about an object that is not there.
    """
    first: list[list[Stage]] = []
    middle: list[list[Stage]] = []
    last: list[list[Stage]] = []
    for number, predicate in enumerate(goal, 1):
        kind, *words = predicate
        if kind in ("in", "on") and len(words) == 2:
            if words[0] not in object_names:
                raise RecordError(f"goal {goal}: '{words[0]}' is not among the objects {sorted(object_names)}")
            if kind == "in" and _is_enclosed(words[1], object_names, parts):
                first.append(_part_leg(number, "opened", ((_term("opened", "handle", number, ENOUGH_OPEN),),), "open_"))
            middle.append(_place_leg(number))
        elif kind in ("open", "turnon") and len(words) == 1:
            middle.append(_part_leg(number, "opened", ()))
        elif kind in ("close", "turnoff") and len(words) == 1:
            leg = _part_leg(number, "closed", ())
            (last if kind == "close" else middle).append(leg)
        else:
            raise RecordError(f"goal {goal}: there is no plan for {predicate}")
    stages: list[Stage] = []
    for block in (first, middle, last):
        for count, leg in enumerate(block):
            link = "next" if not stages else "then" if count == 0 else "also"
            stages += [leg[0].model_copy(update={"link": link}), *leg[1:]]
    return StagedPotential(stages=tuple(stages), scale=scale)


def plan_of(episode: Episode) -> StagedPotential:
    """The canonical plan of an episode's goal; episodes recorded without parts have them guessed from names."""
    parts = None if episode.region_pos is None else episode.part_names
    return from_goal(episode.scene.goal, episode.object_names, parts=parts)


def emphasized(potential: StagedPotential, emphasis: str, factor: float = 2.0) -> StagedPotential:
    """The same plan with more weight on the stages called `emphasis` (or what is that for a part that moves)."""
    names = _STAGE_OF.get(emphasis, (emphasis,))
    stages = [
        stage.model_copy(update={"weight": min(10.0, stage.weight * factor)})
        if base_name(stage.name) in names
        else stage
        for stage in potential.stages
    ]
    return potential.model_copy(update={"stages": tuple(stages)})


def base_name(stage: str) -> str:
    """The skill of a stage of a canonical plan: `reach` of `reach_2` and of `open_reach`."""
    return stage.removeprefix("open_").rstrip("0123456789").rstrip("_")


def _place_leg(number: int) -> list[Stage]:
    held, goal = _term("held", "target", number), Term(kind="goal", number=number)
    high = _term("raised", "target", number, LIFTED)
    target, receptacle = _role("target", number), _role("receptacle", number)
    return [
        _stage("reach", number, _to("target", number, REACH), (_to("target", number, REACHED),)),
        _stage("grasp", number, _to("target", number, REACHED), (held,)),
        _stage("lift", number, _term("raised", "target", number, LIFT), (held, high)),
        _stage("carry", number, _pair("over", number, CARRY), *carried(target, receptacle)),
        _stage("place", number, (_pair("lowered", number, PLACE), _pair("over", number, CARRIED)), (goal,)),
    ]


def carried(thing: str, place: str) -> tuple[Clause, ...]:
    """Held over its place, or just let go there: while it falls it is held no more, and the goal does not hold yet."""
    over = Term(kind="over", things=(thing, place), number=CARRIED)
    high = Term(kind="above", things=(thing, place), number=ON_TOP)
    falling = (over, high, Term(kind="near", things=(thing, place), number=LET_GO))
    return (Term(kind="held", things=(thing,)), over), falling


def _part_leg(number: int, move: str, also: tuple[Clause, ...], prefix: str = "") -> list[Stage]:
    """Reach, touch and move a part until the goal's predicate holds, or one of the clauses `also`."""
    touched = _term("touching", "handle", number)
    moved = _term(move, "handle", number, MOVED)
    goal = Term(kind="goal", number=number)
    return [
        _stage(prefix + "reach", number, _to("handle", number, REACH), (_to("handle", number, HANDLED),), (touched,)),
        _stage(prefix + "touch", number, _to("handle", number, HANDLED), (touched,), (moved,)),
        _stage(prefix + "move", number, _term(move, "handle", number, 1.0), (goal,), *also),
    ]


def _is_enclosed(region: str, object_names: Collection[str], parts: Collection[str] | None) -> bool:
    """Something must be open for a thing to get in."""
    if owner(region, list(object_names)):
        return False
    if parts is None:
        return region.endswith(_ENCLOSED)
    return owner(region, list(parts)) is not None


def _stage(name: str, number: int, progress: Term | Clause, *until: Clause) -> Stage:
    terms = (progress,) if isinstance(progress, Term) else progress
    return Stage(name=name if number == 1 else f"{name}_{number}", progress=terms, until=until)


def _role(role: str, number: int) -> str:
    return role if number == 1 else f"{role}{number}"


def _to(role: str, number: int, within: float) -> Term:
    return Term(kind="near", things=("gripper", _role(role, number)), number=within)


def _pair(kind: str, number: int, value: float) -> Term:
    return Term.parse({"kind": kind, "things": [_role("target", number), _role("receptacle", number)], "number": value})


def _term(kind: str, role: str, number: int, value: float | None = None) -> Term:
    return Term.parse({"kind": kind, "things": [_role(role, number)], "number": value})

"""A small control task with chunks: a hand on a plane reaches a thing, grips it and carries it to a goal.

An action is (dx, dy, grip). The thing sticks to a closed hand that is near it and stays where it is let go; the goal
ends the episode with reward 1, a time limit cuts it. Stored episodes are of mixed quality: of each chunk, either a
planner's or a random one was run, and only the outcome says which were good.
"""

from copy import deepcopy

import numpy as np

CHUNK, LIMIT, SPEED, NEAR, ROOM = 5, 60, 0.12, 0.15, 2.5  # steps, steps, length a step, length, length of the room


class PickAndCarry:
    """`n` independent copies of the task, started at random."""

    def __init__(self, n: int, rng: np.random.Generator):
        self.hand, self.thing, self.goal = (rng.uniform(-1, 1, (n, 2)) for _ in range(3))
        self.held, self.won = np.zeros(n, bool), np.zeros(n, bool)

    def features(self) -> np.ndarray:
        """What a policy sees: thing from hand, goal from thing, held; (n, 5) float32."""
        return np.concatenate([self.thing - self.hand, self.goal - self.thing, self.held[:, None]], 1).astype("f4")

    def potential(self, scale: float = 0.5) -> np.ndarray:
        """Two stages, unlatched: reach, then carry; 0 where the task is won. (n,) in [0, scale]"""
        reach = np.clip(1 - np.linalg.norm(self.thing - self.hand, axis=1) / ROOM, 0, 1)
        carry = np.clip(1 - np.linalg.norm(self.goal - self.thing, axis=1) / ROOM, 0, 1)
        return np.where(self.won, 0.0, scale * np.where(self.held, 0.5 + 0.5 * carry, 0.5 * reach))

    def step(self, action: np.ndarray) -> np.ndarray:
        """Moves every copy that is not won by (n, 3); returns the rewards (n,)."""
        active = ~self.won[:, None]
        self.hand = np.where(active, np.clip(self.hand + SPEED * np.clip(action[:, :2], -1, 1), -1, 1), self.hand)
        near = np.linalg.norm(self.hand - self.thing, axis=1) < NEAR
        self.held = (action[:, 2] > 0) & (self.held | near)
        self.thing = np.where(active & self.held[:, None], self.hand, self.thing)
        arrived = self.held & (np.linalg.norm(self.thing - self.goal, axis=1) < NEAR) & ~self.won
        self.won |= arrived
        return arrived.astype(float)

    def plan(self) -> np.ndarray:
        """A good chunk for each copy, (n, CHUNK, 3): a reactive planner run ahead."""
        ahead, chunk = deepcopy(self), []
        for _ in range(CHUNK):
            way = np.where(ahead.held[:, None], ahead.goal, ahead.thing) - ahead.hand
            grip = np.where(ahead.held | (np.linalg.norm(way, axis=1) < NEAR / 2), 1.0, -1.0)
            chunk.append(np.concatenate([np.clip(way / SPEED, -1, 1), grip[:, None]], 1))
            ahead.step(chunk[-1])
        return np.stack(chunk, 1)


def stored_chunks(episodes: int, skill: float, rng: np.random.Generator) -> tuple[dict[str, np.ndarray], float]:
    """Chunks of `episodes` episodes in which a share `skill` of the chunks is planned, and their success rate.

    Columns as in `ChunkTransition`, one row a chunk that began before its episode was won.
    """
    world, columns = PickAndCarry(episodes, rng), []
    for _ in range(LIMIT // CHUNK):
        wild = np.concatenate([rng.uniform(-1, 1, (episodes, 1, 2)), rng.choice([-1.0, 1.0], (episodes, 1, 1))], 2)
        planned = rng.random(episodes) < skill
        chunk = np.where(planned[:, None, None], world.plan(), wild.repeat(CHUNK, 1))
        chunk[..., :2] = np.clip(chunk[..., :2] + 0.1 * rng.normal(size=(episodes, CHUNK, 2)), -1, 1)
        begun, features, phi = ~world.won, world.features(), world.potential()
        valid, reward = np.zeros((episodes, CHUNK)), np.zeros((episodes, CHUNK))
        for i in range(CHUNK):
            valid[:, i] = ~world.won
            reward[:, i] = world.step(chunk[:, i])
        rows = {
            "features": features, "later_features": world.features(), "chunk": chunk, "valid": valid, "reward": reward,
            "terminated": world.won, "phi": phi, "later_phi": world.potential(), "planned": planned,
        }  # fmt: skip
        columns.append({name: array[begun] for name, array in rows.items()})
    joined = {name: np.concatenate([column[name] for column in columns]).astype("f4") for name in columns[0]}
    return joined, float(world.won.mean())

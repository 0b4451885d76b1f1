"""Does shaping by a potential change which action chunk is best? Exact value iteration on random chunked MDPs.

Every learner here builds its targets with `lerobot_coda.value`. The sound ones (baseline and reward mode, a latched
potential whose stage is seen, a time limit that is part of the task and empties the potential) must never change the
greedy chunk policy; each violation of an assumption must change it in some, or the comparison could not fail.

    python benchmarks/invariance.py --mdps 240 --json invariance.json
"""

import argparse
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lerobot_coda.progress import rate
from lerobot_coda.value import Mode, chunk_return, chunk_target, executed_steps, head_target, shaping
from libero_pro.figures import figure, keep

GAMMA = 0.9
STATES, ACTIONS, STEPS = 6, 2, 3  # states 0 and 1 are terminal: success and failure
HORIZON = 4  # chunks, where there is a time limit
NOTICEABLE = 1e-6  # a chunk counts as another choice when it loses at least this much of the true value
Target = Callable[[Tensor], Tensor]  # value of the later states (M, S, C, K) -> target of each outcome


@dataclass(frozen=True)
class ChunkModel:
    """M MDPs as their chunks see them: each of C open-loop chunks from each of S states has K possible outcomes.

    probability, after, terminated, visits  (M, S, C, K): chance, state s', whether it is terminal, whether the way
    there touched the landmark;  reward, valid  (M, S, C, K, h): rewards and which steps ran
    """

    probability: Tensor
    after: Tensor
    terminated: Tensor
    visits: Tensor
    reward: Tensor
    valid: Tensor

    @property
    def states(self) -> int:
        return self.after.shape[1]

    @property
    def chunk_reward(self) -> Tensor:
        """R of each outcome, (M, S, C, K)."""
        rewards, valid = self.reward.flatten(0, -2), self.valid.flatten(0, -2)
        return chunk_return(rewards, valid, GAMMA).view(self.after.shape)

    @property
    def tau(self) -> Tensor:
        """Executed steps of each outcome, (M, S, C, K)."""
        return executed_steps(self.valid.flatten(0, -2)).view(self.after.shape)

    def ends(self, phi: Tensor) -> tuple[Tensor, Tensor]:
        """Phi at s and at s' of each outcome; phi is (M, S)."""
        return phi[:, :, None, None].expand(self.after.shape), self.later(phi)

    def later(self, value: Tensor) -> Tensor:
        """A function of the state (M, S) at s' of each outcome."""
        return value.gather(1, self.after.flatten(1)).view(self.after.shape)

    def expected(self, outcome: Tensor) -> Tensor:
        """Mean over the outcomes: (M, S, C, K) -> (M, S, C)."""
        return (self.probability * outcome).sum(-1)


def random_model(rng: np.random.Generator) -> ChunkModel:
    """One MDP: two successors for each action, two terminals, a landmark, and a state that interrupts chunks.

    A chunk is run open loop to its end, to a terminal, or to the interrupting state, where one re-plans.
    """
    successors = rng.integers(STATES, size=(STATES, ACTIONS, 2))
    chance = rng.uniform(0.1, 0.9, size=(STATES, ACTIONS))
    reward = 0.1 * rng.normal(size=(STATES, ACTIONS))
    bonus = np.array([1.0, -0.5, *np.zeros(STATES - 2)])  # reward of reaching success or failure
    interrupting, landmark = 2, 3
    chunks, branches = list(product(range(ACTIONS), repeat=STEPS)), list(product(range(2), repeat=STEPS))
    shape = (STATES, len(chunks), len(branches))
    probability, rewards, valid = np.zeros(shape), np.zeros((*shape, STEPS)), np.zeros((*shape, STEPS))
    after, terminated, visits = np.zeros(shape, int), np.zeros(shape), np.zeros(shape)
    for index in np.ndindex(shape):
        state, likely = index[0], 1.0
        for step, (action, branch) in enumerate(zip(chunks[index[1]], branches[index[2]], strict=True)):
            likely *= chance[state, action] if branch == 0 else 1 - chance[state, action]
            following = int(successors[state, action, branch])
            rewards[(*index, step)] = reward[state, action] + bonus[following]
            valid[(*index, step)] = 1.0
            state = following
            visits[index] = max(visits[index], state == landmark)
            if state <= 1 or state == interrupting:
                likely *= 0.5 ** (STEPS - 1 - step)  # the branches not taken share this outcome
                break
        probability[index], after[index], terminated[index] = likely, state, state <= 1
    arrays = (probability, after, terminated, visits, rewards, valid)
    return ChunkModel(*(torch.from_numpy(array) for array in arrays))


def stack(models: list[ChunkModel]) -> ChunkModel:
    """Many MDPs along a new first axis."""
    return ChunkModel(*(torch.stack([vars(model)[name] for model in models]) for name in vars(models[0])))


def latched(model: ChunkModel) -> ChunkModel:
    """The same MDPs on states (s, m), numbered s + S m; m turns 1 where the landmark is touched and stays 1."""
    after = torch.cat([model.after + model.states * model.visits.long(), model.after + model.states], 1)
    doubled = {name: torch.cat([array, array], 1) for name, array in vars(model).items()}
    return ChunkModel(**{**doubled, "after": after})


# --- learners: exact fixed points of the product's own targets ------------------------------------------------------


def solve(model: ChunkModel, target: Target, share: Tensor | None = None) -> Tensor:
    """Q(s, c) by value iteration, (M, S, C). `share` (M, 2, S) of m given s: a learner that does not see the latch."""
    value = torch.zeros(model.after.shape[:2], dtype=torch.float64)
    while True:
        q = model.expected(target(model.later(value)))
        if share is not None:  # one number for (s, 0) and (s, 1): their mean over visits
            halves = torch.stack(q.chunk(2, 1), 1)
            q = (share[..., None] * halves).sum(1).repeat(1, 2, 1)
        following = q.amax(-1)
        if (following - value).abs().max() < 1e-12:
            return q
        value = following


def solve_horizon(model: ChunkModel, target: Target, last_target: Target) -> Tensor:
    """Q of each of HORIZON decisions, (M, HORIZON S, C); the last one's outcomes have `last_target`."""
    value, tables = torch.zeros(model.after.shape[:2], dtype=torch.float64), []
    for decision in range(HORIZON):
        q = model.expected((last_target if decision == 0 else target)(model.later(value)))
        tables.append(q)
        value = q.amax(-1)
    return torch.cat(tables, 1)


def learn(model: ChunkModel, phi: Tensor, mode: Mode, terminated: Tensor | None = None) -> Target:
    """The product's target of V_theta in `mode`."""
    (here, there), reward, tau = model.ends(phi), model.chunk_reward, model.tau
    ended = model.terminated if terminated is None else terminated
    return lambda later: head_target(reward, here, there, later, tau, ended, GAMMA, mode)


def learn_wrongly(
    model: ChunkModel,
    phi: Tensor,
    *,
    tau: Tensor | None = None,
    shaping_terminated: Tensor | None = None,
    later_phi: Tensor | None = None,
    terminated: Tensor | None = None,
) -> Target:
    """A target whose F has another exponent, keeps Phi at terminals, or takes the later end from another version."""
    (here, there), executed = model.ends(phi), model.tau
    if later_phi is not None:
        there = model.later(later_phi)
    ended = model.terminated if terminated is None else terminated
    emptied = ended if shaping_terminated is None else shaping_terminated
    shaped = model.chunk_reward + shaping(here, there, executed if tau is None else tau, emptied, GAMMA)
    return lambda later: chunk_target(shaped, later, executed, ended, GAMMA)


def visit_share(model: ChunkModel) -> Tensor:
    """Share of m given s among the visits of the uniform chunk policy from a uniform start with m = 0, (M, 2, S)."""
    start = torch.zeros(model.after.shape[:2], dtype=torch.float64)
    start[:, : model.states // 2] = 1.0
    visits = start
    weight = model.probability * (1 - model.terminated) / model.after.shape[2]
    for _ in range(60):
        flow = (0.95 * visits[:, :, None, None] * weight).flatten(1)
        visits = start + torch.zeros_like(start).scatter_add_(1, model.after.flatten(1), flow)
    halves = torch.stack(visits.chunk(2, 1), 1)
    return halves / halves.sum(1, keepdim=True)


def changed(true: Tensor, learned: Tensor) -> Tensor:
    """Which MDPs have a state where the learned greedy chunk is truly worse than the best: (M, S, C) twice -> (M,)."""
    chosen = true.gather(-1, learned.argmax(-1, keepdim=True))[..., 0]
    return (true.amax(-1) - chosen > NOTICEABLE).any(-1)


@dataclass(frozen=True)
class Outcome:
    """How many of n MDPs changed their greedy chunk policy, for each sound learner and for each violation."""

    n: int
    sound: dict[str, int]
    violated: dict[str, int]
    sound_any: int
    gap: float  # largest |Q_theta + Phi - Q| of the sound learners: they are equal, not just ordered alike


def run(mdps: int = 240, seed: int = 0, scale: float = 1.0) -> Outcome:
    """Solves `mdps` random MDPs with random potentials of standard deviation `scale`, soundly and with violations."""
    rng = np.random.default_rng(seed)
    model = stack([random_model(rng) for _ in range(mdps)])
    phi, other = (torch.from_numpy(scale * rng.normal(size=(mdps, STATES))) for _ in range(2))
    zero, never = torch.zeros_like(phi), torch.zeros_like(model.terminated)
    always = torch.ones_like(never)
    true = solve(model, learn(model, zero, "reward"))
    sound, gap = {}, 0.0
    for mode in ("baseline", "reward"):
        q = solve(model, learn(model, phi, mode))
        sound[mode] = changed(true, q)
        gap = max(gap, (q + phi[..., None] - true).abs().max().item())

    wide = latched(model)
    latch_phi = torch.cat([phi, other], 1)  # Phi(s, m): what it says depends on the history
    wide_true = solve(wide, learn(wide, torch.zeros_like(latch_phi), "reward"))
    sound["latch seen"] = changed(wide_true, solve(wide, learn(wide, latch_phi, "baseline")))

    limit_true = solve_horizon(model, learn(model, zero, "reward"), learn(model, zero, "reward", always))
    shaped, shaped_last = learn(model, phi, "baseline"), learn(model, phi, "baseline", always)
    sound["limit as terminal"] = changed(limit_true, solve_horizon(model, shaped, shaped_last))

    kept_last = learn_wrongly(model, phi, terminated=always, shaping_terminated=model.terminated)
    violated = {
        "discount once, not to the power tau": changed(
            true, solve(model, learn_wrongly(model, phi, tau=torch.ones_like(model.tau)))
        ),
        "exponent of the whole chunk, not tau": changed(
            true, solve(model, learn_wrongly(model, phi, tau=torch.full_like(model.tau, STEPS)))
        ),
        "potential kept at terminals": changed(true, solve(model, learn_wrongly(model, phi, shaping_terminated=never))),
        "latch hidden from the critic": changed(
            wide_true, solve(wide, learn(wide, latch_phi, "baseline"), visit_share(wide))
        ),
        "time limit without bootstrap, potential kept": changed(
            limit_true, solve_horizon(model, learn(model, phi, "reward"), kept_last)
        ),
        "two versions in one chunk": changed(true, solve(model, learn_wrongly(model, phi, later_phi=other))),
    }
    return Outcome(
        n=mdps,
        sound={name: int(rows.sum()) for name, rows in sound.items()},
        violated={name: int(rows.sum()) for name, rows in violated.items()},
        sound_any=int(torch.stack(list(sound.values())).any(0).sum()),
        gap=gap,
    )


def rows(outcome: Outcome, command: str) -> list[dict]:
    """The outcome as figure rows: `invariance_changed`, then one row a violation."""
    counts = {"invariance_changed": outcome.sound_any}
    counts |= {f"invariance_violated: {name}": count for name, count in outcome.violated.items()}
    made = []
    for name, count in counts.items():
        found = rate(count, outcome.n)
        share = {"ratio": round(found.rate, 4), "low": round(found.low, 4), "high": round(found.high, 4)}
        made.append(figure(name, count, "MDPs changed", command, n=outcome.n, **share))
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--mdps", type=int, default=240)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the figures there")
    arguments = parser.parse_args()
    outcome = run(arguments.mdps, arguments.seed)
    print(f"greedy chunk policies changed by shaping, of {outcome.n} random MDPs")
    for name, count in outcome.sound.items():
        print(f"  sound     {name:48s} {count:4d}")
    for name, count in outcome.violated.items():
        print(f"  violated  {name:48s} {count:4d}")
    print(f"largest |Q_theta + Phi - Q| of the sound learners: {outcome.gap:.1e}")
    if arguments.json:
        command = shlex.join(["python", "benchmarks/invariance.py", *sys.argv[1:]])
        keep(arguments.json, rows(outcome, command))


if __name__ == "__main__":
    main()

"""Does a potential help? Advantage-weighted cloning of the same stored episodes with and without it, paired over seeds.

Both arms learn a critic (`ChunkCritic`) and clone every stored chunk with the weight of its advantage; they differ in
Phi alone (0 in the arm without), and in how fast the target heads follow: how far a reward reaches back within the
steps of training hangs on it. So each arm gets the decay that served it best on tuning seeds, and the gain is measured
on others; beside it stands the gain where both have the policy's default decay. Plain cloning, which imitates failures
as well, is the third arm. Two tasks:

    pick and carry   a small chunked control task; every seed draws new episodes of mixed quality
    LIBERO           stored rollouts of a policy (--episodes FOLDER), of which every seed draws half; privileged
                     features, Text2potential's own plan; the clones are rolled out in the simulator on one task's
                     released starts. In a pilot (one seed each, 326 episodes, 71 successes) no arm solved anything
                     after 600 steps of training, and all did after 2,000: 1,000 leave room to differ

Beside success, two offline measures: how well the advantage tells good chunks from bad ones, and in LIBERO how far the
clone's answers are from the scripted expert's in episodes that were not drawn.

    python benchmarks/text2potential_learning.py --json learning.json
    python benchmarks/text2potential_learning.py --seeds 0 --episodes runs/libero_object/rollouts
"""

import argparse
import shlex
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from libero_chunks import Starts, read
from pick_and_carry import CHUNK, LIMIT, PickAndCarry, stored_chunks
from scipy import stats
from torch import Tensor, nn

from lerobot_coda.chunk_critic import ChunkCritic, ChunkCriticConfig, ChunkTransition
from lerobot_coda.configuration_coda import CodaConfig
from lerobot_coda.potential.acceptance import auc
from lerobot_coda.value import advantage_weights
from libero_pro.figures import figure, keep

Arm = Literal["cloning", "without", "with"]
ARMS: tuple[Arm, ...] = ("cloning", "without", "with")
TEMPERATURE, CLIP = 0.3, 20.0  # of advantages in units of their standard deviation, so that both arms choose as sharply
BATCH, HIDDEN, RATE = 128, 64, 3e-3
DECAYS = (0.8, 0.9, 0.97, 0.99)  # of the target heads
DEFAULT = CodaConfig.value_target_decay
TUNING = range(1000, 1002)  # seeds that choose the decay, and count for nothing else
SUCCESS, ERROR = "success rate", "difference from the expert"
AUC = "AUC of the advantage"  # and of which chunks it should be higher
Trial = Callable[[Arm, int, float], dict[str, float]]  # arm, seed, target decay -> the measures that the task has


class ChunkCloner(nn.Module):
    """Features (B, F) -> chunk (B, h, A); the last action is a gripper's and comes as a logit."""

    def __init__(self, features: int, horizon: int, actions: int, hidden: int):
        super().__init__()
        self.shape = (horizon, actions)
        self.net = nn.Sequential(
            nn.Linear(features, hidden), nn.GELU(), nn.Linear(hidden, hidden), nn.GELU(),
            nn.Linear(hidden, horizon * actions),
        )  # fmt: skip

    def forward(self, features: Tensor) -> Tensor:
        return self.net(features).unflatten(-1, self.shape)

    @torch.no_grad()
    def act(self, features: np.ndarray) -> np.ndarray:
        """Chunks (B, h, A) in [-1, 1] with the gripper at -1 or 1."""
        chunk = self(torch.from_numpy(features))
        gripper = torch.where(chunk[..., -1:] > 0, 1.0, -1.0)
        return torch.cat([chunk[..., :-1].clamp(-1, 1), gripper], -1).numpy()


def cloning_loss(predicted: Tensor, chunk: Tensor, valid: Tensor) -> Tensor:
    """L1 of the arm and cross-entropy of the gripper over the steps that ran, (B,)."""
    arm = F.l1_loss(predicted[..., :-1], chunk[..., :-1], reduction="none").mean(-1)
    closed = (chunk[..., -1] > 0).float()
    gripper = F.binary_cross_entropy_with_logits(predicted[..., -1], closed, reduction="none")
    return ((arm + 0.1 * gripper) * valid).sum(-1) / valid.sum(-1).clamp_min(1.0)


class Learned(NamedTuple):
    """The clone, and the advantage of each chunk (n,) under the critic at the end of training."""

    cloner: ChunkCloner
    advantage: np.ndarray


def learn(
    columns: dict[str, Tensor], arm: Arm, seed: int, steps: int, *, gamma: float, hidden: int, decay: float
) -> Learned:
    """Clones the chunks; in the arms with a critic each by the weight of its advantage, critic and clone together."""
    torch.manual_seed(seed)
    if arm == "without":
        columns = columns | {name: torch.zeros_like(columns[name]) for name in ("phi", "later_phi")}
    (rows, features), (_, horizon, actions) = columns["features"].shape, columns["chunk"].shape
    cloner = ChunkCloner(features, horizon, actions, hidden)
    critic = ChunkCritic(
        ChunkCriticConfig(features, horizon, actions, gamma=gamma, bins=51, hidden=hidden, use_q=False)
    )
    optimizer = torch.optim.Adam([*cloner.parameters(), *critic.online.parameters()], lr=RATE)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, steps)
    order = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        drawn = torch.randint(rows, (BATCH,), generator=order)
        batch = {name: column[drawn] for name, column in columns.items()}
        loss, weights = torch.zeros(()), torch.ones(BATCH)
        if arm != "cloning":
            judged = critic.loss(ChunkTransition(**batch))
            loss = judged.loss
            spread = judged.advantage.std().clamp_min(1e-6)
            weights = advantage_weights(judged.advantage / spread, TEMPERATURE, CLIP)
        loss = loss + (weights * cloning_loss(cloner(batch["features"]), batch["chunk"], batch["valid"])).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        critic.update_targets(decay)
    with torch.no_grad():
        return Learned(cloner, critic.loss(ChunkTransition(**columns)).advantage.numpy())


@dataclass(frozen=True)
class Comparison:
    """Measures by seed of each arm at each decay that it was run with, and success by decay on the tuning seeds."""

    measured: dict[tuple[Arm, float], list[dict[str, float]]]
    tuned: dict[Arm, dict[float, float]]

    def decay(self, arm: Arm) -> float:
        """The one with which the arm did best on the tuning seeds."""
        rates = self.tuned.get(arm, {DEFAULT: 0.0})
        return max(rates, key=rates.__getitem__)

    def of(self, measure: str, arm: Arm, decay: float | None = None) -> list[float]:
        """A measure by seed, at the arm's best decay or another."""
        return [found[measure] for found in self.measured[arm, decay or self.decay(arm)]]

    @property
    def measures(self) -> list[str]:
        """What was measured; success comes first."""
        return list(next(iter(self.measured.values()))[0])


def compare(trial: Trial, seeds: int) -> Comparison:
    """Chooses each arm's decay on the tuning seeds, and measures the arms on the same `seeds` others."""
    found = Comparison({}, {"without": {}, "with": {}})
    for arm, rates in found.tuned.items():
        for decay in DECAYS:
            rates[decay] = float(np.mean([trial(arm, seed, decay)[SUCCESS] for seed in TUNING]))
            print(f"  tuning: {arm:8s} decay {decay:4.2f}  {rates[decay]:.3f}", flush=True)
    for arm in ARMS:
        for decay in sorted({found.decay(arm), DEFAULT}):
            found.measured[arm, decay] = [trial(arm, seed, decay) for seed in range(seeds)]
            for measure in found.measures:
                values = found.of(measure, arm, decay)
                listed = f"{np.mean(values):.3f}  of " + " ".join(f"{value:.2f}" for value in values)
                print(f"  {arm:8s} decay {decay:4.2f}  {measure:36s} {listed}", flush=True)
    return found


# --- the two tasks ------------------------------------------------------------------------------------------------


def pick_and_carry(episodes: int, skill: float, steps: int) -> Trial:
    """Each seed has its own stored episodes; success on 400 starts."""

    def trial(arm: Arm, seed: int, decay: float) -> dict[str, float]:
        stored, _ = stored_chunks(episodes, skill, np.random.default_rng(seed))
        planned = stored.pop("planned") > 0  # which chunks were good is for no learner to know
        columns = {name: torch.from_numpy(array) for name, array in stored.items()}
        cloner, advantage = learn(columns, arm, seed, steps, gamma=0.97, hidden=HIDDEN, decay=decay)
        world = PickAndCarry(400, np.random.default_rng(10_000 + seed))
        for _ in range(LIMIT // CHUNK):
            for action in cloner.act(world.features()).swapaxes(0, 1):
                world.step(action)
        return {SUCCESS: float(world.won.mean()), f"{AUC}, planned": auc(advantage[planned], advantage[~planned])}

    return trial


def libero(folder: Path, task: str, share: float, starts: int, steps: int, horizon: int) -> Trial:
    """Each seed draws a share of the stored episodes, and released starts of one task to roll the clone out on.

    Raises RecordError for a folder without episodes.
    """
    stored = read(folder)
    apart, count = stored.apart, len(stored.success)
    known = np.isfinite(apart)
    suite, _, task_id = task.partition(":")
    world = Starts(suite, int(task_id), horizon)
    print(f"  {count} stored episodes, {stored.success.sum()} successes, {len(apart)} chunks", flush=True)

    def trial(arm: Arm, seed: int, decay: float) -> dict[str, float]:
        rng = np.random.default_rng(seed)
        drawn = np.isin(stored.episode, rng.choice(count, round(share * count), replace=False))
        columns = {name: torch.from_numpy(array[drawn]) for name, array in stored.columns.items()}
        cloner, advantage = learn(columns, arm, seed, steps, gamma=0.99, hidden=2 * HIDDEN, decay=decay)
        judged, others = drawn & known, ~drawn & known
        near, won = apart[judged] < np.median(apart[judged]), stored.success[stored.episode[judged]]
        advantage = advantage[known[drawn]]
        answers = cloner.act(stored.columns["features"][others])[:, 0]
        solved = [world.solved(cloner.act, int(start)) for start in rng.choice(world.COUNT, starts, replace=False)]
        return {
            SUCCESS: float(np.mean(solved)),
            f"{AUC}, of successes": auc(advantage[won], advantage[~won]),
            f"{AUC}, as the expert": auc(advantage[near], advantage[~near]),
            ERROR: float(np.abs(answers - stored.answer[others]).mean()),
        }

    return trial


# --- report -------------------------------------------------------------------------------------------------------


def gain(measure: list[float], peer: list[float]) -> tuple[float, float, float]:
    """Mean difference from the peer, paired over seeds, with the 95 % t interval."""
    difference = np.array(measure) - np.array(peer)
    mean = float(difference.mean())
    if len(difference) < 2 or difference.std() == 0:
        return mean, mean, mean
    low, high = stats.t.interval(0.95, len(difference) - 1, loc=mean, scale=stats.sem(difference))
    return mean, float(low), float(high)


def figure_rows(topic: str, found: Comparison, command: str) -> list[dict]:
    """The gain in points of success; the gain in every other measure; the arms' means; and what tuning saw."""
    seeds = len(next(iter(found.measured.values())))

    def gained(name: str, unit: str, scale: float, difference: tuple[float, float, float]) -> dict:
        mean, low, high = (round(scale * value, 4) for value in difference)
        peer = "the same update without a potential"
        return figure(name, mean, unit, command, peer=peer, n=seeds, low=low, high=high)

    made = []
    for measure in found.measures:
        name, unit, scale = (topic, "points", 100.0) if measure == SUCCESS else (f"{topic}: {measure}", measure, 1.0)
        made.append(gained(name, unit, scale, gain(found.of(measure, "with"), found.of(measure, "without"))))
        for arm in ARMS:
            if not measure.startswith(AUC) or arm != "cloning":  # which has no critic
                average = round(float(np.mean(found.of(measure, arm))), 4)
                made.append(figure(f"{name}, {arm}", average, measure, command, n=seeds))
    alike = gain(found.of(SUCCESS, "with", DEFAULT), found.of(SUCCESS, "without", DEFAULT))
    made.append(gained(f"{topic}: both with decay {DEFAULT}", "points", 100.0, alike))
    for arm, rates in found.tuned.items():
        for decay, rate in rates.items():
            made.append(figure(f"{topic}: tuning {arm}, decay {decay}", rate, SUCCESS, command, n=len(TUNING)))
    return made


def _report(topic: str, found: Comparison, command: str) -> list[dict]:
    rows = figure_rows(topic, found, command)
    decays = f"decay {found.decay('with')} over {found.decay('without')}"
    for row, said in ((rows[0], decays), *((row, "") for row in rows if "both with decay" in row["figure"])):
        print(f"{row['figure']}: {row['value']:+.1f} points [{row['low']:+.1f}, {row['high']:+.1f}] {said}")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--stored", type=int, default=60, help="stored episodes of pick and carry")
    parser.add_argument("--skill", type=float, default=0.2, help="share of planned chunks in them")
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--episodes", type=Path, help="folder of stored LIBERO rollouts; without it LIBERO is left out")
    parser.add_argument("--task", default="libero_object:6", help="suite:task to roll the clones out on")
    parser.add_argument("--libero-seeds", type=int, default=8)
    parser.add_argument("--libero-steps", type=int, default=1000, help="of training (default 1000)")
    parser.add_argument("--share", type=float, default=0.5, help="of the episodes that a seed draws (default 0.5)")
    parser.add_argument("--starts", type=int, default=10, help="released starts that a seed draws (default 10)")
    parser.add_argument("--horizon", type=int, default=200, help="control steps before a rollout is cut")
    parser.add_argument("--json", type=Path, help="write the figures there")
    arguments = parser.parse_args()
    if not 0 < arguments.share < 1:
        parser.error(
            f"--share must lie between 0 and 1, got {arguments.share}: clones are judged on the other episodes"
        )
    torch.set_num_threads(1)
    command, rows = shlex.join(["python", "benchmarks/text2potential_learning.py", *sys.argv[1:]]), []
    begun = time.monotonic()
    if arguments.seeds:
        print("pick and carry")
        trial = pick_and_carry(arguments.stored, arguments.skill, arguments.steps)
        rows += _report("learning_gain", compare(trial, arguments.seeds), command)
    if arguments.episodes:
        print(f"LIBERO, {arguments.task}")
        sizes = (arguments.share, arguments.starts, arguments.libero_steps, arguments.horizon)
        trial = libero(arguments.episodes, arguments.task, *sizes)
        rows += _report("learning_gain_libero", compare(trial, arguments.libero_seeds), command)
    print(f"{time.monotonic() - begun:.0f} s")
    if arguments.json:
        keep(arguments.json, rows)


if __name__ == "__main__":
    main()

"""Does a potential help? Advantage-weighted cloning of the same stored episodes with and without it, paired over seeds.

Both arms learn a critic (`ChunkCritic`) and clone every stored chunk with the weight of its advantage; they differ in
Phi alone (0 in the arm without), and in how fast the target heads follow: how far a reward reaches back within the
steps of training hangs on it. So each arm gets the decay that served it best on tuning seeds, and the gain is measured
on others. Plain cloning, which imitates failures as well, stands beside them. Two tasks:

    pick and carry   a small chunked control task; every seed draws new episodes of mixed quality
    LIBERO           stored rollouts of a policy (--episodes FOLDER), of which every seed draws some; as many steps of
                     training as a round of recipes/libero_object.yaml has; privileged features, Text2potential's own
                     plan; the clones are rolled out in the simulator on one task's released starts

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
from lerobot_coda.potential.acceptance import auc
from lerobot_coda.value import advantage_weights
from libero_pro.figures import figure, keep

Arm = Literal["cloning", "without", "with"]
ARMS: tuple[Arm, ...] = ("cloning", "without", "with")
TEMPERATURE, CLIP = 0.3, 20.0  # of advantages in units of their standard deviation, so that both arms choose as sharply
BATCH, HIDDEN, RATE = 128, 64, 3e-3
DECAYS = (0.8, 0.9, 0.97, 0.99)  # of the target heads
TUNING = range(1000, 1002)  # seeds that choose the decay, and count for nothing else
SUCCESS, AUC, ERROR = "success rate", "AUC of the advantage", "difference from the expert"
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
    """Measures by seed of each arm, each at its decay, and success by decay on the tuning seeds."""

    measured: dict[Arm, list[dict[str, float]]]
    tuned: dict[Arm, dict[float, float]]

    def decay(self, arm: Arm) -> float:
        """The one with which the arm did best on the tuning seeds."""
        return max(self.tuned[arm], key=self.tuned[arm].__getitem__)

    def of(self, measure: str, arm: Arm) -> list[float]:
        """A measure by seed."""
        return [found[measure] for found in self.measured[arm]]


def compare(trial: Trial, seeds: int) -> Comparison:
    """Chooses each arm's decay on the tuning seeds, and measures the arms on the same `seeds` others."""
    found = Comparison({}, {"without": {}, "with": {}})
    for arm, rates in found.tuned.items():
        for decay in DECAYS:
            rates[decay] = float(np.mean([trial(arm, seed, decay)[SUCCESS] for seed in TUNING]))
            print(f"  tuning: {arm:8s} decay {decay:4.2f}  {rates[decay]:.3f}", flush=True)
    for arm in ARMS:
        decay = DECAYS[0] if arm == "cloning" else found.decay(arm)
        found.measured[arm] = [trial(arm, seed, decay) for seed in range(seeds)]
        for measure in found.measured[arm][0]:
            rates = found.of(measure, arm)
            listed = " ".join(f"{rate:.2f}" for rate in rates)
            print(f"  {arm:8s} {measure:26s} mean {np.mean(rates):.3f}  of {listed}", flush=True)
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
        return {SUCCESS: float(world.won.mean()), AUC: auc(advantage[planned], advantage[~planned])}

    return trial


def libero(folder: Path, task: str, share: float, starts: int, steps: int, horizon: int) -> Trial:
    """Each seed draws a share of the stored episodes, and released starts of one task to roll the clone out on.

    Raises RecordError for a folder without episodes.
    """
    stored = read(folder)
    suite, _, task_id = task.partition(":")
    world, count = Starts(suite, int(task_id), horizon), len(stored.success)
    print(f"  {count} stored episodes, {stored.success.sum()} successes, {len(stored.episode)} chunks", flush=True)

    def trial(arm: Arm, seed: int, decay: float) -> dict[str, float]:
        rng = np.random.default_rng(seed)
        drawn = np.isin(stored.episode, rng.choice(count, round(share * count), replace=False))
        columns = {name: torch.from_numpy(array[drawn]) for name, array in stored.columns.items()}
        cloner, advantage = learn(columns, arm, seed, steps, gamma=0.99, hidden=2 * HIDDEN, decay=decay)
        known = np.isfinite(stored.apart)
        apart, others = stored.apart[drawn & known], ~drawn & known
        near, judged = apart < np.median(apart), advantage[known[drawn]]
        answers = cloner.act(stored.columns["features"][others])[:, 0]
        solved = [world.solved(cloner.act, int(start)) for start in rng.choice(world.COUNT, starts, replace=False)]
        return {
            SUCCESS: float(np.mean(solved)),
            AUC: auc(judged[near], judged[~near]),
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
    seeds, made = len(found.measured["with"]), []
    peer = "the same update without a potential"
    for measure in found.measured["with"][0]:
        scale, unit = (100, "points") if measure == SUCCESS else (1, measure)
        name = topic if measure == SUCCESS else f"{topic}: {measure}"
        mean, low, high = (
            round(scale * value, 4) for value in gain(found.of(measure, "with"), found.of(measure, "without"))
        )
        made.append(figure(name, mean, unit, command, peer=peer, n=seeds, low=low, high=high))
        for arm in ARMS:
            if measure != AUC or arm != "cloning":  # which has no critic
                average = round(float(np.mean(found.of(measure, arm))), 4)
                made.append(figure(f"{name}, {arm}", average, measure, command, n=seeds))
    for arm, rates in found.tuned.items():
        for decay, rate in rates.items():
            made.append(figure(f"{topic}: tuning {arm}, decay {decay}", rate, SUCCESS, command, n=len(TUNING)))
    return made


def _report(topic: str, found: Comparison, command: str) -> list[dict]:
    mean, low, high = gain(found.of(SUCCESS, "with"), found.of(SUCCESS, "without"))
    decays = f"decay {found.decay('with')} over {found.decay('without')}"
    seeds = len(found.measured["with"])
    print(f"{topic}: {100 * mean:+.1f} points [{100 * low:+.1f}, {100 * high:+.1f}], {seeds} paired seeds, {decays}")
    return figure_rows(topic, found, command)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--stored", type=int, default=60, help="stored episodes of pick and carry")
    parser.add_argument("--skill", type=float, default=0.2, help="share of planned chunks in them")
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--episodes", type=Path, help="folder of stored LIBERO rollouts; without it LIBERO is left out")
    parser.add_argument("--task", default="libero_object:6", help="suite:task to roll the clones out on")
    parser.add_argument("--libero-seeds", type=int, default=8)
    parser.add_argument("--libero-steps", type=int, default=600, help="of training, as a round has (default 600)")
    parser.add_argument("--share", type=float, default=0.5, help="of the episodes that a seed draws (default 0.5)")
    parser.add_argument("--starts", type=int, default=20, help="released starts that a seed draws (default 20)")
    parser.add_argument("--horizon", type=int, default=200, help="control steps before a rollout is cut")
    parser.add_argument("--json", type=Path, help="write the figures there")
    arguments = parser.parse_args()
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

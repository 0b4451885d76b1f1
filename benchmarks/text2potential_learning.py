"""Does a potential help? Advantage-weighted cloning of the same stored episodes with and without it, paired over seeds.

Both arms learn a critic (`ChunkCritic`) and clone every stored chunk with the weight of its advantage; they differ in
Phi alone (0 in the arm without), and in how fast the target heads follow: how far a reward reaches back within the
steps of training hangs on it. So both are run with each of a few decays, and the gain is that of the best decay of one
over the best of the other, on the same seeds. Plain cloning stands beside them. Two tasks:

    pick and carry   a small chunked control task; every seed draws new episodes of mixed quality
    LIBERO           stored rollouts of a policy (--episodes FOLDER), privileged features, Text2potential's own plan;
                     the clones are rolled out in the simulator on one task's released starts

    python benchmarks/text2potential_learning.py --json learning.json
    python benchmarks/text2potential_learning.py --episodes runs/libero_object/rollouts --task libero_object:6
"""

import argparse
import shlex
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from pick_and_carry import CHUNK, LIMIT, PickAndCarry, stored_chunks
from scipy import stats
from torch import Tensor, nn

from lerobot_coda.chunk_critic import ChunkCritic, ChunkCriticConfig, ChunkTransition
from lerobot_coda.potential import from_goal
from lerobot_coda.value import advantage_weights
from libero_pro.episode import Episode
from libero_pro.figures import figure, keep
from libero_pro.goals import roles
from libero_pro.record import RecordError
from libero_pro.simulator import SimulationError, Simulator
from libero_pro.suites import get_task, scene_for

Arm = Literal["cloning", "without", "with"]
ARMS: tuple[Arm, ...] = ("cloning", "without", "with")
TEMPERATURE, CLIP = 0.3, 20.0  # of advantages in units of their standard deviation, so that both arms choose as sharply
BATCH, HIDDEN, RATE = 128, 64, 3e-3
DECAYS = (0.8, 0.9, 0.97, 0.99)  # of the target heads
Trial = Callable[[Arm, int, float], float]  # arm, seed, target decay -> success rate on the same starts for all


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


def learn(
    columns: dict[str, Tensor], arm: Arm, seed: int, steps: int, *, gamma: float, hidden: int, decay: float
) -> ChunkCloner:
    """Clones the chunks; in the arms with a critic each by the weight of its advantage, critic and clone together."""
    torch.manual_seed(seed)
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
            if arm == "without":
                batch |= {name: torch.zeros(BATCH) for name in ("phi", "later_phi")}
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
    return cloner


@dataclass(frozen=True)
class Comparison:
    """Success rates by seed, of each arm with a critic at each target decay, and of plain cloning."""

    rates: dict[Arm, dict[float, list[float]]]
    cloning: list[float]

    def best(self, arm: Arm) -> float:
        """The decay with which the arm does best."""
        return max(DECAYS, key=lambda decay: np.mean(self.rates[arm][decay]))

    def success(self, arm: Arm) -> list[float]:
        """The arm's success rates at its best decay."""
        return self.cloning if arm == "cloning" else self.rates[arm][self.best(arm)]


def compare(trial: Trial, seeds: int) -> Comparison:
    """Runs every arm at every decay on the same seeds."""
    cloning = [trial("cloning", seed, DECAYS[0]) for seed in range(seeds)]
    print(f"  cloning             {_listed(cloning)}", flush=True)
    rates: dict[Arm, dict[float, list[float]]] = {"without": {}, "with": {}}
    for decay in DECAYS:
        for arm, found in rates.items():
            found[decay] = [trial(arm, seed, decay) for seed in range(seeds)]
            print(f"  {arm:8s} decay {decay:4.2f} {_listed(found[decay])}", flush=True)
    return Comparison(rates, cloning)


def _listed(rates: list[float]) -> str:
    return f"mean {np.mean(rates):.3f}  of " + " ".join(f"{rate:.2f}" for rate in rates)


# --- pick and carry -----------------------------------------------------------------------------------------------


def pick_and_carry(episodes: int, skill: float, steps: int) -> Trial:
    """Each seed has its own stored episodes; success on 400 starts."""

    def trial(arm: Arm, seed: int, decay: float) -> float:
        stored, _ = stored_chunks(episodes, skill, np.random.default_rng(seed))
        del stored["planned"]  # which chunks were good is for nobody to know
        columns = {name: torch.from_numpy(array) for name, array in stored.items()}
        cloner = learn(columns, arm, seed, steps, gamma=0.97, hidden=HIDDEN, decay=decay)
        world = PickAndCarry(400, np.random.default_rng(10_000))
        for _ in range(LIMIT // CHUNK):
            for action in cloner.act(world.features()).swapaxes(0, 1):
                world.step(action)
        return float(world.won.mean())

    return trial


# --- LIBERO -------------------------------------------------------------------------------------------------------


def privileged(
    target: np.ndarray, receptacle: np.ndarray, eef: np.ndarray, proprio: np.ndarray, held: np.ndarray
) -> np.ndarray:
    """Relative positions (units of 0.1 m), heights, hand pose, finger gap, held; (..., 15) float32."""
    gap = (proprio[..., 6] - proprio[..., 7])[..., None] * 20
    parts = [target - eef, receptacle - target, eef[..., 2:] - 1.0, target[..., 2:] - 1.0]
    turn = np.stack([np.abs(proprio[..., 3]) - np.pi, proprio[..., 4], proprio[..., 5]], -1)
    return np.concatenate([np.concatenate(parts, -1) * 10, turn, gap, held[..., None] * 1.0], -1).astype("f4")


def episode_chunks(episode: Episode, horizon: int) -> dict[str, np.ndarray]:
    """Columns of `ChunkTransition`, one row a chunk that the policy executed open loop."""
    role = roles(episode.scene.goal, episode.object_names)
    target, receptacle = (episode.object_names.index(name) for name in (role.target, role.receptacle))
    features = privileged(
        episode.object_pos[:, target], episode.object_pos[:, receptacle], episode.eef_pos, episode.proprio,
        episode.held == target,
    )  # fmt: skip
    phi = from_goal(episode.scene.goal, episode.object_names).evaluate(episode)
    ends = np.cumsum(episode.executed)
    starts = ends - episode.executed
    chunk, valid = np.zeros((len(ends), horizon, 7)), np.zeros((len(ends), horizon))
    for row, (start, end) in enumerate(zip(starts, ends, strict=True)):
        chunk[row, : end - start], valid[row, : end - start] = episode.actions[start:end], 1.0
    reward, terminated = np.zeros_like(valid), np.zeros(len(ends))
    if episode.success:
        reward[-1, episode.executed[-1] - 1] = terminated[-1] = 1.0
    return {
        "features": features[starts], "later_features": features[ends], "chunk": chunk, "valid": valid,
        "reward": reward, "terminated": terminated, "phi": phi[starts], "later_phi": phi[ends],
    }  # fmt: skip


def roll_out(simulator: Simulator, cloner: ChunkCloner, init_state_id: int, horizon: int) -> bool:
    """Whether the clone solves the task from a released start."""
    scene = scene_for(simulator.task.suite, simulator.task.task_id, init_state_id=init_state_id)
    simulator.reset(scene)
    simulator.settle()
    step = 0
    while step < horizon and not simulator.success():
        state = simulator.state()
        role = roles(state.goal, state.object_names)
        target, receptacle = (state.object_names.index(name) for name in (role.target, role.receptacle))
        features = privileged(
            state.object_pos[target], state.object_pos[receptacle], state.eef_pos, simulator.proprio(),
            np.array(state.held == target),
        )  # fmt: skip
        try:
            step += simulator.step_chunk(cloner.act(features[None])[0][: horizon - step])
        except SimulationError as error:
            raise SystemExit(f"start {init_state_id}: {error}; the comparison would count it as a failure") from None
    return simulator.success()


def libero(folder: Path, suite: str, task_id: int, starts: int, steps: int, horizon: int) -> Trial:
    """Every seed learns from the same stored episodes; success on `starts` released starts of one task.

    Raises RecordError for a folder without episodes.
    """
    paths = sorted(folder.rglob("*.npz"))
    episodes = [episode for episode in map(Episode.load, paths) if episode.invalid is None and len(episode)]
    if not episodes:
        raise RecordError(f"{folder} holds no episodes; --episodes names a folder of rollouts")
    length = int(max(episode.executed.max() for episode in episodes))
    parts = [episode_chunks(episode, length) for episode in episodes]
    columns = {name: torch.from_numpy(np.concatenate([p[name] for p in parts]).astype("f4")) for name in parts[0]}
    won = sum(episode.success for episode in episodes)
    print(f"  {len(episodes)} stored episodes, {won} successes, {len(columns['phi'])} chunks of {length}", flush=True)
    simulator = Simulator(get_task(suite, task_id))

    def trial(arm: Arm, seed: int, decay: float) -> float:
        cloner = learn(columns, arm, seed, steps, gamma=0.99, hidden=2 * HIDDEN, decay=decay)
        return float(np.mean([roll_out(simulator, cloner, start, horizon) for start in range(starts)]))

    return trial


# --- report -------------------------------------------------------------------------------------------------------


def gain(success: list[float], peer: list[float]) -> tuple[float, float, float]:
    """Points of success over the peer, paired over seeds, with the 95 % t interval."""
    points = 100 * (np.array(success) - np.array(peer))
    mean = float(points.mean())
    if len(points) < 2 or points.std() == 0:
        return mean, mean, mean
    low, high = stats.t.interval(0.95, len(points) - 1, loc=mean, scale=stats.sem(points))
    return mean, max(-100.0, float(low)), min(100.0, float(high))


def figure_rows(topic: str, found: Comparison, command: str) -> list[dict]:
    """The gain of best over best, the arms' mean success there, and the gain at each decay common to both."""

    def gain_row(name: str, success: list[float], peer: list[float]) -> dict:
        mean, low, high = (round(value, 2) for value in gain(success, peer))
        peer = "the same update without a potential"
        return figure(name, mean, "points", command, peer=peer, n=len(found.cloning), low=low, high=high)

    made = [gain_row(topic, found.success("with"), found.success("without"))]
    for arm in ARMS:
        mean = round(float(np.mean(found.success(arm))), 4)
        made.append(figure(f"{topic}: {arm}", mean, "success rate", command, n=len(found.cloning)))
    for decay in DECAYS:
        made.append(gain_row(f"{topic}: decay {decay}", found.rates["with"][decay], found.rates["without"][decay]))
    return made


def _report(topic: str, found: Comparison, command: str) -> list[dict]:
    mean, low, high = gain(found.success("with"), found.success("without"))
    decays = f"decay {found.best('with')} over {found.best('without')}"
    print(f"{topic}: {mean:+.1f} points [{low:+.1f}, {high:+.1f}], {len(found.cloning)} paired seeds, {decays}")
    return figure_rows(topic, found, command)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--stored", type=int, default=60, help="stored episodes of pick and carry")
    parser.add_argument("--skill", type=float, default=0.2, help="share of planned chunks in them")
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--episodes", type=Path, help="folder of stored LIBERO rollouts; without it LIBERO is left out")
    parser.add_argument("--task", default="libero_object:6", help="suite:task to roll the clones out on")
    parser.add_argument("--libero-seeds", type=int, default=5)
    parser.add_argument("--libero-steps", type=int, default=1000)
    parser.add_argument("--starts", type=int, default=10, help="released starts of the task")
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
        suite, _, task_id = arguments.task.partition(":")
        trial = libero(
            arguments.episodes, suite, int(task_id), arguments.starts, arguments.libero_steps, arguments.horizon
        )
        rows += _report("learning_gain_libero", compare(trial, arguments.libero_seeds), command)
    print(f"{time.monotonic() - begun:.0f} s")
    if arguments.json:
        keep(arguments.json, rows)


if __name__ == "__main__":
    main()

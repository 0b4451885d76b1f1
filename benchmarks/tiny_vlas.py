"""Tiny SmolVLA, pi0 and pi0.5 through everything: co-evolution, `kill -9`, the Hub and back, each by its command.

Of each family a random model of a few thousand parameters stands on a Hub on this machine (tests/hub_double.py). Its
own recipe, recipes/<model>_libero_pro.yaml, cut to one task and a few scenes, runs two rounds in the real simulator
with the real trainer: `lerobot-coda evolve` is killed in the middle of the second round's probe and given again,
`lerobot-coda push` brings the run to that Hub, and `lerobot-eval` plays the same episodes with the local checkpoint and
with the one that it downloads. Random weights solve nothing, before or after: what could differ are the actions, and
with them all that is seen. LeRobot is stock but for the sizes of pi0 and pi0.5 (benchmarks/tiny).

    python -m benchmarks.tiny_vlas --json results/scale.json
"""

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from rich.console import Console
from rich.table import Table
from safetensors.numpy import load_file

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "lerobot_coda"))

from hub_double import Blob, HubDouble, Repo

from benchmarks.kills import SETTLE_S, alive, children
from lerobot_coda.recipe import read_yaml
from libero_pro.figures import figure, keep
from libero_pro.record import RecordError

ROOT = Path(__file__).parents[1]
MODELS = ("smolvla", "pi0", "pi05")
TASK, EPISODES, LENGTH = 2, 4, 40  # of the evaluations: a task of libero_object, released starts 0 to 3, control steps
ROUNDS = 2
SMALL: dict[str, Any] = {
    "arm": "no-validation",  # so few pairs leave a verdict open, and nothing is trained until it is decided
    "task_ids": [TASK],
    "rounds": ROUNDS,
    "workers": 1,
    "base": {"demos_per_task": 2, "steps": 2},
    "probe": {"scenes": 4},
    "validation": {"programs": 1},
    "training": {"steps": 4},
    "budget": {"environments_per_round": 8},
    "heldout": {"suites": ["libero_object"], "episodes_per_task": 1, "frontier": 2, "profile": "fast"},
    "render": {"profile": "fast", "size": 64, "every": 4},
}
CLI = (sys.executable, "-m", "lerobot_coda.cli")
ADAPTER = Path("train") / "checkpoints" / "last" / "pretrained_model"
Arrays = list[dict[str, np.ndarray]]  # an episode each


@dataclass(frozen=True)
class Outcome:
    """What was found of one model; `before` and `after` the push: each episode's success, and all seen and done."""

    rounds: int
    programs: tuple[str, ...]
    resumed: bool
    orphans: int
    changed: tuple[int, ...]  # adapters' tensors, by each round
    before: tuple[list[bool], Arrays]
    after: tuple[list[bool], Arrays]
    learned: bool  # whether the actions are others than the base policy's
    minutes: float

    @property
    def same(self) -> bool:
        """Whether successes, and everything seen and done in every episode, agree bit for bit."""
        (won, mine), (won_after, theirs) = self.before, self.after
        pairs = list(zip(mine, theirs, strict=False))
        return won == won_after and len(won) == len(mine) == len(theirs) == EPISODES and all(
            a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a) for a, b in pairs
        )  # fmt: skip


def on_hub(hub: HubDouble, model: str, folder: Path) -> str:
    """Makes the random model and puts it on the Hub, with its vision-language model where it names one; its name."""
    from test_vla_recipes import tiny_base

    with pytest.MonkeyPatch.context() as patch:
        base = tiny_base(model, folder, patch)
    name, parts = f"ada/tiny-{model}", {f"ada/tiny-{model}": base}
    settings = base / "config.json"
    if (vlm := folder / "vlm").is_dir():
        parts[f"{name}-vlm"] = vlm
        settings.write_text(settings.read_text().replace(str(vlm), f"{name}-vlm"))
    for repo, place in parts.items():
        made = hub.repos["model", repo] = Repo("model", repo, private=True)
        made.add("a random model", {p.name: Blob(p.read_bytes(), lfs=False) for p in place.iterdir() if p.is_file()})
    return name


def write_recipes(model: str, base: str, folder: Path) -> Path:
    """The family's own recipes, cut down, in `folder`; the path of the evolve recipe."""
    import tinyvlas

    recipe = read_yaml(ROOT / "recipes" / f"{model}_libero_pro.yaml")
    train = read_yaml(ROOT / "recipes" / recipe["training"]["train"])
    own = {"backbone_path": base, "device": "cpu", "use_amp": False, "n_action_steps": tinyvlas.CHUNK}
    train["policy"] |= {**own, "optimizer_lr": 0.01}
    train |= {"batch_size": 4, "num_workers": 0}
    (folder / recipe["training"]["train"]).write_text(yaml.safe_dump(train))
    cut = {key: {**recipe[key], **value} if isinstance(value, dict) else value for key, value in SMALL.items()}
    path = folder / f"{model}.yaml"
    path.write_text(yaml.safe_dump(recipe | cut))
    return path


def environment(hub: HubDouble, home: Path) -> dict[str, str]:
    """For the commands: the Hub of this machine, a Hugging Face home of their own, and tiny pi0 and pi0.5."""
    path = [str(ROOT / "benchmarks" / "tiny"), os.environ.get("PYTHONPATH", "")]
    return {
        **{name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"},
        "HF_ENDPOINT": hub.endpoint,
        "HF_TOKEN": "hf_ada",
        "HF_HOME": str(home),
        "HF_HUB_DISABLE_XET": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": os.pathsep.join(part for part in path if part),
    }


def run(line: Sequence[str], env: Mapping[str, str], log: Path) -> None:
    """Runs a command to its end; RecordError where it fails."""
    with log.open("ab") as out:
        code = subprocess.run(line, env=env, stdout=out, stderr=subprocess.STDOUT, check=False).returncode
    if code:
        raise RecordError(f"{shlex.join(line[:4])} ended with code {code}; its log is {log}")


def killed(line: Sequence[str], env: Mapping[str, str], log: Path, output: Path) -> int:
    """Starts the run and ends it by SIGKILL when the second round's probe has played an episode; orphans it left."""
    scenes, played = output / "rounds" / "002" / "steps" / "probe scenes.json", -1
    with log.open("ab") as out:
        process = subprocess.Popen(line, env=env, stdout=out, stderr=subprocess.STDOUT)
        while process.poll() is None:
            episodes = sum(1 for _ in output.glob("rollouts/*/*.npz"))
            if scenes.exists():
                played = episodes if played < 0 else played
                if episodes > played:
                    family = children(process.pid)
                    os.kill(process.pid, signal.SIGKILL)
                    process.wait()
                    time.sleep(SETTLE_S)
                    return len(alive(family))
            time.sleep(0.1)
    raise RecordError(f"the run ended with code {process.returncode} before it could be killed; its log is {log}")


def finished_steps(output: Path) -> dict[Path, bytes]:
    """The records of a run's finished steps, and the adapters that were trained in them."""
    found = [*output.glob("**/steps/*.json"), *output.glob(f"**/{ADAPTER}/adapter_model.safetensors")]
    return {path: path.read_bytes() for path in found}


def evaluate(
    policy: str | Path, env: Mapping[str, str], out: Path, episodes: int = EPISODES
) -> tuple[list[bool], Arrays]:
    """`lerobot-eval` of a checkpoint: its success list, and each episode's actions and observations."""
    settings = {
        "policy.path": policy, "policy.device": "cpu", "env.type": "libero_pro", "env.task": "libero_object",
        "env.task_ids": f"[{TASK}]", "env.observation_height": 64, "env.observation_width": 64,
        "env.render_profile": "fast", "env.episode_length": LENGTH, "eval.n_episodes": episodes,
        "eval.batch_size": 1, "output_dir": out,
    }  # fmt: skip
    stock, kept = str(Path(sys.executable).with_name("lerobot-eval")), out.with_name(f"{out.name}-kept")
    line = [stock, *(f"--{key}={value}" for key, value in settings.items())]
    run(line, {**env, "TINY_VLAS_KEPT": str(kept)}, out.with_suffix(".log"))
    info = json.loads((out / "eval_info.json").read_text(encoding="utf-8"))
    successes = [bool(won) for task in info["per_task"] for won in task["metrics"]["successes"]]
    return successes, [dict(np.load(path)) for path in sorted(kept.glob("*.npz"))]


def through(model: str, folder: Path) -> Outcome:
    """Takes one model all the way."""
    began = time.monotonic()
    folder.mkdir(parents=True)
    output, log = folder / "run", folder / "evolve.log"
    with HubDouble() as hub:
        base = on_hub(hub, model, folder)
        recipe = write_recipes(model, base, folder)
        line = [*CLI, "evolve", str(recipe), "--output", str(output), "--quiet"]
        env = environment(hub, folder / "home")
        orphans = killed(line, env, log, output)
        done = finished_steps(output)
        run(line, env, log)  # goes on
        summary = json.loads((output / "summary.json").read_text(encoding="utf-8"))
        again = finished_steps(output)
        resumed = bool(summary["finished"]) and all(again.get(path) == data for path, data in done.items())

        name = f"ada/{model}-milk"
        run([*CLI, "push", str(output), "--repo", name], env, folder / "push.log")
        states = [output / "base", *(output / "rounds" / f"{number:03d}" for number in range(1, ROUNDS + 1))]
        first = evaluate(states[0] / ADAPTER, env, folder / "first", episodes=1)
        before = evaluate(states[-1] / ADAPTER, env, folder / "before")
        after = evaluate(name, environment(hub, folder / "elsewhere"), folder / "after")
    adapters = [load_file(state / ADAPTER / "adapter_model.safetensors") for state in states]
    return Outcome(
        rounds=sum(report["checkpoint_after"] != report["checkpoint_before"] for report in summary["rounds"]),
        programs=tuple(p["name"] for report in summary["rounds"] for p in report["programs"] if p["decision"]),
        resumed=resumed,
        orphans=orphans,
        changed=tuple(
            sum("lora_" in key and not np.array_equal(old[key], new[key]) for key in old)
            for old, new in pairwise(adapters)
        ),
        before=before,
        after=after,
        learned=not np.array_equal(first[1][0]["action"], before[1][0]["action"]),
        minutes=(time.monotonic() - began) / 60,
    )


def rows(model: str, found: Outcome, told: str) -> list[dict[str, Any]]:
    """Its figures."""
    after = {"peer": "the checkpoint before the push", "n": len(found.after[0])}
    return [
        figure(f"vla_evolve_rounds_{model}", found.rounds, "rounds that trained", told, n=ROUNDS),
        figure(f"vla_resumed_{model}", int(found.resumed), "1 if kill -9 undid no finished step", told, n=1),
        figure(f"vla_adapters_changed_{model}", int(all(found.changed)), "1 if by each round", told, n=ROUNDS),
        figure(f"vla_same_after_push_{model}", int(found.same), "1 if all is the same bit for bit", told, **after),
    ]


def show(outcomes: Mapping[str, Outcome]) -> None:
    """One column a model."""
    table, found = Table("", *outcomes), list(outcomes.values())
    lines = {
        "rounds that trained": [f"{o.rounds} of {ROUNDS}" for o in found],
        "programs": [", ".join(o.programs) for o in found],
        "went on after kill -9": [o.resumed for o in found],
        "processes left by the kill": [o.orphans for o in found],
        "adapter tensors changed": [", ".join(map(str, o.changed)) for o in found],
        "other actions than the base policy's": [o.learned for o in found],
        "solved before the push": [f"{sum(o.before[0])} of {len(o.before[0])}" for o in found],
        "solved after the push": [f"{sum(o.after[0])} of {len(o.after[0])}" for o in found],
        "actions after the push": [sum(a["action"].shape[1] for a in o.after[1]) for o in found],
        "all seen and done the same": [o.same for o in found],
        "minutes": [f"{o.minutes:.1f}" for o in found],
    }
    for name, values in lines.items():
        table.add_row(name, *map(str, values))
    Console().print(table)
    if not any(won for o in found for won in (*o.before[0], *o.after[0])):
        print("All episodes fail, as random weights must: the success lists agree because the actions do.")


def main(argv: Sequence[str] | None = None) -> int:
    """Prints and writes rows; 1 where a figure is not what it must be, 2 with one sentence where a command failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--work", type=Path, metavar="FOLDER", help="new folder that keeps the runs (default: none)")
    parser.add_argument("--json", type=Path, help="file for the figures")
    arguments = parser.parse_args(argv)
    told = shlex.join(["python", "-m", "benchmarks.tiny_vlas", *(sys.argv[1:] if argv is None else argv)])
    outcomes: dict[str, Outcome] = {}
    with tempfile.TemporaryDirectory() as temporary:
        for model in arguments.models:
            try:
                outcomes[model] = through(model, (arguments.work or Path(temporary)).absolute() / model)
            except RecordError as error:
                print(f"tiny_vlas: {model}: {error}", file=sys.stderr)
                return 2
    show(outcomes)
    found = [row for model, outcome in outcomes.items() for row in rows(model, outcome, told)]
    if arguments.json:
        keep(arguments.json, found)
    good = all(o.rounds == ROUNDS and o.resumed and all(o.changed) and o.learned and o.same for o in outcomes.values())
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())

"""Makes a checkpoint one that can be shipped: all that acts and a model card, nothing of where it was trained.

    python -m lerobot_coda.pretrained.export runs/x/base/train/checkpoints/last/pretrained_model \\
        lerobot_coda/pretrained/NAME --made-by "lerobot-coda evolve recipes/x.yaml"

`lerobot-coda model-card BENCHMARK_FOLDER lerobot_coda/pretrained/NAME/README.md` then adds measured numbers.
"""

import argparse
import json
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from libero_pro.policy_runner import LeRobotChunkPolicy, checkpoint_folder
from libero_pro.record import RecordError, write_atomically
from libero_pro.rollout import Observation

TRAINING_ONLY = ("pretrained_path", "grounding_path")  # of a configuration: where training read from
WEIGHTS = "model.safetensors"
_ELSEWHERE = re.compile(r"^(/|~|[A-Za-z]:[\\/]|file:)")  # a string that means something on one machine only


def main(argv: Sequence[str] | None = None) -> int:
    """Exports one checkpoint; 2 with one sentence if it cannot be shipped."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("checkpoint", help="checkpoint folder (.../pretrained_model)")
    parser.add_argument("target", type=Path, help="folder to make; its name is the policy's")
    parser.add_argument("--made-by", required=True, help="the command that trained it, for the card")
    arguments = parser.parse_args(argv)
    try:
        export(arguments.checkpoint, arguments.target, made_by=arguments.made_by)
    except RecordError as error:
        print(f"export: {error}", file=sys.stderr)
        return 2
    print(arguments.target)
    return 0


def export(checkpoint: str | Path, target: Path, *, made_by: str) -> None:
    """Writes configuration, weights, processors and a card into a new folder, and checks that it acts the same.

    RecordError if the target exists, the checkpoint is an adapter, a setting names a path of this machine, or the
    copy's actions differ.
    """
    source = checkpoint_folder(checkpoint)
    if target.exists():
        raise RecordError(f"{target} exists; remove it first")
    if not (source / WEIGHTS).is_file():
        raise RecordError(f"{source} has no {WEIGHTS}; merge an adapter into its base policy before it is shipped")
    settings = json.loads((source / "config.json").read_text(encoding="utf-8"))
    settings |= {name: None for name in TRAINING_ONLY if name in settings} | {"license": "apache-2.0"}
    documents = {"config.json": settings}
    for path in sorted(source.glob("policy_*processor.json")):
        documents[path.name] = json.loads(path.read_text(encoding="utf-8"))
    for name, document in documents.items():
        for field, text in _strings(document):
            if _ELSEWHERE.match(text):
                raise RecordError(f"{name}: {field} names a path of this machine, {text}; a shipped policy has none")
    made = target.with_name(f".{target.name}.part")
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir(parents=True)
    try:
        for name, document in documents.items():
            write_atomically(made / name, (json.dumps(document, indent=2) + "\n").encode())
        for path in (source / WEIGHTS, *sorted(source.glob("policy_*.safetensors"))):
            shutil.copyfile(path, made / path.name)
        _check_actions(source, made)
        write_atomically(made / "README.md", card(made, target.name, _training(source), made_by).encode())
        made.rename(target)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise


def card(checkpoint: Path, name: str, training: dict[str, Any], made_by: str) -> str:
    """The model card in Markdown with the Hub's metadata; measured numbers are added by `lerobot-coda model-card`."""
    from huggingface_hub import ModelCardData
    from safetensors import safe_open

    settings = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    with safe_open(checkpoint / WEIGHTS, framework="np") as stored:
        size = sum(int(np.prod(stored.get_slice(key).get_shape())) for key in stored.keys())  # noqa: SIM118
    cameras = [key for key, feature in settings["input_features"].items() if feature["type"] == "VISUAL"]
    resolution = settings["input_features"][cameras[0]]["shape"][-1] if cameras else 0
    data = ModelCardData(
        license="apache-2.0",
        library_name="lerobot",
        pipeline_tag="robotics",
        tags=["robotics", "lerobot", "libero", "libero-pro", "coda"],
        model_name=name,
    )
    learned = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in training.items())
    lines = [
        f"# {name}",
        "",
        "A small vision-language-action policy (`--policy.type=coda`) that comes with `lerobot_policy_coda`.",
        "",
        "| | |",
        "|---|---|",
        f"| trained parameters | {size / 1e6:.2f} million; frozen trunks: EfficientNet-Lite0, MiniLM (from packages) |",
        "| learned from | a scripted expert in fresh resets of LIBERO's own tasks; nothing of LIBERO-Pro's suites |",
        f"| made by | `{made_by}` |",
        f"| training | {learned or 'not recorded'} |",
        f"| looks at | {', '.join(f'`{key}`' for key in cameras)} at {resolution} px, and 8 numbers of state |",
        f"| acts | chunks of {settings.get('chunk_size')} steps, {settings.get('n_action_steps')} of them executed |",
        "",
        "It starts a co-evolution, and shows that a machine evaluates policies right; it is no strong policy.",
        "",
        "```bash",
        f"lerobot-eval --policy.path=$(lerobot-coda pretrained {name}) --env.type=libero_pro --env.task=libero_object",
        f"lerobot-coda benchmark --policy.path=$(lerobot-coda pretrained {name}) --output bench/{name}",
        "```",
        "",
        "License: Apache-2.0, as the weights of both trunks.",
    ]
    return "\n".join(["---", data.to_yaml(), "---", "", *lines]) + "\n"


def _training(source: Path) -> dict[str, Any]:
    """What `lerobot-train` wrote about the training: steps, batch size, seed."""
    path = source / "train_config.json"
    settings = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return {name: settings[name] for name in ("steps", "batch_size", "seed") if name in settings}


def _strings(node: Any, field: str = "") -> Iterator[tuple[str, str]]:
    """Every string of a JSON document with the dotted name of its field."""
    if isinstance(node, str):
        yield field, node
    children = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, child in children:
        yield from _strings(child, f"{field}.{key}" if field else str(key))


def _check_actions(source: Path, copy: Path) -> None:
    """RecordError unless both checkpoints answer an observation with the same chunk."""
    actions = []
    for path in (source, copy):
        policy = LeRobotChunkPolicy.from_pretrained(path)
        rng = np.random.default_rng(0)
        size = policy.image_size or 128
        images = {camera: rng.integers(0, 256, (size, size, 3), dtype=np.uint8) for camera in policy.cameras}
        state = np.array([-0.05, 0.0, 1.0, 3.1, 0.0, 0.0, 0.04, -0.04], np.float32)
        actions.append(policy.act([Observation(images, state, "pick the milk and place it in the basket", 0)]))
    if not np.array_equal(actions[0], actions[1]):
        raise RecordError(f"{source}: the exported copy acts differently; report it with this checkpoint's config.json")


if __name__ == "__main__":
    sys.exit(main())

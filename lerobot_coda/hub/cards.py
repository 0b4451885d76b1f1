"""Cards of what is pushed: where it comes from, what is in it, under which licence, how it was measured."""

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from huggingface_hub import DatasetCardData, ModelCardData

if TYPE_CHECKING:
    from lerobot_coda.hub.contents import RunFolder

_PROJECT = "lerobot-coda"
_LICENCES = """## Licences

The images show objects, robot and scenes of LIBERO and LIBERO-Pro (code and assets MIT; Liu et al. 2023) and robosuite
(MIT), simulated by MuJoCo (Apache-2.0). Trajectories come from a scripted expert and from the policies named as actors.
No frame of LIBERO's own demonstrations (CC BY 4.0) is contained.
"""


def dataset_card(
    run: "RunFolder",
    repo: str,
    tag: str,
    report: dict[str, Any] | None,
    summary: dict[str, Any],
    info: dict[str, Any],
    license: str,
) -> bytes:
    """README.md of a dataset revision.

    report   the round's, None for the base policy's demonstrations
    summary  libero_pro.json, with programs by name;  info  LeRobot's meta/info.json
    """
    data = DatasetCardData(
        license=license,
        task_categories=["robotics"],
        tags=["LeRobot", "libero-pro", _PROJECT],
        pretty_name=f"{run.about['name']}, {tag}",
        configs=[{"config_name": "default", "data_files": "data/*/*.parquet"}],
    )
    ended = f"{summary['successes']} succeed and {summary['truncated']} time out"
    look = f"{summary['size']} px, render profile {_listed(summary['profile'])}"
    counts = [
        ("episodes", f"{summary['episodes']}, of which {ended}"),
        ("frames", f"{summary['frames']} at {info['fps']} Hz"),
        ("cameras", f"{', '.join(summary['cameras'])}, {look}"),
        ("image rendered every", f"{_listed(summary['render_every'])} control steps, held in between"),
        ("robot", f"{info.get('robot_type')}, 7-D OSC deltas and gripper, 8 numbers of state"),
        ("LeRobotDataset", str(info["codebase_version"])),
    ]  # fmt: skip
    text = f"""# {run.about["name"]}, {tag}

{_origin(run, tag, report, "Demonstrations for the base policy", "What the policy of this round was trained on")}

```python
from lerobot.datasets.lerobot_dataset import LeRobotDataset
dataset = LeRobotDataset("{repo}", revision="{tag}")
```

Each tag is one complete state of the dataset; tags never move. The default branch holds the newest.

## Counts

{_table(("", ""), counts)}

{_table(("task", "episodes"), sorted(summary["tasks"].items()))}

{_table(("actor", "episodes"), summary["actors"].items())}

{_table(("scenes of the program", "episodes"), summary["programs"].items())}

Beside LeRobot's own columns: {", ".join(f"`{name}` ({width})" for name, width in summary["columns"].items())}.
Failed episodes are kept; `coda/success` in `meta/episodes` tells them apart. Their `action` is the expert's correction
where `observation.coda_executed` is 0.

{_programs(report)}{_LICENCES}
{_protocol(run)}"""
    return _card(data, text)


def model_card(
    run: "RunFolder",
    repo: str,
    tag: str,
    report: dict[str, Any] | None,
    base: str | None,
    dataset: tuple[str, str],
    license: str,
    measured: Path | None,
) -> bytes:
    """README.md of a checkpoint revision.

    base      Hub id of the adapters' base model, None for a whole checkpoint
    dataset   repository and revision of what it was trained on
    measured  a benchmark folder, whose results become a section and `model-index`
    """
    data = ModelCardData(
        model_name=f"{run.about['name']}-{tag}",
        library_name="lerobot",
        pipeline_tag="robotics",
        tags=["robotics", "lerobot", "libero-pro", _PROJECT],
        datasets=[dataset[0]],
        license=license if base is None else None,
        base_model=base,
    )
    kept = "Adapters and value heads" if base else "A whole checkpoint"
    of = f" of [{base}](https://huggingface.co/{base}), under whose licence they stand" if base else ""
    text = f"""# {run.about["name"]}, {tag}

{_origin(run, tag, report, "The base policy", "The policy after this round")}
{kept}{of}. Trained on [{dataset[0]}](https://huggingface.co/datasets/{dataset[0]}) at `{dataset[1]}`.

With LeRobot and the plugin `lerobot_policy_coda` installed:

```bash
lerobot-eval --policy.path={repo} --env.type=libero_pro --env.task=libero_object_swap
```

Each tag is one complete checkpoint; the default branch holds the newest.

{_progress(report)}{_protocol(run)}"""
    card = _card(data, text)
    if measured is None:
        return card
    from libero_pro.benchmark import load_benchmark
    from libero_pro.model_card import update_card

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "README.md"
        path.write_bytes(card)
        update_card(path, load_benchmark(measured), model_name=str(data.model_name))
        return path.read_bytes()


def report_card(run: "RunFolder", repo: str) -> bytes:
    """README.md of the static Space that shows a run's report."""
    return f"""---
title: {run.about["name"]}
sdk: static
app_file: index.html
tags: [libero-pro, {_PROJECT}]
---

The report of the {_PROJECT} run `{run.about["name"]}` (recipe {run.about["recipe_hash"]}).
""".encode()


def _origin(run: "RunFolder", tag: str, report: dict[str, Any] | None, base: str, round_: str) -> str:
    what = base if report is None else round_
    recipe = run.recipe
    return (
        f"{what}, from the {_PROJECT} run `{run.about['name']}` ({recipe.get('arm', 'coda')}, suite "
        f"`{recipe['suite']}`, seed {run.about['seed']}, recipe {run.about['recipe_hash']}), in which policy and "
        "training environments improve each other on LIBERO-Pro."
    )


def _programs(report: dict[str, Any] | None) -> str:
    if report is None or not report["programs"]:
        return ""
    rows = [
        (
            program["name"],
            program["state"],
            f"{program['difficulty']:g}",
            ", ".join(operation["op"] for operation in program["operations"]),
        )
        for program in report["programs"]
    ]
    table = _table(("program", "state", "difficulty", "operations"), rows)
    return f"## Programs\n\nTyped records, `programs/*.json`; nothing in them is executed.\n\n{table}\n\n"


def _progress(report: dict[str, Any] | None) -> str:
    frontier = (report or {}).get("frontier") or {}
    if not frontier.get("n"):
        return ""
    before, after = frontier["before"]["successes"], frontier["after"]["successes"]
    return (
        "## Progress of the round\n\nOn its generated scenes, same scenes and seeds: "
        f"{before}/{frontier['n']} before, {after}/{frontier['n']} after (exact one-sided McNemar p = "
        f"{frontier['p_value']:.2g}).\n\n"
    )


def _protocol(run: "RunFolder") -> str:
    heldout = run.recipe["heldout"]
    rows = [
        ("prompts", f"`{heldout.get('prompt_source', 'bddl')}`"),
        ("held out", f"{', '.join(heldout['suites'])}; layouts, goals and instructions of LIBERO-Pro's tests are "
                     "on a denylist that no generated scene passes"),
        ("tasks", f"`{run.recipe['suite']}` {', '.join(map(str, run.recipe['task_ids']))}"),
        ("versions", ", ".join(f"{name} {version}" for name, version in run.about["versions"].items())),
        ("started", run.about["started"]),
    ]  # fmt: skip
    return f"## Protocol\n\n{_table(('', ''), rows)}\n"


def _table(head: tuple[str, ...], rows: Any) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def _listed(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _card(data: DatasetCardData | ModelCardData, text: str) -> bytes:
    return f"---\n{data.to_yaml()}\n---\n\n{text.rstrip()}\n".encode()

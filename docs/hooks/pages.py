"""Pages made from the code at build time: commands, recipes, operations, defects, published numbers, figures.

mkdocs calls `on_files`; the tests call `pages`, so that links into generated pages are checked too.
"""

import argparse
import html
import inspect
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from docstrings import listed  # beside this file; mkdocs puts its folder on the path
from pydantic import BaseModel
from pydantic.fields import FieldInfo

ROOT = Path(__file__).parents[2]
RESULTS = ("*.md", "*.json", "*.csv", "*.yaml", "*.svg", "*.png")  # of results/, which the results' page links to


def on_files(files: Any, config: Any) -> Any:
    """Adds the generated pages, and results/ as it stands in the repository."""
    from mkdocs.structure.files import File

    for uri, text in pages().items():
        files.append(File.generated(config, uri, content=text))
    for path in result_files():
        uri = path.relative_to(ROOT).as_posix()
        files.append(File.generated(config, uri, abs_src_path=str(path)))
    return files


def pages() -> dict[str, str]:
    """Address below docs/ -> Markdown."""
    return {
        "reference/commands.md": commands(),
        "reference/recipes.md": recipes(),
        "reference/operations.md": operations(),
        "reference/defects.md": defects(),
        "reference/published.md": published(),
        "reference/figures.md": figures(),
    }


def result_files() -> list[Path]:
    """What of results/ the site holds."""
    return sorted(path for pattern in RESULTS for path in (ROOT / "results").rglob(pattern))


# --- commands ---------------------------------------------------------------------------------------------------------


def commands() -> str:
    """Every command with its options, from the parser itself."""
    lines = ["# Commands", "", "From `lerobot-coda --help` and each command's own.", ""]
    for name, parser, summary in _subparsers(whole_parser()):
        lines += [f"## {name}", "", f"{summary}.", "", "```text", parser.format_usage().strip(), "```", ""]
        lines += _options(parser)
        for verb, nested, told in _subparsers(parser):
            lines += [f"### {name} {verb}", "", f"{told}.", ""]
            lines += ["```text", nested.format_usage().strip(), "```", "", *_options(nested)]
        if parser.epilog:
            lines += ["```text", parser.epilog.strip(), "```", ""]
    return "\n".join(lines)


def whole_parser() -> argparse.ArgumentParser:
    """The parser of `lerobot-coda` with all of its commands."""
    from lerobot_coda.cli import COMMANDS

    parser = argparse.ArgumentParser(prog="lerobot-coda")
    subparsers = parser.add_subparsers(required=True)
    for command in COMMANDS:
        command.add(subparsers)
    return parser


def _subparsers(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser, str]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            told = {choice.dest: choice.help or "" for choice in action._choices_actions}
            for name, found in action.choices.items():
                yield name, found, told.get(name, "")


def _options(parser: argparse.ArgumentParser) -> list[str]:
    rows = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction | argparse._HelpAction) or action.help == argparse.SUPPRESS:
            continue
        names = ", ".join(f"`{name}`" for name in action.option_strings) or f"`{action.metavar or action.dest}`"
        known = f" One of {', '.join(map(str, action.choices))}." if action.choices else ""
        rows.append(f"| {names} | {_cell(action.help or '')}{known} |")
    return ["| argument | |", "|---|---|", *rows, ""] if rows else []


# --- records ----------------------------------------------------------------------------------------------------------


def recipes() -> str:
    """Every key of the recipes, from the models that check them."""
    from lerobot_coda.baselines import ARMS, Arm
    from lerobot_coda.critic.settings import CriticSettings
    from lerobot_coda.experiment import Experiment
    from lerobot_coda.recipe import DemosRecipe, EvolveRecipe

    lines = [
        "# Recipes",
        "",
        "An evolve recipe is a YAML file with the keys of `EvolveRecipe`; a name with a type in a table below is a "
        "block with its own keys. Train recipes are LeRobot's own (`lerobot-train --config_path`). What builds the "
        "dataset of a train recipe stands in `demos/<last part of dataset.repo_id>.yaml` beside it (`DemosRecipe`). "
        "`lerobot-coda experiment` reads an `Experiment`. A key that is unknown is refused, with the nearest one.",
        "",
    ]
    for model in _with_nested((EvolveRecipe, DemosRecipe, Experiment, CriticSettings)):
        lines += _model(model, f"## {model.__name__}")
    lines += ["## Arms", "", _doc(Arm), "", f"| arm | {' | '.join(Arm.model_fields)} |"]
    lines += [f"|---|{'---|' * len(Arm.model_fields)}"]
    lines += [f"| `{name}` | {' | '.join(_shown(value) for _, value in arm)} |" for name, arm in ARMS.items()]
    return "\n".join([*lines, ""])


def operations() -> str:
    """The operations of generation programs."""
    from libero_pro import operations as module
    from libero_pro.programs import GenerationProgram

    found = [
        model
        for _, model in inspect.getmembers(module, inspect.isclass)
        if issubclass(model, BaseModel) and {"op", "shape"} & set(model.model_fields)
    ]
    order = {name: number for number, name in enumerate(vars(module))}
    summary = inspect.cleandoc(module.__doc__ or "").partition("\n")[0]
    lines = ["# Operations", "", summary, "", *_model(GenerationProgram, "## GenerationProgram")]
    for model in sorted(found, key=lambda one: order[one.__name__]):
        lines += _model(model, f"## {model.__name__}")
    return "\n".join(lines)


def _with_nested(models: tuple[type[BaseModel], ...]) -> list[type[BaseModel]]:
    """The models and those of their fields, each once."""
    found: dict[type[BaseModel], None] = {}
    for model in models:
        found[model] = None
        nested = (field.annotation for field in model.model_fields.values())
        blocks = tuple(kind for kind in nested if inspect.isclass(kind) and issubclass(kind, BaseModel))
        found |= dict.fromkeys(_with_nested(blocks))
    return list(found)


def _model(model: type[BaseModel], heading: str) -> list[str]:
    rows = []
    for name, field in model.model_fields.items():
        if name != "schema_version":
            rows.append(f"| `{name}` | {_type(field)} | {_default(field)} | {_bounds(field)} |")
    table = ["| key | type | default | bounds |", "|---|---|---|---|", *rows, ""] if rows else []
    return [heading, "", _doc(model), "", *table]


def _doc(model: type) -> str:
    """Its docstring with aligned entries as a list."""
    return listed(inspect.cleandoc(model.__doc__ or ""))


def _type(field: FieldInfo) -> str:
    kind: Any = field.annotation
    if inspect.isclass(kind) and issubclass(kind, BaseModel):
        return f"[{kind.__name__}](#{kind.__name__.lower()})"
    name = kind.__name__ if inspect.isclass(kind) and not getattr(kind, "__args__", ()) else str(kind)
    for prefix in ("typing.", "lerobot_coda.recipe.", "lerobot_coda.", "libero_pro.operations.", "libero_pro.scene."):
        name = name.replace(prefix, "")
    return f"`{name if len(name) < 90 else name[:88] + '…'}`"


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    return "its own" if isinstance(value, BaseModel) else _shown(value)


def _bounds(field: FieldInfo) -> str:
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<", "min_length": "length ≥", "max_length": "length ≤",
             "pattern": "matches"}  # fmt: skip
    told = []
    for bound in field.metadata:
        for name, sign in signs.items():
            value = getattr(bound, name, None)
            if value is not None:
                told.append(f"{sign} `{value}`" if name == "pattern" else f"{sign} {value}")
    return ", ".join(told)


def _shown(value: Any) -> str:
    if value is None:
        return "none"
    return ("yes" if value else "no") if isinstance(value, bool) else f"`{value}`"


# --- LIBERO-Pro -------------------------------------------------------------------------------------------------------


def defects() -> str:
    """Known defects of the released tasks, as the benchmark counts them."""
    from libero_pro import defects as module

    lines = [
        "# Known defects of LIBERO-Pro's tasks",
        "",
        inspect.cleandoc(module.__doc__ or ""),
        "",
        "| where | kind | what | distorts the rate | prompt source |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {_cell(d.where())} | {d.kind} | {_cell(d.note)} | {_shown(d.distorts)} | {d.prompt_source or 'both'} |"
        for d in module.DEFECTS
    ]
    return "\n".join([*lines, ""])


def published() -> str:
    """Success rates that others published."""
    from libero_pro.published import CAVEAT, PUBLISHED
    from libero_pro.suites import AXES, BASE

    lines = ["# Published success rates", "", CAVEAT, ""]
    for axis in ("base", *AXES):
        rows = [
            f"| {row.model} | {' | '.join(_rate(row.rates, base, axis) for base in BASE)} | {row.source} |"
            for row in PUBLISHED
            if any((base, axis) in row.rates for base in BASE)
        ]
        if rows:
            lines += [f"## {axis}", "", f"| model | {' | '.join(BASE)} | source |", f"|---|{'---|' * 5}", *rows, ""]
    lines += ["`lerobot-coda compare FOLDER --published` prints these beside a benchmark of yours.", ""]
    return "\n".join(lines)


def figures() -> str:
    """Every figure under results/, with its interval and the command that makes it."""
    lines = [
        "# Figures",
        "",
        "What the files `results/*.json` hold. [Results](../results/README.md) say how to read them.",
        "",
    ]
    for path in sorted((ROOT / "results").glob("*.json")):
        rows = json.loads(path.read_text())
        lines += [f"## {path.stem}", "", "```bash", *dict.fromkeys(row["command"] for row in rows), "```", ""]
        lines += ["| figure | value | 95 % interval | n | unit | against |", f"|{'---|' * 6}"]
        for row in rows:
            known = row.get("low") is not None and row.get("high") is not None
            interval = f"{row['low']:.4g} to {row['high']:.4g}" if known else ""
            value = f"{row['value']:.4g}" if isinstance(row["value"], int | float) else row["value"]
            peer = f"{row['ratio']:.3g} x {row['peer']}" if row.get("ratio") is not None else ""
            told = (row["figure"], value, interval, row.get("n") or "", row.get("unit") or "", peer)
            lines.append(f"| {' | '.join(_cell(str(part)) for part in told)} |")
        lines.append("")
    return "\n".join(lines)


def _rate(rates: Mapping[tuple[str, str], float], base: str, axis: str) -> str:
    value = rates.get((base, axis))
    return "" if value is None else f"{100 * value:.0f} %"


def _cell(text: str) -> str:
    """Text inside a table: one line, nothing of it read as markup."""
    return html.escape(" ".join(text.split()), quote=False).replace("|", "\\|").replace("%%", "%")

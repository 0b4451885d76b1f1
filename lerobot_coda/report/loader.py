"""Reads a run folder into a RunSummary: what is there is shown, what is not is said."""

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from lerobot_coda.progress import Rate, rate
from lerobot_coda.report.gallery import exhibits, settings_of
from lerobot_coda.report.lineage import load_lineage
from lerobot_coda.report.scenemap import scene_points
from lerobot_coda.report.summary import (
    BudgetRow,
    Clip,
    Comparison,
    CurvePoint,
    DiagnosisRow,
    ProgramRow,
    RejectionRow,
    RunSummary,
    TaskRow,
)
from libero_pro.record import RecordError
from libero_pro.statistics import mcnemar

Outcome = tuple[bool, bool]  # success before, success after


def load_run(run: Path) -> RunSummary:
    """The summary of a run, finished or under way; RecordError if `run` is no run folder or a file in it is damaged."""
    run = Path(run)
    if not (run / "run.json").is_file():
        raise RecordError(
            f"{run} is no run: there is no run.json in it; give a folder that `lerobot-coda evolve` wrote"
        )
    about = _read_json(run / "run.json")
    found = _read_json(run / "summary.json") if (run / "summary.json").is_file() else {}
    missing = [] if found else ["The base policy is not finished yet, so nothing has been measured."]
    try:
        return _summarize(run, about, found, missing)
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise RecordError(
            f"{run / 'summary.json'} is damaged or of another version ({type(error).__name__}: {error});"
            f" run the same evolve command again, which rewrites it"
        ) from None


def _summarize(run: Path, about: Mapping[str, Any], found: Mapping[str, Any], missing: list[str]) -> RunSummary:
    rounds: list[Mapping[str, Any]] = found.get("rounds", [])
    frontier = found.get("frontier") or {"pairs": []}
    held_out = _held_out(run, found.get("heldout", {}), missing)
    if found and not found["finished"]:
        missing.append("The run is not finished: the frontier is that of its last round, and nothing is held out yet.")
    return RunSummary(
        name=str(about["name"]),
        status=_status(found, rounds),
        finished=bool(found.get("finished")),
        comparisons=(*_frontier(frontier["pairs"]), *held_out),
        curve=(*_held_out_curve(found.get("heldout", {}), len(rounds)), *_frontier_curve(rounds)),
        budget=tuple(_budget(found.get("usage", {}), found.get("base_usage", {}))),
        diagnosed=sum(report["diagnoses"]["made"] for report in rounds),
        diagnoses=tuple(row for report in rounds for row in _diagnoses(report)),
        programs=tuple(row for report in rounds for row in _programs(report)),
        rejections=tuple(
            RejectionRow(str(gate), int(count))
            for gate, count in sorted(found.get("rejected", {}).items(), key=lambda item: (-item[1], item[0]))
        ),
        accepted_scenes=int(found.get("accepted", 0)),
        leakage=int(found.get("leaked", 0)),
        card=tuple(_card(run, about)),
        protocol=_text(run / "heldout" / "after" / "card.md") or _text(run / "heldout" / "before" / "card.md"),
        commands=tuple(_commands(run, about, rounds)),
        clip=_clip(run, frontier["pairs"], missing),
        tasks=tuple(_tasks(run)),
        exhibits=exhibits(run, rounds, missing),
        scenes=scene_points(run, [report["round"] for report in rounds], missing),
        lineage=load_lineage(run, rounds, missing),
        missing=tuple(missing),
    )


def _status(found: Mapping[str, Any], rounds: Sequence[Any]) -> str:
    if not found:
        return "the base policy is being made"
    if not found["finished"]:
        return f"under way: {len(rounds)} round{'s are' if len(rounds) != 1 else ' is'} finished"
    ended = f"; the budget ended it {found['stopped']}" if found.get("stopped") else ""
    return f"finished after {len(rounds)} round{'s' if len(rounds) != 1 else ''}{ended}"


def _compare(name: str, held_out: bool, outcomes: Sequence[Outcome], invalid: int = 0) -> Comparison:
    before, after = [b for b, _ in outcomes], [a for _, a in outcomes]
    test = mcnemar(before, after)
    n = len(outcomes)
    return Comparison(
        name, held_out, rate(sum(before), n), rate(sum(after), n),
        gained=test.only_after, lost=test.only_before, p_value=test.p_two_sided, invalid=invalid,
    )  # fmt: skip


def _frontier(pairs: Sequence[Mapping[str, Any]]) -> list[Comparison]:
    """All scenes of the frontier together, then by program where there are several."""
    outcomes: dict[str, list[Outcome]] = {}
    for pair in pairs:
        outcomes.setdefault(str(pair["program"]), []).append((bool(pair["before"]), bool(pair["after"])))
    everything = [outcome for some in outcomes.values() for outcome in some]
    rows = [_compare("frontier", False, everything)] if everything else []
    if len(outcomes) > 1:
        rows += [_compare(f"frontier: {name}", False, some) for name, some in outcomes.items()]
    return rows


def _held_out(run: Path, rates: Mapping[str, Mapping[str, Any]], missing: list[str]) -> list[Comparison]:
    """Each suite, paired by task, released start and seed; unpaired rates where the episodes' tables are missing."""
    sides = [_episodes(run / "heldout" / when / "episodes.csv") for when in ("before", "after")]
    rows = []
    if rates and any(when in rates and side is None for when, side in zip(("before", "after"), sides, strict=True)):
        missing.append("heldout/*/episodes.csv is missing: held-out success is shown unpaired.")
    for suite in dict.fromkeys(suite for when in rates.values() for suite in when):
        if sides[0] is not None and sides[1] is not None and {"before", "after"} <= rates.keys():
            keys = [key for key in sides[0] if key[0] == suite and key in sides[1]]
            both = [(sides[0][key], sides[1][key]) for key in keys]
            valid = [(b, a) for b, a in both if b is not None and a is not None]
            rows.append(_compare(suite, True, valid, len(both) - len(valid)))
        else:
            before, after = (_rate(rates.get(when, {}).get(suite)) for when in ("before", "after"))
            rows.append(Comparison(suite, True, before, after, gained=None, lost=None, p_value=None))
    return rows


def _episodes(path: Path) -> dict[tuple[str, ...], bool | None] | None:
    """Success by (suite, task, start, seed) in a benchmark's table, None for an invalid episode; None without table."""
    if not path.is_file():
        return None
    keys = ("suite", "task_id", "init_state_id", "seed")
    with path.open(encoding="utf-8", newline="") as file:
        return {
            tuple(row[key] for key in keys): None if row["invalid"] else row["success"] == "1"
            for row in csv.DictReader(file)
        }


def _tasks(run: Path) -> Iterable[TaskRow]:
    """Each held-out task before and after; a side that is not measured yet is empty."""
    sides = [_episodes(run / "heldout" / when / "episodes.csv") or {} for when in ("before", "after")]
    for suite, task_id in sorted({(key[0], int(key[1])) for side in sides for key in side}):
        valid = [[v for k, v in side.items() if k[:2] == (suite, str(task_id)) and v is not None] for side in sides]
        before, after = (rate(sum(bool(v) for v in values), len(values)) for values in valid)
        yield TaskRow(suite, task_id, before, after)


def _rate(found: Mapping[str, Any] | None) -> Rate:
    return rate(0, 0) if found is None else Rate.parse(dict(found))


def _held_out_curve(rates: Mapping[str, Mapping[str, Any]], rounds: int) -> list[CurvePoint]:
    return [
        CurvePoint(number, f"{suite} (held out)", _rate(found))
        for when, number in (("before", 0), ("after", rounds))
        for suite, found in rates.get(when, {}).items()
    ]


def _frontier_curve(rounds: Iterable[Mapping[str, Any]]) -> list[CurvePoint]:
    """Each round has a frontier of its own, so its before and after are joined, and not with the next round's."""
    points = []
    for report in rounds:
        if report["frontier"]["n"]:
            for shift, when in ((-1, "before"), (0, "after")):
                success = _rate(report["frontier"][when])
                points.append(CurvePoint(report["round"] + shift, "frontier of the round", success, report["round"]))
    return points


def _budget(usage: Mapping[str, Any], base: Mapping[str, Any]) -> Iterable[BudgetRow]:
    if not usage:
        return
    yield BudgetRow("generated environments (probe and demonstration)", usage["environments"], "environments")
    yield BudgetRow("generated environments (validation)", usage["validation_environments"], "environments")
    yield BudgetRow("static layouts (grounding)", usage["layouts"], "layouts")
    for purpose, steps in sorted(usage["steps"].items()):
        yield BudgetRow(f"environment steps: {purpose}", steps, "steps")
    total, first = sum(usage["seconds"].values()), sum(base.get("seconds", {}).values())
    yield BudgetRow("wall time: base policy", first, "s")
    yield BudgetRow("wall time: rounds and evaluations", total - first, "s")
    yield BudgetRow("wall time: all", total, "s")


def _diagnoses(report: Mapping[str, Any]) -> Iterable[DiagnosisRow]:
    verdicts = {p["verdict"]["cluster"]: p["verdict"] for p in report["programs"] if p["verdict"]}
    for cluster in report["clusters"]:
        verdict = verdicts.get(cluster["hash"])
        yield DiagnosisRow(
            round=report["round"],
            mode=cluster["mode"],
            stage=cluster["stage"],
            causes=", ".join(f"{cause} {count}" for cause, count in cluster["causes"].items()),
            tasks=f"{cluster['suite']} {', '.join(str(task) for task in cluster['tasks'])}",
            failures=cluster["size"],
            verdict=cluster["verdict"] or "not tested",
            evidence=verdict["reason"] if verdict else "",
        )


def _programs(report: Mapping[str, Any]) -> Iterable[ProgramRow]:
    for program in report["programs"]:
        decision, verdict, measured = program["decision"], program["verdict"], program["measurement"]
        unused = program["state"] != "active"
        yield ProgramRow(
            round=report["round"],
            program=f"{program['name']} ({program['hash'][:6]})",
            operations="; ".join(_operation(operation) for operation in program["operations"]),
            difficulty=program["difficulty"],
            measured=measured["n"] if measured else 0,
            decision=decision["action"] if decision else "not used" if unused else "used",
            reason=decision["reason"] if decision else verdict["reason"] if verdict and unused else "",
        )


def _operation(operation: Mapping[str, Any]) -> str:
    settings = settings_of(operation)
    return f"{operation['op']} ({settings})" if settings else str(operation["op"])


def _card(run: Path, about: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    for key in ("arm", "seed", "recipe_hash", "started"):
        yield key.replace("_", " "), str(about[key])
    recipe = yaml.safe_load(_text(run / "recipe.yaml") or "{}") or {}
    heldout = recipe.get("heldout") or {}
    for name, value in (
        ("suite generated from", recipe.get("suite")),
        ("tasks", recipe.get("task_ids")),
        ("held-out suites", heldout.get("suites")),
        ("held-out episodes per task", heldout.get("episodes_per_task")),
        ("prompt source", heldout.get("prompt_source")),
        ("held-out rendering", heldout.get("profile")),
        ("rendering of generated scenes", recipe.get("render")),
    ):
        if value is not None:
            yield name, _words(value)
    yield "versions", _words(about["versions"])


def _words(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_words(part)}" for name, part in value.items())
    return ", ".join(str(part) for part in value) if isinstance(value, list | tuple) else str(value)


def _commands(run: Path, about: Mapping[str, Any], rounds: Iterable[Mapping[str, Any]]) -> Iterable[str]:
    yield str(about["command"])
    for folder in ("base", *(f"rounds/{report['round']:03d}" for report in rounds)):
        if (run / folder / "train.yaml").is_file():
            yield f"lerobot-train --config_path={run / folder / 'train.yaml'}"
    yield f"lerobot-coda report {run}"


def _clip(run: Path, pairs: Sequence[Mapping[str, Any]], missing: list[str]) -> Clip | None:
    """A scene that failed before, if possible one that succeeded after."""
    failed = [pair for pair in pairs if not pair["before"]]
    for pair in sorted(failed, key=lambda pair: not pair["after"]):
        before, after = run / pair["before_episode"], run / pair["after_episode"]
        if before.is_file():
            both = after.is_file()
            return Clip(
                pair["scene"], pair["instruction"], before, after if both else None, pair["after"] if both else None
            )
    if failed:
        missing.append("The episodes behind the videos are gone from rollouts/.")
    return None


def _read_json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RecordError(f"{path} cannot be read ({error}); run the same evolve command again") from None
    if not isinstance(data, dict):
        raise RecordError(f"{path} is damaged: it holds no mapping; run the same evolve command again")
    return data


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""

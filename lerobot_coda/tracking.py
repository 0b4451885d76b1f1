"""A run's numbers in trackio or Weights & Biases, under the keys that `lerobot-train` logs its own by.

`train/*` and `eval/*` are LeRobot's names (success in percent), `coda/*` is what only co-evolution has. A step is a
round; 0 is before the first.
"""

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, Protocol

from pydantic import Field

from libero_pro.record import Record, RecordError, write_atomically

Numbers = Mapping[str, float]
Track = Callable[[str, Numbers, int], None]  # what the numbers are of, the numbers, the step
TRACKED = "tracked.json"  # in the run's folder: what was logged already, so that a rerun logs nothing twice
_LOGGED = re.compile(r"\bstep:\S+ (.*)")
_NAMES = {"grdn": "grad_norm", "updt_s": "update_s", "data_s": "dataloading_s", "smp/s": "samples_per_s",
          "mem_gb": "gpu_mem_gb"}  # fmt: skip  # as LeRobot's tracker calls what its log line shortens
_UNITS = {"K": 1e3, "M": 1e6, "B": 1e9}


class TrackerSettings(Record):
    """Where a run's numbers go beside its own folder.

    mode    offline: into files on this machine;  online: to the server, whose login is the library's own affair
    entity  of wandb, the user or team;  space  of trackio, the Space that shows an online run
    """

    kind: Literal["none", "trackio", "wandb"] = "none"
    project: str = Field(default="lerobot-coda", min_length=1)
    mode: Literal["offline", "online"] = "offline"
    entity: str | None = None
    space: str | None = None


class Tracker(Protocol):
    """What both libraries offer of a run that they have begun."""

    def log(self, metrics: dict[str, Any], step: int | None = None) -> None:
        """Takes the numbers of a step."""

    def finish(self) -> None:
        """Writes out what is pending."""


@contextmanager
def tracking(
    settings: TrackerSettings, folder: Path, name: str, identity: str, config: Mapping[str, Any]
) -> Iterator[Track]:
    """Yields what takes a run's numbers; what was taken for the run in `folder` before is not logged again.

    name, identity  of the run, as people and as the tracker know it: a rerun goes on with the same one
    Raises RecordError, before anything is logged, where the library is missing or does not take the run.
    """
    if settings.kind == "none":
        yield lambda what, numbers, step: None
        return
    begin = _begin_trackio if settings.kind == "trackio" else _begin_wandb
    try:
        tracker = begin(settings, folder, name, identity, dict(config))
    except ModuleNotFoundError as error:
        raise RecordError(
            f"tracker '{settings.kind}' needs {error.name}: pip install 'lerobot_policy_coda[tracking]', or leave "
            "'tracker' out of the recipe"
        ) from None
    except RecordError:
        raise
    except Exception as error:  # the libraries' own errors: no login, no network, no such project
        reason = " ".join(str(error).split())[:200]
        raise RecordError(f"tracker '{settings.kind}' could not begin the run: {reason}") from None
    path = folder / TRACKED
    known: list[str] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []

    def track(what: str, numbers: Numbers, step: int) -> None:
        if what not in known:
            tracker.log(dict(numbers), step=step)
            known.append(what)
            write_atomically(path, json.dumps(known).encode())

    try:
        yield track
    finally:
        tracker.finish()


def round_numbers(report: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a round's report (round.json)."""
    frontier, usage = report["frontier"], report["usage"]
    found: dict[str, float] = {}
    if frontier["n"]:
        found |= {
            "eval/pc_success": 100 * frontier["after"]["rate"],
            "eval/pc_success_before": 100 * frontier["before"]["rate"],
            "eval/n_episodes": frontier["n"],
            "eval/p_value": frontier["p_value"],
            "eval/eval_s": usage["seconds"].get("measure", 0.0),
        }
    decisions = Counter(p["decision"]["action"] for p in report["programs"] if p["decision"])
    counts: dict[str, Mapping[str, float]] = {
        "diagnoses": report["diagnoses"],
        "decisions": decisions,
        "rejected": report["rejected"],
        "steps": usage["steps"],
        "seconds": usage["seconds"],
    }
    found |= {f"coda/{group}/{name}": value for group, named in counts.items() for name, value in named.items()}
    found |= {f"coda/{name}": usage[name] for name in ("environments", "validation_environments", "layouts")}
    return found | {
        "coda/clusters": len(report["clusters"]),
        "coda/programs": sum(p["state"] == "active" for p in report["programs"]),
        "coda/accepted": report["accepted"],
        "coda/leaked": report["leaked"],
    }


def heldout_numbers(rates: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Held-out success by suite, as LeRobot names the success of a group of tasks."""
    return {f"eval/{suite}/pc_success": 100 * rate["rate"] for suite, rate in rates.items() if rate["n"]}


def training_numbers(log: Path) -> dict[str, float]:
    """What `lerobot-train` logged last into `log`, by the names it tracks it under; nothing where it logged nothing."""
    if not log.is_file():
        return {}
    lines = [match.group(1) for match in _LOGGED.finditer(log.read_text(encoding="utf-8", errors="replace"))]
    found = {}
    for part in lines[-1].split() if lines else ():
        name, _, text = part.rpartition(":")
        value = _number(text)
        if name and value is not None:
            found[f"train/{_NAMES.get(name, name)}"] = value
    return found


def _number(text: str) -> float | None:
    """A number as LeRobot's log shortens it: 0.25, 7.8e-05, 30K."""
    scale = _UNITS.get(text[-1:], 1.0)
    try:
        return float(text.rstrip("KMB")) * scale
    except ValueError:
        return None


def _begin_wandb(settings: TrackerSettings, folder: Path, name: str, identity: str, config: dict[str, Any]) -> Tracker:
    os.environ.setdefault("WANDB_SILENT", "true")  # as LeRobot sets it: its lines would break into ours
    import wandb

    begun: Tracker = wandb.init(
        project=settings.project, entity=settings.entity, name=name, id=identity, resume="allow",
        dir=folder, config=config, mode=settings.mode, job_type="evolve", save_code=False,
    )  # fmt: skip
    return begun


def _begin_trackio(
    settings: TrackerSettings, folder: Path, name: str, identity: str, config: dict[str, Any]
) -> Tracker:
    elsewhere = next((key for key in ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL") if os.environ.get(key)), None)
    if settings.mode == "offline" and elsewhere:
        raise RecordError(f"{elsewhere} is set, but the recipe's 'tracker.mode' is offline; unset it, or say online")
    if settings.mode == "online" and not (settings.space or elsewhere):
        raise RecordError("an online trackio run needs a Space: set 'tracker.space' to OWNER/NAME")
    import trackio

    begun: Tracker = trackio.init(
        project=settings.project, name=f"{name}-{identity[:6]}", space_id=settings.space, config=config,
        resume="allow", embed=False, auto_log_gpu=False, auto_log_cpu=False,
    )  # fmt: skip
    return begun

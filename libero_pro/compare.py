"""Two benchmark runs, paired episode by episode: what flipped each way, and whether that can be chance."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from libero_pro.benchmark import BenchmarkResult
from libero_pro.defects import is_sound
from libero_pro.protocol import require_alike
from libero_pro.record import RecordError
from libero_pro.statistics import mcnemar

Key = tuple[str, int, int, int]  # suite, task id, released start, seed
KEY_NAMES = ("suite", "task_id", "init_state_id", "seed")


@dataclass(frozen=True)
class Paired:
    """Successes of `n` pairs in both runs, flips each way, exact two-sided McNemar p-value."""

    n: int
    first: int
    second: int
    gained: int
    lost: int
    p_value: float


@dataclass(frozen=True)
class Comparison:
    """The second run against the first.

    sound     `overall` without the episodes that a known defect distorts
    gained    episodes that only the second run solves; `lost` those that only the first one does
    unpaired  valid or not, episodes of one run that the other does not have (first, second)
    invalid   pairs left out because one of the two is invalid
    """

    overall: Paired
    sound: Paired
    per_suite: dict[str, Paired]
    gained: list[Key]
    lost: list[Key]
    unpaired: tuple[int, int]
    invalid: int


def compare(first: BenchmarkResult, second: BenchmarkResult, *, allowed: Collection[str] = ()) -> Comparison:
    """Pairs two runs by (suite, task, released start, seed).

    RecordError if their protocols differ in a setting that is compared and not `allowed` to differ, naming it, or if
    they have no episode in common.
    """
    require_alike(first.protocol, second.protocol, allowed=allowed)
    one, two = _by_key(first.rows), _by_key(second.rows)
    common = [key for key in one if key in two]
    if not common:
        raise RecordError(
            "the two runs have no episode in common: the first ran "
            f"{', '.join(first.protocol.suites)}, the second {', '.join(second.protocol.suites)}; "
            "run both over the same suites, tasks and starts"
        )
    valid = [key for key in common if not one[key]["invalid"] and not two[key]["invalid"]]
    outcomes = {key: (bool(one[key]["success"]), bool(two[key]["success"])) for key in valid}
    source = first.protocol.prompt_source
    by_suite: dict[str, list[Key]] = {}
    for key in valid:
        by_suite.setdefault(key[0], []).append(key)
    return Comparison(
        overall=_paired(outcomes, valid),
        sound=_paired(outcomes, [key for key in valid if is_sound(*key[:3], source)]),
        per_suite={suite: _paired(outcomes, keys) for suite, keys in by_suite.items()},
        gained=[key for key in valid if outcomes[key] == (False, True)],
        lost=[key for key in valid if outcomes[key] == (True, False)],
        unpaired=(len(one) - len(common), len(two) - len(common)),
        invalid=len(common) - len(valid),
    )


def _by_key(rows: Sequence[Mapping[str, Any]]) -> dict[Key, Mapping[str, Any]]:
    return {(row["suite"], row["task_id"], row["init_state_id"], row["seed"]): row for row in rows}


def _paired(outcomes: Mapping[Key, tuple[bool, bool]], keys: Sequence[Key]) -> Paired:
    before, after = [outcomes[key][0] for key in keys], [outcomes[key][1] for key in keys]
    test = mcnemar(before, after)
    return Paired(len(keys), sum(before), sum(after), test.only_after, test.only_before, test.p_two_sided)

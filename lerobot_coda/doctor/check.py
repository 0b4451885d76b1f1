"""What a check is: a function that looks at one thing and says ok, warn or fail, what it found and what to do."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import wraps
from typing import Literal, NamedTuple

Status = Literal["ok", "warn", "fail"]


class Verdict(NamedTuple):
    """What a check says; its name is added by `check`."""

    status: Status
    found: str
    remedy: str = ""


@dataclass(frozen=True)
class Finding:
    """One row of the doctor's table; `remedy` is empty where nothing needs to be done."""

    name: str
    status: Status
    found: str
    remedy: str = ""


def ok(found: str) -> Verdict:
    """All is well."""
    return Verdict("ok", found)


def warn(found: str, remedy: str) -> Verdict:
    """It works, but a result may be slower, other or less comparable than it seems."""
    return Verdict("warn", found, remedy)


def fail(found: str, remedy: str) -> Verdict:
    """A run would stop, or its numbers would be wrong."""
    return Verdict("fail", found, remedy)


def check[**Given](name: str) -> Callable[[Callable[Given, Verdict]], Callable[Given, Finding]]:
    """Makes a function a check of that name: it returns a finding, also when it raises."""

    def decorate(look: Callable[Given, Verdict]) -> Callable[Given, Finding]:
        @wraps(look)
        def named(*arguments: Given.args, **options: Given.kwargs) -> Finding:
            try:
                return Finding(name, *look(*arguments, **options))
            except Exception as error:  # whatever a broken installation or checkpoint raises is what was found
                return raised(name, error)

        return named

    return decorate


def attempt[Made](name: str, make: Callable[[], Made]) -> Made | Finding:
    """What later checks need, or the finding that says why it could not be made."""
    try:
        return make()
    except Exception as error:
        return raised(name, error)


def raised(name: str, error: Exception) -> Finding:
    """A failure to look is a failed check: the first line of the error, whose part after `;` is our own way out."""
    lines = str(error).strip().splitlines() or ["no message"]
    found, _, remedy = lines[0].partition("; ")
    kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
    return Finding(name, "fail", kind + found, remedy or "put that right and look again")


def skipped(names: tuple[str, ...], reason: str) -> Iterator[Finding]:
    """Checks that could not be made because an earlier one failed."""
    for name in names:
        yield Finding(name, "warn", "not looked at", f"put '{reason}' right first")

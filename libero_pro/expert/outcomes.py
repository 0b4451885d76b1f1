"""What became of the expert's attempts: read off the phases that it went through, so that failures have a cause."""

from collections import Counter

from libero_pro.expert.motion import Decision

OK, OUT_OF_TIME = "ok", "out of time"
SLIPPED, DROPPED, UNREACHABLE, REFUSED = "slipped", "dropped", "unreachable", "refused"
_HELD = {"lift", "sidestep", "transport", "lower", "insert", "pull", "turn", "drag"}
_AGAIN = {"approach", "descend", "rise", "back"}


class Attempts:
    """Watches decisions: closed fingers that open again have slipped, what is sought again on its way was dropped."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._phase = ""
        self._task: tuple[str, ...] = ()

    def observe(self, decision: Decision) -> None:
        """Takes note of one decision."""
        if decision.task == self._task and decision.phase in _AGAIN:
            if self._phase == "close":
                self.counts[SLIPPED] += 1
            elif self._phase in _HELD:
                self.counts[DROPPED] += 1
        self._phase, self._task = decision.phase, decision.task

    def out_of_time(self) -> str:
        """One sentence on a run that did not finish."""
        tried = ", ".join(f"{name} {count}x" for name, count in sorted(self.counts.items()))
        return f"{OUT_OF_TIME} in '{self._phase}' for {' '.join(self._task)}" + (f" ({tried})" if tried else "")

    def outcome(self, reason: str) -> str:
        """The kind of a failure that ended with `reason`: out of reach, or what happened most on the way."""
        if "reach" in reason:
            return UNREACHABLE
        if self.counts:
            return self.counts.most_common(1)[0][0]
        return OUT_OF_TIME if reason.startswith(OUT_OF_TIME) else REFUSED

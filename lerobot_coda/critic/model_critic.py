"""The critic that is a model: asks it about a cluster, within limits, and keeps what it said as evidence.

folder/critic/<cluster>/<scene>-<frames>.png   what it was shown
folder/critic/<cluster>/answer-<attempt>.txt   what it answered, cut at `KEPT` characters
folder/critic/<cluster>/review.json            what became of it; the same question is not asked again
"""

import json
import time
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple, Protocol

from lerobot_coda.critic.answer import AnswerError, one_paragraph, parse
from lerobot_coda.critic.clusters import FailureCluster
from lerobot_coda.critic.prompt import PROMPT_VERSION, Question, ask, prompt_hash
from lerobot_coda.critic.review import Clip, CriticUsage, Review
from lerobot_coda.critic.settings import CriticSettings
from libero_pro.record import RecordError, write_atomically

KEPT = 65_536  # characters of a raw answer that are stored
_FIRST_WAIT_S, _LONGEST_WAIT_S = 1.0, 60.0


class Answer(NamedTuple):
    """A model's raw text and the tokens it took."""

    text: str
    usage: CriticUsage


class NoAnswer(Exception):
    """A model or a server that did not answer; the message says why.

    final   asking again in this round would not help (no access, no such model)
    usage   tokens that it took nevertheless
    wait_s  how long the server asks to be left alone;  `raw` what it sent instead of an answer
    """

    def __init__(
        self,
        reason: str,
        *,
        usage: CriticUsage | None = None,
        final: bool = False,
        wait_s: float | None = None,
        raw: str | None = None,
    ):
        super().__init__(reason)
        self.usage = usage or CriticUsage()
        self.final, self.wait_s, self.raw = final, wait_s, raw


class Model(Protocol):
    """A back-end: something that answers a question about images. Raises only NoAnswer."""

    @property
    def name(self) -> str: ...

    def answer(self, question: Question) -> Answer: ...


def exhausted(limits: CriticSettings, spent: CriticUsage) -> str | None:
    """Why no further request may be made in a round in which `spent` was used; None if one may."""
    if spent.requests >= limits.max_requests:
        return f"the round's {limits.max_requests} requests (critic.max_requests) are used"
    if limits.max_cost is not None and spent.cost >= limits.max_cost:
        return f"the round's cost of {limits.max_cost:g} (critic.max_cost) is used"
    if limits.max_cost is not None and spent.unmetered:
        return "the server tells no token counts, so critic.max_cost cannot be kept"
    return None


class ModelCritic:
    """A model behind the critic's protocol; one is opened for each round, and its limits are for the round."""

    version = PROMPT_VERSION

    def __init__(
        self,
        model: Model,
        settings: CriticSettings,
        folder: Path,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ):
        self.usage = CriticUsage()
        self._model, self._settings, self._folder = model, settings, folder
        self._clock, self._sleep = clock, sleep
        self._asked_at = float("-inf")
        self._lost: str | None = None  # why nobody is asked any more in this round

    @property
    def name(self) -> str:
        return self._model.name

    def review(self, cluster: FailureCluster, clips: Sequence[Clip]) -> Review:
        """The model's claim about the cluster, from the first clips; invalid with the reason where it has none."""
        evidence = self._folder / "critic" / cluster.hash
        try:
            question = ask(clips[: self._settings.clips_per_cluster], state_summary=self._settings.state_summary)
            key = self._key(question)
        except (RecordError, OSError) as error:  # nothing to show: no sheet, or one that is gone
            return Review(
                cluster=cluster.hash, critic=self.name, version=self.version, prompt=prompt_hash(), invalid=str(error)
            )
        review = _stored(evidence / "review.json", key)
        if review is None:
            review = self._ask(question, key, cluster.hash, evidence)
            review.save(evidence / "review.json")
        self.usage = self.usage + review.usage
        return review

    def _ask(self, question: Question, key: str, cluster: str, evidence: Path) -> Review:
        base = Review(cluster=cluster, critic=self.name, version=self.version, prompt=prompt_hash(), question=key)
        usage, reason, raw, wait_s = CriticUsage(), None, None, _FIRST_WAIT_S
        current = question
        for attempt in range(1 + self._settings.retries):
            stop = self._stop(usage)
            if stop:
                reason = f"{reason}; {stop}" if reason else stop
                break
            self._pace()
            began = self._clock()
            try:
                answer = self._model.answer(current)
            except NoAnswer as none:
                usage, reason = usage + none.usage + self._request(began), one_paragraph(str(none), 400)
                raw = self._keep(evidence, attempt, none.raw) or raw
                if none.final:
                    self._lost = f"not asked again in this round: {reason}"
                    break
                if attempt < self._settings.retries:
                    self._sleep(min(_LONGEST_WAIT_S, max(wait_s, none.wait_s or 0.0)))
                    wait_s *= 2
                continue
            usage = usage + answer.usage + self._request(began)
            raw = self._keep(evidence, attempt, answer.text) or raw
            try:
                claim = parse(answer.text, question.known)
            except AnswerError as error:
                reason, current = f"unusable answer: {error}", question.again(str(error))
                continue
            return base.model_copy(
                update={"claim": claim, "decided": self.name if claim else "", "raw": raw, "usage": usage}
            )
        return base.model_copy(update={"invalid": reason, "raw": raw, "usage": usage})

    def _stop(self, usage: CriticUsage) -> str | None:
        """Why no further request may be made in this round; None if one may."""
        return self._lost or exhausted(self._settings, self.usage + usage)

    def _pace(self) -> None:
        """Waits until the rate limit allows another request."""
        if self._settings.requests_per_minute:
            wait_s = self._asked_at + 60.0 / self._settings.requests_per_minute - self._clock()
            if wait_s > 0:
                self._sleep(wait_s)
        self._asked_at = self._clock()

    def _request(self, began: float) -> CriticUsage:
        return CriticUsage(requests=1, seconds=round(self._clock() - began, 2))

    def _keep(self, evidence: Path, attempt: int, raw: str | None) -> str | None:
        """Stores raw text; returns its path relative to the critic's folder."""
        if raw is None:
            return None
        path = evidence / f"answer-{attempt + 1}.txt"
        kept = raw if len(raw) <= KEPT else f"{raw[:KEPT]}\n[cut after {KEPT} of {len(raw)} characters]"
        write_atomically(path, kept.encode("utf-8", "replace"))
        return str(path.relative_to(self._folder))

    def _key(self, question: Question) -> str:
        """Hash of all that an answer depends on: model, settings, words, data and images."""
        asked = sha256(json.dumps([self.name, self._settings.hash, question.text, question.schema]).encode())
        for sheet in question.sheets:
            asked.update(sheet.read_bytes())
        return asked.hexdigest()[:16]


def _stored(path: Path, key: str) -> Review | None:
    """The review of the same question, if a run that was killed left one."""
    try:
        review = Review.load(path)
    except RecordError:
        return None
    return review if review.question == key else None

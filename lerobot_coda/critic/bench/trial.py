"""A critic on trial: it gets each episode of the bench without its outcome, and its answers are kept for the score."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from lerobot_coda.critic.bench.build import BenchSet
from lerobot_coda.critic.bench.planted import Planted, blinded
from lerobot_coda.critic.bench.score import Answer
from lerobot_coda.critic.clusters import FailureCluster
from lerobot_coda.critic.diagnosis import Mode, Stage
from lerobot_coda.critic.review import Clip, Critic
from lerobot_coda.critic.sheet import with_sheets
from lerobot_coda.critic.simulator import diagnose
from libero_pro.record import RecordError

Judge = Callable[[Sequence[Planted]], Iterator[Answer]]


def simulator_judge(bench: BenchSet) -> Judge:
    """The simulator critic, which finds out from the states alone whether an episode failed."""
    return lambda items: (Answer(diagnose(blinded(bench.episode(item)))) for item in items)


def critic_judge(bench: BenchSet, critic: Critic, sheets: Path, *, frames: int, size: int, workers: int = 1) -> Judge:
    """Any critic of the protocol, asked about clusters of one episode; the sheets it sees are drawn first.

    sheets        their folder, which all critics share: a sheet that is there is not drawn again
    frames, size  instants on a sheet and pixels of an image;  workers: processes that draw
    """

    def judge(items: Sequence[Planted]) -> Iterator[Answer]:
        clusters = [_alone(item) for item in items]
        clips = {alone.hash: [Clip(blinded(bench.episode(item)))] for alone, item in zip(clusters, items, strict=True)}
        drawn = with_sheets(clips, sheets, frames=frames, size=size, workers=workers)
        for alone in clusters:
            review = critic.review(alone, drawn[alone.hash])
            yield Answer(review.claim, review.invalid)

    return judge


def _alone(item: Planted) -> FailureCluster:
    """A cluster of one episode of which nothing is said yet."""
    return FailureCluster(
        mode=Mode.MOTION,
        stage=Stage.DONE,
        suite=item.suite,
        causes={},
        tasks=(item.task_id,),
        objects=(),
        diagnoses=(item.name,),
    )


def sample(items: Sequence[Planted], limit: int | None) -> list[Planted]:
    """`limit` of the items, each cause and the successes in proportion, always the same ones; all for None."""
    if limit is None or limit >= len(items):
        return list(items)
    if limit < 1:
        raise RecordError(f"at least one episode must be judged, not {limit}")
    return [items[i * len(items) // limit] for i in range(limit)]


def judged(items: Sequence[Planted], judge: Judge, progress: Callable[[int], None] | None = None) -> list[Answer]:
    """The judge's answers, in order; `progress` is called with how many there are."""
    answers = []
    for answer in judge(items):
        answers.append(answer)
        if progress is not None:
            progress(len(answers))
    return answers

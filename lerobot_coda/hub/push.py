"""A run to the Hub: checked before work, idempotent, resumable anywhere."""

import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Self

from huggingface_hub import HfApi
from pydantic import Field, model_validator

from lerobot_coda.hub.access import check_name, check_repo, connect, create
from lerobot_coda.hub.contents import KINDS, WHAT, Place, RunFolder, What, revisions
from lerobot_coda.hub.errors import HubError, Wait, patiently
from lerobot_coda.hub.portable import check_base, local_paths
from lerobot_coda.hub.revisions import Published, Revision, follow, publish
from libero_pro.record import Record

Say = Callable[[str], None]


class Target(Record):
    """Where a run is pushed, and what of it.

    repo     NAMESPACE/NAME of datasets (as a dataset) and checkpoints (as a model); memory and report stand beside it
             as NAME-memory (a dataset) and NAME-report (a static Space)
    private  new repositories are; one that is public already is refused
    license  that the cards state
    base     Hub id of the adapters' base model, where it was a local folder
    """

    repo: str
    private: bool = True
    what: tuple[What, ...] = Field(default=WHAT, min_length=1)
    license: str = "apache-2.0"
    base: str | None = None

    @model_validator(mode="after")
    def _no_twice(self) -> Self:
        if len(set(self.what)) != len(self.what):
            raise ValueError("--what names something twice")
        return self

    @property
    def place(self) -> Place:
        """Where each kind of content goes."""
        return Place(self.repo, self.license, self.base)


def prepare(
    target: Target, name: str, recipe_hash: str, *, trains: Iterable[Mapping[str, Any]] = (), wait: Wait = time.sleep
) -> HfApi:
    """Makes sure that this run can be pushed, and makes the empty repositories; HubError says why it cannot.

    Nothing of the run is needed: `evolve --push` calls it before the first hour of work, with the train recipes.
    """
    for train in trains:
        check_base(train, target.base)
    api = connect(check_name(target.repo), wait)
    place, run = target.place, {"name": name, "recipe_hash": recipe_hash}
    there = {
        what: check_repo(api, KINDS[what], place.of(what), private=target.private, run=run, wait=wait)
        for what in target.what
    }
    for what, exists in there.items():
        if not exists:
            create(api, KINDS[what], place.of(what), private=target.private, wait=wait)
    return api


def push(folder: Path, target: Target, *, say: Say = lambda line: None, wait: Wait = time.sleep) -> list[Published]:
    """Brings every finished state of a run to the Hub, and says what became of each.

    The same call after an interruption finishes what was begun; on a Hub that has it all it changes nothing.
    HubError where the Hub or the run's content stands in the way; local files are only read.
    """
    run = RunFolder.read(folder)
    with tempfile.TemporaryDirectory() as scratch:
        planned = [(what, revisions(run, target.place, what, Path(scratch))) for what in target.what]
        there = tuple(what for what, found in planned if found)
        if not there:
            raise HubError(f"{folder} has nothing finished to push yet ({', '.join(target.what)})")
        kept = target.model_copy(update={"what": there})
        api = prepare(kept, run.about["name"], run.about["recipe_hash"], wait=wait)
        done = []
        for what, found in planned:
            if not found:
                say(f"{what}: the run has none yet")
                continue
            done += [_published(api, revision, say, wait) for revision in found]
            _follow(api, done[-1], wait)
    return done


def push_so_far(folder: Path, target: Target, *, say: Say) -> None:
    """Pushes what is finished while a run goes on; what stands in the way is told, and the run goes on.

    The next call, or `lerobot-coda push`, brings what is missing.
    """
    try:
        push(folder, target, say=say)
    except HubError as error:
        say(f"not pushed: {error}")


def _published(api: HfApi, revision: Revision, say: Say, wait: Wait) -> Published:
    if revision.kind == "model" and (left := local_paths(revision.files)):
        say(f"{revision.name} names {left[0]}, which only this machine has: it may not load elsewhere")
    done = patiently(lambda: publish(api, revision), f"pushing {revision.name}", wait)
    say(_in_words(done))
    return done


def _follow(api: HfApi, newest: Published, wait: Wait) -> None:
    patiently(lambda: follow(api, newest), f"tagging {newest.revision.name}", wait)


def _in_words(published: Published) -> str:
    revision = published.revision
    size = f"{len(revision.files)} files, {revision.size / 1e6:.1f} MB"
    outcome = {"pushed": f"pushed ({size})", "tagged": "was pushed before, now complete", "there": "is there already"}
    return f"{revision.name} {outcome[published.outcome]}"

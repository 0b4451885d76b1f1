"""What an experiment keeps of a finished run: what it used, and how its policies did on each held-out episode.

One small file a run: arms that were run on several machines are compared by bringing the files together.
"""

from pathlib import Path
from typing import Self

from lerobot_coda.budget import Usage
from libero_pro.record import Record, RecordError

Episode = tuple[str, int, int, int, bool]  # suite, task, released start, the episode's seed, success


class FinishedRun(Record):
    """A run of one arm with one seed.

    key       what it is a run of: the recipe with its arm and seed, and the held-out episodes
    outcomes  round -> held-out episodes of the policy that it ended with; round 0 is the base policy
    """

    key: str
    suite: str
    arm: str
    seed: int
    command: str
    started: str
    versions: dict[str, str]
    usage: Usage
    leaked: int
    outcomes: dict[int, tuple[Episode, ...]]

    @classmethod
    def load_as(cls, path: Path, key: str) -> Self:
        """Reads a run's file; RecordError if it is of another recipe, or measured on other episodes."""
        run = cls.load(path)
        if run.key != key:
            raise RecordError(
                f"{path} is of another recipe, or was measured on other episodes; move it away to run the arm again, "
                "or give another folder with --results"
            )
        return run

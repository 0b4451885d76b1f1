"""What goes from one round to the next."""

from pydantic import Field

from lerobot_coda.coprograms import CoProgram
from lerobot_coda.progress import Measurement
from lerobot_coda.succession import Retired
from lerobot_coda.validation import Pending
from libero_pro.record import Record


class Shard(Record):
    """A dataset shard, its folder relative to the run, and how many episodes it holds."""

    path: str
    episodes: int


class State(Record):
    """What a round starts from; all of it follows from the recipe and the rounds before.

    checkpoint  folder of the policy, relative to the run;  `actor` its short name (base, r001, ...);  `key` hash of how
                it came to be
    programs    active programs;  `stalled` rounds without progress and `measured` the last measurement, by program name
    retired     programs that are no longer used, which the probe looks at now and then
    pending     what validation has not decided yet of this policy
    shards      dataset shards of earlier rounds;  `grounding` the last grounding set, relative to the run
    """

    checkpoint: str
    actor: str
    key: str
    programs: tuple[CoProgram, ...] = ()
    retired: tuple[Retired, ...] = ()
    pending: tuple[Pending, ...] = ()
    stalled: dict[str, int] = Field(default_factory=dict)
    measured: dict[str, Measurement] = Field(default_factory=dict)
    shards: tuple[Shard, ...] = ()
    grounding: str | None = None

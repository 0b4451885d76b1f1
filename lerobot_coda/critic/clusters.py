"""Failure clusters: many episodes, one weakness."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Literal

from pydantic import Field

from lerobot_coda.critic.diagnosis import Diagnosis, Mode, Stage
from libero_pro.record import Record


class FailureCluster(Record):
    """Diagnoses of one mode in one suite: what a program is compiled from and a verdict is given on.

    stage      the stage most of them failed in;  `causes` how often each cause was claimed
    tasks      the task ids it was seen in;  `objects` the instructed objects
    diagnoses  hashes of the member diagnoses, sorted
    """

    schema_version: Literal[1] = 1
    mode: Mode
    stage: Stage
    suite: str
    causes: dict[str, int]
    tasks: tuple[int, ...]
    objects: tuple[str, ...]
    diagnoses: tuple[str, ...] = Field(min_length=1)

    @property
    def size(self) -> int:
        """Number of failed episodes in the cluster."""
        return len(self.diagnoses)

    @property
    def title(self) -> str:
        """What a person calls it: "localization (missed_grasp 7, wrong_object 4)"."""
        return f"{self.mode} ({', '.join(f'{cause} {n}' for cause, n in self.causes.items())})"


def cluster(diagnoses: Iterable[Diagnosis], *, minimum: int = 1) -> list[FailureCluster]:
    """Groups diagnoses by (suite, mode), largest first; groups smaller than `minimum` are left out."""
    groups: dict[tuple[str, Mode], dict[str, Diagnosis]] = defaultdict(dict)
    for diagnosis in diagnoses:
        groups[diagnosis.suite, diagnosis.mode][diagnosis.hash] = diagnosis
    clusters = []
    for (suite, mode), members in groups.items():
        if len(members) < minimum:
            continue
        found = list(members.values())
        causes = Counter(str(d.cause) for d in found)
        stages = Counter(d.stage for d in found)
        clusters.append(
            FailureCluster(
                mode=mode,
                stage=max(sorted(stages), key=lambda stage: stages[stage]),
                suite=suite,
                causes=dict(sorted(causes.items(), key=lambda item: (-item[1], item[0]))),
                tasks=tuple(sorted({d.task_id for d in found})),
                objects=tuple(sorted({d.objects[0] for d in found if d.objects})),
                diagnoses=tuple(sorted(members)),
            )
        )
    return sorted(clusters, key=lambda c: (-c.size, c.suite, c.mode))

"""Failure clusters: many episodes, one weakness.

Diagnoses of one suite and mode are joined by average linkage over a distance in [0, 1], the weighted sum of

    stage    0.30  whether they failed in the same stage
    objects  0.20  Jaccard distance of the objects that they name
    place    0.20  metres between where their targets stood at the start, 1 from `FAR_APART` on
    cause    0.15  whether the same cause is claimed
    text     0.15  cosine distance of their explanations' sentence vectors

A part that is not known for both counts as no distance. What is more than `APART` away splits off, provided that every
part keeps `SMALLEST` members: a program is tested and trained on a cluster, and a handful says nothing.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

import numpy as np
from pydantic import Field
from scipy.cluster.hierarchy import ClusterNode, linkage, to_tree
from scipy.spatial.distance import squareform

from lerobot_coda.critic.diagnosis import Diagnosis, Mode, Stage
from libero_pro.episode import Episode
from libero_pro.record import Record

WEIGHTS = {"stage": 0.30, "objects": 0.20, "place": 0.20, "cause": 0.15, "text": 0.15}
FAR_APART = 0.3  # metres: the other end of the table
APART = 0.6  # other objects in other places, described in other words, are still one weakness: 0.55
SMALLEST = 4

Embed = Callable[[Sequence[str]], np.ndarray]


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


def cluster(
    diagnoses: Iterable[Diagnosis],
    *,
    minimum: int = 1,
    episodes: Mapping[str, Episode] | None = None,
    embed: Embed | None = None,
) -> list[FailureCluster]:
    """Clusters within each (suite, mode), largest first; groups smaller than `minimum` are left out.

    episodes  the diagnosed episodes by key: where things stood;  `embed` texts -> vectors (n, d) of any length
    The result depends neither on the order of the diagnoses nor on duplicates.
    """
    groups: dict[tuple[str, Mode], dict[str, Diagnosis]] = defaultdict(dict)
    for diagnosis in diagnoses:
        groups[diagnosis.suite, diagnosis.mode][diagnosis.hash] = diagnosis
    clusters = []
    for members in groups.values():
        if len(members) < minimum:
            continue
        found = [members[name] for name in sorted(members)]
        for rows in _split(distances(found, episodes or {}, embed)):
            clusters.append(_joined([found[row] for row in rows]))
    return sorted((c for c in clusters if c.size >= minimum), key=lambda c: (-c.size, c.suite, c.mode, c.diagnoses))


def distances(found: Sequence[Diagnosis], episodes: Mapping[str, Episode], embed: Embed | None) -> np.ndarray:
    """(n, n) symmetric distances in [0, 1] between diagnoses, 0 on the diagonal."""
    parts = {
        "stage": _differ([d.stage for d in found]),
        "cause": _differ([d.cause for d in found]),
        "objects": np.array([[_jaccard(a.objects, b.objects) for b in found] for a in found]),
        "place": _apart(np.array([_place(d, episodes) for d in found])),
        "text": _unlike([d.explanation for d in found], embed),
    }
    return sum((WEIGHTS[name] * np.nan_to_num(part) for name, part in parts.items()), np.zeros((len(found),) * 2))


def _differ(labels: Sequence[str]) -> np.ndarray:
    column = np.array([str(label) for label in labels])
    return (column[:, None] != column[None]).astype(float)


def _jaccard(a: tuple[str, ...], b: tuple[str, ...]) -> float:
    either = set(a) | set(b)
    return 1.0 - len(set(a) & set(b)) / len(either) if either else 0.0


def _place(diagnosis: Diagnosis, episodes: Mapping[str, Episode]) -> tuple[float, float]:
    """Where the target stood at the start, metres; nan where that is not known."""
    episode = episodes.get(diagnosis.episode)
    name = diagnosis.objects[0] if diagnosis.objects else ""
    if episode is None or name not in episode.object_names:
        return np.nan, np.nan
    x, y = episode.object_pos[0, episode.object_names.index(name), :2]
    return float(x), float(y)


def _apart(places: np.ndarray) -> np.ndarray:
    gap = np.linalg.norm(places[:, None] - places[None], axis=-1)
    return np.minimum(1.0, gap / FAR_APART)


def _unlike(texts: Sequence[str], embed: Embed | None) -> np.ndarray:
    if embed is None or len(texts) < 2:
        return np.zeros((len(texts),) * 2)
    vectors = np.asarray(embed(texts), float)
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)
    return np.clip(1.0 - vectors @ vectors.T, 0.0, 1.0)


def _split(between: np.ndarray) -> list[list[int]]:
    """Rows of each cluster: the linkage tree is cut from the top, where it is long and both sides are large enough."""
    if len(between) < 2 * SMALLEST:
        return [list(range(len(between)))]
    exact = np.round((between + between.T) / 2, 9)
    np.fill_diagonal(exact, 0.0)

    def cut(node: ClusterNode) -> list[list[int]]:
        left, right = node.get_left(), node.get_right()
        if left is None or right is None or node.dist <= APART or min(left.count, right.count) < SMALLEST:
            return [sorted(node.pre_order())]
        return cut(left) + cut(right)

    return cut(to_tree(linkage(squareform(exact), method="average")))


def _joined(found: Sequence[Diagnosis]) -> FailureCluster:
    causes = Counter(str(d.cause) for d in found)
    stages = Counter(d.stage for d in found)
    return FailureCluster(
        mode=found[0].mode,
        stage=max(sorted(stages), key=lambda stage: stages[stage]),
        suite=found[0].suite,
        causes=dict(sorted(causes.items(), key=lambda item: (-item[1], item[0]))),
        tasks=tuple(sorted({d.task_id for d in found})),
        objects=tuple(sorted({d.objects[0] for d in found if d.objects})),
        diagnoses=tuple(sorted(d.hash for d in found)),
    )

"""The shared memory: what was learned about building environments, about failing, and about progress.

SQLite in WAL mode by default, PostgreSQL by URL; append-only, content-addressed, linked (see `tables`), safe under
several writers. Reading it: `queries`, `lineage`; taking it elsewhere: `export`. Big things stand beside it as files.
"""

from lerobot_coda.memory.store import Memory, Rows, content_hash
from lerobot_coda.memory.tables import (
    Base,
    BlobRow,
    Cluster,
    DecisionRow,
    DiagnosisRow,
    EpisodeRow,
    MeasurementRow,
    Member,
    Program,
    ProposalRow,
    ReviewRow,
    RoundRow,
    RunRow,
    Scene,
    SceneVerdict,
    UsageRow,
    VerdictRow,
)

__all__ = [
    "Base",
    "BlobRow",
    "Cluster",
    "DecisionRow",
    "DiagnosisRow",
    "EpisodeRow",
    "MeasurementRow",
    "Member",
    "Memory",
    "Program",
    "ProposalRow",
    "ReviewRow",
    "RoundRow",
    "Rows",
    "RunRow",
    "Scene",
    "SceneVerdict",
    "UsageRow",
    "VerdictRow",
    "content_hash",
]

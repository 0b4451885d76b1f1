"""The tables of the first memories. Those had no version, so that whatever of it is there already is left alone."""

import sqlalchemy as sa
from alembic import op

from lerobot_coda.memory.migrations.append_only import protect

revision = "0001"
down_revision = None


def _to(table: str, name: str, *, optional: bool = False) -> sa.Column:
    return sa.Column(name, sa.String, sa.ForeignKey(f"{table}.hash"), nullable=optional)


def _text(*names: str) -> list[sa.Column]:
    return [sa.Column(name, sa.String, nullable=False) for name in names]


def _number(name: str, kind: type = sa.Integer) -> sa.Column:
    return sa.Column(name, kind, nullable=False)


def upgrade() -> None:
    """Creates what is missing."""
    progress, p_value = _number("progress", sa.Float), _number("p_value", sa.Float)
    tables = {
        "programs": [*_text("name", "mode"), _to("programs", "parent", optional=True)],
        "scenes": [_to("programs", "program", optional=True), *_text("suite", "instruction"), _number("task_id")],
        "scene_verdicts": [_to("scenes", "scene"), *_text("gate", "reason"), _number("accepted", sa.Boolean)],
        "episodes": [
            _to("scenes", "scene"), *_text("actor", "purpose", "path"), _number("success", sa.Boolean),
            sa.Column("invalid", sa.String), _number("steps"),
        ],
        "diagnoses": [_to("episodes", "episode"), *_text("cause", "stage", "mode", "critic")],
        "clusters": [*_text("mode", "suite"), _number("size")],
        "cluster_members": [_to("clusters", "cluster"), _to("diagnoses", "diagnosis")],
        "verdicts": [_to("clusters", "cluster"), _to("programs", "program"), *_text("outcome"), p_value],
        "measurements": [_to("programs", "program"), _number("round"), progress, p_value.copy()],
        "decisions": [
            _to("programs", "program"), _number("round"), *_text("action", "reason"),
            _to("programs", "successor", optional=True),
        ],
        "rounds": [_number("round")],
    }  # fmt: skip
    indexed = {
        "programs": ("name",), "scenes": ("program",), "scene_verdicts": ("scene", "gate"),
        "episodes": ("scene", "actor"), "diagnoses": ("episode", "cause"), "clusters": ("mode",),
        "cluster_members": ("cluster", "diagnosis"), "verdicts": ("cluster", "program", "outcome"),
        "measurements": ("program",), "decisions": ("program",),
    }  # fmt: skip
    for name, columns in tables.items():
        identity = (sa.Column("hash", sa.String, primary_key=True), sa.Column("body", sa.JSON, nullable=False))
        op.create_table(name, *identity, *columns, if_not_exists=True)
        for column in indexed.get(name, ()):
            op.create_index(f"ix_{name}_{column}", name, [column], if_not_exists=True)
    protect(tables)

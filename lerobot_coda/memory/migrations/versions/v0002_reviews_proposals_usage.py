"""Critics' reviews, proposals and why they were refused, usage, blobs, and the run that a record came from."""

import sqlalchemy as sa
from alembic import op

from lerobot_coda.memory.migrations.append_only import protect

revision = "0002"
down_revision = "0001"


def _to(table: str, name: str, *, optional: bool = False, index: bool = False) -> sa.Column:
    return sa.Column(name, sa.String, sa.ForeignKey(f"{table}.hash"), nullable=optional, index=index)


def upgrade() -> None:
    """Adds tables and links; rows that are there keep what they hold and get no run."""
    text, number, real = sa.String, sa.Integer, sa.Float
    tables = {
        "runs": (
            sa.Column("name", text, nullable=False, index=True), sa.Column("arm", text, nullable=False),
            sa.Column("seed", number, nullable=False), sa.Column("recipe", text, nullable=False),
        ),
        "blobs": (sa.Column("kind", text, nullable=False), sa.Column("size", number, nullable=False)),
        "reviews": (
            _to("clusters", "cluster", index=True), sa.Column("critic", text, nullable=False, index=True),
            sa.Column("version", text, nullable=False), sa.Column("invalid", text),
            _to("blobs", "answer", optional=True), sa.Column("tokens", number, nullable=False),
            sa.Column("cost", real, nullable=False), sa.Column("seconds", real, nullable=False),
        ),
        "proposals": (
            sa.Column("kind", text, nullable=False, index=True), sa.Column("author", text, nullable=False),
            _to("clusters", "cluster", optional=True, index=True), _to("programs", "program", optional=True),
            sa.Column("refused", text), _to("blobs", "answer", optional=True),
        ),
        "usage": (
            _to("runs", "run", optional=True, index=True), sa.Column("round", number, nullable=False),
            sa.Column("step", text, nullable=False), sa.Column("environments", number, nullable=False),
            sa.Column("env_steps", number, nullable=False), sa.Column("seconds", real, nullable=False),
        ),
    }  # fmt: skip
    for name, columns in tables.items():
        identity = (sa.Column("hash", sa.String, primary_key=True), sa.Column("body", sa.JSON, nullable=False))
        op.create_table(name, *identity, *columns)
    links = (
        *((table, "run", "runs") for table in ("episodes", "measurements", "decisions", "rounds")),
        ("clusters", "parent", "clusters"), ("programs", "other", "programs"),
    )  # fmt: skip
    for table, name, target in links:
        # SQLite adds a column with its link in one statement only, which Alembic does not write.
        op.execute(f"ALTER TABLE {table} ADD COLUMN {name} VARCHAR REFERENCES {target} (hash)")
    protect(tables)

"""Triggers that refuse to change or delete a row, whoever asks."""

from collections.abc import Iterable

from alembic import op

_FUNCTION = """
CREATE OR REPLACE FUNCTION memory_is_append_only() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION 'memory is append-only' USING ERRCODE = 'restrict_violation'; END $$
"""


def protect(tables: Iterable[str]) -> None:
    """Makes tables append-only; those that are already stay so."""
    dialect = op.get_bind().dialect.name
    if dialect == "postgresql":
        op.execute(_FUNCTION)
    for table in tables:
        if dialect == "sqlite":
            for verb in ("UPDATE", "DELETE"):
                op.execute(
                    f"CREATE TRIGGER IF NOT EXISTS no_{verb.lower()}_{table} BEFORE {verb} ON {table} "
                    f"BEGIN SELECT RAISE(ABORT, 'memory is append-only'); END"
                )
        else:
            for name, verbs, each in (("change", "UPDATE OR DELETE", "ROW"), ("truncate", "TRUNCATE", "STATEMENT")):
                op.execute(f"DROP TRIGGER IF EXISTS no_{name} ON {table}")
                op.execute(
                    f"CREATE TRIGGER no_{name} BEFORE {verbs} ON {table} "
                    f"FOR EACH {each} EXECUTE FUNCTION memory_is_append_only()"
                )

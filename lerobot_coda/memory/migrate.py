"""Schema versions: a new memory and an older one are brought to this version when they are opened.

All of it is one transaction under a lock: several processes may open the same memory at once, and one that is killed
leaves it as it was. Alembic's own table is named so that a database can be shared with another application.
"""

from pathlib import Path

from sqlalchemy import URL, Connection, Engine, inspect, text

from lerobot_coda.memory import connect
from libero_pro.record import RecordError

VERSIONS = ("0001", "0002")  # the revisions in migrations/versions, oldest first
VERSION_TABLE = "memory_version"
_LOCK = 0x636F6461  # of the advisory lock under which PostgreSQL's tables are made


def prepare(url: URL, engine: Engine) -> None:
    """Brings the database to the newest version; RecordError if it is of a newer one, or of something else."""
    with connect.reading(engine) as connection:
        version = _version(connection, url)
    if version == VERSIONS[-1]:
        return
    changing = connect.engine(url, links=False)
    try:
        with connect.writing(changing) as connection:
            if connection.dialect.name == "postgresql":
                connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
            if _version(connection, url) != VERSIONS[-1]:  # another process may have been first
                _upgrade(connection)
    finally:
        changing.dispose()


def _version(connection: Connection, url: URL) -> str | None:
    """The schema version of a database; None for an empty one and for one older than versions."""
    names = set(inspect(connection).get_table_names())
    if VERSION_TABLE not in names:
        if names and "programs" not in names and connection.dialect.name == "sqlite":
            raise RecordError(f"{connect.shown(url)} is a database of something else; name another file as memory")
        return None
    found = connection.scalar(text(f"SELECT version_num FROM {VERSION_TABLE}"))
    if found is not None and found not in VERSIONS:
        raise RecordError(
            f"memory {connect.shown(url)} was written by a newer version (schema {found}, this one knows up to "
            f"{VERSIONS[-1]}); update with `pip install -U lerobot_policy_coda`, or name another memory"
        )
    return found


def _upgrade(connection: Connection) -> None:
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")

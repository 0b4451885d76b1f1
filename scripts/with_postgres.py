"""Runs a command beside a PostgreSQL server of its own, made for it and gone after it.

    python scripts/with_postgres.py make test

The server listens on a Unix socket in a temporary folder, nowhere else; its URL is in `CODA_POSTGRES` while the command
runs. Exit code 69 with a sentence where this machine has no PostgreSQL (15 or newer is what the tests ran with).
"""

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

VARIABLE = "CODA_POSTGRES"
UNAVAILABLE = 69
# Nothing here must outlive its server, so nothing is written to the disk with care.
SETTINGS = ("-c", "listen_addresses=", "-c", "fsync=off", "-c", "max_connections=100", "-c", "deadlock_timeout=200ms")


class NoPostgres(RuntimeError):
    """Why there is no server: one sentence."""


def binaries() -> Path:
    """The folder of `initdb` and `postgres`: on PATH, as `pg_config` says, or where Debian keeps them."""
    folders = [Path(found).resolve().parent for name in ("initdb", "postgres") if (found := shutil.which(name))]
    if config := shutil.which("pg_config"):
        told = subprocess.run([config, "--bindir"], capture_output=True, text=True, check=False).stdout.strip()
        folders.append(Path(told))
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: path.parent.name, reverse=True)
    for folder in folders:
        if all((folder / name).is_file() for name in ("initdb", "postgres", "pg_ctl")):
            return folder
    raise NoPostgres("no PostgreSQL server on this machine: neither PATH, pg_config nor /usr/lib/postgresql has one")


@contextmanager
def postgres() -> Iterator[str]:
    """A running server; yields the URL of an empty database. NoPostgres if this machine cannot run one."""
    programs, owner = binaries(), _owner()
    with tempfile.TemporaryDirectory(prefix="coda-pg-") as scratch:
        folder = Path(scratch)
        if owner is not None:
            os.chown(folder, owner.pw_uid, owner.pw_gid)
        data = folder / "data"
        _run([programs / "initdb", "-D", data, "-U", "coda", "--auth=trust", "--encoding=UTF8", "--locale=C"], owner)
        settings = " ".join([*SETTINGS, "-k", scratch])
        # `-w` waits until it answers; the log is what `pg_ctl` would hold our pipe open for.
        start = [programs / "pg_ctl", "-D", data, "-o", settings, "-l", folder / "log", "-w", "-t", "120", "start"]
        try:
            _run(start, owner)
            yield f"postgresql://coda@/postgres?host={scratch}"
        finally:
            if (data / "postmaster.pid").exists():
                _run([programs / "pg_ctl", "-D", data, "-m", "immediate", "-w", "stop"], owner)


def _owner() -> pwd.struct_passwd | None:
    """Whom the server runs as: PostgreSQL refuses to run as root, so that root lends it an unprivileged user."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise NoPostgres("PostgreSQL does not run as root, and there is no user 'postgres' or 'nobody' to run it as")


def _run(command: Sequence[str | Path], owner: pwd.struct_passwd | None) -> None:
    as_owner = {"user": owner.pw_uid, "group": owner.pw_gid, "extra_groups": []} if owner else {}
    done = subprocess.run(
        [str(part) for part in command], cwd="/", stdin=subprocess.DEVNULL, capture_output=True, text=True, **as_owner
    )
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[-1]
        raise NoPostgres(f"{Path(command[0]).name} failed: {said}")


def main(command: Sequence[str]) -> int:
    """The command's exit code."""
    if not command:
        print((__doc__ or "").strip(), file=sys.stderr)
        return 2
    try:
        with postgres() as url:
            return subprocess.run(command, env={**os.environ, VARIABLE: url}, check=False).returncode
    except NoPostgres as error:
        print(f"with_postgres: {error}", file=sys.stderr)
        return UNAVAILABLE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

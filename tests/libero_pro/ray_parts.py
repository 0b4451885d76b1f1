"""A Ray cluster of two nodes with one CPU each, on this machine."""

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

STORE = 100 * 2**20  # bytes of each node's object store
SLOW = "300000"  # ms that a node may take to start: on a busy machine Ray's own limit is too short


@contextmanager
def two_nodes() -> Iterator[Any]:
    """The cluster (`address`, `head_node`, `worker_nodes`); everything of it is gone afterwards."""
    from ray._private.utils import get_ray_address_file
    from ray.cluster_utils import Cluster

    folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))  # paths of sockets must be short
    Path(get_ray_address_file(None)).parent.mkdir(exist_ok=True)  # where Ray notes its last cluster in any case
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_agent_register_timeout_ms", SLOW)
        patch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]))
        node = {"num_cpus": 1, "object_store_memory": STORE, "include_dashboard": False, "temp_dir": str(folder)}
        cluster = Cluster(initialize_head=True, head_node_args=node)
        try:
            cluster.add_node(**{key: node[key] for key in ("num_cpus", "object_store_memory")})
            yield cluster
        finally:
            import ray

            ray.shutdown()
            cluster.shutdown()
            left = processes(folder)
            shutil.rmtree(folder, ignore_errors=True)
            assert not left, f"left behind: {left}"


def processes(folder: Path, patience: float = 20.0) -> list[str]:
    """Commands of processes that name the folder, after waiting for them to end."""
    until = time.monotonic() + patience
    while True:
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                command = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if str(folder) in command:
                found.append(command[:120])
        if not found or time.monotonic() > until:
            return found
        time.sleep(0.2)

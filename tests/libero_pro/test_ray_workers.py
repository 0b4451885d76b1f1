"""Workers on a real Ray cluster of two nodes: the same results as from processes, also when a node is lost."""

import sys
import types
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
from ray_parts import two_nodes
from rollout_parts import SeededPolicy
from test_workers import make_state, work

from benchmarks.ray_rollouts import digest
from libero_pro import ray_workers
from libero_pro.ray_workers import RayWorkers
from libero_pro.record import RecordError
from libero_pro.rollout import observation_seed, run
from libero_pro.suites import scene_for
from libero_pro.workers import run_in_workers

SLOW_S = 3000.0  # on a busy machine an actor may take long to build its simulator
SCENES = [scene_for("libero_object", 0, seed=seed) for seed in range(8)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    pytest.importorskip("ray", reason="pip install 'lerobot_policy_coda[ray]'")
    with two_nodes() as nodes:
        yield nodes


def test_without_ray_one_sentence_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(RecordError, match=r"Ray is not installed; run `pip install 'lerobot_policy_coda\[ray\]'`"):
        RayWorkers.connect(2)


def test_no_workers_is_refused():
    with pytest.raises(RecordError, match="at least 1 worker, not 0"):
        RayWorkers.connect(0)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1"])
def test_where_nobody_listens_is_said_at_once(address, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", types.SimpleNamespace(is_initialized=lambda: False))
    with pytest.raises(RecordError, match=f"no Ray cluster answers at {address} .*refused.*ray start --head"):
        RayWorkers.connect(2, address)


def test_a_node_with_other_packages_is_refused(monkeypatch):
    theirs = {**ray_workers.installed(), "mujoco": "3.4.0"}
    with pytest.raises(RecordError, match=r"node abc has mujoco 3\.4\.0, this machine 3\.3\.7: episodes would differ"):
        ray_workers._compare("abc", theirs)


@pytest.mark.e2e
def test_actors_do_what_processes_do(cluster, tmp_path):
    jobs = [("a", "go", None), ("b", "go", None), ("a", "fail", "no luck"), ("b", "ask", 5),
            ("a", "die once", str(tmp_path / "died")), ("b", "die", None), ("a", "ask", 1)]  # fmt: skip
    crew = RayWorkers.connect(2, cluster.address)
    outcomes = run_in_workers(
        jobs, make_state=make_state, work=work, workers=crew, key=lambda job: job[0],
        respond=lambda requests: [request + 1 for request in requests],
    )  # fmt: skip
    found = {outcome.index: outcome for outcome in outcomes}
    assert sorted(found) == list(range(7))
    assert found[0].result["threads"] == "1" and found[0].result["pid"] != found[1].result["pid"]
    assert found[2].error == "ValueError: no luck"
    assert (found[3].result, found[6].result) == (6, 2)
    assert found[4].result["key"] == "a"
    assert found[5].error.startswith("lost its worker process twice: The actor died")


@pytest.mark.e2e
def test_what_no_node_can_load_ends_the_run(cluster):
    def from_here(key: str) -> None: ...

    from_here.__module__, from_here.__qualname__ = "nowhere", "from_here"
    sys.modules["nowhere"] = type(sys)("nowhere")
    sys.modules["nowhere"].from_here = from_here
    try:
        crew = RayWorkers.connect(2, cluster.address)
        with pytest.raises(RecordError, match=r"no worker can be started: .*nowhere"):
            list(run_in_workers([("a", "go", None)], make_state=from_here, work=work, workers=crew))
    finally:
        del sys.modules["nowhere"]


@pytest.mark.e2e
@pytest.mark.sim
def test_episodes_are_the_same_though_a_node_is_lost(cluster):
    """The node goes while each of the two has an episode under way."""
    here = [digest(episode) for episode in run(SeededPolicy(), SCENES, workers=0, horizon=24)]
    assert len(set(here)) == len(SCENES)
    position = {observation_seed(scene, step): (scene.hash, step) for scene in SCENES for step in (0, 8, 16)}

    class Saboteur(SeededPolicy):
        at: ClassVar[dict[str, int]] = {}

        def act(self, observations):
            self.at.update(position[observation.seed] for observation in observations)
            if cluster.worker_nodes and sum(step < 16 for step in self.at.values()) == 2:  # two under way, one a node
                cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)
            return super().act(observations)

    crew = RayWorkers.connect(2, cluster.address)
    there = run(Saboteur(), SCENES, workers=crew, horizon=24, timeout_s=SLOW_S)
    assert [digest(episode) for episode in there] == here
    assert not cluster.worker_nodes

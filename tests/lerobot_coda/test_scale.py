"""The model of a round: cases by hand, and the laws that any such model keeps."""

import sys
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("simpy", reason="pip install 'simpy>=4.1,<5'")

from lerobot_coda.scale import Costs, Machines, Work, carried, grown, provision, simulate
from libero_pro.record import RecordError

NOTHING = Work(probe=0, validation=0, measure=0, demonstrations=0, failures=0.0, frames=0, train=0, records=0)
COSTS = Costs(
    build=0.0, reset=1.0, step=0.1, image=0.5, expert=0.2, infer=2.0, infer_each=0.5, train=3.0, critic=5.0, record=0.25
)


def test_an_episode_by_hand():
    work = replace(NOTHING, measure=1, steps=25, chunk=10, cameras=2)
    report = simulate(work, COSTS, Machines(), spread=0)
    looks = 3  # of 10, 10 and 5 steps
    assert report.seconds == pytest.approx(1.0 + looks * (2 * 0.5 + 2.5) + 25 * 0.1)
    assert report.stations["inference"].served == looks
    assert report.stations["workers"].busy == pytest.approx(1.0 + looks * 1.0 + 2.5)
    assert report.stations["inference"].busy == pytest.approx(looks * 2.5)


def test_what_waits_is_inferred_together_up_to_the_largest_batch():
    work = replace(NOTHING, measure=5, steps=10, chunk=10, cameras=0)
    costs = replace(COSTS, reset=1.0, step=0.0)
    for batch, calls in ((1, 5 * 2.5), (2, 3.0 + 3.0 + 2.5), (64, 4.5)):  # all five look at one time
        report = simulate(work, costs, Machines(workers=5, batch=batch), spread=0)
        assert report.seconds == pytest.approx(1 + calls)
        assert report.stations["inference"].served == 5


@pytest.mark.parametrize(
    ("machines", "seconds"),
    [
        ({"critic_calls": 4, "critic_minute": 1e9}, 5 + 5 + 5),  # ten requests, four at once
        ({"critic_calls": 10, "critic_minute": 30}, 9 * 2 + 5),  # one every two seconds
    ],
)
def test_the_endpoint_by_hand(machines: dict, seconds: float):
    work = replace(NOTHING, probe=20, failures=0.5, steps=1)
    report = simulate(work, replace(COSTS, infer=0, infer_each=0), Machines(**machines), spread=0)
    assert report.stages["diagnose"] == pytest.approx(seconds)


def test_the_other_stages_by_hand():
    work = replace(NOTHING, demonstrations=4, shown=10, frames=6, train=7, records=2)
    report = simulate(work, replace(COSTS, build=4.0), Machines(workers=2, renderers=5, learners=2), spread=0)
    assert report.stages["demonstrate"] == pytest.approx(4 + 2 * (1 + 10 * 0.2))  # built once
    assert report.stages["render"] == pytest.approx(5 * 0.5)  # 24 images on five cores
    assert report.stages["train"] == pytest.approx(4 * 3)
    assert report.stages["remember"] == pytest.approx(8 * 0.25)
    assert report.seconds == pytest.approx(sum(report.stages.values()))


ROUNDS = st.builds(
    Work, probe=st.integers(1, 12), validation=st.integers(0, 8), measure=st.integers(0, 8),
    demonstrations=st.integers(0, 8), steps=st.integers(1, 60), chunk=st.integers(1, 20), cameras=st.integers(0, 2),
    frames=st.integers(0, 20), train=st.integers(0, 20),
)  # fmt: skip
SETS = st.builds(
    Machines, workers=st.integers(1, 9), inference=st.integers(1, 3), batch=st.integers(1, 8),
    renderers=st.integers(1, 4), learners=st.integers(1, 3), critic_calls=st.integers(1, 4),
    critic_minute=st.floats(5, 600),
)  # fmt: skip


@given(ROUNDS, SETS, st.integers(0, 9))
@settings(max_examples=40, deadline=None)
def test_laws(work: Work, machines: Machines, seed: int):
    report = simulate(work, COSTS, machines, seed=seed)
    assert report.seconds == pytest.approx(sum(report.stages.values()))
    assert report.stations["workers"].served == work.environments
    for name, station in report.stations.items():
        assert station.arrived == station.served  # what came, left
        assert station.present == pytest.approx(station.stayed)  # Little: L T = (lambda T) W
        assert 0 <= report.utilization(name) <= 1 + 1e-9
    # No faster than the bottleneck allows.
    busiest = report.stations[report.bottleneck]
    assert report.seconds >= busiest.busy / busiest.capacity - 1e-9
    assert simulate(work, COSTS, machines, seed=seed).seconds == report.seconds


def test_a_server_does_not_hold_its_batch_for_what_another_takes():
    work = Work(probe=10, validation=0, measure=0, demonstrations=0, steps=16, chunk=15, cameras=2, frames=0, train=0)
    machines = Machines(workers=9, inference=3, batch=2, renderers=1, learners=1, critic_calls=1, critic_minute=5.0)
    assert simulate(work, COSTS, machines, seed=0).stations["inference"].served > 10


@given(ROUNDS, SETS, st.sampled_from(["workers", "renderers", "learners", "critic_calls", "critic_minute"]))
@settings(max_examples=40, deadline=None)
def test_more_of_anything_does_not_take_longer(work: Work, machines: Machines, name: str):
    more = replace(machines, **{name: 2 * getattr(machines, name)})
    # Whoever looks together is answered together: another order may cost a batch, no more.
    slack = 1.1 if name == "workers" else 1 + 1e-9
    assert simulate(work, COSTS, more).seconds <= simulate(work, COSTS, machines).seconds * slack


def test_many_workers_are_held_up_by_inference_and_provision_adds_what_lacks():
    work = Work(probe=40, validation=0, measure=40, demonstrations=0, failures=0, frames=0, train=10, records=0)
    costs = Costs(build=0.0, reset=0.1, step=0.01, image=0.02, expert=0.1, infer=0.0, infer_each=0.05, train=0.1,
                  critic=0.0, record=0.0)  # fmt: skip
    few, many = (simulate(work, costs, Machines(workers=n)) for n in (1, 40))
    assert (few.bottleneck, many.bottleneck) == ("workers", "inference")
    # A look costs a worker 0.14 s and the server 0.05 s: 40 workers keep it busy while they play.
    assert many.utilization("inference") > 0.8
    machines, report = provision(work, costs, Machines(workers=40))
    assert report.bottleneck == "workers" and machines.inference > 1 and report.throughput > many.throughput


def test_a_grown_round_keeps_its_proportions():
    work = grown(Work(probe=28, validation=80, measure=80, demonstrations=62), 0.5)
    assert (work.probe, work.validation, work.measure, work.demonstrations, work.train) == (14, 40, 40, 31, 500)


def test_what_is_carried_by_hand():
    work = replace(NOTHING, measure=4, steps=10, cameras=2, records=3)
    report = simulate(work, COSTS, Machines(workers=2), spread=0)
    flows = carried(work, report, image_bytes=100, episode_bytes=1000.0, row_bytes=10.0)
    assert flows["observations_per_s"] == pytest.approx(4 * 200 / report.stages["measure"])
    assert flows["under_way"] == 2 * 200
    assert flows["rows_per_h"] == pytest.approx(3 * 4 * 3600 / report.seconds)
    assert flows["episodes_bytes_per_h"] == pytest.approx(4 * 3600 / report.seconds * 1000)


def test_bad_input_and_no_simpy_are_one_sentence(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(RecordError, match="machines: 'workers' must be above 0, not 0"):
        Machines(workers=0)
    monkeypatch.setitem(sys.modules, "simpy", None)
    with pytest.raises(RecordError, match="simpy is not installed; run `pip install"):
        simulate(NOTHING, COSTS, Machines())

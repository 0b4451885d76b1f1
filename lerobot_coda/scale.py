"""Scale: one round as a discrete-event model, to see what limits it from 1 to 1,000 workers before paying for them.

    report = simulate(Work(...), Costs(...), Machines(workers=100, ...))
    report.throughput, report.bottleneck

The stages of a round follow each other as in `lerobot_coda.evolve`: probe, diagnose, validate, demonstrate, render,
train, measure, remember. Policy episodes are a closed queueing network: a worker resets, then for each chunk draws its
images, waits for actions, and steps; what waits at an inference server is taken together, up to a largest batch.

A station's utilization is its busy time over capacity and round. With throughput X and a demand of D_i seconds of
station i an environment, it is X D_i / c_i (utilization law), so the most utilized station is the one that bounds X <=
min c_i / D_i (bottleneck law; Lazowska et al., Quantitative System Performance, 1984, chapter 5): it is named.
"""

import math
import random
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from libero_pro.record import RecordError

SPREAD = 0.3  # an episode's steps are uniform within this share of their mean
Process = Generator[Any, Any, None]


@dataclass(frozen=True)
class Work:
    """What a round does.

    probe, validation, measure  episodes of the policy;  demonstrations  episodes of the expert
    steps     of the policy's episode and `shown` of the expert's, on average;  chunk  steps between two looks;
              cameras  images a look
    frames    images of an episode in the dataset;  failures  share of probe episodes that the critic is asked about
    train     optimizer steps;  records  rows in the memory an episode
    """

    probe: int
    validation: int
    measure: int
    demonstrations: int
    steps: int = 220
    shown: int = 113
    chunk: int = 10
    cameras: int = 2
    frames: int = 80
    failures: float = 0.5
    train: int = 1000
    records: int = 4

    @property
    def environments(self) -> int:
        """Episodes in generated scenes."""
        return self.probe + self.validation + self.measure + self.demonstrations


@dataclass(frozen=True)
class Costs:
    """Seconds: of one core for build (a worker's simulator, at the start of a stage), reset, step, image, expert (a
    whole step of a demonstration) and record; of one accelerator for a training step and for a batch of inference
    (`infer` and `infer_each` for every observation); of waiting for a critic's answer."""

    build: float
    reset: float
    step: float
    image: float
    expert: float
    infer: float
    infer_each: float
    train: float
    critic: float
    record: float


@dataclass(frozen=True)
class Machines:
    """What there is; `batch` is the largest one of inference, `critic_calls` are answered at once, `critic_minute` is
    the endpoint's limit of requests a minute."""

    workers: int = 1
    inference: int = 1
    batch: int = 64
    renderers: int = 1
    learners: int = 1
    critic_calls: int = 8
    critic_minute: float = 60.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value <= 0:
                raise RecordError(f"machines: '{name}' must be above 0, not {value}")


@dataclass
class Station:
    """What a station did: jobs that came and left, seconds its servers were busy, seconds that jobs were there."""

    capacity: int
    arrived: int = 0
    served: int = 0
    busy: float = 0.0
    stayed: float = 0.0
    present: float = 0.0  # integral of the number of jobs there over time
    _here: int = field(default=0, repr=False)
    _since: float = field(default=0.0, repr=False)

    def count(self, now: float, change: int) -> None:
        """Jobs come (+) or leave (-)."""
        self.present += self._here * (now - self._since)
        self._here, self._since = self._here + change, now
        self.arrived, self.served = self.arrived + max(change, 0), self.served + max(-change, 0)

    def leave(self, came: float, now: float, jobs: int = 1) -> None:
        """Jobs that came at one time leave at another."""
        self.count(now, -jobs)
        self.stayed += jobs * (now - came)


@dataclass(frozen=True)
class Report:
    """A round: seconds of all and of each stage, environments, and the stations."""

    seconds: float
    environments: int
    stages: dict[str, float]
    stations: dict[str, Station]

    @property
    def throughput(self) -> float:
        """Environments an hour."""
        return 3600.0 * self.environments / self.seconds

    def utilization(self, name: str) -> float:
        """Share of the round for which the station's servers were busy."""
        station = self.stations[name]
        return station.busy / (station.capacity * self.seconds)

    @property
    def bottleneck(self) -> str:
        """The most utilized station."""
        return max(self.stations, key=self.utilization)


def simulate(work: Work, costs: Costs, machines: Machines, *, spread: float = SPREAD, seed: int = 0) -> Report:
    """One round. RecordError if simpy is not installed."""
    try:
        import simpy
    except ImportError:
        raise RecordError("simpy is not installed; run `pip install 'simpy>=4.1,<5'`") from None
    world = _World(simpy.Environment(), work, costs, machines, random.Random(seed), spread)
    stages: dict[str, float] = {}
    for name, stage in world.stages():
        began = world.env.now
        world.env.run(world.env.all_of([world.env.process(process) for process in stage]))
        stages[name] = world.env.now - began
    return Report(world.env.now, work.environments, stages, world.stations)


class _World:
    def __init__(self, env: Any, work: Work, costs: Costs, machines: Machines, rng: random.Random, spread: float):
        import simpy

        self.env, self.work, self.costs, self.machines = env, work, costs, machines
        self._rng, self._spread = rng, spread
        self._looks: Any = simpy.Store(env)  # observations that wait for actions
        capacities = {
            "workers": machines.workers,
            "inference": machines.inference,
            "critic": machines.critic_calls,
            "renderers": machines.renderers,
            "learners": machines.learners,
            "memory": 1,
        }
        self.stations = {name: Station(capacity) for name, capacity in capacities.items()}
        for _ in range(machines.inference):
            env.process(self._infer())

    def stages(self) -> Iterator[tuple[str, list[Process]]]:
        """The stages in order; each is made when the one before is over."""
        work, costs, machines = self.work, self.costs, self.machines
        yield "probe", self._crew(work.probe, work.steps, self._play)
        yield "diagnose", self._endpoint(round(work.probe * work.failures))
        yield "validate", self._crew(work.validation, work.steps, self._play)
        yield "demonstrate", self._crew(work.demonstrations, work.shown, self._demonstrate)
        frames = work.frames * (work.probe + work.demonstrations)
        yield "render", self._spread_out("renderers", machines.renderers, frames, costs.image)
        yield "train", self._spread_out("learners", machines.learners, work.train, costs.train)
        yield "measure", self._crew(work.measure, work.steps, self._play)
        yield "remember", self._spread_out("memory", 1, work.records * work.environments, costs.record)

    def _crew(self, count: int, steps: int, job: Callable[[int], Process]) -> list[Process]:
        """Workers that take one episode after the other until all `count` are taken."""
        waiting = [self._length(steps) for _ in range(count)]
        self.stations["workers"].count(self.env.now, count)
        began = self.env.now

        def life() -> Process:
            yield from self._work("workers", self.costs.build)
            while waiting:
                yield from job(waiting.pop())
                self.stations["workers"].leave(began, self.env.now)

        return [life() for _ in range(min(self.machines.workers, count))]

    def _play(self, steps: int) -> Process:
        """An episode of the policy."""
        yield from self._work("workers", self.costs.reset)
        while steps > 0:
            yield from self._work("workers", self.costs.image * self.work.cameras)
            answered = self.env.event()
            self.stations["inference"].count(self.env.now, 1)
            yield self._looks.put((self.env.now, answered))
            yield answered
            yield from self._work("workers", self.costs.step * min(steps, self.work.chunk))
            steps -= self.work.chunk

    def _demonstrate(self, steps: int) -> Process:
        """An episode of the expert."""
        yield from self._work("workers", self.costs.reset + steps * self.costs.expert)

    def _work(self, name: str, seconds: float) -> Process:
        yield self.env.timeout(seconds)
        self.stations[name].busy += seconds

    def _infer(self) -> Process:
        """A server of inference: whatever waits, up to the largest batch."""
        station = self.stations["inference"]
        while True:
            batch = [(yield self._looks.get())]
            # What another server waits for already is its own: to wait for more would hold up those in this batch.
            while self._looks.items and not self._looks.get_queue and len(batch) < self.machines.batch:
                batch.append((yield self._looks.get()))
            yield from self._work("inference", self.costs.infer + self.costs.infer_each * len(batch))
            for came, answered in batch:
                station.leave(came, self.env.now)
                answered.succeed()

    def _endpoint(self, count: int) -> list[Process]:
        """Requests to the critic: as many at once as it takes, and no more a minute than it allows."""
        station, gap, began = self.stations["critic"], 60.0 / self.machines.critic_minute, self.env.now
        station.count(began, count)
        left, free_at = [count], [began]

        def caller() -> Process:
            while left[0]:
                left[0] -= 1
                starts = max(self.env.now, free_at[0])
                free_at[0] = starts + gap
                # A place that waits for its turn is taken: the limit is part of what the endpoint can do.
                yield from self._work("critic", starts - self.env.now + self.costs.critic)
                station.leave(began, self.env.now)

        return [caller() for _ in range(min(self.machines.critic_calls, count))]

    def _spread_out(self, name: str, servers: int, count: int, cost: float) -> list[Process]:
        """Equal work in equal parts, without events for each piece."""
        station, began = self.stations[name], self.env.now
        station.count(began, count)
        parts = [count // servers + (index < count % servers) for index in range(servers)]

        def part(share: int) -> Process:
            yield from self._work(name, share * cost)
            station.leave(began, self.env.now, share)

        return [part(share) for share in parts if share]

    def _length(self, steps: int) -> int:
        """How many steps an episode has that has `steps` on average."""
        return max(1, round(steps * self._rng.uniform(1 - self._spread, 1 + self._spread)))


def grown(work: Work, factor: float) -> Work:
    """The same round with `factor` times the episodes, and as many times the training steps."""
    counts = ("probe", "validation", "measure", "demonstrations", "train")
    return replace(work, **{name: max(1, round(getattr(work, name) * factor)) for name in counts})


def provision(work: Work, costs: Costs, machines: Machines) -> tuple[Machines, Report]:
    """The least machines on which the workers, or the memory, of which there is one, are the bottleneck; the round on
    them. A station needs its utilization over the workers' as many times (bottleneck law)."""
    adds = {"inference": "inference", "critic": "critic_calls", "renderers": "renderers", "learners": "learners"}
    while True:
        report = simulate(work, costs, machines)
        if report.bottleneck not in adds:
            return machines, report
        times = report.utilization(report.bottleneck) / report.utilization("workers")
        name = adds[report.bottleneck]
        more: dict[str, Any] = {name: math.ceil(getattr(machines, name) * times)}
        if name == "critic_calls":
            more["critic_minute"] = machines.critic_minute * times
        machines = replace(machines, **more)


def carried(
    work: Work, report: Report, *, image_bytes: int, episode_bytes: float, row_bytes: float
) -> dict[str, float]:
    """What network, object store and memory carry: bytes of observations a second while the policy plays, bytes of
    observations under way at most (a look a worker), and an hour's rows, bytes of rows and bytes of episodes."""
    played = sum(report.stages[name] for name in ("probe", "validate", "measure"))
    look, hourly = work.cameras * image_bytes, report.throughput
    return {
        "observations_per_s": report.stations["inference"].served * look / played,
        "under_way": report.stations["workers"].capacity * look,
        "rows_per_h": hourly * work.records,
        "rows_bytes_per_h": hourly * work.records * row_bytes,
        "episodes_bytes_per_h": hourly * episode_bytes,
    }

"""Kairos §5 in virtual time: trace robots in front of the live model server, whose engines spend time by service laws."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random

import numpy as np

from lab.reproductions.kairos.traces import Outcome, Pace, Trace, TraceRobot
from ros2_rfm_serving.dispatch import DispatchPolicy
from ros2_rfm_serving.engines.emulated import EmulatedEngine, EmulatedSpec
from ros2_rfm_serving.profiles import FixedService
from ros2_rfm_serving.server import EngineConfig, ModelServer, RunningBatch, ServerConfig
from ros2_rfm_serving.types import SYSTEM1, EngineReply, ObservationRequest, SessionGrant, SessionRequest
from ros2_rfm_serving.virtual_time.events import Events, source

MAX_BATCH_SIZE = 16
JITTER = 0.05
"""Relative standard deviation of a batch's time."""
EDGE = FixedService(base_s=0.037, per_row_s=0.013, jitter=JITTER)
"""SmolVLA on an RTX A6000: 50 ms alone, as on an RTX 3060 (54.8 ms) and an RTX 5090 (49.6 ms; vla.cpp), growing with the batch as
SGLang's pi0.5 does (52.4, 65.1, 91.9 and 147.4 ms at 1, 2, 4 and 8 rows)."""
CLOUD_TIME = 0.5
"""Time of a batch on an A100 (80 GB) relative to the edge's, by the GPUs' dense 16-bit throughput (312 to 155 Tflop/s)."""
WIFI_S = 0.0025
"""One-way delay between a robot and the edge."""
PAYLOAD_MB = 0.16
"""Two JPEG images of 640 x 480 pixels: the size of an observation on its way to the cloud."""
BATCHES_IN_FLIGHT = 2
"""Default of a descriptor's `overflow`."""
REFETCH_LOOKS = 4
"""Polls within the age limit of an observation, as on a live server."""
SESSIONS = 100_000
"""Number of sessions that is never reached."""
MODEL = "SmolVLA"


@dataclass(frozen=True, kw_only=True)
class Wan:
    """Network from the edge to the cloud."""

    latency_s: float = 0.1
    """Round trip."""
    bandwidth_mbps: float = 1000.0

    @property
    def round_trip_s(self) -> float:
        return self.latency_s + 8 * PAYLOAD_MB / self.bandwidth_mbps


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """Placement of the model, and dispatch of its requests."""

    dispatch: str = "fifo"
    policy: Callable[[], DispatchPolicy] | None = None
    """Factory of a policy in place of the named one."""
    batching: str = "saturation"
    refetch_after_s: float = math.inf
    """Age from which on an observation is requested again where that costs no time."""
    edge: bool = True
    cloud: bool = False
    cloud_time: float = CLOUD_TIME
    """Time of a batch in the cloud relative to the edge's."""
    wan: Wan = Wan()
    batches_in_flight: int = BATCHES_IN_FLIGHT
    """Batches in flight to the cloud beside an edge."""


@dataclass(frozen=True, kw_only=True)
class Load:
    """Load by robots. Either tasks arrive as a Poisson process, each with a robot of its own; or a fleet works through them."""

    num_tasks: int
    rate_hz: float = 0.0
    num_robots: int = 0


@dataclass(frozen=True, kw_only=True)
class Report:
    """Results of one replay."""

    outcomes: tuple[Outcome, ...]
    """Outcomes in the order of the tasks."""
    slo_s: float
    num_batches: int
    num_rows: int
    offloaded_rows: int
    refetched: int
    busy_s: float
    """Busy time of the first engine."""
    makespan_s: float

    @property
    def latencies_s(self) -> list[float]:
        return [outcome.latency_s for outcome in self.outcomes]

    @property
    def attainment(self) -> float:
        """Return the share of requests answered within the SLO."""
        waits_s = [wait_s for outcome in self.outcomes for wait_s in outcome.waits_s]
        return sum(wait_s <= self.slo_s for wait_s in waits_s) / len(waits_s)


def cloud_law(time: float = CLOUD_TIME) -> FixedService:
    """Return the service law of the cloud. time: of a batch, relative to the edge's."""
    return replace(EDGE, base_s=time * EDGE.base_s, per_row_s=time * EDGE.per_row_s)


class _Engine:
    """Service law in place of a GPU, compiled for every size: the time of a batch is recorded instead of waited for."""

    def __init__(self, law: FixedService, seed: int) -> None:
        spec = EmulatedSpec(model=MODEL, batch_sizes=(MAX_BATCH_SIZE,))
        rng = np.random.default_rng(seed)
        self.engine = EmulatedEngine(spec, lambda rows: law.draw_s(rows, rng), self._wait)
        self.profile_s = tuple(law.mean_s(rows) for rows in range(1, MAX_BATCH_SIZE + 1))
        self.spent_s, self._free_s = 0.0, -math.inf

    def _wait(self, seconds: float) -> None:
        self.spent_s = seconds

    def ends_s(self, begins_s: float) -> float:
        """Return when the last batch ends; several batches on their way to the engine run one after the other."""
        self._free_s = max(begins_s, self._free_s) + self.spent_s
        return self._free_s


class TraceServer:
    """Model server behind the robots' network (`Service`)."""

    def __init__(self, deployment: Deployment, events: Events, seed: int) -> None:
        self._events, self.way_s = events, WIFI_S
        laws = [EDGE] * deployment.edge + [cloud_law(deployment.cloud_time)] * deployment.cloud
        self._engines = [_Engine(law, source(seed, "service", str(i)).getrandbits(32)) for i, law in enumerate(laws)]
        first, *others = self._engines
        self._round_trips_s = [0.0] + [deployment.wan.round_trip_s] * len(others)
        if not deployment.edge:  # with the cloud alone, every request crosses the WAN
            self.way_s += deployment.wan.round_trip_s / 2
        config = ServerConfig(
            name="server_1",
            batch_size=MAX_BATCH_SIZE,
            max_sessions=SESSIONS,
            dispatch=deployment.dispatch,
            batching=deployment.batching,
            refetch_after_s=deployment.refetch_after_s,
            profile_s=first.profile_s,
        )
        tiers = [
            EngineConfig(
                engine=e.engine,
                batch_size=MAX_BATCH_SIZE,
                batches_in_flight=deployment.batches_in_flight,
                round_trip_s=deployment.wan.round_trip_s,
                profile_s=e.profile_s,
            )
            for e in others
        ]
        policy = deployment.policy() if deployment.policy else None
        self.server = ModelServer(config, first.engine, *tiers, policy=policy)
        self._clients: dict[str, TraceRobot] = {}
        self._looks_s = math.inf
        self._refetch_every_s = deployment.refetch_after_s / REFETCH_LOOKS
        self._refetching = False
        self.refetched = 0
        self.rows = [0] * len(self._engines)
        self.busy_s = [0.0] * len(self._engines)
        self.num_batches = 0

    def open(self, request: SessionRequest) -> SessionGrant:
        return self.server.open_session(request)

    def close(self, robot: str, epoch: int) -> None:
        self.server.close_session(robot, SYSTEM1, epoch)

    def send(self, request: ObservationRequest, client: TraceRobot) -> None:
        self._clients[request.id.robot] = client
        self._events.at(self._events.now_s + self.way_s, self._receive, request)

    def _receive(self, request: ObservationRequest) -> None:
        self.server.submit(request, self._events.now_s)
        self._serve()
        if not self._refetching and self._refetch_every_s < math.inf:
            self._refetching = True
            self._refetch()

    def _refetch(self) -> None:
        """Repeat refetching while any request waits."""
        now_s = self._events.now_s
        for request in self.server.refetches(now_s):
            self.refetched += 1
            self._events.at(now_s + self.way_s, self._clients[request.robot].ask_again, request)
        self._refetching = self.server.num_waiting > 0
        if self._refetching:
            self._events.at(now_s + self._refetch_every_s, self._refetch)

    def _serve(self) -> None:
        now_s = self._events.now_s
        for tier, engine in enumerate(self._engines):
            while work := self.server.loop.begin(now_s, tier):
                answers = self.server.loop.run(work)
                self.rows[tier] += len(work.batch)
                self.busy_s[tier] += engine.spent_s
                self.num_batches += 1
                self._events.at(engine.ends_s(now_s) + self._round_trips_s[tier], self._done, work, answers)
            if now_s < self.server.loop.poll_at_s < math.inf and self.server.loop.poll_at_s != self._looks_s:
                self._looks_s = self.server.loop.poll_at_s
                self._events.at(self._looks_s, self._serve)

    def _done(self, work: RunningBatch, answers: Sequence[EngineReply | None]) -> None:
        for reply in self.server.loop.complete(work, answers, self._events.now_s):
            self._events.at(self._events.now_s + self.way_s, self._clients[reply.id.robot].receive, reply)
        self._serve()


def replay(traces: Sequence[Trace], load: Load, deployment: Deployment, pace: Pace, seed: int) -> Report:
    """Replay traces.

    traces: the tasks, in the order of their arrival; they are repeated from the first one if they do not suffice.
    The same seed gives the same report.
    """
    return _Replay(traces, load, deployment, pace, seed).report()


class _Replay:
    def __init__(self, traces: Sequence[Trace], load: Load, deployment: Deployment, pace: Pace, seed: int) -> None:
        self._tasks = [traces[i % len(traces)] for i in range(load.num_tasks)]
        self._load, self._pace = load, pace
        self._events = Events()
        self._server = TraceServer(deployment, self._events, seed)
        self._outcomes: dict[int, Outcome] = {}
        self._given: dict[str, int] = {}
        self._next = 0
        if load.num_robots:
            self._begin_fleet(source(seed, "phase"))
        else:
            self._begin_arrivals(source(seed, "arrivals"))

    def report(self) -> Report:
        self._events.run(math.inf)
        assert len(self._outcomes) == self._load.num_tasks, "every task ends"
        self._server.server.check_integrity()
        outcomes = tuple(self._outcomes[i] for i in range(self._load.num_tasks))
        return Report(
            outcomes=outcomes,
            slo_s=self._pace.slo_s,
            num_batches=self._server.num_batches,
            num_rows=sum(self._server.rows),
            offloaded_rows=sum(self._server.rows[1:]),
            refetched=self._server.refetched,
            busy_s=self._server.busy_s[0],
            makespan_s=max(outcome.ended_s for outcome in outcomes),
        )

    # --- start of tasks ---

    def _begin_arrivals(self, rng: Random) -> None:
        time_s = 0.0
        for number in range(self._load.num_tasks):
            time_s += rng.expovariate(self._load.rate_hz)
            self._events.at(time_s, self._next_task, self._robot(number, self._leaves))

    def _begin_fleet(self, rng: Random) -> None:
        for number in range(min(self._load.num_robots, self._load.num_tasks)):
            self._events.at(rng.random(), self._takes_another, self._robot(number, self._takes_another))

    def _robot(self, number: int, then: Callable[[TraceRobot], None]) -> TraceRobot:
        def done(robot: TraceRobot, outcome: Outcome) -> None:
            self._outcomes[self._given[robot.name]] = outcome
            then(robot)

        return TraceRobot(f"robot_{number}", self._pace, self._events, self._server, done)

    def _next_task(self, robot: TraceRobot) -> None:
        self._given[robot.name] = self._next
        self._next += 1
        robot.begin(self._tasks[self._given[robot.name]])

    def _leaves(self, robot: TraceRobot) -> None:
        robot.leave()

    def _takes_another(self, robot: TraceRobot) -> None:
        if self._next < len(self._tasks):
            self._next_task(robot)
        else:
            robot.leave()

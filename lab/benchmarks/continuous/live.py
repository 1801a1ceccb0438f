"""Fixed, wait and continuous batching of one engine, in process: a live server, its engine, and robots at random phases.

It is an open loop: a robot sends requests at its own pace, independent of replies. One engine and the same arrivals serve all kinds
of batching in a round, and rounds take turns. The clock is the CPU time of the engine's thread, and jumps over waiting times: other
programs on the machine cost caches, but no time. The work of robots and decoders is on other threads, and not counted. A thread
mostly waits for a GPU: there the clock is the wall clock of an otherwise idle machine, and jumps as well where the engine is idle.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import random
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ros2_rfm_serving.dispatch import StepCosts
from ros2_rfm_serving.engines.base import Stepping
from ros2_rfm_serving.engines.warmup import warmup_request
from ros2_rfm_serving.server import ModelServer, ServerConfig
from ros2_rfm_serving.server.rehearsal import step_costs
from ros2_rfm_serving.types import SYSTEM1, ExecutionReport, InferenceRequest, ObservationRequest, Reply, RequestId, SessionRequest

if TYPE_CHECKING:
    from ros2_rfm_serving.engines.base import Engine

BATCHINGS = ("fixed", "wait", "continuous")
WARM_RUNS = 3
"""Warm-up runs of each size, and steps of each."""
CLOSED_LOOP_S = 1.0
"""Duration of the measurement of the highest throughput."""
SETTLES = 0.2
"""Share of a turn that is discarded at its start."""
JITTER = 0.05
"""Random share of a robot's period, either way, so that phases change."""
NO_REPORT = ExecutionReport()


@dataclass(frozen=True, kw_only=True)
class Setting:
    load: float = 0.7
    """Requests per second relative to fixed batching's highest throughput with the same number of robots."""
    seconds: float = 3.0
    rounds: int = 5
    size_px: tuple[int, int] = (128, 128)
    """Size of camera images, which arrive decoded."""
    dispatch: str = "fifo"
    seed: int = 1
    clock: Callable[[], float] = time.thread_time
    """Clock of the engine's work; on a GPU `time.perf_counter`."""


class Run(NamedTuple):
    """Result of one kind of batching in one turn."""

    p50_s: float
    p99_s: float
    rate_hz: float
    """Rate of answers."""
    cpu_s: float
    """CPU time of the engine's thread per answer."""
    mean_rows: float


@dataclass
class Row:
    """Results for one number of robots."""

    num_robots: int
    asked_hz: float
    highest_hz: dict[str, list[float]] = field(default_factory=dict)
    """Kind of batching -> highest rate in a closed loop, per round."""
    runs: dict[str, list[Run]] = field(default_factory=dict)

    def ratios(self, batching: str, figure: str) -> list[float]:
        """Return the ratios to fixed batching, per round."""
        pairs = zip(self.runs[batching], self.runs["fixed"], strict=True)
        return [getattr(one, figure) / getattr(fixed, figure) for one, fixed in pairs]

    def figures(self) -> dict[str, object]:
        """Return the figures of each round for JSON."""
        runs = {batching: [run._asdict() for run in runs] for batching, runs in self.runs.items()}
        return {"robots": self.num_robots, "asked_hz": self.asked_hz, "highest_hz": self.highest_hz, "runs": runs}

    def highest_ratios(self, batching: str) -> list[float]:
        return [one / fixed for one, fixed in zip(self.highest_hz[batching], self.highest_hz["fixed"], strict=True)]


class Robots:
    """Robots with their sessions at one server, and the results of their requests."""

    def __init__(self, server: ModelServer, number: int, request: InferenceRequest, clock: Callable[[], float]) -> None:
        self._server, self._request, self._clock = server, request, clock
        self._wanted_s: dict[RequestId, float] = {}
        self._busy: set[int] = set()
        self._late: dict[int, float] = {}
        """Robot -> time of its next request, which waits for the reply to the last one."""
        self.answered: list[tuple[float, float, int]] = []
        """(time, response time, rows that shared the engine) per answer."""
        self._ids = [self._opened(f"r{i}") for i in range(number)]
        self._numbers = {id_.robot: number for number, id_ in enumerate(self._ids)}

    def _opened(self, robot: str) -> RequestId:
        contract = self._server.contract
        wanted = SessionRequest(
            robot=robot,
            component=SYSTEM1,
            action_names=contract.action_names,
            cameras=contract.cameras,
            state_size=contract.state_size,
        )
        epoch = self._server.open_session(wanted).session_epoch
        return RequestId(robot=robot, component=SYSTEM1, session_epoch=epoch, episode=1, sequence=0)

    def due(self, robot: int, at_s: float) -> None:
        """Send a robot's request that is due. One request is in flight: while it waits, the next one is sent after the answer, and
        counts from the time that it was due."""
        if robot in self._busy:
            self._late[robot] = min(self._late.get(robot, at_s), at_s)
        else:
            self._ask(robot, at_s, at_s)

    def _ask(self, robot: int, at_s: float, wanted_s: float) -> None:
        """Send a request with decoded images: decoding is the same for all kinds of batching."""
        self._busy.add(robot)
        id_ = self._ids[robot] = replace(self._ids[robot], sequence=self._ids[robot].sequence + 1)
        observation = ObservationRequest(id=id_, stamp_ns=0, instruction="", state=self._request.state, report=NO_REPORT)
        self._wanted_s[id_] = wanted_s
        with self._server.locked_core() as brain:
            brain.deposit(replace(self._request, id=id_), observation, at_s)

    @property
    def idle(self) -> set[int]:
        """Return the robots without a request in flight."""
        return set(range(len(self._ids))) - self._busy

    def take(self, replies: Sequence[Reply]) -> None:
        now_s = self._clock()
        for reply in replies:
            self.answered.append((now_s, now_s - self._wanted_s.pop(reply.id), reply.served.batch_size))
            robot = self._numbers[reply.id.robot]
            self._busy.discard(robot)
            if robot in self._late:
                self._ask(robot, now_s, self._late.pop(robot))

    def run(self, until_s: float, cpu_s: float) -> Run:
        from_s = SETTLES * until_s
        counted = [(response_s, rows) for at_s, response_s, rows in self.answered if from_s <= at_s <= until_s]
        responses_s = [response_s for response_s, _ in counted]
        p50_s, p99_s = np.quantile(responses_s, [0.5, 0.99]).tolist()
        return Run(
            p50_s=p50_s,
            p99_s=p99_s,
            rate_hz=len(counted) / (until_s - from_s),
            cpu_s=cpu_s / len(self.answered),
            mean_rows=float(np.mean([rows for _, rows in counted])),
        )


class Bench:
    def __init__(self, engine: Engine, setting: Setting) -> None:
        self._engine, self._setting, self._blanks = engine, setting, itertools.count(-1_000_000, -1)
        blank = warmup_request(engine.contract, setting.size_px)
        rng = np.random.default_rng(setting.seed)
        images = {camera: rng.integers(0, 255, (*setting.size_px[::-1], 3), np.uint8) for camera in engine.contract.cameras}
        self._costs = StepCosts()
        self._request = replace(blank, images=images, state=rng.random(engine.contract.state_size, np.float32))

    def rows(self, robots: Sequence[int], told: Callable[[str], None] = lambda text: None) -> Iterator[Row]:
        for number in robots:
            row = Row(number, 0.0, {name: [] for name in BATCHINGS}, {name: [] for name in BATCHINGS})
            told(f"{number} robots: the engine warms up")
            self._warm_up(number)
            self._costs = step_costs(self._engine, self._engine.max_batch_size, self._request, self._setting.clock)
            for turn in range(self._setting.rounds):
                for batching in self._order(turn):
                    told(f"{number} robots, round {turn + 1}: highest throughput, {batching}")
                    row.highest_hz[batching].append(self._closed(batching, number))
            row.asked_hz = self._setting.load * float(np.median(row.highest_hz["fixed"]))
            for turn in range(self._setting.rounds):
                asks = arrivals(number, row.asked_hz, self._setting.seconds, random.Random(self._setting.seed + turn))
                for batching in self._order(turn):
                    told(f"{number} robots, round {turn + 1}: {row.asked_hz:.0f} requests/s, {batching}")
                    row.runs[batching].append(self._open(batching, number, asks))
            yield row

    def _order(self, turn: int) -> list[str]:
        first = turn % len(BATCHINGS)
        return [*BATCHINGS[first:], *BATCHINGS[:first]]

    def _served(self, batching: str, number: int) -> tuple[ModelServer, Robots, EngineClock]:
        config = ServerConfig(
            name="bench",
            batch_size=self._engine.max_batch_size,
            max_sessions=number,
            batching=batching,
            dispatch=self._setting.dispatch,
            window_s=1.0,
            costs=self._costs if batching == "continuous" else StepCosts(),
        )
        server, clock = ModelServer(config, self._engine), EngineClock(self._setting.clock)
        return server, Robots(server, number, self._request, clock), clock

    def _open(self, batching: str, number: int, asks: Sequence[tuple[float, int]]) -> Run:
        server, robots, clock = self._served(batching, number)
        coming = deque(asks)
        while coming or not server.is_idle:
            while coming and coming[0][0] <= clock():
                with clock.stopped():
                    at_s, robot = coming.popleft()
                    robots.due(robot, at_s)
            self._step(server, robots, clock, coming[0][0] if coming else math.inf)
        assert not server.refused, server.problems
        return robots.run(self._setting.seconds, clock.busy_s)

    def _warm_up(self, number: int) -> None:
        """Warm up the engine: graphs are optimised after they have run a few times at a size."""
        stepping = self._engine
        assert isinstance(stepping, Stepping)
        for size in range(1, number + 1):
            for _ in range(WARM_RUNS):
                self._engine.infer([self._request] * size)
                rows = {next(self._blanks): self._request for _ in range(size)}
                stepping.enter(rows)
                for _ in range(WARM_RUNS):
                    stepping.iterate(stepping.ready())
                stepping.leave(list(rows))

    def _closed(self, batching: str, number: int) -> float:
        """Return the answers per second of robots that send the next request at once."""
        server, robots, clock = self._served(batching, number)
        while clock() < CLOSED_LOOP_S:
            self._ask_again(server, robots, clock)
        server.refuse_waiting()
        while not server.is_idle:  # the next server needs an empty engine
            server.loop.step(clock)
        return robots.run(CLOSED_LOOP_S, clock.busy_s).rate_hz

    def _ask_again(self, server: ModelServer, robots: Robots, clock: EngineClock) -> None:
        """Send a request for each idle robot, all at once."""
        with clock.stopped():
            for robot in robots.idle:
                robots.due(robot, clock())
        self._step(server, robots, clock, math.inf)

    def _step(self, server: ModelServer, robots: Robots, clock: EngineClock, next_ask_s: float) -> list[Reply]:
        before_s = clock.busy_s
        replies = server.loop.step(clock)
        with clock.stopped():
            robots.take(replies)
        if not replies and not server.loop.num_in_flight():
            clock.wait_until(min(next_ask_s, server.loop.poll_at_s), asleep_s=before_s)
        return replies


class EngineClock:
    """Clock of the engine's work in seconds: this thread's CPU time, and simulated waiting time.

    Other load of the machine does not affect it. Reading a thread's time takes longer than reading a clock, and is subtracted.
    """

    def __init__(self, now: Callable[[], float] = time.thread_time) -> None:
        self._now = now
        self._asking_s = _asking_s(now)
        self._origin_s = now()
        self._waited_s = 0.0

    def __call__(self) -> float:
        return self.busy_s + self._waited_s

    @property
    def busy_s(self) -> float:
        self._origin_s += self._asking_s
        return self._now() - self._origin_s

    def wait_until(self, at_s: float, asleep_s: float) -> None:
        """Advance to `at_s`. The search for work took no time: the thread has been asleep since its work was `asleep_s`."""
        self._origin_s += self.busy_s - asleep_s
        if math.isfinite(at_s):
            self._waited_s += max(0.0, at_s - self())

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """Stop the clock for the work of robots, which have threads of their own."""
        before_s = self._now()
        yield
        self._origin_s += self._now() - before_s


def _asking_s(now: Callable[[], float]) -> float:
    """Return the time that one reading of the clock takes."""
    began_s, number = now(), 500
    for _ in range(number):
        now()
    return (now() - began_s) / number


def arrivals(number: int, rate_hz: float, seconds: float, rng: random.Random) -> list[tuple[float, int]]:
    """Return (time, robot) pairs: all robots have one rate, each has its own phase, and its periods vary a little."""
    period_s, asks = number / rate_hz, []
    for robot in range(number):
        at_s = rng.uniform(0.0, period_s)
        while at_s < seconds:
            asks.append((at_s, robot))
            at_s += period_s * rng.uniform(1.0 - JITTER, 1.0 + JITTER)
    return sorted(asks)

"""Server that advances one solver step at a time, under a load, for `rfm profile`: the server itself decides which requests enter,
and only its engine takes time."""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ros2_rfm_serving.dispatch import StepCosts
from ros2_rfm_serving.engines.base import Engine, stepping
from ros2_rfm_serving.engines.emulated import EmulatedSpec, EmulatedSteps
from ros2_rfm_serving.engines.warmup import SMALL_PX, warmup_request
from ros2_rfm_serving.errors import ModelError
from ros2_rfm_serving.factory.cluster import CONTINUOUS
from ros2_rfm_serving.profiles import SteppedService
from ros2_rfm_serving.profiles.arrivals import Arrival, ArrivalProcess, ClosedLoop
from ros2_rfm_serving.server import ModelServer, RunningBatch, ServerConfig
from ros2_rfm_serving.server.rehearsal import step_costs
from ros2_rfm_serving.types import SYSTEM1, InferenceRequest, ObservationRequest, RequestId, SessionRequest
from ros2_rfm_serving.virtual_time.events import Events
from ros2_rfm_serving.virtual_time.iterations import Answers, IterationLoop

Clock = Callable[[], float]
"""Function that returns seconds."""
UNLIMITED = 65_535
ALONE, CROWD, FULL = 160, 2, 800
"""Number of requests whose median is the unloaded latency; sources per slot, and number of their answers, by which the highest
throughput is measured."""


class LawEngine(EmulatedSteps):
    """Engine that records the seconds of a service law in place of running."""

    def __init__(self, law: SteppedService, rng: np.random.Generator) -> None:
        spec = EmulatedSpec(model="", chunk_length=1, batch_sizes=law.sizes, seed=int(rng.integers(1 << 32)))
        super().__init__(spec, law.mean_s, self._note, law)
        self.spent_s = 0.0

    def _note(self, seconds: float) -> None:
        self.spent_s += seconds


class Ready:
    """Sources that ask again as soon as they are answered: the highest load that a server can serve."""

    def __init__(self, num: int) -> None:
        self._ready, self.ended_s = deque(Arrival(0.0, source) for source in range(num)), list[float]()

    def next_s(self) -> float:
        return self._ready[0].at_s if self._ready else math.inf

    def next_arrival(self) -> Arrival:
        return self._ready.popleft()

    def answered(self, source: int, now_s: float) -> None:
        self._ready.append(Arrival(now_s, source))
        self.ended_s.append(now_s)


class SteppedSubject:
    """Implementation of `profiles.measure.Subject`.

    The costs of a real engine are measured once, as a live server does before it serves; a server with a law learns them anew in
    each run, as in the shipped profiles.

    The latency of a fixed batch is that of a full one. Accordingly, the unloaded latency here is that of half the largest number of
    slots, which makes the fleet as large as for a fixed batch of that size.
    """

    def __init__(
        self, start: Callable[[np.random.Generator], tuple[Engine, Clock]], size_px: tuple[int, int], *, rehearsed: bool = False
    ) -> None:
        """Measure the unloaded latency and the highest rate.

        start: returns the engine, and the total time of its calls until now; or any clock, for a real engine.
        """
        self._start = start
        rng = np.random.default_rng(0)
        engine, clock = start(rng)
        self._blank = warmup_request(engine.contract, size_px, encoded=engine.takes_encoded)
        self._costs = step_costs(engine, UNLIMITED, self._blank, clock) if rehearsed else StepCosts()
        most = stepping(engine).max_rows
        self.unloaded_s = float(np.median(self.latencies_s(Ready(max(1, most // 2)), ALONE, rng)))
        crowd = Ready(CROWD * most)
        self.latencies_s(crowd, FULL, rng)
        settled = crowd.ended_s[FULL // 4 :]
        self.max_rate_hz = len(settled) / (settled[-1] - settled[0])

    def latencies_s(self, load: ArrivalProcess, num_requests: int, rng: np.random.Generator) -> list[float]:
        engine, clock = self._start(rng)
        return _UnderLoad(engine, clock, load, self._blank, self._costs).latencies_s(num_requests)


def law_subject(law: SteppedService) -> SteppedSubject:
    def start(rng: np.random.Generator) -> tuple[Engine, Clock]:
        engine = LawEngine(law, rng)
        return engine, lambda: engine.spent_s

    return SteppedSubject(start, SMALL_PX)


def engine_subject(engine: Engine, size_px: tuple[int, int]) -> SteppedSubject:
    """Return the subject for a real engine on this machine, which is ready for its largest batch."""
    return SteppedSubject(lambda rng: (engine, time.perf_counter), size_px, rehearsed=True)


class _UnderLoad:
    """A server and its load. While the engine has nothing to do, time passes as far as the next request."""

    def __init__(self, engine: Engine, clock: Clock, load: ArrivalProcess, blank: InferenceRequest, costs: StepCosts) -> None:
        config = ServerConfig(name="profiled", batch_size=UNLIMITED, batching=CONTINUOUS, max_sessions=UNLIMITED, costs=costs)
        self._server, self._events, self._load = ModelServer(config, engine), Events(), load
        self._engine = stepping(engine)
        self._rounds = IterationLoop(self._server.loop, self._events, clock, self)
        self._blank = blank
        self._sent: dict[str, Arrival] = {}
        self._epochs: dict[str, int] = {}
        self._sequences: Counter[str] = Counter()
        self._free: list[str] = []
        """Sessions of sources that ask only once and have been answered."""
        self._latencies_s: list[float] = []
        self._planned_s = math.inf

    def latencies_s(self, num_requests: int) -> list[float]:
        self._plan()
        try:
            while len(self._latencies_s) < num_requests:
                self._events.next()
        finally:
            self._engine.leave([work.number for work in self._server.core.works])
        return self._latencies_s[:num_requests]

    # --- methods of `IterationLoop`' owner ---

    def begun(self, work: RunningBatch) -> None:
        """Ignore the beginning of work."""

    def ended(self, work: RunningBatch, answers: Answers) -> None:
        now_s = self._events.now_s
        self._server.loop.complete(work, answers, now_s)
        for waiting, answer in zip(work.batch, answers, strict=True):
            if answer is None:
                raise ModelError(f"a request was not answered: {'; '.join(self._server.problems.values())}")
            self._answered(waiting.request.id.robot, now_s)

    def _answered(self, robot: str, now_s: float) -> None:
        sent = self._sent.pop(robot)
        self._latencies_s.append(now_s - sent.at_s)
        self._load.answered(sent.source, now_s)
        if not isinstance(self._load, ClosedLoop):
            self._free.append(robot)

    def over(self) -> None:
        self._plan()
        self._rounds.serve()

    # --- requests ---

    def _plan(self) -> None:
        """Plan the next request; an answer may have caused one that is due before it."""
        next_s = max(self._load.next_s(), self._events.now_s)
        if next_s < self._planned_s:
            self._planned_s = next_s
            self._events.at(next_s, self._arrive, next_s)

    def _arrive(self, planned_s: float) -> None:
        """Send the requests that are due, unless a newer plan replaced this one."""
        if planned_s != self._planned_s:
            return
        self._planned_s = math.inf
        while self._load.next_s() <= self._events.now_s:
            self._send(self._load.next_arrival())
        self._plan()
        self._rounds.serve()

    def _send(self, sent: Arrival) -> None:
        robot = str(sent.source) if isinstance(self._load, ClosedLoop) or not self._free else self._free.pop()
        if robot not in self._epochs:
            self._epochs[robot] = self._open(robot)
        self._sequences[robot] += 1
        self._sent[robot] = sent
        request = RequestId(
            robot=robot, component=SYSTEM1, session_epoch=self._epochs[robot], episode=1, sequence=self._sequences[robot]
        )
        observation = ObservationRequest(id=request, stamp_ns=0, instruction="", state=self._blank.state)
        with self._server.locked_core() as brain:
            brain.deposit(replace(self._blank, id=request), observation, self._events.now_s)

    def _open(self, robot: str) -> int:
        contract = self._server.contract
        asked = SessionRequest(
            robot=robot,
            component=SYSTEM1,
            action_names=contract.action_names,
            cameras=contract.cameras,
            state_size=contract.state_size,
        )
        return self._server.open_session(asked).session_epoch

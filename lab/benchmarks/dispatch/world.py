"""Closed loop in virtual time around the real `ModelServer`: robots with tasks of different lengths, horizons and rates."""

from __future__ import annotations

import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ros2_rfm_serving.dispatch import DispatchPolicy
from ros2_rfm_serving.engines.base import Engine
from ros2_rfm_serving.profiles import FixedService
from ros2_rfm_serving.server import EngineConfig, ModelServer, RunningBatch, ServerConfig
from ros2_rfm_serving.types import (
    NO_ROWS,
    NO_VALUES,
    SYSTEM1,
    EngineReply,
    ExecutionReport,
    InferenceRequest,
    ModelContract,
    ObservationRequest,
    OutputKind,
    RequestId,
    SessionRequest,
)

BARE = ModelContract(model="nothing", model_hash="", output=OutputKind.ACTION_CHUNK)
EDGE, CLOUD = FixedService(base_s=0.036, per_row_s=0.01), FixedService(base_s=0.02, per_row_s=0.004)


class InstantEngine(Engine):
    """Engine without delay; the simulation adds its time."""

    def __init__(self, max_batch_size: int) -> None:
        self._max_batch_size = max_batch_size

    @property
    def contract(self) -> ModelContract:
        return BARE

    @property
    def max_batch_size(self) -> int:
        return self._max_batch_size

    def infer(self, requests: Sequence[InferenceRequest]) -> list[EngineReply]:
        return [EngineReply(chunk_model=NO_ROWS, chunk_robot=NO_ROWS)] * len(requests)


@dataclass(frozen=True)
class Task:
    kind: str
    executions_s: tuple[float, ...]
    """Execution time of each chunk."""
    ahead_s: float
    """Remaining execution time when the next request is sent; 0: it is sent when the actions are over."""


def draw_tasks(seed: int, number: int, *, ahead: float) -> list[Task]:
    """Return tasks of eight kinds with different length, horizon and spread. ahead: share of an execution during generation."""
    rng = random.Random(seed)
    kinds = [
        (f"kind {i}", rng.choice([3, 5, 8, 12, 20, 30]), rng.choice([0.1, 0.3, 0.6]), rng.choice([0.1, 0.3, 0.6, 1.2]))
        for i in range(8)
    ]
    tasks = []
    for _ in range(number):
        kind, rounds, spread, execution_s = rng.choice(kinds)
        length = max(1, round(rounds * rng.lognormvariate(-spread * spread / 2, spread)))
        phase, executions = rng.lognormvariate(0.0, 0.3), []
        for _ in range(length):
            phase = rng.lognormvariate(0.0, 0.5) if rng.random() < 0.1 else phase
            executions.append(execution_s * phase * rng.uniform(0.95, 1.05))
        tasks.append(Task(kind, tuple(executions), ahead * execution_s))
    return tasks


@dataclass
class Robot:
    name: str
    tasks: deque[Task]
    task: Task = Task("", (), 0.0)
    epoch: int = 0
    episode: int = 0
    sequence: int = 0
    round: int = 0
    began_s: float = 0.0
    executes_s: tuple[float, float] = (0.0, 0.0)


@dataclass
class Outcome:
    task_s: list[float] = field(default_factory=list)
    """Time from the first request to the last action."""
    in_time: list[bool] = field(default_factory=list)
    batches: list[int] = field(default_factory=list)
    overflowed: int = 0
    refetched: int = 0

    def figures(self) -> dict[str, float]:
        """Return statistics of tasks in seconds; `late`: share of requests."""
        p25, p95 = np.quantile(self.task_s, [0.25, 0.95]).tolist()
        return {"mean": float(np.mean(self.task_s)), "p25": p25, "p95": p95, "late": 1.0 - float(np.mean(self.in_time))}


class World:
    """Simulation. laws: of the edge and of more engines, which are reached over `round_trip_s`, with `batches_in_flight` each."""

    def __init__(
        self,
        config: ServerConfig,
        laws: Sequence[FixedService] = (EDGE,),
        *,
        slo_s: float = 0.5,
        round_trip_s: float = 0.0,
        batches_in_flight: int = 1,
        policy: DispatchPolicy | None = None,
    ) -> None:
        self.outcome, self._laws, self._slo_s, self._round_trip_s = Outcome(), laws, slo_s, round_trip_s
        self._now_s, self._order = 0.0, itertools.count()
        self._events: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []
        self._robots: dict[str, Robot] = {}
        engine = InstantEngine(config.batch_size)
        away = EngineConfig(
            engine=engine, batch_size=config.batch_size, round_trip_s=round_trip_s, batches_in_flight=batches_in_flight
        )
        more = [away for _ in laws[1:]]
        self._free_s = [0.0 for _ in laws]
        self.server = ModelServer(replace(config, max_sessions=100_000), engine, *more, policy=policy)

    def run(self, tasks: Sequence[Sequence[Task]], starts_s: Sequence[float]) -> Outcome:
        """Run the tasks of each robot back to back from its start on."""
        for i, (its_tasks, start_s) in enumerate(zip(tasks, starts_s, strict=True)):
            robot = self._robots[f"r{i}"] = Robot(f"r{i}", deque(its_tasks))
            request = SessionRequest(robot=robot.name, component=SYSTEM1, slo_s=self._slo_s)
            robot.epoch = self.server.open_session(request).session_epoch
            self._at(start_s, self._start, robot)
        while self._events:
            self._now_s, _, event, given = heapq.heappop(self._events)
            event(*given)
        self.server.check_integrity()
        assert self.server.is_idle and not self.server.refused
        return self.outcome

    def _at(self, time_s: float, event: Callable[..., None], *given: object) -> None:
        heapq.heappush(self._events, (time_s, next(self._order), event, given))

    def _start(self, robot: Robot) -> None:
        if robot.tasks:
            robot.task, robot.round, robot.began_s = robot.tasks.popleft(), 0, self._now_s
            robot.episode += 1
            robot.executes_s = (self._now_s, self._now_s)
            self._ask(robot)
        else:
            self.server.close_session(robot.name, SYSTEM1, robot.epoch)

    def _ask(self, robot: Robot) -> None:
        robot.sequence += 1
        begin_s, end_s = robot.executes_s
        request = ObservationRequest(
            id=RequestId(
                robot=robot.name, component=SYSTEM1, session_epoch=robot.epoch, episode=robot.episode, sequence=robot.sequence
            ),
            stamp_ns=0,
            instruction=robot.task.kind,
            state=NO_VALUES,
            report=ExecutionReport(executing_s=self._now_s - begin_s, remaining_s=end_s - self._now_s),
        )
        self.server.submit(request, self._now_s)
        self._serve()

    def _serve(self) -> None:
        for tier, law in enumerate(self._laws):
            work = self.server.loop.begin(self._now_s, tier)
            if work:
                self.outcome.batches.append(len(work.batch))
                self.outcome.overflowed += len(work.batch) if tier else 0
                away_s = self._round_trip_s if tier else 0.0
                self._free_s[tier] = max(self._now_s, self._free_s[tier]) + law.mean_s(len(work.batch))
                self._at(self._free_s[tier] + away_s, self._done, work)
            elif not tier and self.server.loop.poll_at_s < float("inf"):
                self._at(self.server.loop.poll_at_s, self._serve)

    def _done(self, work: RunningBatch) -> None:
        answers = self.server.loop.run(work)
        for waiting, reply in zip(work.batch, self.server.loop.complete(work, answers, self._now_s), strict=True):
            self.outcome.in_time.append(self._now_s - waiting.since_s <= self._slo_s)
            robot = self._robots[reply.id.robot]
            begin_s = max(self._now_s, robot.executes_s[1])
            end_s = begin_s + robot.task.executions_s[robot.round]
            robot.executes_s = (begin_s, end_s)
            robot.round += 1
            if robot.round == len(robot.task.executions_s):
                self._at(end_s, self._end, robot)
            else:
                self._at(max(self._now_s, end_s - robot.task.ahead_s), self._ask, robot)
        self._serve()

    def _end(self, robot: Robot) -> None:
        self.outcome.task_s.append(self._now_s - robot.began_s)
        self._start(robot)


def arriving(
    config: ServerConfig, seed: int, *, load: float, ahead: float, number: int = 300, policy: DispatchPolicy | None = None
) -> Outcome:
    """Run tasks that arrive by a Poisson process with `load` times the capacity of full batches."""
    tasks, rng = draw_tasks(seed, number, ahead=ahead), random.Random(seed)
    rounds = sum(len(task.executions_s) for task in tasks) / number
    starts = itertools.accumulate(rng.expovariate(load * EDGE.capacity_hz(config.batch_size) / rounds) for _ in tasks)
    return World(config, policy=policy).run([[task] for task in tasks], list(starts))


def back_to_back(
    config: ServerConfig, seed: int, *, robots: int, ahead: float, number: int = 300, policy: DispatchPolicy | None = None
) -> Outcome:
    """Run a fleet that is never idle."""
    tasks = draw_tasks(seed, number, ahead=ahead)
    return World(config, policy=policy).run([tasks[i::robots] for i in range(robots)], [0.01 * i for i in range(robots)])

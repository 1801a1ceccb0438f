"""`server/`: a model server, its sessions and its dispatch policies under any sequence of calls, with an engine that fails.

The bytes are a program: a configuration, then operations, each with what it needs.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from ros2_rfm_serving.dispatch.batching import BATCHINGS, CONTINUOUS
from ros2_rfm_serving.dispatch.dispatcher import DISPATCH_POLICIES
from ros2_rfm_serving.errors import BadMessageError, CapacityError, DrainingError, ModelError, RfmError
from ros2_rfm_serving.server import ModelServer, ServerConfig
from ros2_rfm_serving.server.engine_queues import EngineConfig, RunningBatch
from ros2_rfm_serving.server.sessions import SessionRules
from ros2_rfm_serving.types import (
    SYSTEM1,
    Conditioning,
    EngineReply,
    ExecutionReport,
    Guidance,
    HorizonRequest,
    InferenceRequest,
    RequestId,
    SessionSharing,
    empty,
)
from test.unit import fakes
from test.unit.stepping import FakeStepping

Item = TypeVar("Item")
MAX_OPERATIONS = 100
ROBOTS = ("a", "b", "c", "d")
GOOD = "good"
FLOATS = (0.0, 0.1, 1.0, -1.0, 30.0, 1e-9, -1e-9, 1e9, -1e9, 1e300, -1e300, 3e38, math.inf, -math.inf, math.nan, 5e-324)
WHOLE = (0, 1, 2, 3, 4, -1, 255, 65535, 65536, 1 << 31, 1 << 32, 1 << 63, -(1 << 63))
ARRAYS = (
    np.zeros(3, np.float32),
    np.zeros(0, np.float32),
    np.zeros(4, np.float32),
    np.zeros((3, 1), np.float32),
    np.full(3, np.nan, np.float32),
    np.full(3, -np.inf, np.float32),
)
PREFIXES = (
    empty(0, 0),
    empty(0, 2),
    np.ones((1, 2), np.float32),
    np.ones((9, 2), np.float32),
    empty(5, 0),
    np.full((2, 2), np.nan),
)
TEXTS = ("", "go", "stop", "x" * 3000, "\0", "\ud800", "static", "confidence", "system1", "monitor")
WILD = 6
"""Engines that do this or more answer nobody."""
SERVES_WITHIN = 250
"""Batches, of one row each, that those who wait may come to be served before the good one."""


class Program:
    """What the bytes say, a piece at a time; zeros when they are over."""

    def __init__(self, data: bytes) -> None:
        self._bytes = iter(data)
        self.is_over = False

    def byte(self) -> int:
        value = next(self._bytes, None)
        self.is_over = value is None
        return value or 0

    def one_of(self, items: Sequence[Item]) -> Item:
        return items[self.byte() % len(items)]


class Foreign(fakes.FakeEngine):
    """Answers as it likes."""

    def __init__(self, **contract: Any) -> None:
        super().__init__()
        self.contract = replace(fakes.CONTRACT, cameras=(), **contract)
        self.does = 0

    def reset(self) -> None: ...

    def infer(self, requests: Sequence[InferenceRequest]) -> list[Any]:
        values = fakes.rows()
        good = EngineReply(chunk_model=values, chunk_robot=values, updates=np.ones((3, 4, 2), np.float32))
        answers: list[Callable[[], Any]] = [
            lambda: good,
            lambda: replace(good, chunk_robot=values * np.nan),
            lambda: ModelError("no"),
            lambda: replace(good, updates=np.full((3, 4, 2), np.nan, np.float32)),
            lambda: replace(good, updates=empty(1, 4, 2)),
            EngineReply,
        ]
        if self.does == len(answers):
            raise RuntimeError("lost")
        return [] if self.does > len(answers) else [answers[self.does]() for _ in requests]


class ForeignSteps(FakeStepping, Foreign):
    """Whose rows go on one step at a time, as far as it likes. A row that it has lost is no row any more, as the interface says."""

    max_batch_size = max_rows = 4

    def __init__(self, **contract: Any) -> None:
        FakeStepping.__init__(self)
        Foreign.__init__(self, **contract)

    def enter(self, rows: Mapping[int, InferenceRequest]) -> Any:
        if self.does == WILD:
            raise RuntimeError("lost")
        if self.does > WILD:
            return []
        super().enter(rows)
        refused = list(rows)[:1] if self.does == WILD - 1 else []
        self.leave(refused)
        return {row: ModelError("no") for row in refused}

    def iterate(self, rows: Collection[int]) -> Any:
        requests = {row: self.in_flight[row][0] for row in rows}
        done = super().iterate(rows)
        if self.does >= WILD:
            self.leave(rows)
        if self.does > WILD:
            return []
        return dict(zip(done, Foreign.infer(self, [requests[row] for row in done]), strict=False)) if done else {}


class Run:
    """A server, its clock, and what its robots know."""

    def __init__(self, program: Program) -> None:
        self.program, self.now_s = program, 100.0
        serving = program.one_of(tuple(SessionSharing))
        config = ServerConfig(
            name="s",
            batch_size=1 + program.byte() % 4,
            max_sessions=1 + program.byte() % 8,
            dispatch=program.one_of(tuple(DISPATCH_POLICIES)),
            batching=program.one_of(tuple(BATCHINGS)),
            refetch_after_s=program.one_of((math.inf, 0.5)),
            profile_s=program.one_of(((), (0.1, 0.11, 0.12, 0.13))),
            sessions=SessionRules(
                max_request_rate_hz=program.one_of((math.inf, 2.0)),
                idle_timeout_s=program.one_of((math.inf, 5.0)),
                absent_grace_s=1.0,
            ),
        )
        steps = config.batching == CONTINUOUS
        if steps:
            serving = SessionSharing.SHARED
        self.engines = [(ForeignSteps if steps else Foreign)(serving=serving), Foreign(serving=serving)]
        away = program.byte()
        tier = EngineConfig(engine=self.engines[1], batch_size=2, batches_in_flight=1 + away % 4 // 2, round_trip_s=0.05)
        overflow = [tier] if away % 2 else []
        self.server = ModelServer(config, self.engines[0], *overflow)
        self.epochs = dict.fromkeys((*ROBOTS, GOOD), 0)
        self.sequences = itertools.count(1)
        self.works: list[RunningBatch] = []

    def clock(self) -> float:
        return self.now_s

    # --- operations ---

    def open(self) -> None:
        p = self.program
        robot = p.one_of(ROBOTS)
        changes: dict[str, Any] = {}
        if p.byte() % 2:
            changes = {
                "conditioning": p.one_of(tuple(Conditioning)),
                "guidance": Guidance(max_weight=p.one_of(FLOATS), execution_horizon=p.one_of(WHOLE)),
                "horizon": HorizonRequest(
                    policy=p.one_of(TEXTS), steps=p.one_of(WHOLE), min_steps=p.one_of(WHOLE), threshold=p.one_of(FLOATS)
                ),
                "control_rate_hz": p.one_of(FLOATS),
                "instruction": p.one_of(TEXTS),
                "slo_s": p.one_of(FLOATS),
            }
        request = fakes.session_request(robot, cameras=(), **changes)
        self.epochs[robot] = self.server.open_session(request).session_epoch

    def submit(self) -> None:
        p = self.program
        robot = p.one_of(ROBOTS)
        sequence = next(self.sequences)
        request = replace(
            fakes.observation(self.epochs[robot], sequence, robot, 1 + p.byte() % 3, images=()),
            report=ExecutionReport(
                executed_steps=p.one_of(WHOLE),
                executing_s=p.one_of(FLOATS),
                remaining_s=p.one_of(FLOATS),
                last_wait_s=p.one_of(FLOATS),
            ),
        )
        if p.byte() % 4 == 3:
            request = replace(
                request,
                state=p.one_of(ARRAYS),
                prefix_model=p.one_of(PREFIXES),
                inference_delay_steps=p.one_of(WHOLE),
                instruction=p.one_of(TEXTS),
                id=replace(request.id, session_epoch=p.one_of(WHOLE), sequence=p.one_of(WHOLE), component=p.one_of(TEXTS)),
            )
        self.server.submit(request, self.now_s)

    def reset(self) -> None:
        robot = self.program.one_of(ROBOTS)
        self.server.reset_episode(robot, SYSTEM1, self.epochs[robot], self.program.one_of(WHOLE[:8]))

    def close(self) -> None:
        robot = self.program.one_of(ROBOTS)
        self.server.close_session(robot, SYSTEM1, self.epochs[robot])

    def wait(self) -> None:
        self.now_s += self.program.one_of((0.0, 1e-6, 0.01, 0.1, 1.0, 100.0))

    def begin(self) -> None:
        tier = self.program.byte() % self.server.num_queues
        work = self.server.loop.begin(self.now_s, tier)
        if tier == 0 and self.server.loop.is_iteration_level():
            _, ended = self.server.loop.round(work, self.clock)
            for one in ended:
                self.server.loop.complete(*one, self.now_s)
        elif work:
            self.works.append(work)

    def complete(self) -> None:
        if self.works:
            work = self.works.pop(self.program.byte() % len(self.works))
            self.server.loop.complete(work, self.server.loop.run(work), self.now_s)

    def look(self) -> None:
        self.server.refetches(self.now_s)
        snapshot = self.server.snapshot(self.now_s)
        assert snapshot.waiting <= snapshot.sessions <= snapshot.max_sessions and math.isfinite(snapshot.load)

    def collect(self) -> None:
        self.server.collect_sessions([(robot, SYSTEM1) for robot in ROBOTS[: self.program.byte() % 5]], self.now_s)

    def behave(self) -> None:
        self.program.one_of(self.engines).does = self.program.byte() % 8

    def resize(self) -> None:
        self.server.resize(1 + self.program.byte() % 4, 4 + self.program.byte() % 4)

    def drain(self) -> None:
        if self.program.byte() == 0xFF:
            self.server.drain()

    # --- afterwards ---

    def lie(self, robot: str) -> None:
        """Asks again, and says that it is in a hurry."""
        report = ExecutionReport(executing_s=self.program.one_of(FLOATS), remaining_s=self.program.one_of((-1e9, *FLOATS)))
        request = fakes.observation(self.epochs[robot], next(self.sequences), robot, 3, images=(), report=report)
        with contextlib.suppress(BadMessageError):
            self.server.submit(request, self.now_s)

    def good_one_is_served(self) -> None:
        """Though all others still wait, whatever they said of themselves."""
        for engine in self.engines:
            engine.does = 0
        while self.works:
            self.complete()
        try:
            epoch = self.server.open_session(fakes.session_request(GOOD, cameras=())).session_epoch
        except (CapacityError, DrainingError):
            return
        id_ = RequestId(robot=GOOD, component=SYSTEM1, session_epoch=epoch, episode=1, sequence=1)
        self.server.submit(replace(fakes.observation(epoch, images=()), id=id_), self.now_s)
        liar = self.program.one_of((*ROBOTS, ""))
        for _ in range(SERVES_WITHIN):
            if liar:
                self.lie(liar)
            if any(reply.id == id_ for reply in self.server.loop.step(self.clock)):
                return
            self.now_s += 0.2
        raise AssertionError("a good request is not served")


OPERATIONS = (
    Run.open, Run.submit, Run.begin, Run.complete, Run.wait, Run.submit, Run.reset, Run.close, Run.look, Run.collect, Run.behave,
    Run.resize, Run.drain,
)  # fmt: skip


def seeds() -> list[bytes]:
    names = {operation.__name__: i for i, operation in enumerate(OPERATIONS)}
    opened = bytes([names["open"], 0, 0, names["open"], 1, 0])
    asked = bytes([names["submit"], 0, 0, 1, 1, 1, 1, 0, names["submit"], 1, 0, 2, 2, 2, 2, 0])
    served = bytes([names["wait"], 3, names["begin"], 0, names["wait"], 3, names["complete"], 0, names["look"]])
    calm = (opened + (asked + served) * 3 + bytes([names["close"], 0]), opened + bytes([names["behave"], 0, 1]) + asked + served)
    configurations = [bytes([0, 0, 1, 7, policy, batching, 1, 1, 0, 0, policy % 2]) for policy in range(5) for batching in range(4)]
    return [configuration + program for configuration in configurations for program in calm]


def check(data: bytes) -> None:
    program = Program(data)
    run = Run(program)
    for _ in range(MAX_OPERATIONS):
        operation = program.one_of(OPERATIONS)
        if program.is_over:
            break
        try:
            operation(run)
        except RfmError as error:
            str(error)
        run.server.check_integrity()
    run.good_one_is_served()

"""Any order of what may happen to a server whose rows go on one solver step at a time, and what must hold whatever it is."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ros2_rfm_serving.errors import BadMessageError, ConfigurationError, ModelError
from ros2_rfm_serving.server import ModelServer, RunningBatch, ServerConfig
from ros2_rfm_serving.types import ActionChunk, EngineReply, InferenceRequest, RequestId
from test.unit.fakes import observation, session_request
from test.unit.stepping import FakeStepping

ROBOTS = tuple(f"r{i}" for i in range(7))
FAULTS = ("", "raises", "refuses one", "nothing", "a stranger", "nan", "an error")


class Unreliable(FakeStepping):
    """Does `fault` at its next calls. Rows of a call that failed are no rows any more, as the interface says."""

    max_batch_size = max_rows = 4
    fault = ""
    fills_up_s = 0.0
    """That whole batches take longer."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self._rng = rng

    def num_iterations(self, request: InferenceRequest) -> int:
        return self.steps_of(request.id)

    @staticmethod
    def steps_of(request: RequestId) -> int:
        return 1 + request.sequence % 4

    def enter(self, rows: Mapping[int, InferenceRequest]) -> Any:
        if self.fault == "raises":
            raise RuntimeError("no memory")
        if self.fault == "nothing":
            return None
        super().enter(rows)
        for number, request in rows.items():
            self.in_flight[number] = request, self.num_iterations(request)
        refused = list(rows)[:1] if self.fault == "refuses one" else []
        self.leave(refused)
        return {number: ModelError("no") for number in refused}

    def infer(self, requests: Sequence[InferenceRequest]) -> list[EngineReply]:
        if self.fault == "raises":
            raise RuntimeError("no memory")
        self._spend(self.fills_up_s)
        return super().infer(requests)

    def iterate(self, rows: Collection[int]) -> Any:
        done = dict(super().iterate(rows))
        if self.fault in ("raises", "nothing", "a stranger"):
            self.leave(rows)
        if self.fault == "raises":
            raise RuntimeError("lost")
        if self.fault == "nan":
            return {n: replace(answer, chunk_robot=np.full((4, 2), np.nan, np.float32)) for n, answer in done.items()}  # type: ignore[type-var]
        if self.fault == "an error":
            return {number: ModelError("no") for number in done}
        return None if self.fault == "nothing" else done | ({-77: 3} if self.fault == "a stranger" else {})


class Machine:
    """Robots with one request in flight each, that change their minds."""

    def __init__(self, seed: int, engine: type[Unreliable] = Unreliable, *, joins: bool = True, **config: Any) -> None:
        """joins: rows go on one by one, since whole batches take longer; else whole batches run where nobody is in flight."""
        self.rng = random.Random(seed)
        self.engine, self.now_s = engine(self.rng), 0.0
        self.engine.spends(self.spend, 1e-5 if joins else 0.03, 0.01 if joins else 1e-4)
        self.engine.fills_up_s = 1.0 if joins else 0.0
        made = {"name": "s", "batch_size": 4, "batching": "continuous", "max_sessions": 16, "dispatch": "balanced", **config}
        self.server = ModelServer(ServerConfig(**made), self.engine)  # type: ignore[arg-type]
        self.epochs: dict[str, int] = {}
        self.episodes, self.sequences = Counter[str](), Counter[str]()
        self.taken = self.served = 0
        self.answered: set[RequestId] = set()

    def clock(self) -> float:
        self.now_s += 0.001
        return self.now_s

    def spend(self, seconds: float) -> None:
        self.now_s += seconds

    # --- what happens ---

    def happen(self) -> None:
        robot = self.rng.choice(ROBOTS)
        happenings = [self.ask] * 8 + [self.close, self.reset, self.open, self.misbehave, self.regroup]
        self.rng.choice([*happenings, *[self.go_on] * 12])(robot)
        self.check()

    def open(self, robot: str) -> None:
        slo_s = self.rng.choice([0.0, 0.01, 1.0])
        self.epochs[robot] = self.server.open_session(session_request(robot, slo_s=slo_s)).session_epoch
        self.sequences[robot] = 0

    def ask(self, robot: str) -> None:
        if robot not in self.epochs:
            self.open(robot)
        self.sequences[robot] += 1
        request = observation(self.epochs[robot], self.sequences[robot], robot, self.episodes[robot])
        with contextlib.suppress(BadMessageError), self.server.counting_refusals():
            self.taken += 1
            self.server.submit(request, self.clock())

    def close(self, robot: str) -> None:
        self.server.close_session(robot, "system1", self.epochs.get(robot, 0))

    def reset(self, robot: str) -> None:
        self.episodes[robot] += self.rng.choice([0, 1])
        with contextlib.suppress(Exception):
            self.server.reset_episode(robot, "system1", self.epochs.get(robot, 0), self.episodes[robot])

    def misbehave(self, robot: str) -> None:
        self.engine.fault = self.rng.choice([*[""] * 3, *FAULTS])

    def regroup(self, robot: str) -> None:
        """Another batching, or more rows."""
        if self.rng.random() < 0.3:
            batching = self.rng.choice(["continuous", "continuous", "fixed"])
            with contextlib.suppress(ConfigurationError):  # of pipelined sessions
                self.server.reconfigure(replace(self.server.config, batching=batching))
        else:
            self.server.resize(self.rng.choice([1, 2, 4]), 0)

    def go_on(self, robot: str) -> None:
        for reply in self.server.loop.step(self.clock):
            assert isinstance(reply, ActionChunk) and reply.id not in self.answered
            assert reply.id.session_epoch == self.epochs[reply.id.robot], "its session is over"
            self.answered.add(reply.id)
            self.served += 1

    # --- what holds ---

    def check(self) -> None:
        snapshot, refused = self.server.snapshot(self.now_s), self.server.refused
        works: list[RunningBatch] = self.server.core.works
        lost = sum(refused[kind] for kind in refused.keys() - {"dispatch_error"})
        assert self.taken == self.served + snapshot.superseded + lost + snapshot.waiting + len(works), (self.taken, refused)
        assert {work.number for work in works} >= self.engine.in_flight.keys() and len(works) <= self.engine.max_rows
        assert 0.0 <= snapshot.load <= 1.0 and snapshot.served == self.served
        self.server.check_integrity()

    def settle(self) -> None:
        """Everybody who still asks is answered."""
        self.engine.fault = ""
        for _ in range(200):
            self.go_on("")
            self.check()
        assert self.server.is_idle and not self.engine.in_flight and self.server.stalled_s(self.now_s) == 0.0

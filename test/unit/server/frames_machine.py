"""Any order of what may happen to a server with pipelined sessions, and what must hold whatever it is."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from ros2_rfm_serving.engines.flow.frames import FrameRows, require_spread, session_of
from ros2_rfm_serving.errors import CapacityError, ContractError, ModelError
from ros2_rfm_serving.types import InferenceRequest, PipelineConfig
from test.unit.fakes import CONTRACT, session_request

from .rows_machine import ROBOTS, Machine, Unreliable

PIPELININGS = (None, PipelineConfig(), PipelineConfig(pp_generation=2), PipelineConfig(pp_perception=2))
NUM_STEPS = 3


class InFrames(Unreliable):
    """Rows of pipelined sessions go on with their frames, as those of our engines."""

    contract = replace(CONTRACT, pipelines=True, max_num_steps=2 * NUM_STEPS)
    max_batch_size = max_rows = 8
    num_steps = NUM_STEPS

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self._frames = FrameRows()
        self._outdated: set[int] = set()

    def num_iterations(self, request: InferenceRequest) -> int:
        return request.num_steps or NUM_STEPS

    def require_pipelining(self, pipelining: PipelineConfig, num_steps: int = 0) -> None:
        require_spread(num_steps or NUM_STEPS, pipelining)

    def enter(self, rows: Mapping[int, InferenceRequest]) -> Any:
        given = super().enter(rows)
        for number, request in rows.items():
            if request.pipelining is not None and number in self.in_flight:
                turns = self.num_iterations(request)
                self._outdated.update(self._frames.begin(number, session_of(request.id), request.pipelining, turns))
        return given

    def ready(self) -> Collection[int]:
        rows = self.in_flight.items()
        return [number for number, (request, left) in rows if self._may_go_on(number, self.num_iterations(request) - left)]

    def _may_go_on(self, number: int, step: int) -> bool:
        return number not in self._frames or number in self._outdated or step < self._frames.limit(number)

    def iterate(self, rows: Collection[int]) -> Any:
        over = self._outdated.intersection(rows)
        self.leave(over)
        going = set(rows) - over
        given = super().iterate(going) if going else {}
        self._forget()
        return given if given is None else dict(given) | dict.fromkeys(over, ModelError("over"))

    def leave(self, rows: Collection[int]) -> None:
        super().leave(list(rows))
        self._forget()

    def _forget(self) -> None:
        for number in [number for number in self._rows if number not in self.in_flight]:
            self._frames.leave(number)
            self._outdated.discard(number)

    @property
    def _rows(self) -> list[int]:
        return list(self._frames._session_of)


class FramesMachine(Machine):
    """Some robots have pipelined sessions, others have not, each of as many solver steps as it asked for, and all change their
    minds."""

    def __init__(self, seed: int, **config: Any) -> None:
        super().__init__(seed, InFrames, **{"batch_size": 8, **config})

    def open(self, robot: str) -> None:
        slo_s, num_steps = self.rng.choice([0.0, 0.01, 1.0]), self.rng.choice([0, 0, 1, 2, 2 * NUM_STEPS])
        request = session_request(robot, slo_s=slo_s, pipelining=self.rng.choice(PIPELININGS), num_steps=num_steps)
        try:
            self.epochs[robot] = self.server.open_session(request).session_epoch
        except (CapacityError, ContractError):
            self.epochs[robot] = self.server.open_session(replace(request, pipelining=None)).session_epoch
        self.sequences[robot] = 0

    def settle(self) -> None:
        """Whatever happened, everybody is answered who asks from now on: with its first request, or when its pipeline is full."""
        self.engine.fault = ""
        for _ in range(20):
            self.go_on("")
        for robot in ROBOTS:
            self.answered_again(robot)
        for robot in ROBOTS:
            self.close(robot)
        super().settle()

    def answered_again(self, robot: str) -> None:
        served = len(self.answered)
        self.open(robot)
        for _ in range(6):
            self.ask(robot)
            for _ in range(20):
                self.go_on(robot)
        assert len(self.answered) >= served + 4, f"{robot} is not answered any more"

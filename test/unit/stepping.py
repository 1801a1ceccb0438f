"""An engine at the seam whose rows go on one solver step at a time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from ros2_rfm_serving.errors import ModelError
from ros2_rfm_serving.types import EngineReply, InferenceRequest, PipelineConfig
from test.unit.fakes import FakeEngine, rows


class FakeStepping(FakeEngine):
    """Each chunk counts from its request's sequence number. `entered` and `turns` say what it was asked for."""

    max_batch_size = 8
    max_rows = 8
    num_steps = 3

    def __init__(
        self,
        spend: Callable[[float], object] = lambda seconds: None,
        perceive_s: Callable[[int], float] = lambda rows: 0.0,
        step_s: Callable[[int], float] = lambda rows: 0.0,
    ) -> None:
        """`spend` gets what a perception and a step of so many rows take."""
        super().__init__()
        self._spend, self._perceive_s, self._step_s = spend, perceive_s, step_s
        self.entered: list[list[int]] = []
        self.turns: list[list[int]] = []
        self.left: list[int] = []
        self.in_flight: dict[int, tuple[InferenceRequest, int]] = {}
        self.waits: set[int] = set()
        """Numbers that wait for their session's next frame."""

    def costs(self, perceive_s: float, step_s: Callable[[int], float]) -> None:
        """From now on; perception however many rows."""
        self._perceive_s, self._step_s = (lambda rows: perceive_s), step_s

    def spends(self, spend: Callable[[float], object], perceive_s: float, step_s: float) -> None:
        """From now on, however many rows."""
        self._spend = spend
        self.costs(perceive_s, lambda rows: step_s)

    def num_iterations(self, request: InferenceRequest) -> int:
        return request.num_steps or self.num_steps

    def require_pipelining(self, pipelining: PipelineConfig, num_steps: int = 0) -> None: ...

    def enter(self, rows: Mapping[int, InferenceRequest]) -> Mapping[int, ModelError]:
        assert len(self.in_flight) + len(rows) <= self.max_rows and not self.in_flight.keys() & rows.keys()
        self.entered.append(list(rows))
        self._spend(self._perceive_s(len(rows)))
        self.in_flight |= {number: (request, self.num_iterations(request)) for number, request in rows.items()}
        return {}

    def ready(self) -> Collection[int]:
        return [number for number in self.in_flight if number not in self.waits]

    def iterate(self, rows: Collection[int]) -> Mapping[int, EngineReply | ModelError]:
        assert rows and set(rows) <= set(self.ready())
        self.turns.append(sorted(rows))
        self._spend(self._step_s(len(rows)))
        self.in_flight |= {number: (request, left - 1) for number, (request, left) in self._of(rows)}
        return {number: answer(self.in_flight.pop(number)[0]) for number, (_, left) in self._of(rows) if not left}

    def infer(self, requests: Sequence[InferenceRequest]) -> list[EngineReply]:
        self._spend(self._perceive_s(len(requests)))
        for _ in range(max(map(self.num_iterations, requests))):
            self._spend(self._step_s(len(requests)))
        return super().infer(requests)

    def _of(self, rows: Collection[int]) -> Sequence[tuple[int, tuple[InferenceRequest, int]]]:
        return [(number, self.in_flight[number]) for number in rows]

    def leave(self, rows: Collection[int]) -> None:
        self.left += rows
        for number in rows:
            self.in_flight.pop(number, None)


def answer(request: InferenceRequest) -> EngineReply:
    chunk = rows(float(request.id.sequence))
    return EngineReply(chunk_model=chunk, chunk_robot=chunk)

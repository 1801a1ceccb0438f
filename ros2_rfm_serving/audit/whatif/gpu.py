"""GPU of a recorded server: batch times are drawn from recorded ones of the same size and time, and judges repeat their replies."""

from __future__ import annotations

import enum
import math
import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from ros2_rfm_serving.audit.whatif.case import Batch, ServerCase
from ros2_rfm_serving.audit.whatif.network import window
from ros2_rfm_serving.engines.emulated import VERDICTS, EmulatedEngine, EmulatedSpec
from ros2_rfm_serving.server import RunningBatch
from ros2_rfm_serving.server.horizon import policy as horizon_policy
from ros2_rfm_serving.simulation.gpu import Done, Run
from ros2_rfm_serving.types import NO_VALUES, SYSTEM2, EngineReply, InferenceRequest, ModelContract, OutputKind, RequestId
from ros2_rfm_serving.virtual_time.events import Events
from ros2_rfm_serving.virtual_time.iterations import Answers

Says = Callable[[RequestId], tuple[str, ...]]
"""Function that returns the recorded reply of a judge or a planner for this robot at this age of its attempt; empty without one."""


class Law:
    """Service time of a server by its recorded batches. `guessed`: sizes without a record, whose times were extrapolated."""

    def __init__(self, case: ServerCase, profile_s: Callable[[int], float] | None = None) -> None:
        """Read the batches. profile_s: time of a batch by a profile, of which only ratios are used once any size was recorded."""
        self._of: defaultdict[int, list[Batch]] = defaultdict(list)
        for batch in case.batches:
            self._of[batch.padded].append(batch)
        self._medians_s = {rows: float(np.median([b.seconds for b in of])) for rows, of in sorted(self._of.items())}
        self._fills = _fills(case.batches)
        self._batch_size, self._profile_s = case.placement.batch_size, profile_s
        self.is_continuous = case.config.max_concurrent > 1
        self.guessed: set[int] = set()

    def draw_s(self, rows: int, now_s: float, rng: random.Random) -> float:
        """Return the time of a batch with this many requests; with continuous batching, of one request with this many in
        service."""
        rows = self._padded(rows)
        if rows in self._of:
            return rng.choice(window(self._of[rows], now_s)).seconds
        self.guessed.add(rows)
        if not self._of:
            return self._mean_s(rows)
        near = min(self._of, key=lambda known: abs(known - rows))
        return self._mean_s(rows) / self._medians_s[near] * rng.choice(window(self._of[near], now_s)).seconds

    def mean_s(self, rows: int) -> float:
        """Return the mean time of a batch in s; NaN if unknown."""
        return self._mean_s(self._padded(rows))

    def profile_s(self, batch_size: int) -> tuple[float, ...]:
        """Return the times in s of batches of 1, 2, ... rows for a server's own estimates; empty if unknown."""
        found = tuple(self.mean_s(rows) for rows in range(1, batch_size + 1))
        return found if all(math.isfinite(seconds) for seconds in found) else ()

    def _padded(self, rows: int) -> int:
        """Return the computed rows of a batch on an engine that pads batches completely, or to the sizes that it was
        compiled for."""
        if self.is_continuous:
            return rows
        if self._fills is Fills.WHOLE:
            return max(rows, self._batch_size)
        return rows if self._fills is Fills.NOTHING else next((size for size in self._medians_s if size >= rows), rows)

    def _mean_s(self, rows: int) -> float:
        """Return the mean time: interpolated between recorded sizes; beyond them by the profile's ratio, or by a fitted line."""
        known = list(self._medians_s)
        if not known:
            return self._profile_s(rows) if self._profile_s else math.nan
        if known[0] <= rows <= known[-1]:
            return float(np.interp(rows, known, list(self._medians_s.values())))
        near = known[0] if rows < known[0] else known[-1]
        if self._profile_s:
            return self._medians_s[near] * self._profile_s(rows) / self._profile_s(near)
        return max(self._medians_s[near] + self._slope_s * (rows - near), 0.1 * self._medians_s[near])

    @property
    def _slope_s(self) -> float:
        """Return the time per row, never negative; 0 with only one recorded size, which gives no slope."""
        if len(self._medians_s) < 2:
            return 0.0
        rows, medians_s = zip(*self._medians_s.items(), strict=True)
        return max(0.0, float(np.polyfit(rows, medians_s, 1, w=[math.sqrt(len(self._of[size])) for size in rows])[0]))


class Fills(enum.Enum):
    """Padding of batches by an engine."""

    NOTHING = "nothing"
    SIZES = "sizes"
    WHOLE = "whole"


def _fills(batches: Sequence[Batch]) -> Fills:
    if all(batch.padded == batch.rows for batch in batches):
        return Fills.NOTHING
    return Fills.WHOLE if len({batch.padded for batch in batches}) == 1 else Fills.SIZES


class RecordedEngine(EmulatedEngine):
    """Engine with the recorded contract, but without actions, cameras and state of the robot."""

    def __init__(self, case: ServerCase, spend: Callable[[int], None], says: Says, rng: random.Random) -> None:
        contract = case.contract
        spec = EmulatedSpec(
            model=contract.model, output=contract.output, chunk_length=max(1, contract.chunk_length), batch_sizes=(MAX_ROWS,)
        )
        super().__init__(spec, lambda rows: 0.0, lambda seconds: None)
        self._contract = bodiless(contract)
        self._spend_rows, self._says, self._draws, self._case = spend, says, rng, case

    def infer(self, requests: Sequence[InferenceRequest]) -> list[EngineReply]:
        self._spend_rows(len(requests))
        if self._contract.output is OutputKind.ACTION_CHUNK:
            return [self._chunk(request) for request in requests]
        return [self._words(request.id) for request in requests]

    def _words(self, request: RequestId) -> EngineReply:
        words = self._says(request)
        if request.component == SYSTEM2:
            return EngineReply(text="\n".join(words))
        return EngineReply(verdict=words[0] if words else VERDICTS.get(request.component, "ongoing"), text="recorded")

    def _chunk(self, request: InferenceRequest) -> EngineReply:
        still = np.zeros((self._contract.chunk_length, 0), np.float32)
        sure = NO_VALUES
        if self._case.confidences:
            sure = np.resize(np.asarray(self._draws.choice(self._case.confidences), np.float32), self._contract.chunk_length)
        rows = horizon_policy(request.horizon.policy).rows(sure, request.horizon) if request.horizon.policy else 0
        return EngineReply(chunk_model=still, chunk_robot=still, confidence=sure, execution_horizon=rows)


MAX_ROWS = 65_535
"""Upper bound of the batch sizes of any schedule."""


def bodiless(contract: ModelContract) -> ModelContract:
    return replace(contract, action_names=(), action_mean=(), action_std=(), cameras=(), state_size=0)


class RecordedGpu:
    """Replacement of `simulation.gpu.BatchGpu` and `SharedGpu`."""

    def __init__(self, case: ServerCase, law: Law, says: Says, events: Events, rng: random.Random) -> None:
        self.engine = RecordedEngine(case, self._spend, says, rng)
        self.max_concurrent = case.config.max_concurrent
        self.law, self._pause_s, self._events, self._rng = law, case.pause_s, events, rng
        self.ran: list[tuple[float, int]] = []
        """Time and number of requests of every batch."""
        self._spent_s, self._ended_s = 0.0, -math.inf
        self._in_service: set[RunningBatch] = set()

    def _spend(self, rows: int) -> None:
        self.ran.append((self._events.now_s, rows))
        size = len(self._in_service) if self.law.is_continuous else rows
        self._spent_s = self.law.draw_s(size, self._events.now_s, self._rng)

    def start(self, work: RunningBatch, run: Run, done: Done) -> None:
        self._in_service.add(work)
        answers = run(work)
        pause_s = self._pause_s if self._events.now_s == self._ended_s else 0.0
        self._ended_s = self._events.now_s + self._spent_s + pause_s
        self._events.at(self._ended_s, self._end, work, answers, done)

    def _end(self, work: RunningBatch, answers: Answers, done: Done) -> None:
        self._in_service.discard(work)
        done(work, answers)

    def forget(self) -> None:
        """Discard running batches, which will not end."""
        self._in_service.clear()

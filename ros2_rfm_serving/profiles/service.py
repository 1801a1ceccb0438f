"""Service laws: the service times that emulated engines, the simulated factory and derived profiles share.

There are two kinds of server (ROSA §3.4.1): action models run CUDA graphs of one fixed batch size, and text models batch
continuously. The third kind is ours: action models advance one solver step at a time, so that requests join and leave a running
batch. No function reads a clock; random numbers come from the generator that is given.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Generic, TypeVar

import numpy as np

Key = TypeVar("Key", bound=Hashable)
DRAWN_AT_ONCE = 64
"""Number of variates that are drawn at once."""


def unit_mean_factor(jitter: float, rng: np.random.Generator) -> float:
    """Return a gamma variate of mean 1 and relative standard deviation `jitter`."""
    return rng.gamma(jitter**-2, jitter**2) if jitter else 1.0


def unit_mean_factors(jitter: float, rng: np.random.Generator) -> Iterator[float]:
    """Yield such variates from a generator that no other code draws from: drawn one by one they take ten times as long."""
    while True:
        yield from rng.gamma(jitter**-2, jitter**2, DRAWN_AT_ONCE).tolist() if jitter else [1.0]


@dataclass(frozen=True, kw_only=True)
class Wave:
    """Step in the service time over the batch size (wave quantisation).

    From `from_rows` on, matrices need one more pass over the GPU's cores, as if the batch had `extra_rows` more.
    """

    from_rows: int = 1
    extra_rows: float = 0.0

    def effective_rows(self, num_rows: int) -> float:
        """Return the batch size that takes as long without the step."""
        return num_rows + (self.extra_rows if num_rows >= self.from_rows else 0.0)


@dataclass(frozen=True, kw_only=True)
class FixedService:
    """A batch of B slots takes base_s + per_row_s * B, however few of them are used: the CUDA graph has that size."""

    base_s: float
    per_row_s: float
    jitter: float = 0.0
    """Relative standard deviation of a batch's time."""
    wave: Wave = Wave()
    batching: ClassVar[str] = "fixed"

    def mean_s(self, batch_size: int) -> float:
        return self.base_s + self.per_row_s * self.wave.effective_rows(batch_size)

    def draw_s(self, batch_size: int, rng: np.random.Generator) -> float:
        """Return a random time of one batch, in s."""
        return self.mean_s(batch_size) * unit_mean_factor(self.jitter, rng)

    def capacity_hz(self, batch_size: int) -> float:
        """Return the requests/s of a server whose batches are always full."""
        return batch_size / self.mean_s(batch_size)


@dataclass(frozen=True, kw_only=True)
class ContinuousService:
    """Continuous batching as processor sharing.

    With n requests in service, each one's work (1 on average) advances at 1 / (base_s + per_request_s * n) per second: alone it
    takes base_s + per_request_s; with many, throughput tends to 1 / per_request_s. Beyond `max_concurrent` requests queue.
    """

    base_s: float
    per_request_s: float
    jitter: float = 0.0
    """Relative standard deviation of a request's work (its number of tokens)."""
    max_concurrent: int = 256
    batching: ClassVar[str] = "continuous"

    def mean_s(self, num_requests: int = 1) -> float:
        """Return the time of one request while `num_requests` are always in service, in s."""
        return self.base_s + self.per_request_s * num_requests

    def draw_work(self, rng: np.random.Generator) -> float:
        return unit_mean_factor(self.jitter, rng)

    def draw_s(self, num_requests: int, rng: np.random.Generator) -> float:
        """Return a random time of `num_requests` that start and end together, in an engine that runs them as one batch, in s."""
        return self.mean_s(num_requests) * self.draw_work(rng)

    def capacity_hz(self, num_requests: int | None = None) -> float:
        """Return the requests/s with `num_requests` always in service; by default as many as the server accepts."""
        num = self.max_concurrent if num_requests is None else min(num_requests, self.max_concurrent)
        return num / self.mean_s(num)


@dataclass(frozen=True, kw_only=True)
class SteppedService:
    """Continuous batching of an action model, one solver step per iteration (`engines/base.py`, `Stepping`).

    New requests are perceived together, which takes perception_base_s + perception_per_row_s * n. An iteration advances all slots
    in flight by one solver step and takes step_base_s + step_per_row_s * n. n is padded to the next of `sizes`. One engine does
    both, one after the other. Requests that enter together and remain alone take as long as their batch does by the fixed law of
    the same model.
    """

    perception_base_s: float
    perception_per_row_s: float
    step_base_s: float
    step_per_row_s: float
    num_steps: int
    """Iterations from perception to answer."""
    sizes: tuple[int, ...]
    """Batch sizes that were compiled, rising; the largest is the number of slots that may be in flight."""
    jitter: float = 0.0
    """Relative standard deviation of the time of one perception, and of one iteration."""
    wave: Wave = Wave()
    batching: ClassVar[str] = "continuous"

    @property
    def max_rows(self) -> int:
        return self.sizes[-1]

    def padded(self, num_rows: int) -> int:
        return next(size for size in self.sizes if size >= num_rows)

    def perception_s(self, num_rows: int) -> float:
        return self.perception_base_s + self.perception_per_row_s * self.wave.effective_rows(self.padded(num_rows))

    def step_s(self, num_rows: int) -> float:
        return self.step_base_s + self.step_per_row_s * self.wave.effective_rows(self.padded(num_rows))

    def mean_s(self, num_rows: int) -> float:
        """Return the time of `num_rows` requests that enter together and remain alone, in s."""
        return self.perception_s(num_rows) + self.num_steps * self.step_s(num_rows)

    def slower(self, factor: float) -> SteppedService:
        """Return the law for a GPU on which everything takes `factor` times as long."""
        return replace(
            self,
            perception_base_s=factor * self.perception_base_s,
            perception_per_row_s=factor * self.perception_per_row_s,
            step_base_s=factor * self.step_base_s,
            step_per_row_s=factor * self.step_per_row_s,
        )

    def draw_perception_s(self, num_rows: int, rng: np.random.Generator) -> float:
        return self.perception_s(num_rows) * unit_mean_factor(self.jitter, rng)

    def draw_step_s(self, num_rows: int, rng: np.random.Generator) -> float:
        return self.step_s(num_rows) * unit_mean_factor(self.jitter, rng)

    def draw_s(self, num_rows: int, rng: np.random.Generator) -> float:
        """Return a random time of such requests in one call, in s."""
        steps_s = (self.draw_step_s(num_rows, rng) for _ in range(self.num_steps))
        return self.draw_perception_s(num_rows, rng) + sum(steps_s)

    def capacity_hz(self) -> float:
        """Return the requests/s of a server whose requests all enter and leave together; no order of entering exceeds it."""
        return self.max_rows / self.mean_s(self.max_rows)


ServiceLaw = FixedService | ContinuousService
"""Law of requests that run from beginning to end."""


class ProcessorSharing(Generic[Key]):
    """Requests inside a continuous server, in virtual time; every operation is O(log n).

    `_progress` is the work that a request present from the beginning would have done. One that arrives at progress p with work w
    leaves at p + w: the order of leaving never changes, so a heap stores it. Times given in never decrease. The state changes only
    when a request enters or leaves, so `next_finish_s` does not drift.
    """

    def __init__(self, service: ContinuousService) -> None:
        self._base_s, self._each_s, self._most = service.base_s, service.per_request_s, service.max_concurrent
        self._progress = 0.0
        self._as_of_s = 0.0
        self._arrivals = 0
        self._running: list[tuple[float, int, Key]] = []
        self._queued: deque[tuple[Key, float]] = deque()
        self._finished: list[Key] = []
        self._next_s: float | None = math.inf
        """Time at which the next request leaves; None: it has to be computed again."""

    def __len__(self) -> int:
        """Return the number of requests that have not been answered, in service and queued."""
        return len(self._running) + len(self._queued)

    @property
    def num_running(self) -> int:
        return len(self._running)

    def add(self, key: Key, now_s: float, work: float = 1.0) -> None:
        if self._next_s is None or self._next_s <= now_s:
            self._release(now_s)
        num_running = len(self._running)
        if num_running:
            self._progress += (now_s - self._as_of_s) / (self._base_s + self._each_s * num_running)
        else:
            self._progress = 0.0  # an idle server starts afresh: rounding errors do not accumulate over a long run
        self._as_of_s, self._next_s = now_s, None
        if num_running < self._most:
            self._start(key, work)
        else:
            self._queued.append((key, work))

    def next_finish_s(self) -> float:
        """Return when the next request leaves if none enters before; infinity when there is none."""
        if self._finished:
            return self._as_of_s
        return self._finish_s() if self._next_s is None else self._next_s

    def finished(self, now_s: float) -> list[Key]:
        """Remove and return the requests that have left by `now_s`, in the order of leaving."""
        self._release(now_s)
        done, self._finished = self._finished, []
        return done

    def _release(self, now_s: float) -> None:
        """Release in order all requests that finish by `now_s`, and start queued ones in their place."""
        while (finish_s := self._finish_s() if self._next_s is None else self._next_s) <= now_s:
            finish, _, key = heapq.heappop(self._running)
            self._progress, self._as_of_s, self._next_s = finish, finish_s, None
            self._finished.append(key)
            if self._queued:
                self._start(*self._queued.popleft())

    def _finish_s(self) -> float:
        """Return the time at which the next request leaves, where it is not stored."""
        next_s = math.inf
        if self._running:
            left = self._running[0][0] - self._progress
            next_s = self._as_of_s + (left if left > 0.0 else 0.0) * (self._base_s + self._each_s * len(self._running))
        self._next_s = next_s
        return next_s

    def _start(self, key: Key, work: float) -> None:
        self._arrivals += 1
        self._next_s = None
        heapq.heappush(self._running, (self._progress + work, self._arrivals, key))

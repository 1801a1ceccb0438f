"""Timing of a pipeline's execution modes on this machine.

A pipeline is executed in frames (AURAS §4): all requests in flight in one batch, each on the newest context. A measurement stays on
one core (`on_one_core`): workers and streams share it, as they share one GPU in the paper, and no mode gains by a second one.

Time is the CPU time of the process, so that other processes of the machine have no influence; a wait in which nothing is computed
is skipped (`Clock`). On a GPU time is the wall's, and each thread has a stream of its own.

The module imports no simulator: a borrowed machine with a GPU has none.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from ros2_rfm_serving.engines.base import Engine, SamplingConfig, Stepping, VelocityModel
from ros2_rfm_serving.engines.warmup import warmup_request
from ros2_rfm_serving.errors import ModelError
from ros2_rfm_serving.profiles.tuner import Timing
from ros2_rfm_serving.types import InferenceRequest, PipelineConfig

WARM_UP = 3
"""Number of uncounted answers after those that fill the pipeline."""
MIN_ANSWERS, ROUNDS = 8, 3
"""Minimum number of timed answers, and further ones of each worker."""


@dataclass(frozen=True, kw_only=True)
class Policy:
    """The model that is executed, and its engine, which takes single steps."""

    model: VelocityModel
    config: SamplingConfig
    engine: Engine


@dataclass(frozen=True)
class Answered:
    observed_s: float
    answered_s: float


class Clock:
    """CPU time of this process. `wait_until` sleeps while other threads compute, and skips ahead when none does."""

    def __init__(self, threads: int = 1, now: Callable[[], float] = time.process_time) -> None:
        self._skipped_s, self._computing, self._now = 0.0, threads, now
        self._lock = threading.Lock()

    def __call__(self) -> float:
        return self._now() + self._skipped_s

    def wait_until(self, instant_s: float) -> None:
        with self._lock:
            self._computing -= 1
        while (left_s := instant_s - self()) > 0:
            with self._lock:
                if not self._computing:
                    self._skipped_s += left_s
                    break
            time.sleep(1e-4)
        with self._lock:
            self._computing += 1


class Feed:
    """Camera with a new observation every `interval_s`, or at every request for an interval of 0. Threads share it."""

    def __init__(self, policy: Policy, clock: Clock, interval_s: float = 0.0) -> None:
        self._blank = warmup_request(policy.engine.contract)
        self._rng = np.random.default_rng(0)
        self._lock = threading.Lock()
        self._clock, self._interval_s, self._begin_s, self._taken = clock, interval_s, clock(), -1

    def take(self) -> tuple[float, InferenceRequest]:
        """Wait for the newest observation that no thread has taken; return its time, and the request."""
        with self._lock:
            self._taken, observed_s = self._next()
            request = self._request(self._taken)
        self._clock.wait_until(observed_s)
        return observed_s, request

    def _next(self) -> tuple[int, float]:
        if not self._interval_s:
            return self._taken + 1, self._clock()
        newest = max(int((self._clock() - self._begin_s) / self._interval_s), self._taken + 1)
        return newest, self._begin_s + newest * self._interval_s

    def _request(self, number: int) -> InferenceRequest:
        state = self._rng.normal(size=self._blank.state.shape).astype(np.float32)
        return replace(self._blank, id=replace(self._blank.id, sequence=number), state=state)


class Run:
    """Threads that execute a policy until there are enough answers."""

    def __init__(self, workers: int, wanted: int, seconds: float, device: str = "cpu") -> None:
        self._device = device
        self.workers, self.clock = workers, (clock := Clock(workers, clock_of(device)))
        self.answers: list[Answered] = []
        self.perceptions_s: list[float] = []
        self._wanted, self._until_s, self._least = wanted, clock() + seconds, MIN_ANSWERS + ROUNDS * workers
        self._errors: list[BaseException] = []

    @property
    def going(self) -> bool:
        """True while more answers are wanted; it ends early when the time is over and there are enough for a figure."""
        enough = len(self.answers) >= self._wanted or (self.clock() > self._until_s and len(self.answers) >= self._least)
        return not (enough or self._errors)

    def answered(self, observed_s: float) -> None:
        self.answers.append(Answered(observed_s, self.clock()))

    def in_threads(self, loops: list[Callable[[], None]]) -> None:
        """Run each loop in a thread, the first one in this thread, so that Ctrl-C reaches it."""
        others = [threading.Thread(target=self._guarded, args=(loop,), daemon=True) for loop in loops[1:]]
        for thread in others:
            thread.start()
        try:
            with stream_of(self._device):
                loops[0]()
        except BaseException as error:
            self._errors.append(error)
            raise
        finally:
            for thread in others:
                thread.join()
        if self._errors:
            raise self._errors[0]

    def _guarded(self, loop: Callable[[], None]) -> None:
        try:
            with stream_of(self._device):
                loop()
        except BaseException as error:
            self._errors.append(error)


def measure_execution(
    policy: Policy, execute: Callable[[Run], None], *, in_flight: int, workers: int = 1, answers: int = 60, seconds: float = 4.0
) -> Timing:
    """Time one way to execute a policy.

    Args:
        policy: the policy to execute.
        execute: answers requests until `Run.going` is false.
        in_flight: requests in flight at once; the answers that fill the pipeline are not counted.
        workers: threads that execute.
        answers: answers after which it ends.
        seconds: time after which it ends early.

    Raises:
        ModelError: the policy cannot be executed in this way.
    """
    fill = in_flight + WARM_UP
    run = Run(workers, answers + fill, seconds, policy.config.device)
    before_mb = _resident_mb()
    began_s, wall_s = run.clock(), time.perf_counter()
    execute(run)
    share = (run.clock() - began_s) / (time.perf_counter() - wall_s)
    return _timing(run, fill, began_s, share, _resident_mb() - before_mb)


def measure_pipeline(policy: Policy, own: PipelineConfig, *, answers: int = 60, seconds: float = 4.0) -> Timing:
    """Time the execution in frames. Raises: `ModelError` for an engine that cannot take single steps."""

    def execute(run: Run) -> None:
        for answered_s in frames(policy, own, Feed(policy, run.clock)):
            run.answered(answered_s)
            if not run.going:
                return

    return measure_execution(policy, execute, in_flight=own.depth, answers=answers, seconds=seconds)


def _timing(run: Run, fill: int, began_s: float, cpu_share: float, memory_mb: float) -> Timing:
    ends_s = np.sort([one.answered_s for one in run.answers])
    fill = min(fill, len(ends_s) - MIN_ANSWERS // 2)
    intervals_s = np.diff(ends_s[fill - 1 :])
    mean_s = float(intervals_s.mean())
    if run.workers > 1:  # they answer in bursts; each finishes its work, so all computation is counted
        mean_s = float(ends_s[-1] - began_s) / len(ends_s)
    counted = run.answers[fill:]
    return Timing(
        interval_s=mean_s,
        interval_cv=float(intervals_s.std() / intervals_s.mean()),
        latency_s=float(np.mean([one.answered_s - one.observed_s for one in counted])),
        perception_s=float(np.mean(run.perceptions_s)) if run.perceptions_s else 0.0,
        first_s=float(ends_s[0] - began_s),
        cpu_share=cpu_share,
        memory_mb=memory_mb,
        answers=len(counted),
    )


def frames(policy: Policy, own: PipelineConfig, feed: Feed) -> Iterator[float]:
    """Execute one frame after the other; yield the time of each answer's observation. Raises: `ModelError`."""
    engine = policy.engine
    if not isinstance(engine, Stepping):
        raise ModelError(f"{engine.contract.model!r} cannot advance by single steps; AURAS' frames need that")
    observed_s: dict[int, float] = {}
    number = 0
    try:
        while True:
            observed_s[number], request = feed.take()
            for error in engine.enter({number: replace(request, pipelining=own)}).values():
                raise error
            while ready := engine.ready():
                for row, reply in engine.iterate(ready).items():
                    if isinstance(reply, ModelError):
                        raise reply
                    yield observed_s.pop(row)
            number += 1
    finally:
        engine.leave(list(observed_s))


def clock_of(device: str) -> Callable[[], float]:
    """Return the clock of work on the device."""
    return time.process_time if torch.device(device).type == "cpu" else time.perf_counter


@contextmanager
def stream_of(device: str) -> Iterator[None]:
    """Give the thread a stream of its own on a GPU; its work is done when the block ends."""
    if torch.device(device).type == "cpu":
        yield
        return
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        yield
    stream.synchronize()


@contextmanager
def on_one_core() -> Iterator[None]:
    """Keep this process and its threads on one core, where the system supports it."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(allowed)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def _resident_mb() -> float:
    """Return the resident memory of this process; 0 where the system does not report it."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
    except OSError:
        return 0.0

"""Serialised access to the decision core, and counts of the problems that occur."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator

from ros2_rfm_serving.errors import BadMessageError
from ros2_rfm_serving.server.core import ServerCore
from ros2_rfm_serving.types.texts import shortened


class RefusalCounters:
    """Counters of refused and lost requests. Any thread may call it, whatever lock it holds."""

    def __init__(self) -> None:
        self.refused: Counter[str] = Counter()
        self.problems: dict[str, str] = {}
        """Counter of `refused` -> last problem, as text for a log. The reader that logs it removes it."""
        self.last_refusals: dict[str, str] = {}
        """Counter of `refused` -> reason of the last refusal or fault, as text."""
        self.answers: Counter[str] = Counter()
        """Numbers of answers of text models: `verdict`, which includes violations, and `plan`, without those that were refused."""
        self._counting = threading.Lock()

    def count(self, kind: str, number: int = 1) -> None:
        with self._counting:
            self.refused[kind] += number

    def refuse(self, kind: str, problem: str) -> None:
        """Count a refused message and keep the reason."""
        self.count(kind)
        self.last_refusals[kind] = shortened(problem)

    def answered(self, kind: str) -> None:
        with self._counting:
            self.answers[kind] += 1

    def count_fault(self, kind: str, problem: str) -> None:
        """Count a fault and keep its description."""
        self.refuse(kind, problem)
        self.problems[kind] = problem

    @contextlib.contextmanager
    def counting_refusals(self) -> Iterator[None]:
        """Count the `BadMessageError` that leaves the block."""
        try:
            yield
        except BadMessageError as error:
            self.refuse(error.kind, str(error))
            raise


class LockedCore:
    """Context manager that gives exclusive access to the decision core. It is entered for every request, and a generator would take
    twice as long. The hottest places take the `lock` itself, and then call `count_faults`."""

    __slots__ = ("_counting", "core", "lock")

    def __init__(self, core: ServerCore, counting: RefusalCounters) -> None:
        self.core = core
        """Decision core. It may be read without the lock where an inconsistent answer does no harm."""
        self._counting, self.lock = counting, threading.Lock()

    def __enter__(self) -> ServerCore:
        self.lock.acquire()
        return self.core

    def __exit__(self, *_: object) -> None:
        try:
            if self.core.faults:
                self.count_faults()
        finally:
            self.lock.release()

    def count_faults(self) -> None:
        """Count the faults and drops that occurred during a decision, of foreign policies and of requests whose session has
        ended."""
        mishaps, counting = self.core.faults, self._counting
        while mishaps:
            kind, problem = mishaps.pop(0)
            counting.count_fault(kind, problem) if problem else counting.count(kind)

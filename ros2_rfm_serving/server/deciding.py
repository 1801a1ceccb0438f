"""One decision at a time, and what goes wrong with them, counted."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator

from ros2_rfm_serving.errors import BadMessageError
from ros2_rfm_serving.server.brain import ServerBrain
from ros2_rfm_serving.types.texts import shortened


class Counting:
    """What was refused or lost. From any thread, whatever it holds."""

    def __init__(self) -> None:
        self.refused: Counter[str] = Counter()
        self.problems: dict[str, str] = {}
        """Counter of `refused` -> what happened last, in words for a log. Whoever says it takes it out."""
        self.last_refusals: dict[str, str] = {}
        """Counter of `refused` -> why the last message was refused, or what went wrong, in words."""
        self.answers: Counter[str] = Counter()
        """What text models have answered with: `verdict`, violations among them, and `plan`, without those that were refused."""
        self._counting = threading.Lock()

    def count(self, kind: str, number: int = 1) -> None:
        with self._counting:
            self.refused[kind] += number

    def refuse(self, kind: str, problem: str) -> None:
        """Count a message that is refused, and keep why."""
        self.count(kind)
        self.last_refusals[kind] = shortened(problem)

    def answered(self, kind: str) -> None:
        with self._counting:
            self.answers[kind] += 1

    def mishap(self, kind: str, problem: str) -> None:
        """Counts something that went wrong, and keeps it in words."""
        self.refuse(kind, problem)
        self.problems[kind] = problem

    @contextlib.contextmanager
    def counting_refusals(self) -> Iterator[None]:
        """Counts the `BadMessageError` that leaves the block."""
        try:
            yield
        except BadMessageError as error:
            self.refuse(error.kind, str(error))
            raise


class Deciding:
    """A context: its brain, alone with it. Entered for every request: a generator would take twice as long, and the hottest places
    take the `lock` itself, and then `take_mishaps`."""

    __slots__ = ("_counting", "brain", "lock")

    def __init__(self, brain: ServerBrain, counting: Counting) -> None:
        self.brain = brain
        """May be read without the lock where a torn answer does no harm."""
        self._counting, self.lock = counting, threading.Lock()

    def __enter__(self) -> ServerBrain:
        self.lock.acquire()
        return self.brain

    def __exit__(self, *_: object) -> None:
        try:
            if self.brain.mishaps:
                self.take_mishaps()
        finally:
            self.lock.release()

    def take_mishaps(self) -> None:
        """What was counted while it decided: of foreign policies, whoever called them, and of requests that nobody waits for."""
        mishaps, counting = self.brain.mishaps, self._counting
        while mishaps:
            kind, problem = mishaps.pop(0)
            counting.mishap(kind, problem) if problem else counting.count(kind)

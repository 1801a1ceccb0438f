"""Between the thread that hears and the one that writes: bounded, and the one that hears never waits."""

from __future__ import annotations

from collections import Counter, deque
from typing import NamedTuple

OVERHEAD_BYTES = 200
"""Of a message, beside its bytes."""


class Topic(NamedTuple):
    name: str
    type: str
    definition: str
    """`ros2msg`, with all that it is made of."""
    qos: str = ""
    """What its publishers offer, in YAML."""

    @property
    def latched(self) -> bool:
        """Who comes later gets the last message too."""
        return "transient_local" in self.qos


class Sample(NamedTuple):
    """One message that was heard."""

    topic: Topic
    time_ns: int
    """When, since 1970."""
    data: bytes
    """CDR."""
    published_ns: int = 0
    """As its publisher says; 0: it does not."""

    @property
    def size(self) -> int:
        """Bytes in memory."""
        return len(self.data) + OVERHEAD_BYTES


class Intake:
    """`put` of one thread, `take` and `done` of another; no lock: each number has one thread that changes it."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._waiting: deque[Sample] = deque()
        self._put = self._done = 0
        self._lost: deque[str] = deque()
        """Topics."""

    @property
    def waiting(self) -> int:
        """Bytes that are not written yet."""
        return self._put - self._done

    def put(self, sample: Sample) -> None:
        """Or counts it as lost."""
        if self.waiting + sample.size > self._limit:
            self._lost.append(sample.topic.name)
            return
        self._put += sample.size
        self._waiting.append(sample)

    def take(self) -> list[Sample]:
        return [self._waiting.popleft() for _ in range(len(self._waiting))]

    def done(self, samples: list[Sample]) -> None:
        """Those that were taken are written."""
        self._done += sum(sample.size for sample in samples)

    def lost(self) -> Counter[str]:
        """By topic, since it was asked last."""
        return Counter(self._lost.popleft() for _ in range(len(self._lost)))

"""Bounded queue between the receiving and the writing thread, on which the receiving thread never waits."""

from __future__ import annotations

from collections import Counter, deque
from typing import NamedTuple

OVERHEAD_BYTES = 200
"""Memory of a message beside its bytes."""


class Topic(NamedTuple):
    name: str
    type: str
    definition: str
    """Its `ros2msg` definition, with all nested types."""
    qos: str = ""
    """QoS that its publishers offer, in YAML."""

    @property
    def latched(self) -> bool:
        """Return whether later subscribers receive the last message, too."""
        return "transient_local" in self.qos


class Sample(NamedTuple):
    """One received message."""

    topic: Topic
    time_ns: int
    """Time of reception since 1970."""
    data: bytes
    """Serialized message (CDR)."""
    published_ns: int = 0
    """Publish time by the publisher; 0 if unknown."""

    @property
    def size(self) -> int:
        """Return the memory use in bytes."""
        return len(self.data) + OVERHEAD_BYTES


class Intake:
    """Queue with `put` on one thread, `take` and `done` on another; it needs no lock, as one thread changes each number."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._waiting: deque[Sample] = deque()
        self._put = self._done = 0
        self._lost: deque[str] = deque()
        """Topics of lost messages."""

    @property
    def waiting(self) -> int:
        """Return the number of bytes that are not written yet."""
        return self._put - self._done

    @property
    def num_unsaid(self) -> int:
        """Return the number of losses since the last call of `lost`; it grows while the writing thread waits for the disk."""
        return len(self._lost)

    def put(self, sample: Sample) -> None:
        """Add a message, or count it as lost if there is no room."""
        if self.waiting + sample.size > self._limit:
            self._lost.append(sample.topic.name)
            return
        self._put += sample.size
        self._waiting.append(sample)

    def take(self) -> list[Sample]:
        return [self._waiting.popleft() for _ in range(len(self._waiting))]

    def done(self, samples: list[Sample]) -> None:
        """Release the memory of messages that were taken and written."""
        self._done += sum(sample.size for sample in samples)

    def lost(self) -> Counter[str]:
        """Return the losses by topic since the last call."""
        return Counter(self._lost.popleft() for _ in range(len(self._lost)))

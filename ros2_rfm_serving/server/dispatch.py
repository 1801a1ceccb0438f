"""Which waiting requests run next: small classes over plain data, chosen by name."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple, Protocol

from ros2_rfm_serving.types import InferenceRequest

ARRIVED = attrgetter("arrived_s")


class Waiting(NamedTuple):
    """A decoded request in its session's mailbox."""

    request: InferenceRequest
    stamp_ns: int
    arrived_s: float


class DispatchPolicy(Protocol):
    def select(self, waiting: Sequence[Waiting], max_batch_size: int, now_s: float) -> list[Waiting]:
        """At most `max_batch_size` of them; empty means: wait."""


class Fifo:
    """Oldest first, as many as fit."""

    def select(self, waiting: Sequence[Waiting], max_batch_size: int, now_s: float) -> list[Waiting]:
        return list(waiting) if len(waiting) == 1 else sorted(waiting, key=ARRIVED)[:max_batch_size]


DISPATCH_POLICIES: dict[str, type[DispatchPolicy]] = {"fifo": Fifo}

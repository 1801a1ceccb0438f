"""Pending requests of one link: one, or as many as the depth of a pipelined session (AURAS §4.2.2)."""

from __future__ import annotations

import sys
from typing import ClassVar

from ros2_rfm_serving.types import RequestId
from ros2_rfm_serving.types.record import record
from ros2_rfm_serving.types.state import kept


@record(frozen=True, slots=True)
class InFlight:
    id: RequestId
    sent_s: float
    mark: int
    observed_s: float
    bridged: int = sys.maxsize
    """Steps that may be executed before its answer: none if the robot waits for it, because there is no prefix."""


@record(frozen=True, slots=True)
class Answered:
    asked: InFlight
    """Request that the reply answers."""
    seen: InFlight
    """Request whose observation the last solver steps saw: row 0 of the chunk counts from it. Without pipelining it is the same."""


class Flight:
    """Pending requests in the order of sending. One whose answer is overtaken is dropped: no older chunk replaces a newer one."""

    KEPT: ClassVar = kept(in_flight="waited", sent="_sent", newest_seen="_seen")

    def __init__(self) -> None:
        self.waited: dict[int, InFlight] = {}
        """Pending requests by sequence number."""
        self._sent: dict[int, InFlight] = {}
        """Requests from the oldest pending one on; an answer may have ended with the observation of any of them."""
        self._seen = 0
        """Newest observation that an answer has ended with."""

    @property
    def oldest(self) -> InFlight | None:
        return next(iter(self.waited.values()), None)

    @property
    def newest(self) -> InFlight | None:
        return next(reversed(self.waited.values()), None)

    def sent_after(self, sequence: int) -> InFlight | None:
        """Return the oldest pending request that was sent after this one."""
        for number, each in self.waited.items():
            if number > sequence:
                return each
        return None

    def find(self, identity: RequestId) -> InFlight | None:
        found = self.waited.get(identity.sequence)
        return found if found is not None and (identity is found.id or identity == found.id) else None

    def seen(self, asked: InFlight, ended_with: int | None) -> InFlight | None:
        """Return the request whose observation the last steps of an answer saw. None: the answer's value is impossible, because
        that observation was never sent in this session and episode, or is older than the request or than that of an earlier
        answer."""
        own = asked.id.sequence
        sequence = own if ended_with is None else ended_with
        return self._sent.get(sequence) if sequence >= own and sequence >= self._seen else None

    def add(self, request: InFlight) -> None:
        self.waited[request.id.sequence] = self._sent[request.id.sequence] = request

    def answered(self, found: Answered) -> None:
        self._seen = found.seen.id.sequence
        self.drop(found.asked.id.sequence)

    def remove(self, identity: RequestId) -> None:
        self.waited.pop(identity.sequence, None)
        self._prune()

    def drop(self, sequence: int) -> None:
        """Drop this request and all that were sent before it."""
        waited = self.waited
        while waited and (oldest := next(iter(waited))) <= sequence:
            del waited[oldest]
        if waited:
            self._prune()
        else:
            self._sent.clear()

    def clear(self) -> None:
        self.waited.clear()
        self._sent.clear()

    def _prune(self) -> None:
        if not self.waited:
            self._sent.clear()
            return
        first = next(iter(self.waited))
        for number in [number for number in self._sent if number < first]:
            del self._sent[number]

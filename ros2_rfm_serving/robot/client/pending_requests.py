"""Pending requests of one link: one, or as many as the depth of a pipelined session (AURAS §4.2.2)."""

from __future__ import annotations

import sys
from typing import ClassVar

from ros2_rfm_serving.types import RequestId
from ros2_rfm_serving.types.record import record
from ros2_rfm_serving.types.state import kept


@record(frozen=True, slots=True)
class PendingRequest:
    id: RequestId
    sent_s: float
    steps_executed: int
    observed_s: float
    prefix_steps: int = sys.maxsize
    """Steps that may be executed before its answer: none if the robot waits for it, because there is no prefix."""


@record(frozen=True, slots=True)
class MatchedReply:
    request: PendingRequest
    """Request that the reply answers."""
    observed_by: PendingRequest
    """Request whose observation the last solver steps saw: row 0 of the chunk counts from it. Without pipelining it is the same."""


class PendingRequests:
    """Pending requests in the order of sending. One whose answer is overtaken is dropped: no older chunk replaces a newer one."""

    KEPT: ClassVar = kept(in_flight="waited", sent="_sent", last_observed_sequence="_last_observed_sequence")

    def __init__(self) -> None:
        self.waited: dict[int, PendingRequest] = {}
        """Pending requests by sequence number."""
        self._sent: dict[int, PendingRequest] = {}
        """Requests from the oldest pending one on; an answer may have ended with the observation of any of them."""
        self._last_observed_sequence = 0
        """Newest observation that an answer has ended with."""

    @property
    def oldest(self) -> PendingRequest | None:
        return next(iter(self.waited.values()), None)

    @property
    def newest(self) -> PendingRequest | None:
        return next(reversed(self.waited.values()), None)

    def sent_after(self, sequence: int) -> PendingRequest | None:
        """Return the oldest pending request that was sent after this one."""
        for number, each in self.waited.items():
            if number > sequence:
                return each
        return None

    def find(self, identity: RequestId) -> PendingRequest | None:
        found = self.waited.get(identity.sequence)
        return found if found is not None and (identity is found.id or identity == found.id) else None

    def observed_by(self, request: PendingRequest, ended_with: int | None) -> PendingRequest | None:
        """Return the request whose observation the last steps of an answer saw. None: the answer's value is impossible, because
        that observation was never sent in this session and episode, or is older than the request or than that of an earlier
        answer."""
        own = request.id.sequence
        sequence = own if ended_with is None else ended_with
        return self._sent.get(sequence) if sequence >= own and sequence >= self._last_observed_sequence else None

    def add(self, request: PendingRequest) -> None:
        self.waited[request.id.sequence] = self._sent[request.id.sequence] = request

    def on_reply(self, found: MatchedReply) -> None:
        self._last_observed_sequence = found.observed_by.id.sequence
        self.drop(found.request.id.sequence)

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

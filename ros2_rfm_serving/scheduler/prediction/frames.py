"""Simulated robots of pipelined sessions in a queue: one request per frame, several in flight (AURAS §4)."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from ros2_rfm_serving.scheduler.prediction.clients import (
    ROUNDING,
    ClientGroup,
    InitialState,
    MedianLatency,
    RobotClient,
    outlasts_chunk,
)


@dataclass(frozen=True, slots=True)
class _Sent:
    """Request of a pipelined session."""

    at_s: float
    stood_s: float
    """Total time that the robot had stood by then."""
    bridged_s: float
    """Time that may be executed before its answer: 0 if the robot waited for it."""


class FrameClock:
    """Timing of the requests of one pipelined session (`robot/client/component_client.py`): once per frame, at its control steps,
    whatever is answered meanwhile, but not while the agreed number of requests is in flight. A robot without actions stands, and
    its steps restart with the answer; one whose observations are usually older than a chunk lasts asks when it stands, and accepts
    no answer to what it asked before it moved on (`robot/client/request_timing.py`)."""

    __slots__ = (
        *("_expected", "_first", "_member", "_next_s", "_saw", "_sent", "_steps_from_s", "_stood_s", "_waits"),
        *("executes", "takes", "until_s"),
    )

    def __init__(self, member: ClientGroup, begins_s: float) -> None:
        pipelining = member.pipelining
        assert pipelining
        self._member, self._steps_from_s, self._next_s = member, begins_s, begins_s
        self._sent: deque[_Sent] = deque(maxlen=pipelining.depth)
        self._saw = pipelining.pp_generation + pipelining.fetch_offset
        """Number of requests after its own whose observation the end of a chunk belongs to."""
        self._expected, self._first, self._waits = MedianLatency(), True, False
        self._stood_s = 0.0
        """Total time that it stood before it last had actions."""
        self.until_s = begins_s
        """Time until which it has actions."""
        self.takes = self.executes = True
        """True when it accepts its last answer, and when it executes any of it."""

    def ask_s(self, from_s: float) -> float:
        """Return when one more request is sent, after the last one. from_s: when there is room for it."""
        member = self._member
        sent_s = max(from_s, self._next_s, self.until_s if self._waits else -math.inf)
        if sent_s < self.until_s:
            sent_s = self._steps_from_s + self._member.whole_s(sent_s - self._steps_from_s)
        self._next_s = max(max(self._next_s, sent_s - member.period_s) + member.period_s, sent_s + member.think_s)
        self._sent.append(_Sent(sent_s, self._has_stood_s(sent_s), 0.0 if self._waits else member.chunk_s))
        return sent_s

    def answered(self, at_s: float) -> None:
        """Note the answer to the oldest request in flight. Its rows count from the observation that its end saw."""
        member, seen, stands = self._member, self._sent[self._saw], at_s >= self.until_s
        took_s = at_s - seen.at_s
        moved_s = took_s - (self._has_stood_s(at_s) - seen.stood_s)
        self._expect(took_s)
        lasts_s = (member.think_s if self._waits else member.chunk_s) - moved_s
        least_s = ROUNDING * member.step_s
        self.takes = moved_s <= seen.bridged_s + least_s
        self.executes = self.takes and lasts_s > least_s
        if self.takes:
            self._stood_s = self._has_stood_s(at_s)
            self.until_s = at_s + max(lasts_s, 0.0)
            self._steps_from_s = at_s if stands else self._steps_from_s

    def _expect(self, took_s: float) -> None:
        if not self._first:
            self._expected.append(took_s)
        self._first = False
        self._waits = outlasts_chunk(self._member, max(self._expected.median_s, took_s if self._waits else 0.0))

    def _has_stood_s(self, at_s: float) -> float:
        return self._stood_s + max(at_s - self.until_s, 0.0)


class FrameRequest(RobotClient):
    """One of the requests that a pipelined robot has in flight, and its successors; answers come in the order of sending."""

    __slots__ = ("begun_with_s", "frames")

    def __init__(self, index: int, member: ClientGroup, frames: FrameClock, of: InitialState) -> None:
        super().__init__(index, member, frames.ask_s(-math.inf), of)
        self.frames, self.begun_with_s = frames, -math.inf
        """Time until which it had actions when the server began this request."""

    @property
    def starves_s(self) -> float:
        """Return when it runs out of actions, as its server knows it from the arrival of the request."""
        return max(self.begun_with_s, self.since_s)

    @property
    def ran_out_s(self) -> float:
        return self.starves_s

    @property
    def session(self) -> object:
        return self.frames

    def send(self, answered_s: float, unusual_s: float) -> None:
        frames, self.answered_s = self.frames, answered_s
        frames.answered(answered_s)
        self.sent_s, self.takes, self.executes = frames.ask_s(answered_s), frames.takes, frames.executes
        self.until_s = frames.until_s

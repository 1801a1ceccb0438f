"""History of a session's task: how long its robot generated, executed and waited (Kairos §3.2.1).

All instants are on the server's clock. The server observes generation itself; the robot reports execution as durations, which are
counted back and forth from the request's arrival. Memory and work per request do not grow with the task.
"""

from __future__ import annotations

import math
from typing import ClassVar

from ros2_rfm_serving.types import ExecutionReport
from ros2_rfm_serving.types.batch_wait import SMOOTHING, updated_request_interval
from ros2_rfm_serving.types.record import record
from ros2_rfm_serving.types.state import kept

ROUNDING_S = 1e-6


@record(frozen=True, slots=True)
class TimeInterval:
    begin_s: float
    end_s: float


def wait_s(generated: TimeInterval, executed: TimeInterval, next_generated: TimeInterval, next_executed: TimeInterval) -> float:
    """Return the wait between two rounds on the side that dominated the first (Algorithm 1, lines 3-4). Overlap is no wait."""
    dominates = generated.end_s - generated.begin_s >= executed.end_s - executed.begin_s
    first, second = (generated, next_generated) if dominates else (executed, next_executed)
    return max(0.0, second.begin_s - first.end_s)


class TaskHistory:
    """History of one session. A round is a generation and the execution of its chunk; chunks that were never executed make none."""

    KEPT: ClassVar = kept(
        *("episode", "kind", "began_s", "waited_s", "attained_s", "rounds", "skipped"),
        is_overdue="overdue",
        is_suspect="suspect",
        refetch_mean_s="refetch_s",
        refetch_request="_refetch",
        last_round="_last",
        pending_generation="_pending",
        answer_to_request_s="_request_interval_s",
        answer_to_request_spread_s="request_interval_deviation_s",
    )
    __slots__ = (
        "_refetch",
        "_last",
        "_pending",
        "_request_interval_s",
        "request_interval_deviation_s",
        "attained_s",
        "began_s",
        "episode",
        "kind",
        "overdue",
        "refetch_s",
        "rounds",
        "skipped",
        "suspect",
        "waited_s",
    )

    def __init__(self) -> None:
        self.refetch_s = 0.02
        """Running mean of the time to get a newer observation, s."""
        self._request_interval_s = self.request_interval_deviation_s = math.nan
        self.suspect = False
        """A batch with its request produced no answer at all, and the session has had no answer since."""
        self.overdue = False
        """A row of this session left the engine for a newer request: the next one stays there until it is answered."""
        self.begin_task(-1, ("", ""), 0.0)

    def begin_task(self, episode: int, kind: tuple[str, str], now_s: float) -> None:
        """Begin a new episode. Only the robot's pace and its round trip are kept from the last one."""
        self.episode, self.began_s = episode, now_s
        self.kind = kind
        """(component, instruction). Tasks of one kind are about as long."""
        self.waited_s = 0.0
        """Sum of W_j over the rounds so far."""
        self.attained_s = 0.0
        """Total time of all batches with its requests, each counted whole: the server chose the size of the batch, not the task."""
        self.rounds = 0
        """Number of generations that ended."""
        self.skipped = 0
        """Selections that left its waiting request out."""
        self._refetch: tuple[int, float] | None = None
        """Sequence number of the request for which a newer observation was requested, and the time of that."""
        self._last: tuple[TimeInterval, TimeInterval] | None = None
        """Generation and execution of the last complete round."""
        self._pending: TimeInterval | None = None
        """Generation whose chunk has not been reported as executing yet."""

    # --- updates, in this order for each round ---

    def on_request(self, now_s: float, report: ExecutionReport, replaces: bool = True) -> None:
        """Record a request; its report is about the chunk that the robot executes, or executed last. replaces: the request replaces
        a waiting one. Only then can it be the newer observation that was requested: that may have been lost."""
        if self._pending is not None:
            self._update_request_interval(now_s - self._pending.end_s)
        if self._refetch and replaces:
            self.refetch_s += SMOOTHING * (now_s - self._refetch[1] - self.refetch_s)
        self._refetch = None
        begin_s, end_s = now_s - report.executing_s, now_s + report.remaining_s
        if not 0.0 < end_s - begin_s < math.inf:
            return  # nothing was executed
        executed = TimeInterval(begin_s, end_s)
        if self._pending and executed.begin_s >= self._pending.end_s - ROUNDING_S:
            if self._last:
                self.waited_s += wait_s(*self._last, self._pending, executed)
            self._last, self._pending = (self._pending, executed), None
        elif self._last:  # the same chunk, seen later
            generated, before = self._last
            self._last = generated, TimeInterval(before.begin_s, executed.end_s)

    def on_generated(self, begun_s: float, now_s: float) -> None:
        """Record that a batch with its request has run."""
        self._pending = TimeInterval(begun_s, now_s)
        self.attained_s += now_s - begun_s
        self.rounds += 1

    def request_refetch(self, sequence: int, now_s: float) -> bool:
        """Record that a newer observation is wanted in place of request `sequence`; return False if it was requested already."""
        if self._refetch and self._refetch[0] == sequence:
            return False
        self._refetch = sequence, now_s
        return True

    def _update_request_interval(self, interval_s: float) -> None:
        """Learn the time from the last answer to the next request."""
        self._request_interval_s, self.request_interval_deviation_s = updated_request_interval(
            self._request_interval_s, self.request_interval_deviation_s, interval_s
        )

    # --- derived values ---

    def wait_ratio(self, now_s: float) -> float:
        """Return the share of the task's lifetime that its robot waited, [0, 1] (Equation 1)."""
        lifetime_s = now_s - self.began_s
        return min(1.0, self.waited_s / lifetime_s) if lifetime_s > 0 else 0.0

    def answered_s(self, now_s: float) -> float:
        """Return when its last chunk was ready, or `now_s` if there was none. Its actions cannot have run out before that, whatever
        its robot reports."""
        last = self._pending or (self._last and self._last[0])
        return last.end_s if last else now_s

    @property
    def last_execution_s(self) -> float:
        """Return the duration of the last execution |E_last|; 0 if nothing was executed yet."""
        return self._last[1].end_s - self._last[1].begin_s if self._last else 0.0

    @property
    def next_request_s(self) -> float:
        """Return when its next request is expected; NaN while its pace is unknown."""
        return self._pending.end_s + self._request_interval_s if self._pending else math.nan

"""What a server remembers of a session's task: how long its robot generated, executed and waited (Kairos §3.2.1).

All instants are on the server's clock: generation is what it saw itself, execution what the robot reports as durations, counted
back and forth from the request's arrival. Memory and work per request do not grow with the task.
"""

from __future__ import annotations

from typing import NamedTuple

from ros2_rfm_serving.types import ExecutionReport

SMOOTHING = 0.3
"""Weight of the newest sample in running means."""
ROUNDING_S = 1e-6


class Interval(NamedTuple):
    begin_s: float
    end_s: float


def wait_s(generated: Interval, executed: Interval, next_generated: Interval, next_executed: Interval) -> float:
    """Between two rounds, on the side that dominated the first (Algorithm 1, lines 3-4); overlap is no wait."""
    dominates = generated.end_s - generated.begin_s >= executed.end_s - executed.begin_s
    first, second = (generated, next_generated) if dominates else (executed, next_executed)
    return max(0.0, second.begin_s - first.end_s)


class History:
    """Of one session. A round is a generation and the execution of its chunk; chunks that were never executed make none."""

    __slots__ = (
        "_executed",
        "_generated",
        "_pending",
        "_thought_s",
        "ask_spread_s",
        "asked_again",
        "attained_s",
        "began_s",
        "episode",
        "refetch_s",
        "rounds",
        "skipped",
        "waited_s",
    )

    def __init__(self) -> None:
        self.refetch_s = 0.02
        """Running mean of what it took to get a newer observation, s."""
        self._thought_s = self.ask_spread_s = float("nan")
        self.begin_task(0, 0.0)

    def begin_task(self, episode: int, now_s: float) -> None:
        """A new episode: nothing of the last one counts, but the robot's pace and its round trip do."""
        self.episode, self.began_s = episode, now_s
        self.waited_s = 0.0
        """Sum of W_j over the rounds so far."""
        self.attained_s = 0.0
        """Time of all batches that it was in, each counted whole: how many shared a batch was the server's choice, not the task's."""
        self.rounds = 0
        """Generations that ended."""
        self.skipped = 0
        """Selections since its request waits that left it out."""
        self.asked_again: tuple[int, float] | None = None
        """Sequence number of the request for which a newer observation was asked, and when."""
        self._generated = self._executed = self._pending = Interval(0.0, 0.0)

    # --- what happens, in this order, again and again ---

    def requested(self, now_s: float, report: ExecutionReport) -> None:
        """A request arrived; its report is about the chunk that the robot executes, or executed last."""
        self._learn_pace(now_s)
        executed = Interval(now_s - report.executing_s, now_s + report.remaining_s)
        if executed.end_s <= executed.begin_s:
            return  # nothing was executed
        if self._pending.end_s and executed.begin_s >= self._pending.end_s - ROUNDING_S:
            if self._executed.end_s:
                self.waited_s += wait_s(self._generated, self._executed, self._pending, executed)
            self._generated, self._executed, self._pending = self._pending, executed, Interval(0.0, 0.0)
        elif self._executed.end_s:
            self._executed = Interval(self._executed.begin_s, executed.end_s)  # the same chunk, seen later

    def generated(self, begun_s: float, now_s: float) -> None:
        """A batch with its request has run."""
        self._pending = Interval(begun_s, now_s)
        self.attained_s += now_s - begun_s
        self.rounds += 1

    def _learn_pace(self, now_s: float) -> None:
        if not self._pending.end_s:
            return
        thought_s = max(0.0, now_s - self._pending.end_s)
        if self._thought_s != self._thought_s:  # noqa: PLR0124 (NaN: the first)
            self._thought_s, self.ask_spread_s = thought_s, 0.0
            return
        self.ask_spread_s += SMOOTHING * (abs(thought_s - self._thought_s) - self.ask_spread_s)
        self._thought_s += SMOOTHING * (thought_s - self._thought_s)

    # --- what follows from it ---

    def wait_ratio(self, now_s: float) -> float:
        """Share of the task's lifetime that its robot waited, [0, 1] (Equation 1)."""
        lifetime_s = now_s - self.began_s
        return min(1.0, self.waited_s / lifetime_s) if lifetime_s > 0 else 0.0

    @property
    def last_execution_s(self) -> float:
        """|E_last|; 0: nothing was executed yet."""
        return self._executed.end_s - self._executed.begin_s

    @property
    def asks_s(self) -> float:
        """When its next request is expected; NaN: its pace is not known."""
        return self._pending.end_s + self._thought_s if self._pending.end_s else float("nan")

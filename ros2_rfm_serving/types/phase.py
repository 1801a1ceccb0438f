"""How robots with a cap fall out of each other's way.

Robots that keep a pace by the clock keep their phases: those that once meet at a server meet for ever, and which robots do is
drawn when they start. So the phase gives way: an answer that took longer than its server's answers usually do moves the next
request by as much later, one that was quicker by as much earlier. What is usual the server says, of all its robots together
(`Usual`): to those in a crowd it is nothing unusual to wait as long as the last time. A crowd asks next as it was answered, one
after the other, and after a few cycles requests are spread as far as the server's load allows. On average over the robots nothing
moves, and caps are reached as before.

Of each robot the phase moves by a period at most, either way: one answer that takes ten seconds must not be made up for by dozens
of requests beyond the cap. Who always waits longer than others, as its server's order has it, gets used to that. Asynchronous
robots, who execute meanwhile, give way where their cap leaves room for it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

ANSWERS_OF_EACH = 4
"""That a server's `Usual` looks back on, roughly: some cycles of its robots."""
USED_TO = 64
"""Answers after which a robot is used to waiting longer than others do."""
ROOM = 1.05
"""Periods of an asynchronous robot's cap, in executions of what it asks for, from which on a request may come later."""


def has_room(period_s: float, execution_s: float) -> bool:
    """Of an asynchronous robot."""
    return period_s > ROOM * execution_s


@dataclass(slots=True)
class Usual:
    """What one server's answers take, of all its robots together."""

    mean_s: float = 0.0
    num_answers: int = 0

    def unusual_s(self, latency_s: float, num_robots: int) -> float:
        """By how much this answer took longer than usual, from arrival to reply."""
        most = ANSWERS_OF_EACH * num_robots
        self.num_answers = self.num_answers + 1 if self.num_answers < most else most or 1
        self.mean_s += (latency_s - self.mean_s) / self.num_answers
        return latency_s - self.mean_s


@dataclass(slots=True)
class Phase:
    """Of one robot at one server."""

    used_to_s: float = 0.0
    """More than its server's usual."""
    moved_s: float = 0.0
    """In all."""

    def shift_s(self, unusual_s: float, period_s: float) -> float:
        """By how much the next request moves after an answer that took so much longer than usual, as its server says."""
        if not math.isfinite(unusual_s):
            return 0.0
        unusual_s = _within(period_s, unusual_s)
        move_s = unusual_s - self.used_to_s
        self.used_to_s += move_s / USED_TO
        before_s = _within(period_s, self.moved_s)  # the period may have been longer
        self.moved_s = _within(period_s, before_s + move_s)
        return self.moved_s - before_s


def _within(most: float, value: float) -> float:
    return most if value > most else -most if value < -most else value

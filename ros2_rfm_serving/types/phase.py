"""How robots with a cap fall out of each other's way.

Robots that keep a pace by the clock keep their phases: those that once meet at a server meet for ever, and which robots do is
drawn when they start. So the phase gives way: an answer that took longer than usual moves the next request by as much later, one
that was quicker by as much earlier. On average nothing moves and the cap is reached as before, but who had to wait for another
comes after it the next time: within a few cycles requests are spread as far as the server's load allows. In all it moves by a
period at most, either way: one answer that takes ten seconds must not be made up for by dozens of requests beyond the cap.
Asynchronous robots, who execute meanwhile, do so where their cap leaves room for it.
"""

from __future__ import annotations

from dataclasses import dataclass

WINDOW = 8
"""Answers that `usual` looks back on, roughly."""
ROOM = 1.05
"""Periods of an asynchronous robot's cap, in executions of what it asks for, from which on a request may come later."""


def has_room(period_s: float, execution_s: float) -> bool:
    """Of an asynchronous robot."""
    return period_s > ROOM * execution_s


@dataclass(slots=True)
class Phase:
    """Of one robot at one server."""

    usual_s: float = 0.0
    num_answers: int = 0
    moved_s: float = 0.0
    """In all."""

    def shift_s(self, waited_s: float, period_s: float) -> float:
        """By how much the next request moves after an answer that took `waited_s`."""
        unusual_s = waited_s - self.usual_s if self.num_answers else 0.0
        self.num_answers = min(self.num_answers + 1, WINDOW)
        self.usual_s += (waited_s - self.usual_s) / self.num_answers
        before_s = _within(period_s, self.moved_s)  # the period may have been longer
        self.moved_s = _within(period_s, before_s + unusual_s)
        return self.moved_s - before_s


def _within(most: float, value: float) -> float:
    return most if value > most else -most if value < -most else value

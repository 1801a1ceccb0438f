"""Which of two schedules is better: one that keeps every floor; then by the curves, or, of asynchronous robots, by what these do in
their own queues.

These ask anew the moment they are answered where answers take longer than their actions, and stand where they outlast a chunk: what
curves rank first may get a sixth less done than what they rank third.
"""

from __future__ import annotations

from ros2_rfm_serving.scheduler.policies.options import BestSchedule, operated
from ros2_rfm_serving.scheduler.prediction.curves import Curves
from ros2_rfm_serving.scheduler.prediction.predict import expected, floors_in_doubt, keeps_every_floor

NEARLY, LOOKS = 0.85, 4
"""Of the worth of the best, or of what its robots do, where that is less: schedules of asynchronous robots that may get more done
in the robots' own queues, which are looked at; and how many."""
MOST_LOOKS = 12
"""At schedules, as long as none of them keeps every floor."""
CLEARLY = 0.01
"""How much more done makes up for being worth less by the curves."""
BEYOND = 1e-3
"""Relative gain from which caps beyond the curves are worth it: SLOs then hang on how robots queue, and the bound is looser. It is
what predictions do not tell apart: with more, a looser SLO or a GPU more could make a plan worth less by that much."""


class Comparison:
    """Of the schedules of one factory."""

    def __init__(self, curves: Curves, *, far: bool, by_queues: bool) -> None:
        """far: networks are declared, of which the curves know nothing. by_queues: there are asynchronous robots to ask about."""
        self._curves, self._far, self.by_queues = curves, far, by_queues

    def suffices(self, known: BestSchedule, other: BestSchedule, looks: int) -> bool:
        """Nothing is better that comes from there on, after so many looks."""
        if not self.keeps_floors(known):
            return looks >= MOST_LOOKS
        if self.by_queues and looks < LOOKS:
            return other.worth < NEARLY * min(known.worth, self._does_hz(known))
        return not self._far and known.worth >= other.worth

    def better(self, *schedules: BestSchedule | None) -> BestSchedule | None:
        """Of equals the first."""
        best: BestSchedule | None = None
        for one in schedules:
            if best is None or (one is not None and self._is_better(one, best)):
                best = one
        return best

    def keeps_floors(self, schedule: BestSchedule) -> bool:
        """By what its robots are expected to do."""
        if not floors_in_doubt(schedule.problem, schedule.rates):
            return True
        return keeps_every_floor(schedule.problem, self._curves, operated(schedule, self._curves, self._curves))

    def does_less(self, one: BestSchedule, other: BestSchedule, share: float) -> bool:
        """Clearly, of asynchronous robots; or less than a floor."""
        if self.keeps_floors(other) and not self.keeps_floors(one):
            return True
        return self.by_queues and self._does_hz(one) < (1.0 - share) * self._does_hz(other)

    def gains(self, raised: BestSchedule, kept: BestSchedule) -> bool:
        """Whether caps beyond the curves are worth it; and robots do more, of whom those that pace themselves might do less. A
        floor that only one of the two keeps decides."""
        if (keeps := self.keeps_floors(raised)) is not self.keeps_floors(kept):
            return keeps
        return raised.worth > (1.0 + BEYOND) * kept.worth and self._does_hz(raised) > self._does_hz(kept)

    def _is_better(self, one: BestSchedule, other: BestSchedule) -> bool:
        if (keeps := self.keeps_floors(one)) is not self.keeps_floors(other):
            return keeps
        if self.by_queues:
            does_hz, other_does_hz = self._does_hz(one), self._does_hz(other)
            if max(does_hz, other_does_hz) > (1.0 + CLEARLY) * min(does_hz, other_does_hz):
                return does_hz > other_does_hz
        return one.worth > other.worth

    def _does_hz(self, schedule: BestSchedule) -> float:
        return expected(schedule.problem, self._curves, operated(schedule, self._curves, self._curves)) - schedule.lost_hz

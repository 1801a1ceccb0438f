"""Comparison of two schedules: one that keeps every floor is better; then the curves decide, or asynchronous robots' own queues.

Asynchronous robots ask again immediately where answers take longer than their actions, and stand where answers outlast a chunk: the
schedule that the curves rank first may achieve a sixth less than the one that they rank third.
"""

from __future__ import annotations

from ros2_rfm_serving.scheduler.policies.options import BestSchedule, operated
from ros2_rfm_serving.scheduler.prediction.curves import Curves
from ros2_rfm_serving.scheduler.prediction.predict import expected, floors_in_doubt, keeps_every_floor

NEARLY, LOOKS = 0.85, 4
"""Share of the best worth, or of its robots' rates if those are lower, from which schedules of asynchronous robots are simulated,
because they may achieve more in the robots' own queues; and how many."""
MOST_LOOKS = 12
"""Most schedules that are simulated while none of them keeps every floor."""
CLEARLY = 0.01
"""Relative gain in achieved rates that compensates for less worth by the curves."""
BEYOND = 1e-3
"""Relative gain from which caps beyond the curves pay: SLOs then depend on how robots queue, and the bound is looser. Predictions
do not resolve less than this; with more, a looser SLO or a GPU more could make a plan worth less by that much."""


class ScheduleComparison:
    """Comparison of the schedules of one factory."""

    def __init__(self, curves: Curves, *, far: bool, by_queues: bool) -> None:
        """far: networks are declared, which the curves do not contain. by_queues: there are asynchronous robots to simulate."""
        self._curves, self._far, self.by_queues = curves, far, by_queues

    def suffices(self, known: BestSchedule, other: BestSchedule, looks: int) -> bool:
        """Return whether no schedule from `other` on is better than `known`, after this number of simulations."""
        if not self.keeps_floors(known):
            return looks >= MOST_LOOKS
        if self.by_queues and looks < LOOKS:
            return other.worth < NEARLY * min(known.worth, self._does_hz(known))
        return not self._far and known.worth >= other.worth

    def better(self, *schedules: BestSchedule | None) -> BestSchedule | None:
        """Return the best schedule; the first of equal ones."""
        best: BestSchedule | None = None
        for one in schedules:
            if best is None or (one is not None and self._is_better(one, best)):
                best = one
        return best

    def keeps_floors(self, schedule: BestSchedule) -> bool:
        """Return whether its robots are expected to keep their floors."""
        if not floors_in_doubt(schedule.problem, schedule.rates):
            return True
        return keeps_every_floor(schedule.problem, self._curves, operated(schedule, self._curves, self._curves))

    def does_less(self, one: BestSchedule, other: BestSchedule, share: float) -> bool:
        """Return whether one schedule achieves clearly less with asynchronous robots, or misses a floor that the other keeps."""
        if self.keeps_floors(other) and not self.keeps_floors(one):
            return True
        return self.by_queues and self._does_hz(one) < (1.0 - share) * self._does_hz(other)

    def gains(self, raised: BestSchedule, kept: BestSchedule) -> bool:
        """Return whether caps beyond the curves pay, and robots achieve more, since robots that pace themselves might achieve less.
        A floor that only one of the two keeps decides."""
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

"""Cache of fleets that are known to have no plan: the same input gives the same answer, so they are not planned again."""

from __future__ import annotations

from collections import Counter

from ros2_rfm_serving.errors import PlannerError, RfmError, ScheduleError
from ros2_rfm_serving.factory import Factory
from ros2_rfm_serving.scheduler.plan_job import PlanJob

REMEMBERED = 64
"""Kinds of fleets that are remembered."""


class InfeasibleFleets:
    """Infeasible fleets of one factory as it is observed now."""

    def __init__(self, factory: Factory) -> None:
        self._factory = factory
        self._why: dict[object, str] = {}

    def forget(self) -> None:
        """Forget all, because the factory is observed otherwise."""
        self._why.clear()

    def note(self, order: PlanJob, why: RfmError) -> None:
        """Record the reason of an infeasible order; a failure of the planner itself is not recorded."""
        if isinstance(why, ScheduleError) and not isinstance(why, PlannerError) and order.factory is self._factory:
            self._why[_kind(order)] = str(why)
            if len(self._why) > REMEMBERED:
                del self._why[next(iter(self._why))]

    def why(self, order: PlanJob) -> str:
        """Return the reason why the order is infeasible; empty: it may be feasible."""
        return self._why.get(_kind(order), "") if order.factory is self._factory else ""


def _kind(order: PlanJob) -> object:
    """Return a key that is equal for fleets with the same number of robots per task."""
    return order.policy, frozenset(Counter(robot.task for robot in order.robots).items())

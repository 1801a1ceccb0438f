"""Fleets that there is no plan for, as is known: the same input gives the same answer, and nobody plans them again."""

from __future__ import annotations

from collections import Counter

from ros2_rfm_serving.errors import PlannerError, RfmError, ScheduleError
from ros2_rfm_serving.factory import Factory
from ros2_rfm_serving.scheduler.planned import PlanOrder

REMEMBERED = 64
"""Kinds of fleets without a plan."""


class Impossible:
    """Of one factory, as it is seen now."""

    def __init__(self, factory: Factory) -> None:
        self._factory = factory
        self._why: dict[object, str] = {}

    def forget(self) -> None:
        """The factory is seen otherwise."""
        self._why.clear()

    def note(self, order: PlanOrder, why: RfmError) -> None:
        """Nothing, where the planner failed."""
        if isinstance(why, ScheduleError) and not isinstance(why, PlannerError) and order.factory is self._factory:
            self._why[_kind(order)] = str(why)
            if len(self._why) > REMEMBERED:
                del self._why[next(iter(self._why))]

    def why(self, order: PlanOrder) -> str:
        """Empty: it may be possible."""
        return self._why.get(_kind(order), "") if order.factory is self._factory else ""


def _kind(order: PlanOrder) -> object:
    """Robots of a task are alike."""
    return order.policy, frozenset(Counter(robot.task for robot in order.robots).items())

"""Interfaces for reports on the active schedule: the log and the schedule log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from ros2_rfm_serving.factory import RobotEntry
from ros2_rfm_serving.scheduler.active_fleet import ActiveFleet
from ros2_rfm_serving.scheduler.estimation import EstimateChange
from ros2_rfm_serving.scheduler.plan_job import PlanResult


class OperatorLog(Protocol):
    def info(self, message: str) -> Any: ...
    def warning(self, message: str) -> Any: ...


class ScheduleLog(Protocol):
    """Schedule log: it receives every schedule with its reason before publication."""

    def planned(self, planned: PlanResult, reason: str, *, background: bool = False, published: bool = True) -> None: ...
    def changed(self, before: ActiveFleet, after: ActiveFleet, reason: str) -> None: ...
    def saw(self, finding: EstimateChange, waiting: Sequence[RobotEntry], after: ActiveFleet) -> None: ...

"""Interfaces for reports on the active schedule: the log and the schedule log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from ros2_rfm_serving.factory import RobotEntry
from ros2_rfm_serving.scheduler.adaptation import Fleet
from ros2_rfm_serving.scheduler.planned import Planned
from ros2_rfm_serving.scheduler.watch import Finding


class Log(Protocol):
    def info(self, message: str) -> Any: ...
    def warning(self, message: str) -> Any: ...


class Book(Protocol):
    """Schedule log: it receives every schedule with its reason before publication."""

    def planned(self, planned: Planned, reason: str, *, background: bool = False, published: bool = True) -> None: ...
    def changed(self, before: Fleet, after: Fleet, reason: str) -> None: ...
    def saw(self, finding: Finding, waiting: Sequence[RobotEntry], after: Fleet) -> None: ...

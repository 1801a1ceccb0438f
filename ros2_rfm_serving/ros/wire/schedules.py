"""Reading of the schedule, which every process receives every 2 s, and which grows with the fleet."""

from __future__ import annotations

from typing import Any

from ros2_rfm_serving.ros.wire import convert
from ros2_rfm_serving.types import Schedule


class ScheduleReader:
    """Reader that converts a repeated schedule once; `bounded.Repeated` returns the same object, so no comparison is needed."""

    def __init__(self) -> None:
        self._message: Any = None
        self._schedule: Schedule | None = None

    def __call__(self, message: Any) -> Schedule:
        """Return the schedule. Raises: `BadMessageError`."""
        if self._schedule is None or message is not self._message:
            self._schedule, self._message = convert.schedule_from(message), message
        return self._schedule

"""The schedule as it is heard: every 2 s, by everybody, and as long as the fleet is large."""

from __future__ import annotations

from typing import Any

from ros2_rfm_serving.ros.wire import convert
from ros2_rfm_serving.types import Schedule


class ScheduleReader:
    """What is heard again (`bounded.Repeated`) is not read again, nor compared: it is the same object."""

    def __init__(self) -> None:
        self._message: Any = None
        self._schedule: Schedule | None = None

    def __call__(self, message: Any) -> Schedule:
        """Raises: `BadMessageError`."""
        if self._schedule is None or message is not self._message:
            self._schedule, self._message = convert.schedule_from(message), message
        return self._schedule

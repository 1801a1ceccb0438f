"""That a robot is in the factory, as it remembers it: what a scheduler that has just started learns who was admitted from."""

from __future__ import annotations

from dataclasses import dataclass

from ros2_rfm_serving.types.schedule import Schedule


@dataclass(frozen=True, kw_only=True)
class Admission:
    """Who served a robot last, and as what. A schedule without the robot ends it if it is that scheduler's, or says so in words:
    a successor that does not know the robot yet must be able to hear of it."""

    scheduler: int = 0
    task: str = ""
    """Its task class; empty: nobody serves it."""

    def after(self, schedule: Schedule, robot: str) -> Admission:
        """When the robot follows this schedule."""
        task = next((route.task for route in schedule.routes if route.robot == robot), "")
        if task:
            return Admission(scheduler=schedule.scheduler, task=task)
        dropped = schedule.scheduler == self.scheduler or robot in schedule.released
        return NOT_ADMITTED if dropped else self


NOT_ADMITTED = Admission()

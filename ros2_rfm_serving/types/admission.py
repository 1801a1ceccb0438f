"""A robot's own record of its admission, from which a scheduler that has just started learns which robots were admitted."""

from __future__ import annotations

from dataclasses import dataclass

from ros2_rfm_serving.types.schedule import Schedule


@dataclass(frozen=True, kw_only=True)
class AdmissionRecord:
    """Scheduler that served a robot last, and the task class it was served for.

    A schedule without the robot ends the admission only if it comes from that scheduler or lists the robot as released. A successor
    that does not know the robot yet must still be able to learn of it.
    """

    scheduler: int = 0
    task: str = ""
    """Task class; empty: the robot is not admitted."""

    def updated_by(self, schedule: Schedule, robot: str) -> AdmissionRecord:
        """Return the admission that holds once the robot follows this schedule."""
        task = next((route.task for route in schedule.routes if route.robot == robot), "")
        if task:
            return AdmissionRecord(scheduler=schedule.scheduler, task=task)
        dropped = schedule.scheduler == self.scheduler or robot in schedule.released
        return NOT_ADMITTED if dropped else self


NOT_ADMITTED = AdmissionRecord()

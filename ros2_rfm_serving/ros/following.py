"""Messages about the schedule that a node follows, for its log and for `/diagnostics`."""

from __future__ import annotations

from collections.abc import Mapping

from rclpy.node import Node

from ros2_rfm_serving.types import Schedule, ScheduleFollower, ScheduleVerdict

TWO_SCHEDULERS = "another scheduler publishes schedules as well; end one of the two"
THROTTLE_S = 5.0


def describe(schedule: Schedule | None) -> str:
    """Return a readable description; identities are hexadecimal, as in the messages."""
    return f"schedule {schedule.epoch} of scheduler {schedule.scheduler:x}" if schedule else "no schedule"


def say(node: Node, name: str, heard: ScheduleVerdict, schedule: Schedule, before: str) -> None:
    """Log that a schedule was taken over or refused. before: description of the schedule that was active at that time."""
    log = node.get_logger()
    if heard is ScheduleVerdict.TAKEOVER:
        log.warning(f"{name}: {before} is silent; {describe(schedule)} takes over")
    elif not heard.is_accepted:
        log.warning(f"{name}: refused {describe(schedule)}: {before} is in force", throttle_duration_sec=THROTTLE_S)


def values(following: ScheduleFollower, now_s: float) -> Mapping[str, object]:
    """Return the diagnostics values."""
    return {
        "schedule_epoch": following.epoch,
        "scheduler": f"{following.scheduler:x}",
        "scheduler_takeovers": following.takeovers,
        "rival_schedulers": following.num_rivals(now_s),
    }

"""What a node says about whose schedule it follows: in its log and in `/diagnostics`."""

from __future__ import annotations

from collections.abc import Mapping

from rclpy.node import Node

from ros2_rfm_serving.types import Following, Heard, Schedule

TWO_SCHEDULERS = "another scheduler publishes schedules as well; end one of the two"
THROTTLE_S = 5.0


def describe(schedule: Schedule | None) -> str:
    """For people; identities as in the messages, in hexadecimal."""
    return f"schedule {schedule.epoch} of scheduler {schedule.scheduler:x}" if schedule else "no schedule"


def say(node: Node, name: str, heard: Heard, schedule: Schedule, before: str) -> None:
    """before: the one in force when this one was heard, in words."""
    log = node.get_logger()
    if heard is Heard.TAKEOVER:
        log.warning(f"{name}: {before} is silent; {describe(schedule)} takes over")
    elif not heard.taken:
        log.warning(f"{name}: refused {describe(schedule)}: {before} is in force", throttle_duration_sec=THROTTLE_S)


def values(following: Following, now_s: float) -> Mapping[str, object]:
    """For `/diagnostics`."""
    return {
        "schedule_epoch": following.epoch,
        "scheduler": f"{following.scheduler:x}",
        "scheduler_takeovers": following.takeovers,
        "rival_schedulers": following.num_rivals(now_s),
    }

"""A robot that its factory's descriptor need not name."""

from __future__ import annotations

import re

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.factory.descriptor import Factory, RobotEntry
from ros2_rfm_serving.factory.graph_names import NAME
from ros2_rfm_serving.factory.yaml_source import did_you_mean


def dynamic_robot_entry(factory: Factory, name: str, task: str) -> RobotEntry:
    """Return a robot for a task. A simulated one derives its seeds from the number at the end of its name.

    Raises: `ConfigurationError` for an unknown task or an invalid name.
    """
    if task not in factory.tasks:
        raise ConfigurationError(f"no task is named {task!r}", file=factory.file, fix=did_you_mean(task, factory.tasks))
    if not NAME.fullmatch(name):
        raise ConfigurationError(f"{name!r} cannot name a robot", fix="letters, digits and underscores, a letter first")
    number = re.search(r"[1-9]\d{0,3}$", name)
    declared = sum(robot.task == task for robot in factory.robots)
    return RobotEntry(name=name, task=task, index=int(number.group()) - 1 if number else declared)

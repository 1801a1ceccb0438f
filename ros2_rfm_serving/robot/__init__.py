"""One robot: action queue, requests, watchdogs, task; `tick()`."""

from ros2_rfm_serving.robot.brain import RobotBrain, RobotConfig, Tick
from ros2_rfm_serving.robot.task import TaskGoal, TaskResult

__all__ = ["RobotBrain", "RobotConfig", "TaskGoal", "TaskResult", "Tick"]

"""Decision core of one robot: action queue, requests, watchdogs and task. `RobotCore.tick()` runs it."""

from ros2_rfm_serving.robot.config import RobotConfig, Sensors, TickResult
from ros2_rfm_serving.robot.core import RobotCore
from ros2_rfm_serving.robot.task import TaskGoal, TaskResult

__all__ = ["RobotCore", "RobotConfig", "Sensors", "TaskGoal", "TaskResult", "TickResult"]

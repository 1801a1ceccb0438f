"""Decision core of one robot: action queue, requests, watchdogs and task. `RobotBrain.tick()` runs it."""

from ros2_rfm_serving.robot.brain import RobotBrain
from ros2_rfm_serving.robot.config import RobotConfig, Sensors, Tick
from ros2_rfm_serving.robot.task import TaskGoal, TaskResult

__all__ = ["RobotBrain", "RobotConfig", "Sensors", "TaskGoal", "TaskResult", "Tick"]

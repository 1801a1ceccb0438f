"""Telemetry of a running factory: liveness and speed of servers, needs of robots, and attainment of the plan."""

from ros2_rfm_serving.scheduler.watch.factors import SAMPLE
from ros2_rfm_serving.scheduler.watch.health import LOOK_PERIOD_S
from ros2_rfm_serving.scheduler.watch.means import CONFIDENCE
from ros2_rfm_serving.scheduler.watch.watch import Finding, Watch
from ros2_rfm_serving.scheduler.watch.words import Asked, Kept, RobotWord, ServerWord

__all__ = ["CONFIDENCE", "LOOK_PERIOD_S", "SAMPLE", "Asked", "Finding", "Kept", "RobotWord", "ServerWord", "Watch"]

"""What a running factory says of itself: which servers live, how fast they are, what robots need; and whether the plan still
holds."""

from ros2_rfm_serving.scheduler.watch.factors import SAMPLE
from ros2_rfm_serving.scheduler.watch.health import LOOK_PERIOD_S
from ros2_rfm_serving.scheduler.watch.means import CONFIDENCE
from ros2_rfm_serving.scheduler.watch.watch import Finding, Watch
from ros2_rfm_serving.scheduler.watch.words import Asked, Kept, RobotWord, ServerWord

__all__ = ["CONFIDENCE", "LOOK_PERIOD_S", "SAMPLE", "Asked", "Finding", "Kept", "RobotWord", "ServerWord", "Watch"]

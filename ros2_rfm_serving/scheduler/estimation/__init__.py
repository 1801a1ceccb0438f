"""Telemetry of a running factory: liveness and speed of servers, needs of robots, and attainment of the plan."""

from ros2_rfm_serving.scheduler.estimation.batch_means import CONFIDENCE
from ros2_rfm_serving.scheduler.estimation.calibration import SAMPLE
from ros2_rfm_serving.scheduler.estimation.estimator import EstimateChange, FactoryEstimator
from ros2_rfm_serving.scheduler.estimation.health import LOOK_PERIOD_S
from ros2_rfm_serving.scheduler.estimation.status_samples import ComponentTotals, RobotStatusSample, ServerStatusSample, SloCounts

__all__ = [
    "CONFIDENCE",
    "LOOK_PERIOD_S",
    "SAMPLE",
    "ComponentTotals",
    "EstimateChange",
    "SloCounts",
    "RobotStatusSample",
    "ServerStatusSample",
    "FactoryEstimator",
]

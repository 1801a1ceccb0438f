"""Selection of the waiting requests that run next: small policy classes over plain data, chosen by name."""

from ros2_rfm_serving.dispatch.base import DispatchPolicy, EngineView, Selection
from ros2_rfm_serving.dispatch.batching import CONTINUOUS
from ros2_rfm_serving.dispatch.dispatcher import DISPATCH_POLICIES, Dispatcher, check_policy, count_skips, policy
from ros2_rfm_serving.dispatch.flight import Flight, Row, StepCosts
from ros2_rfm_serving.dispatch.guarded import Guarded
from ros2_rfm_serving.dispatch.service_times import ServiceTimes
from ros2_rfm_serving.dispatch.waiting import Waiting

__all__ = [
    "CONTINUOUS",
    "DISPATCH_POLICIES",
    "DispatchPolicy",
    "Dispatcher",
    "EngineView",
    "Flight",
    "Guarded",
    "Row",
    "Selection",
    "ServiceTimes",
    "StepCosts",
    "Waiting",
    "check_policy",
    "count_skips",
    "policy",
]

"""Selection of the waiting requests that run next: small policy classes over plain data, chosen by name."""

from ros2_rfm_serving.dispatch.base import DispatchDecision, DispatchPolicy, EngineView
from ros2_rfm_serving.dispatch.batching import CONTINUOUS
from ros2_rfm_serving.dispatch.checked_policy import CheckedPolicy
from ros2_rfm_serving.dispatch.dispatcher import DISPATCH_POLICIES, Dispatcher, check_policy, count_skips, policy
from ros2_rfm_serving.dispatch.in_flight import InFlightRow, InFlightRows, StepCosts
from ros2_rfm_serving.dispatch.service_times import ServiceTimes
from ros2_rfm_serving.dispatch.waiting_request import WaitingRequest

__all__ = [
    "CONTINUOUS",
    "DISPATCH_POLICIES",
    "DispatchPolicy",
    "Dispatcher",
    "EngineView",
    "InFlightRows",
    "CheckedPolicy",
    "InFlightRow",
    "DispatchDecision",
    "ServiceTimes",
    "StepCosts",
    "WaitingRequest",
    "check_policy",
    "count_skips",
    "policy",
]

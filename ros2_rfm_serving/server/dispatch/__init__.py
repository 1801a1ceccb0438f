"""Which waiting requests run next: small classes over plain data, chosen by name."""

from ros2_rfm_serving.server.dispatch.base import DispatchPolicy, EngineView, Selection, Waiting
from ros2_rfm_serving.server.dispatch.dispatcher import DISPATCH_POLICIES, Dispatcher, count_skips, policy
from ros2_rfm_serving.server.dispatch.guarded import Guarded
from ros2_rfm_serving.server.dispatch.service_times import ServiceTimes

__all__ = [
    "DISPATCH_POLICIES",
    "DispatchPolicy",
    "Dispatcher",
    "EngineView",
    "Guarded",
    "Selection",
    "ServiceTimes",
    "Waiting",
    "count_skips",
    "policy",
]

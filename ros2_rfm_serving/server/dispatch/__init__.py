"""Which waiting requests run next: small classes over plain data, chosen by name."""

from ros2_rfm_serving.server.dispatch.base import DispatchPolicy, EngineView, Selection, Waiting
from ros2_rfm_serving.server.dispatch.dispatcher import DISPATCH_POLICIES, Dispatcher, policy
from ros2_rfm_serving.server.dispatch.service_times import ServiceTimes

__all__ = ["DISPATCH_POLICIES", "DispatchPolicy", "Dispatcher", "EngineView", "Selection", "ServiceTimes", "Waiting", "policy"]

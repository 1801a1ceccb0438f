"""Public names for packages that add a dispatch policy; the implementation for serving and planning is `dispatch/`."""

from ros2_rfm_serving.dispatch import DispatchPolicy, EngineView, ServiceTimes, WaitingRequest

__all__ = ["DispatchPolicy", "EngineView", "ServiceTimes", "WaitingRequest"]

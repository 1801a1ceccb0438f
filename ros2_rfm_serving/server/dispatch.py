"""The name by which packages that add a dispatch policy know what they extend; what serves and what plans is `dispatch/`."""

from ros2_rfm_serving.dispatch import DispatchPolicy, EngineView, ServiceTimes, Waiting

__all__ = ["DispatchPolicy", "EngineView", "ServiceTimes", "Waiting"]

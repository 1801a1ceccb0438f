"""Factory and profiles in, schedule out."""

from ros2_rfm_serving.scheduler.first import plan

__all__ = ["plan"]

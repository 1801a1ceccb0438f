"""Factory and profiles in, schedule out."""

from ros2_rfm_serving.scheduler.planning import POLICIES, plan_factory
from ros2_rfm_serving.scheduler.solution import Solution, to_schedule

__all__ = ["POLICIES", "Solution", "plan_factory", "to_schedule"]

"""Factory and profiles in, schedule out."""

from ros2_rfm_serving.scheduler.adaptation import Fleet, Migration
from ros2_rfm_serving.scheduler.planning import POLICIES, fleet_of, plan_factory, start_fleet
from ros2_rfm_serving.scheduler.solution import Solution, to_schedule

__all__ = ["POLICIES", "Fleet", "Migration", "Solution", "fleet_of", "plan_factory", "start_fleet", "to_schedule"]

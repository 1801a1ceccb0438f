"""Planner of the factory: it turns a factory descriptor and latency profiles into a schedule."""

from ros2_rfm_serving.scheduler.active_fleet import ActiveFleet
from ros2_rfm_serving.scheduler.admission_query import AdmissionOffers
from ros2_rfm_serving.scheduler.commands import SchedulerCommand
from ros2_rfm_serving.scheduler.estimates import FactoryEstimates
from ros2_rfm_serving.scheduler.migration import Migration
from ros2_rfm_serving.scheduler.plan_job import PlanJob, PlanResult
from ros2_rfm_serving.scheduler.plan_service import answered, fleet_of, plan, rebuilt, start_fleet
from ros2_rfm_serving.scheduler.planning import plan_factory, without_automatic
from ros2_rfm_serving.scheduler.policies.schedules import POLICIES
from ros2_rfm_serving.scheduler.recovery import resumed
from ros2_rfm_serving.scheduler.registry import DEFAULT_LEASE_S, LOOK_PERIOD_S, RobotClaim, RobotRegistry, newcomers, settled
from ros2_rfm_serving.scheduler.routes import to_schedule
from ros2_rfm_serving.scheduler.schedule_manager import ScheduleManager
from ros2_rfm_serving.scheduler.solution import Solution
from ros2_rfm_serving.scheduler.telemetry import TelemetryController

__all__ = [
    "DEFAULT_LEASE_S",
    "LOOK_PERIOD_S",
    "POLICIES",
    "ActiveFleet",
    "ScheduleManager",
    "TelemetryController",
    "Migration",
    "SchedulerCommand",
    "PlanJob",
    "PlanResult",
    "AdmissionOffers",
    "RobotRegistry",
    "FactoryEstimates",
    "Solution",
    "RobotClaim",
    "answered",
    "fleet_of",
    "newcomers",
    "plan",
    "plan_factory",
    "rebuilt",
    "resumed",
    "settled",
    "start_fleet",
    "to_schedule",
    "without_automatic",
]

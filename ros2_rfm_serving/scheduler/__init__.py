"""Planner of the factory: it turns a factory descriptor and latency profiles into a schedule."""

from ros2_rfm_serving.scheduler.adaptation import Fleet
from ros2_rfm_serving.scheduler.answering import answered, fleet_of, plan, rebuilt, start_fleet
from ros2_rfm_serving.scheduler.enquiry import Rooms
from ros2_rfm_serving.scheduler.in_force import InForce
from ros2_rfm_serving.scheduler.lookout import Lookout
from ros2_rfm_serving.scheduler.migration import Migration
from ros2_rfm_serving.scheduler.orders import Order
from ros2_rfm_serving.scheduler.planned import Planned, PlanOrder
from ros2_rfm_serving.scheduler.planning import plan_factory, without_automatic
from ros2_rfm_serving.scheduler.policies.schedules import POLICIES
from ros2_rfm_serving.scheduler.roster import DEFAULT_LEASE_S, LOOK_PERIOD_S, Roster, Word, newcomers, settled
from ros2_rfm_serving.scheduler.routes import to_schedule
from ros2_rfm_serving.scheduler.seen import Seen
from ros2_rfm_serving.scheduler.solution import Solution
from ros2_rfm_serving.scheduler.takeover import resumed

__all__ = [
    "DEFAULT_LEASE_S",
    "LOOK_PERIOD_S",
    "POLICIES",
    "Fleet",
    "InForce",
    "Lookout",
    "Migration",
    "Order",
    "PlanOrder",
    "Planned",
    "Rooms",
    "Roster",
    "Seen",
    "Solution",
    "Word",
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

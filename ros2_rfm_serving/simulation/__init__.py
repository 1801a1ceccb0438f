"""Adapter for virtual time: the live decision cores of robots and servers, in simulated factories."""

from ros2_rfm_serving.simulation.conditions import (
    ConnectionCut,
    Crash,
    NetworkConditions,
    SimulationConditions,
    StragglerConditions,
    TaskArrivals,
    Unsureness,
    load_trace,
)
from ros2_rfm_serving.simulation.day import DayReport, live_through
from ros2_rfm_serving.simulation.dynamic_robots import DynamicRobotFigures, Turnover
from ros2_rfm_serving.simulation.report import ComponentReport, Counters, Report, ServerReport, TaskReport, Visits
from ros2_rfm_serving.simulation.scheduled_factory import ScheduledReport, simulate_watched
from ros2_rfm_serving.simulation.simulate import simulate

__all__ = [
    "ComponentReport",
    "SimulationConditions",
    "Counters",
    "Crash",
    "ConnectionCut",
    "DayReport",
    "DynamicRobotFigures",
    "NetworkConditions",
    "Report",
    "ServerReport",
    "StragglerConditions",
    "TaskArrivals",
    "TaskReport",
    "Turnover",
    "Unsureness",
    "Visits",
    "ScheduledReport",
    "live_through",
    "load_trace",
    "simulate",
    "simulate_watched",
]

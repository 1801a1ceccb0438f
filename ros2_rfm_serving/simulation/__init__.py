"""Adapter for virtual time: the live decision cores of robots and servers, in simulated factories."""

from ros2_rfm_serving.simulation.conditions import Conditions, Crash, Cut, Network, Stragglers, TaskArrivals, Unsureness, load_trace
from ros2_rfm_serving.simulation.day import DayReport, live_through
from ros2_rfm_serving.simulation.guests import GuestFigures, Turnover
from ros2_rfm_serving.simulation.report import ComponentReport, Counters, Report, ServerReport, TaskReport, Visits
from ros2_rfm_serving.simulation.simulate import simulate
from ros2_rfm_serving.simulation.watched import Watched, simulate_watched

__all__ = [
    "ComponentReport",
    "Conditions",
    "Counters",
    "Crash",
    "Cut",
    "DayReport",
    "GuestFigures",
    "Network",
    "Report",
    "ServerReport",
    "Stragglers",
    "TaskArrivals",
    "TaskReport",
    "Turnover",
    "Unsureness",
    "Visits",
    "Watched",
    "live_through",
    "load_trace",
    "simulate",
    "simulate_watched",
]

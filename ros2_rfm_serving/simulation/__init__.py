"""The virtual-time body: the same robots and servers, in simulated factories."""

from ros2_rfm_serving.simulation.conditions import Conditions, Crash, Cut, Network, Stragglers, TaskArrivals, Unsureness, load_trace
from ros2_rfm_serving.simulation.report import ComponentReport, Counters, Report, ServerReport, TaskReport
from ros2_rfm_serving.simulation.simulate import simulate, simulate_watched

__all__ = [
    "ComponentReport",
    "Conditions",
    "Counters",
    "Crash",
    "Cut",
    "Network",
    "Report",
    "ServerReport",
    "Stragglers",
    "TaskArrivals",
    "TaskReport",
    "Unsureness",
    "load_trace",
    "simulate",
    "simulate_watched",
]

"""What the declared factory asks of every model."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from ros2_rfm_serving.factory import Factory, Robot
from ros2_rfm_serving.types import SYSTEM1, SYSTEM2


@dataclass(frozen=True, kw_only=True)
class Stream:
    """One robot's requests for one component, all with one model."""

    robot: str
    component: str
    model: str
    wanted_rate_hz: float
    """The declared rate, or for System 1 and 2 the closed-loop rate without any latency (ROSA §3.4.2, f_max)."""
    slo_s: float
    """0: none declared"""
    goal_coupled: bool


def streams(factory: Factory, robots: list[Robot]) -> dict[str, list[Stream]]:
    """Model -> its streams, in the order of the robots."""
    wanted = defaultdict(list)
    for robot in robots:
        task = factory.tasks[robot.task]
        f_max = 1e3 / task.pipeline.action_period_ms
        rates = {SYSTEM1: f_max, SYSTEM2: f_max * task.pipeline.system2_to_system1_call_ratio}
        for name, component in task.components.items():
            wanted[component.model].append(
                Stream(
                    robot=robot.name,
                    component=name,
                    model=component.model,
                    wanted_rate_hz=component.freq_hz or rates[name],
                    slo_s=(component.slo_ms or 0.0) / 1e3,
                    goal_coupled=name in rates,
                )
            )
    return dict(wanted)

"""What a plan keeps after each way to start, in virtual time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ros2_rfm_serving.factory import Catalogue, Factory
from ros2_rfm_serving.profiles import Profile
from ros2_rfm_serving.simulation import simulate
from ros2_rfm_serving.simulation.conditions import Crash, SimulationConditions, StragglerConditions
from ros2_rfm_serving.types import Schedule

SECONDS, LONGER_S = 20.0, 60.0
"""That a start is measured, and that one is measured again which kept less than promised."""
SETTLED_S = 5.0
"""After the last event of a start, before anything counts: a plan promises what holds from then on."""
COME_BACK_S = 60.0
"""The same where all robots meet at once: crowds part within that, slow robots last."""
DISTURBED_S = 6.0
"""When a server is lost, a burst begins, or the last robot joins."""
CHANCE = 3.0
"""Standard deviations that chance explains."""
CLUSTERED = 4.0
"""Late requests come in clusters of about so many."""
FEWEST = 20
"""Requests by which an SLO is judged."""


@dataclass(frozen=True)
class Start:
    conditions: SimulationConditions
    seed: int
    warm_up_s: float = SETTLED_S


@dataclass(frozen=True)
class Kept:
    """One SLO of a task after one start."""

    start: str
    task: str
    component: str
    share: float
    promised: float
    count: int

    @property
    def is_missed(self) -> bool:
        """More requests are late than chance explains."""
        scatter = math.sqrt(CLUSTERED * self.promised * (1.0 - self.promised) / self.count)
        return self.share < self.promised - CHANCE * scatter

    def __str__(self) -> str:
        return f"{self.start}: {self.task} {self.component} {100 * self.share:.2f} % of {100 * self.promised:.0f} % in {self.count}"


def starts(factory: Factory, schedule: Schedule) -> Mapping[str, Start]:
    """Return the ways to start: start name -> what happens."""
    robots = [robot.name for robot in factory.robots]
    at_once = dict.fromkeys(robots, 0.0)
    serving = [placement.server for placement in schedule.placements if not placement.standby]
    caps_hz = {route.robot: route.max_rate_hz for route in schedule.routes if route.component == "system1"}
    cycles_s = [max(factory.tasks[r.task].cycle_period_s, 1.0 / caps_hz.get(r.name, math.inf)) for r in factory.robots]
    evenly = {name: cycle_s * i / len(robots) for i, (name, cycle_s) in enumerate(zip(robots, cycles_s, strict=True))}
    lost = Crash(server=serving[0], at_s=DISTURBED_S, restart_after_s=2.0)
    burst = StragglerConditions(share=1.0, factor=6.0, from_s=DISTURBED_S, until_s=DISTURBED_S + 2.0)
    back_s = DISTURBED_S + COME_BACK_S
    return {
        "random phases": Start(SimulationConditions(), 1),
        "other random phases": Start(SimulationConditions(), 2),
        "all at once": Start(SimulationConditions(begins=at_once), 3, COME_BACK_S),
        "evenly": Start(SimulationConditions(begins=evenly), 4, max(SETTLED_S, *evenly.values())),
        "all plans at once": Start(SimulationConditions(begins=at_once, plans_owed=0.999), 5, COME_BACK_S),
        "a server returned": Start(SimulationConditions(crashes=(lost,)), 6, back_s),
        "after a burst": Start(SimulationConditions(stragglers=burst), 7, back_s),
        "one robot late": Start(SimulationConditions(begins=at_once, joins={robots[-1]: DISTURBED_S}), 8, back_s),
    }


def missed(factory: Factory, schedule: Schedule, catalogue: Catalogue, profile: Profile) -> Iterator[Kept]:
    """Yield what is missed beyond chance, also when it is measured for longer."""
    for name, start in starts(factory, schedule).items():
        found = kept(name, start, factory, schedule, catalogue, profile, SECONDS)
        if any(one.is_missed for one in found):
            longer = kept(name, start, factory, schedule, catalogue, profile, LONGER_S)
            yield from (one for one in longer if one.is_missed)


def kept(
    name: str, start: Start, factory: Factory, schedule: Schedule, catalogue: Catalogue, profile: Profile, seconds: float
) -> list[Kept]:
    """Simulate one start, and return what it keeps of every SLO that is asked for often enough."""
    conditions, warm_up_s = start.conditions, start.warm_up_s
    report = simulate(
        schedule, factory, catalogue, profile, seconds=seconds, seed=start.seed, warm_up_s=warm_up_s, conditions=conditions
    )
    return [
        Kept(name, task, component, found.slo_attainment, (of.percentile or factory.tasks[task].percentile) / 100, found.count)
        for task, components in report.task_components.items()
        for component, found in components.items()
        if (of := factory.tasks[task].components[component]).slo_ms is not None and found.count >= FEWEST
    ]

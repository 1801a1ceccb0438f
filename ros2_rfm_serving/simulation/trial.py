"""Trial of a plan in virtual time: it finds the SLOs that robots miss there by more than chance explains."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ros2_rfm_serving.factory import Catalogue, Factory
from ros2_rfm_serving.profiles import Profile
from ros2_rfm_serving.scheduler import Solution, to_schedule
from ros2_rfm_serving.scheduler.trial import Trial
from ros2_rfm_serving.simulation.simulate import simulate

STARTS, SECONDS = 3, 20.0
CHANCE = 2.0
"""Tolerance in standard deviations, where late requests come in pairs."""


def virtual_time_trial(catalogue: Catalogue, profile: Profile) -> Trial:
    """Return a trial for plans of factories whose models these describe."""

    def trial(factory: Factory, solution: Solution) -> list[str]:
        return list(_missed(factory, solution, catalogue, profile))

    return trial


def _missed(factory: Factory, solution: Solution, catalogue: Catalogue, profile: Profile) -> Iterator[str]:
    schedule = to_schedule(solution, factory.robots, epoch=1)
    reports = [simulate(schedule, factory, catalogue, profile, seconds=SECONDS, seed=seed) for seed in range(STARTS)]
    for name, task in factory.tasks.items():
        for component, declared in task.components.items():
            found = [report.task_components[name][component] for report in reports if name in report.task_components]
            count = sum(one.count for one in found)
            if declared.slo_ms is None or not count:
                continue
            share = sum(one.slo_attainment * one.count for one in found if one.count) / count
            promised = (declared.percentile or task.percentile) / 100
            if share < promised - CHANCE * math.sqrt(2 * promised * (1 - promised) / count):
                kept = f"{100 * share:.1f} % keep the SLO, {100 * promised:.0f} % are promised"
                yield f"{component} of {name!r}: in virtual time {kept}"

"""What would make a factory feasible, and how many plans it takes to know."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

import pytest

from ros2_rfm_serving.factory import Factory
from ros2_rfm_serving.scheduler import explain_infeasible
from ros2_rfm_serving.simulation.random_factories import Size, random_factory
from ros2_rfm_serving.types import SYSTEM1

FACTORY = random_factory(Size(servers=2, robots=4, classes=1, models=1), 4).factory
(TASK,) = FACTORY.tasks
SLO_MS = FACTORY.tasks[TASK].components[SYSTEM1].slo_ms


@pytest.mark.parametrize("needed", [1.2, 1.5, 4.0, 10.0, math.inf])
def test_the_least_slo_that_is_enough_is_found_and_none_is_tried_where_the_loosest_is_not(needed: float) -> None:
    assert SLO_MS is not None
    tried: list[float] = []

    def feasible(factory: Factory, counts: Mapping[str, int]) -> bool:
        slo_ms = factory.tasks[TASK].components[SYSTEM1].slo_ms
        assert slo_ms is not None
        if slo_ms > SLO_MS:
            tried.append(slo_ms / SLO_MS)
        return slo_ms >= needed * SLO_MS

    found = explain_infeasible.remedies(FACTORY, Counter(robot.task for robot in FACTORY.robots), feasible)
    looser = [text for text in found if f"for {SYSTEM1} of {TASK!r}" in text]
    enough = next((factor for factor in explain_infeasible.LOOSER if factor >= needed), None)
    assert looser == (
        [] if enough is None else [f"feasible with slo_ms {enough * SLO_MS:g} instead of {SLO_MS:g} for {SYSTEM1} of {TASK!r}"]
    )
    assert len(tried) <= (1 if enough is None else len(explain_infeasible.LOOSER))


def test_what_a_quick_look_does_not_find_is_not_said_to_be_impossible() -> None:
    found = explain_infeasible.remedies(FACTORY, Counter(robot.task for robot in FACTORY.robots), lambda _factory, _counts: False)
    assert [text.startswith("no plan is known") for text in found] == [True, True]

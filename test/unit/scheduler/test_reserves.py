"""Which servers are the reserve is part of the plan, and nothing that a descriptor's order or names decide."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ros2_rfm_serving.factory import Catalogue
from ros2_rfm_serving.profiles import Profile
from ros2_rfm_serving.scheduler import Solution
from ros2_rfm_serving.scheduler.planning import plan_factory
from ros2_rfm_serving.scheduler.standby_assignment import best_of
from test.unit.scheduler.drawn_factories import Written, declared, drawn, inputs, renamed, reordered

ALIKE = 1e-3
TRIED = int(os.environ.get("RFM_TRIED_FACTORIES", "40"))


@pytest.fixture(scope="module")
def known(repository: Path) -> tuple[Profile, Catalogue]:
    return inputs(repository)


def planned(written: Written, known: tuple[Profile, Catalogue], work: float | None = None) -> Solution:
    return plan_factory(declared(written), *known, explained=False, work=work)


def mixed(standby: int = 1) -> Written:
    """Two quick servers and two slow ones."""
    task = {
        "pipeline": {"action_period_ms": 200},
        "components": {"system1": {"model": "nvidia/GR00T-N1.6-3B", "slo_ms": 260}},
    }
    return {
        "server_cluster": [{"num_servers": 2, "gpu_type": "FAST"}, {"num_servers": 2, "gpu_type": "SLOW"}],
        "standby": {"num_servers": standby},
        "robot_fleet": [{"task": "pick", "num_robots": 12}],
        "pick": task,
    }


def test_the_order_of_groups_decides_no_reserve(known: tuple[Profile, Catalogue]) -> None:
    first, other = planned(mixed(), known), planned(reordered(mixed()), known)
    assert first.feasible and other.objective == pytest.approx(first.objective, rel=1e-9)
    assert other.bound == pytest.approx(first.bound, rel=1e-9) and first.objective <= first.bound * (1 + 1e-6)
    types = [sorted(server.gpu_type for server in plan.servers if server.standby) for plan in (first, other)]
    assert types[0] == types[1] and len(types[0]) == 1


def test_a_reserve_is_what_costs_least_of_those_that_cover_as_much(known: tuple[Profile, Catalogue]) -> None:
    """Without the reserve of either type, as factories of their own."""
    chosen = planned(mixed(), known)
    reserved = [server.gpu_type for server in chosen.servers if server.standby]
    without = {}
    for kept, other in (("FAST", "SLOW"), ("SLOW", "FAST")):
        written = mixed(0)
        written["server_cluster"] = [{"num_servers": 1, "gpu_type": kept}, {"num_servers": 2, "gpu_type": other}]
        without[kept] = planned(written, known).objective
    assert chosen.objective == pytest.approx(without[reserved[0]], rel=ALIKE)
    assert chosen.objective >= 0.95 * (1 - ALIKE) * max(without.values()), "hardly more is given up for a better cover"
    assert chosen.bound >= max(without.values()) * (1 - ALIKE), "the bound is of the declared factory"


def test_of_reserves_that_cost_as_much_the_one_that_covers_more() -> None:
    def plan(objective: float, covered: bool, feasible: bool = True) -> Solution:
        return Solution(
            policy="best", feasible=feasible, objective=objective, bound=100.0, standby_of={"a": "b"} if covered else {}
        )

    assert best_of([plan(90.0, True), plan(91.0, True)], 0.25) == 1
    assert best_of([plan(50.0, True), plan(91.0, True)], 0.25) == 1
    assert best_of([plan(0.0, True, feasible=False), plan(1.0, True)], 0.25) == 1


@pytest.mark.parametrize("seed", [1, 5, 7, 10])
def test_neither_order_nor_names_change_what_a_plan_is_worth(known: tuple[Profile, Catalogue], seed: int) -> None:
    _check(known, seed)


@pytest.mark.patient
@pytest.mark.parametrize("part", range(TRIED // 10))
def test_neither_order_nor_names_change_what_any_plan_is_worth(known: tuple[Profile, Catalogue], part: int) -> None:
    for seed in range(100 + 10 * part, 110 + 10 * part):
        _check(known, seed)


def _check(known: tuple[Profile, Catalogue], seed: int) -> None:
    written = drawn(seed)
    first = planned(written, known)
    for other in (planned(reordered(written), known), planned(renamed(written), known)):
        assert other.feasible is first.feasible, seed
        assert other.objective == pytest.approx(first.objective, rel=ALIKE), seed
        assert set(other.tasks) and len(other.servers) == len(first.servers), seed

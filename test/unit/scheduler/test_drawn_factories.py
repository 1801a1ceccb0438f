"""Plans of factories drawn from all that can be declared, checked by code that shares nothing with the planner (`test/drawn`)."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from test.drawn.checks import SERVED_S, Checks
from test.drawn.factories import drawn_factory, stretched_catalogue

NUM_DRAWN = int(os.environ.get("RFM_DRAWN_FACTORIES", "0"))
"""Factories; 0: a handful. `make thorough` draws 500, which takes hours; `python -m test.drawn` takes any range of them."""
HANDFUL = (0, 4, 7, 9, 10)
"""Some that have a plan and are quickly planned."""
MORE = (2000, 2001, 2002, 2004, 2005, 2006, 2011, 2012, 2101, 2102, 5008, 5028, 5052, 5076)
"""Of those that take longer."""
KINDS = frozenset(filter(None, os.environ.get("RFM_DRAWN_KINDS", "serves,virtual_time").split(",")))
"""`serves`, `virtual_time`, `order`, `monotonic`."""


@pytest.fixture(scope="module")
def checks(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Checks:
    shipped = repository / "config" / "profiles"
    profile, catalogue = stretched_catalogue(shipped, tmp_path_factory.mktemp("profiles"))
    return Checks(shipped, profile, catalogue, starts=2, seconds=10.0)


@pytest.mark.parametrize("seed", range(NUM_DRAWN) if NUM_DRAWN else HANDFUL)
def test_a_drawn_factory_is_served_as_planned(checks: Checks, seed: int) -> None:
    assert not list(map(str, checks.of(drawn_factory(seed), KINDS)))


@pytest.mark.parametrize("seed", [2008, 2009, 2022, 2109, 2118, 2149, *(pytest.param(s, marks=pytest.mark.patient) for s in MORE)])
def test_a_robot_less_a_looser_slo_and_a_gpu_more_do_no_harm(checks: Checks, seed: int) -> None:
    assert not list(map(str, checks.of(drawn_factory(seed), frozenset({"monotonic"}))))


def test_robots_that_wait_for_a_text_model_at_every_action_do_as_much_as_expected(checks: Checks) -> None:
    """The queue of the text model's server says how long they wait: by its cautious curve they did 13 % more than expected."""
    longer = replace(checks, starts=3, seconds=20.0)
    assert not list(map(str, longer.of(drawn_factory(2018), frozenset({"virtual_time"}))))


def test_a_seed_gives_the_same_factory_again_and_all_kinds_are_drawn() -> None:
    drawn = [drawn_factory(seed) for seed in range(200)]
    assert drawn[7] == drawn_factory(7)
    groups = [group for one in drawn for group in one.descriptor["server_cluster"]]
    assert {group["batching"] for group in groups} == {"fixed", "wait", "continuous"}
    assert len({group["dispatch"] for group in groups}) == 7
    assert {len(one.tasks) for one in drawn} == {1, 2, 3, 4}
    for section in ("standby", "planning", "hosts"):
        assert any(section in one.descriptor for one in drawn)
    tasks = [one.descriptor[name] for one in drawn for name in one.tasks]
    assert {len(task["components"]) for task in tasks} == {1, 2, 3, 4}
    assert any("execution" in task for task in tasks) and any("min_action_rate_hz" in task for task in tasks)


def test_what_a_server_cannot_do_is_found(checks: Checks, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checks can fail: of a plan for servers that took a thousandth of the time."""
    slow = {model: {size: 1e3 * s for size, s in sizes.items()} for model, sizes in SERVED_S.items()}
    monkeypatch.setattr("test.drawn.checks.SERVED_S", slow)
    found = checks.of(drawn_factory(4), frozenset({"serves"}))
    assert found and {violation.kind for violation in found} == {"capacity"}

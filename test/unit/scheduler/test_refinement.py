"""The climb from a plan to its neighbours, which robots' own queues judge."""

from __future__ import annotations

from pathlib import Path

import pytest

from ros2_rfm_serving.factory import Catalogue, load_factory
from ros2_rfm_serving.profiles import Profile
from ros2_rfm_serving.scheduler.planning import plan_factory
from ros2_rfm_serving.scheduler.policies.options import BestSchedule
from ros2_rfm_serving.scheduler.policies.refinement import Refinement
from test.drawn.factories import Drawn, drawn_factory, stretched_catalogue
from test.unit.scheduler.drawn_factories import inputs


@pytest.fixture(scope="module")
def drawn_inputs(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Profile, Catalogue]:
    return stretched_catalogue(repository / "config" / "profiles", tmp_path_factory.mktemp("profiles"))


def unrefined(self: Refinement, found: BestSchedule, *, sure: bool = True) -> BestSchedule:
    return found


def test_a_neighbour_that_the_curves_rank_lower_is_found(
    drawn_inputs: tuple[Profile, Catalogue], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the curves the text model belongs on the slower GPU; by their own queues robots do 1 % more the other way round."""
    looser: Drawn = drawn_factory(2149).with_looser_slo("task_2", "safety")
    refined = plan_factory(looser.factory(), *drawn_inputs, explained=False)
    monkeypatch.setattr(Refinement, "of", unrefined)
    searched = plan_factory(looser.factory(), *drawn_inputs, explained=False)
    assert refined.feasible and refined.objective > 1.01 * searched.objective
    assert refined.objective <= refined.bound and refined.work > searched.work


def test_a_crowded_factory_takes_no_longer(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight robots on each server: their queues take long, and one robot more or less on a server decides little."""
    profile, catalogue = inputs(repository)
    factory = load_factory(repository / "config" / "rosa" / "p3.yaml")
    robots = dict.fromkeys(factory.tasks, 64)
    work = plan_factory(factory, profile, catalogue, num_robots=robots, explained=False).work
    monkeypatch.setattr(Refinement, "of", unrefined)
    assert work == pytest.approx(plan_factory(factory, profile, catalogue, num_robots=robots, explained=False).work)

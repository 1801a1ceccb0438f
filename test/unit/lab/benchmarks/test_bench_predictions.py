"""`rfm bench predictions` on a few small factories, and its arithmetic."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lab.benchmarks.predictions.run import FAR, HURRIED, KINDS, Case, Plan, Runs, Server, cases
from ros2_rfm_serving.cli.main import app
from ros2_rfm_serving.factory import Catalogue
from ros2_rfm_serving.profiles import load_profiles
from ros2_rfm_serving.scheduler import plan_factory, to_schedule
from ros2_rfm_serving.simulation import simulate
from ros2_rfm_serving.simulation.profiled_factories import profiled_factory


def test_shares_of_runs_that_are_near() -> None:
    server = Server(kind="text", robots=3, predicted_s=0.105, runs_s=(0.1, 0.11, 0.2, 0.1))
    assert server.hits == 0.75 and server.is_right
    assert server.twins == pytest.approx(1 / 2)  # 3 of 6 pairs: 0.1 and 0.11 differ by 10 % of 0.11 and of 0.1
    assert server.others == 0.75
    aware, blind = (Plan(goodput=g, expected=10.0, acted=8.5, missed=(), servers=()) for g in (9.0, 10.0))
    assert not aware.acts_as_expected
    assert Case(seed=0, kind=FAR, aware=aware, blind=blind).gained == pytest.approx(-0.1)


def test_a_factory_is_drawn_by_its_seed_alone() -> None:
    assert profiled_factory(3, network=True) == profiled_factory(3, network=True) != profiled_factory(4, network=True)
    near, far = (profiled_factory(3, network=network) for network in (False, True))
    assert all(not near.network_of(task).mean_s for task in near.tasks) and all(far.network_of(task).mean_s for task in far.tasks)


@pytest.mark.patient
@pytest.mark.parametrize("kind", ["no network", FAR])
def test_plans_keep_what_they_promise_in_virtual_time(repository: Path, kind: str) -> None:
    """Of five factories; the command has seventy. Judged by the profile's curves alone one in four without a network does not."""
    folder = repository / "config" / "profiles"
    runs = Runs(count=2, seconds=10, profile=load_profiles(folder), catalogue=Catalogue.load(folder / "models.yaml"))
    found = [case for case in cases((2, 4, 5, 12, 15), runs, kind=kind) if isinstance(case, Case)]
    assert len(found) == 5 and not any(case.aware.missed for case in found)
    servers = [server for case in found for server in case.aware.servers]
    assert sum(server.is_right for server in servers) >= 0.75 * len(servers)
    assert all(bool(case.blind) == (kind == FAR) for case in found)
    assert all(case.aware.acts_as_expected for case in found)


@pytest.mark.patient
def test_robots_whose_answers_are_late_act_as_often_as_is_expected(repository: Path) -> None:
    """Of three factories: answers that take longer than what is executed, or than a whole chunk, from two to four servers, one of
    them with continuous batching. Before, 72 to 88 % of what was expected."""
    folder = repository / "config" / "profiles"
    runs = Runs(count=2, seconds=8, profile=load_profiles(folder), catalogue=Catalogue.load(folder / "models.yaml"))
    found = [case for case in cases((13, 17, 29), runs, kind=HURRIED) if isinstance(case, Case)]
    assert len(found) == 3
    assert all(case.aware.acts_as_expected and not case.aware.missed for case in found)


@pytest.mark.parametrize("share", [1.0, 1.02, 0.01])
def test_who_asks_as_often_as_its_actions_end_comes_last_for_a_while(repository: Path, share: float) -> None:
    """Three asynchronous robots on a server, whose caps are so often their pace; the start at which one of nine came last for ever:
    88.9 and 92.7 % were in time."""
    folder = repository / "config" / "profiles"
    catalogue = Catalogue.load(folder / "models.yaml")
    factory = profiled_factory(141, network=True)
    schedule = to_schedule(plan_factory(factory, load_profiles(folder), catalogue, explained=False), factory.robots, epoch=1)
    capped = [replace(route, max_rate_hz=route.max_rate_hz / share) for route in schedule.routes]
    for seed in (2, 6):
        report = simulate(replace(schedule, routes=tuple(capped)), factory, catalogue, seconds=10, seed=seed)
        assert report.components["system1"].slo_attainment > 0.99 and report.raw > 19.5, f"seed {seed}"


def test_the_command_prints_and_writes(tmp_path: Path) -> None:
    command = ["bench", "predictions", "--factories", "1", "--runs", "2", "--seconds", "5", "--seed", "2"]
    result = CliRunner().invoke(app, [*command, "--json", str(tmp_path / "found.json"), "--plot", str(tmp_path / "found.png")])
    assert result.exit_code == 0, result.output
    assert "knowing the network" in result.output and (tmp_path / "found.png").stat().st_size > 1000
    assert {case["kind"] for case in json.loads((tmp_path / "found.json").read_text())} == set(KINDS)

"""Plans of factories beside this one: a GPU more, a looser SLO or a robot less does no harm where a search falls short."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ros2_rfm_serving.factory import Catalogue, Factory, parse_factory
from ros2_rfm_serving.profiles import Profile
from ros2_rfm_serving.scheduler import Solution
from ros2_rfm_serving.scheduler.planning import plan_factory
from ros2_rfm_serving.scheduler.policies import shadow_plans
from ros2_rfm_serving.scheduler.policies.best import BestPlanner
from ros2_rfm_serving.scheduler.policies.options import BestSchedule
from ros2_rfm_serving.scheduler.prediction.rates import HostedServer
from test.drawn.factories import drawn_factory, stretched_catalogue
from test.unit.scheduler.drawn_factories import inputs

TEXT = """
server_cluster: {{num_servers: {servers}, gpu_type: NVIDIA H200}}
robot_fleet: [{{task: pick, num_robots: {robots}}}, {{task: place, num_robots: 4}}]
pick: {{pipeline: {{action_period_ms: 100}}, components: {{system1: {{model: nvidia/GR00T-N1.6-3B, slo_ms: 200}}}}}}
place: {{pipeline: {{action_period_ms: 100}}, components: {{system1: {{model: nvidia/GR00T-N1.6-3B, slo_ms: 200}}}}}}
"""


@pytest.fixture(scope="module")
def known(repository: Path) -> tuple[Profile, Catalogue]:
    return inputs(repository)


def factory(servers: int = 2, robots: int = 8) -> Factory:
    return parse_factory(TEXT.format(servers=servers, robots=robots))


def planned(known: tuple[Profile, Catalogue], of: Factory) -> Solution:
    return plan_factory(of, *known, explained=False)


def test_a_robot_less_is_served_by_the_plan_with_one_more(
    known: tuple[Profile, Catalogue], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Blind(BestPlanner):
        """Finds nothing for twelve robots by itself."""

        def run(self, rate_control: bool | None, known: tuple[HostedServer, ...] = ()) -> BestSchedule | None:
            if sum(task.num_robots for task in self._problem.classes) == 12 and not known:
                return None
            return super().run(rate_control, known)

    monkeypatch.setattr(shadow_plans, "BestPlanner", Blind)
    found = planned(known, factory())
    assert found.feasible and {name: task.served for name, task in found.tasks.items()} == {"pick": 8, "place": 4}
    routed = [(stream.task, stream.num_robots) for server in found.servers for stream in server.streams]
    assert sum(number for task, number in routed if task == "pick") == 8 and sum(number for _, number in routed) == 12


def test_a_gpu_more_is_worth_no_less(known: tuple[Profile, Catalogue], monkeypatch: pytest.MonkeyPatch) -> None:
    class Blind(BestPlanner):
        """Finds little for three servers."""

        def run(self, rate_control: bool | None, known: tuple[HostedServer, ...] = ()) -> BestSchedule | None:
            found = super().run(rate_control, known)
            if found and len(self._problem.servers) == 3:
                return replace(found, rates=tuple(0.1 * rate for rate in found.rates), tuned=None)
            return found

    fewer = planned(known, factory(servers=2, robots=40))
    monkeypatch.setattr(shadow_plans, "BestPlanner", Blind)
    more = planned(known, factory(servers=3, robots=40))
    assert more.feasible and more.objective >= (1 - 1e-3) * fewer.objective


@pytest.mark.patient
def test_a_looser_slo_is_worth_no_less(repository: Path, tmp_path: Path) -> None:
    """Of a drawn factory, whose robots' queues let caps be lower by a sixth when they began with higher ones."""
    profile, catalogue = stretched_catalogue(repository / "config" / "profiles", tmp_path)
    drawn = drawn_factory(2123)
    tight = planned((profile, catalogue), drawn.factory())
    for times in (1.1, 1.25):
        looser = planned((profile, catalogue), drawn.with_looser_slo("task_0", "system1", times).factory())
        assert looser.feasible and looser.objective >= 0.99 * tight.objective, times

"""Servers of actions of a large factory, put together anew."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from ros2_rfm_serving.scheduler.build_problem import curves_of, problem_of
from ros2_rfm_serving.scheduler.policies import baselines
from ros2_rfm_serving.scheduler.policies.packing import THINNED, packed
from ros2_rfm_serving.scheduler.prediction.curves import Curves
from ros2_rfm_serving.scheduler.prediction.parts import SplitClass, parted
from ros2_rfm_serving.scheduler.prediction.rates import HostedServer, Rates, RateSearch
from ros2_rfm_serving.scheduler.problem import PlanningProblem
from ros2_rfm_serving.simulation.random_factories import Size, random_factory

SIZE = Size(servers=40, robots=320, classes=4, models=3)


@pytest.fixture(scope="module")
def factory() -> tuple[PlanningProblem, Curves]:
    case = random_factory(SIZE, 3)
    problem = problem_of(case.factory, Counter(robot.task for robot in case.factory.robots), case.profile, None)
    return problem, curves_of(problem, case.profile)


def at_their_best(problem: PlanningProblem, curves: Curves, hosts: Sequence[HostedServer]) -> tuple[SplitClass, Rates]:
    parts = parted(problem, hosts)
    rates = RateSearch(parts.problem, curves, parts.hosts).best()
    assert rates is not None
    return parts, rates


def test_equal_shares_become_better_ones_that_serve_everybody_once(factory: tuple[PlanningProblem, Curves]) -> None:
    problem, curves = factory
    hosts = list(baselines.equal(problem, curves).hosts)
    parts, rates = at_their_best(problem, curves, hosts)
    anew = packed(problem, curves, hosts, parts, rates).hosts
    better, quicker = at_their_best(problem, curves, anew)
    assert better.problem.objective(quicker) > 1.1 * parts.problem.objective(rates)
    served = Counter({d.index: 0 for d in problem.demands})
    for host in anew:
        served.update(dict(host.robots))
    assert all(served[d.index] == problem.robots_of(d) for d in problem.demands)
    used = Counter(host.config.gpu_type for host in anew)
    assert all(used[gpu_type] <= number for gpu_type, number in problem.gpus.items())
    texts = {d.model for d in problem.demands} - {d.model for d in problem.demands if d.calls == 1.0}
    assert [h for h in anew if h.config.model in texts] == [h for h in hosts if h.config.model in texts], "these stay"


def test_servers_whose_robots_keep_an_slo_at_no_rate_are_not_taken(factory: tuple[PlanningProblem, Curves]) -> None:
    """What robots' queues said, which the curves do not see."""
    problem, curves = factory
    hosts = list(baselines.equal(problem, curves).hosts)
    parts, rates = at_their_best(problem, curves, hosts)
    once = packed(problem, curves, hosts, parts, rates).hosts
    acting = [host for host in once if any(problem.demands[d].calls == 1.0 for d, _ in host.robots)]
    crowd = max((host for host in acting if len(host.robots) == 1), key=lambda host: host.robots[0][1])
    ((demand, robots),) = crowd.robots
    anew = packed(problem, curves, hosts, parts, rates, {crowd: 0.0}).hosts
    assert crowd not in anew
    before = {host.robots[0][1] for host in hosts if host.config == crowd.config}
    alike = {h.robots[0][1] for h in anew if h.config == crowd.config and len(h.robots) == 1 and h.robots[0][0] == demand}
    assert all(count <= THINNED * robots for count in alike - before)

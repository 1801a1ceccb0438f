"""What a plan costs: nothing is looked at that decides nothing, and what was found before is not found again."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from dataclasses import replace
from itertools import cycle, islice

import numpy as np
import pytest

from ros2_rfm_serving.scheduler.budget import Budget
from ros2_rfm_serving.scheduler.build_problem import curves_of, problem_of
from ros2_rfm_serving.scheduler.policies import baselines, mixes
from ros2_rfm_serving.scheduler.policies.rosa import Rosa
from ros2_rfm_serving.scheduler.prediction import closed_queue, queue_stats, responses
from ros2_rfm_serving.scheduler.prediction.bound import upper_bound
from ros2_rfm_serving.scheduler.prediction.clients import ClientGroup
from ros2_rfm_serving.scheduler.prediction.curves import Curves, Remembered
from ros2_rfm_serving.scheduler.prediction.initial_states import DRAWS, again
from ros2_rfm_serving.scheduler.prediction.parts import parted
from ros2_rfm_serving.scheduler.prediction.predict import Operation, keeping_hosts
from ros2_rfm_serving.scheduler.prediction.rates import HostedServer, RateSearch
from ros2_rfm_serving.scheduler.problem import Demand, PlanningProblem
from ros2_rfm_serving.simulation.random_factories import Size, random_factory


def placed(seed: int) -> tuple[PlanningProblem, Curves, tuple[HostedServer, ...]]:
    """A random factory, and a baseline's servers."""
    case = random_factory(Size(servers=8, robots=64, classes=4, models=3), seed)
    counts = {task: sum(robot.task == task for robot in case.factory.robots) for task in case.factory.tasks}
    problem = problem_of(case.factory, counts, case.profile, None)
    curves = curves_of(problem, case.profile)
    return problem, curves, next(s.hosts for s in baselines.whole(problem, curves) if not s.gpus)


def test_no_queue_is_run_where_the_curve_alone_judges(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, curves, hosts = placed(33)
    shared = [host for host in hosts if curves.shared_law(host.config)]
    asked: list[object] = []
    monkeypatch.setattr(responses, "shared_waits", lambda members, law: asked.append(members))
    keeping_hosts(problem, curves, Operation(hosts=hosts, caps=None), shared)
    assert shared and not asked


def test_percentiles_are_those_of_numpy_to_the_last_digit() -> None:
    rng = np.random.default_rng(1)
    for _ in range(300):
        values = rng.exponential(1.0, int(rng.integers(1, 60)))
        values[rng.random(len(values)) < 0.1] = math.inf
        for percentile in (0.0, 50.0, 90.0, 99.0, 100.0, float(100 * rng.random())):
            with np.errstate(invalid="ignore"):
                expected = float(np.percentile(values, percentile))
            assert queue_stats._percentile(values, percentile) == (math.inf if math.isnan(expected) else expected)


@pytest.mark.parametrize("seed", [1, 33])
def test_what_kept_rates_from_being_feasible_before_changes_no_verdict(seed: int) -> None:
    problem, curves, hosts = placed(seed)
    search, draw = RateSearch(problem, curves, hosts), random.Random(seed)
    tops = [task.max_rate_hz for task in problem.classes]
    several = [tuple(draw.random() ** 3 * top for top in tops) for _ in range(200)]
    verdicts = [search.feasible(rates) for rates in several]
    assert verdicts == [RateSearch(problem, curves, hosts).feasible(rates) for rates in several]
    assert {True, False} == set(verdicts)


def test_rates_that_fail_at_the_same_server_again_cost_one_look(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, curves, hosts = placed(33)
    search = RateSearch(problem, curves, hosts)
    tops = [task.max_rate_hz for task in problem.classes]
    assert not search.feasible([10.0 * top for top in tops])
    monkeypatch.setattr(search, "loads_hz", lambda rates: pytest.fail("all servers were looked at"))
    assert not search.feasible([9.0 * top for top in tops])


def test_parts_of_classes_are_made_once() -> None:
    problem, _, hosts = placed(33)
    assert all(
        one is other
        for one, other in zip(parted(problem, hosts).problem.classes, parted(problem, hosts).problem.classes, strict=True)
    )


def test_packings_for_which_there_are_too_few_servers_are_not_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, curves, _ = placed(33)
    spared, spent = Budget(), Budget()
    found = Rosa(problem, curves, spared).solve()
    monkeypatch.setattr(Rosa, "_fewest_servers", lambda *_: 0)
    assert found and Rosa(problem, curves, spent).solve() == found
    assert spared.total < spent.total


def test_servers_of_a_class_at_a_rate_are_enumerated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, curves, _ = placed(33)
    made: Counter[tuple[int, float]] = Counter()
    enumerate_them = Rosa._configurations_of

    def counted(rosa: Rosa, demand: Demand, rate_hz: float, budget: dict[str, int]) -> list[object]:
        made[demand.index, rate_hz] += 1
        return list(enumerate_them(rosa, demand, rate_hz, budget))

    monkeypatch.setattr(Rosa, "_configurations_of", counted)
    assert Rosa(problem, curves, Budget()).solve()
    assert len(made) > len(problem.demands) and set(made.values()) == {1}


@pytest.mark.parametrize(("obliged", "programs"), [(True, 2), (False, 1)])
def test_a_mix_without_obligations_is_looked_for_once(obliged: bool, programs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    problem, curves, _ = placed(33)
    if not obliged:
        indices = itertools.count()
        coupled = [tuple(replace(d, index=next(indices)) for d in task.coupled) for task in problem.classes]
        classes = tuple(replace(task, demands=mine) for task, mine in zip(problem.classes, coupled, strict=True))
        problem = replace(problem, classes=classes)
    bound, budget, found = upper_bound(problem, curves), Budget(1.0), []
    look = mixes.whole_mix
    monkeypatch.setattr(mixes, "whole_mix", lambda *args, **kwargs: found.append(look(*args, **kwargs)) or found[-1])
    assert all(mixes.mixes(problem, curves, bound, budget))
    assert len(found) == programs and all(found) and budget.spent > 0


@pytest.mark.parametrize("count", [1, DRAWS])
def test_numbers_that_come_again_are_those_that_were_drawn(count: int) -> None:
    draws = np.random.default_rng(1).random(count)
    assert list(islice(again(draws), 2 * DRAWS + 3)) == list(islice(cycle(draws.tolist()), 2 * DRAWS + 3))


LATE = (
    ClientGroup(num_robots=6, period_s=0.0, think_s=0.2, slo_s=0.3),
    ClientGroup(num_robots=4, period_s=0.5, think_s=0.2, overlapped=True, step_s=0.05, chunk_s=0.8, jitter_s=0.01),
)
SINGLES = closed_queue.BatchService(batch_size=1, mean_s=0.05, jitter=0.05)


@pytest.mark.parametrize("percentile", [50.0, 95.0, 99.0])
def test_a_queue_that_is_run_in_part_gives_the_verdict_of_all_starts(percentile: float) -> None:
    whole = closed_queue.waits(LATE, SINGLES)
    for share in (0.2, 0.5, 0.9, 0.99, 1.0, 1.01, 1.1, 2.0):
        limits_s = [share * one.response_s(percentile) for one in whole.members]
        for first, second in itertools.product(limits_s, repeat=2):
            keeps = all(one.response_s(percentile) <= s for one, s in zip(whole.members, (first, second), strict=True))
            closed_queue.runs_of.cache_clear()
            runs = closed_queue.runs_of(LATE, SINGLES)
            assert runs.keeps([percentile] * 2, [first, second]) is keeps
            assert runs.waits.all.response_s(percentile) == whole.all.response_s(percentile), "the other starts are as ever"
            assert runs.keeps([percentile] * 2, [first, second]) is keeps


def test_robots_that_are_clearly_late_are_watched_in_few_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    starts: list[object] = []

    class Counted(closed_queue.QueueRun):
        def run(self, end_s: float) -> queue_stats.Found:
            starts.append(end_s)
            return super().run(end_s)

    monkeypatch.setattr(closed_queue, "QueueRun", Counted)
    closed_queue.runs_of.cache_clear()
    assert not closed_queue.runs_of(LATE, SINGLES).keeps([99.0, 99.0], [0.06, math.inf])
    few = len(starts)
    closed_queue.waits(LATE, SINGLES)
    assert few <= len(starts) / 2


def test_what_is_remembered_is_bounded() -> None:
    known = Remembered[int, int](most=3)
    assert [known.add(i, -i) for i in range(4)] == [0, -1, -2, -3]
    assert [known.get(i) for i in range(5)] == [None, None, None, -3, None]


def test_a_search_that_comes_again_finds_the_same_with_the_same_work() -> None:
    problem, curves, hosts = placed(33)
    first, again = RateSearch(problem, curves, hosts), RateSearch(problem, curves, hosts)
    assert first.best() == again.best() is not None and first.work == again.work > 0
    anew = RateSearch(problem, curves_of(problem, curves.profile), hosts)
    assert anew.best() == first.best() and anew.work == again.work

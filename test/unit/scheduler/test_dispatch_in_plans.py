"""Plans reckon with the dispatch policy that serves: ours by their own code, one of another package too, and none by guesses."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest

from ros2_rfm_serving.dispatch import DISPATCH_POLICIES, DispatchPolicy, EngineView, WaitingRequest, dispatcher
from ros2_rfm_serving.factory import Catalogue, Factory, load_factory
from ros2_rfm_serving.profiles import Profile, load_profiles
from ros2_rfm_serving.scheduler import Solution, plan_factory, to_schedule, without_automatic
from ros2_rfm_serving.scheduler.automatic import CHOICES, chosen, decided_as
from ros2_rfm_serving.scheduler.prediction import closed_queue
from ros2_rfm_serving.scheduler.prediction.clients import ClientGroup
from ros2_rfm_serving.scheduler.prediction.closed_queue import BatchService
from ros2_rfm_serving.scheduler.prediction.predictable import why_unpredictable
from ros2_rfm_serving.scheduler.prediction.queue_stats import ClientWaits
from ros2_rfm_serving.simulation import simulate
from ros2_rfm_serving.simulation.trial import virtual_time_trial

CROWD = (ClientGroup(num_robots=9, period_s=0.0, think_s=0.2, slo_s=0.3, calls=((0.1, 0.5, 0.05),)),)


class NewestFirst(DispatchPolicy):
    """Last come, first served."""

    def rank(self, waiting: Sequence[WaitingRequest], engine: EngineView, now_s: float) -> Sequence[WaitingRequest]:
        return sorted(waiting, key=lambda one: -one.since_s)


class BrightestFirst(DispatchPolicy):
    """Looks at images, which no plan has."""

    def rank(self, waiting: Sequence[WaitingRequest], engine: EngineView, now_s: float) -> Sequence[WaitingRequest]:
        return sorted(waiting, key=lambda one: len(one.request.images))


class Dice(DispatchPolicy):
    def rank(self, waiting: Sequence[WaitingRequest], engine: EngineView, now_s: float) -> Sequence[WaitingRequest]:
        return sorted(waiting, key=lambda one: random.random())


class Starving(DispatchPolicy):
    """Serves the task whose robots came last to all others: whoever came first is left out as long as there is another."""

    def rank(self, waiting: Sequence[WaitingRequest], engine: EngineView, now_s: float) -> Sequence[WaitingRequest]:
        return sorted(waiting, key=lambda one: one.request.id.robot, reverse=True)


class Raising(DispatchPolicy):
    def rank(self, waiting: Sequence[WaitingRequest], engine: EngineView, now_s: float) -> Sequence[WaitingRequest]:
        raise KeyError("no such robot")


class Losing(DispatchPolicy):
    """Forgets one of those who wait."""

    def rank(self, waiting: Sequence[WaitingRequest], engine: EngineView, now_s: float) -> Sequence[WaitingRequest]:
        return waiting[1:]


class Turning(DispatchPolicy):
    """Has a state of its own: every other time the last come is first."""

    num_ranked = 0

    def rank(self, waiting: Sequence[WaitingRequest], engine: EngineView, now_s: float) -> Sequence[WaitingRequest]:
        self.num_ranked += 1
        sign = 1 if self.num_ranked % 2 else -1
        return sorted(waiting, key=lambda one: sign * one.since_s)


class Remembering(DispatchPolicy):
    """Has a state that all servers of a process share, and that outlives each of them: it ranks otherwise after a while."""

    num_ranked: ClassVar[list[int]] = []

    def rank(self, waiting: Sequence[WaitingRequest], engine: EngineView, now_s: float) -> Sequence[WaitingRequest]:
        self.num_ranked.append(len(waiting))
        sign = 1 if len(self.num_ranked) < 100 else -1
        return sorted(waiting, key=lambda one: sign * one.since_s)


@pytest.fixture(autouse=True)
def others(monkeypatch: pytest.MonkeyPatch) -> None:
    added: dict[str, type[DispatchPolicy]] = {"newest": NewestFirst, "brightest": BrightestFirst, "dice": Dice}
    added |= {"starving": Starving, "raising": Raising, "losing": Losing, "turning": Turning, "remembering": Remembering}
    points = [SimpleNamespace(name=name, load=lambda made=made: made) for name, made in added.items()]
    monkeypatch.setattr(dispatcher, "entry_points", lambda group: points)


@pytest.fixture(scope="module")
def shipped(repository: Path) -> tuple[Profile, Catalogue]:
    folder = repository / "config" / "profiles"
    return load_profiles(folder), Catalogue.load(folder / "models.yaml")


def p4(repository: Path, dispatch: str, robots: int = 64) -> Factory:
    declared = load_factory(repository / "config" / "rosa" / "p4.yaml").with_num_robots(robots)
    groups = tuple(group.model_copy(update={"dispatch": dispatch}) for group in declared.server_cluster)
    return declared.model_copy(update={"server_cluster": groups})


def in_time(solution: Solution, factory: Factory, catalogue: Catalogue, starts: int = 2) -> tuple[float, int]:
    """(share, number) of System 1's requests, of some starts."""
    schedule = to_schedule(solution, factory.robots, epoch=1)
    found = [simulate(schedule, factory, catalogue, seconds=8, seed=seed).components["system1"] for seed in range(starts)]
    count = sum(one.count for one in found)
    return sum(one.slo_attainment * one.count for one in found) / count, count


@pytest.mark.parametrize("dispatch", ["deadline", "least_attained"])
def test_a_plan_keeps_its_slo_whatever_the_dispatch_policy(
    repository: Path, shipped: tuple[Profile, Catalogue], dispatch: str
) -> None:
    """Planned as fifo, these kept 94 and 93 % of 99 %."""
    factory = p4(repository, dispatch)
    solution = plan_factory(factory, *shipped, explained=False, work=0.2)
    share, count = in_time(solution, factory, shipped[1], starts=1)
    assert solution.feasible and share > 0.99 - 3 * math.sqrt(2 * 0.99 * 0.01 / count)


@pytest.mark.patient
@pytest.mark.parametrize("robots", [48, 64])
@pytest.mark.parametrize("dispatch", DISPATCH_POLICIES)
def test_every_policys_plan_keeps_its_slo(repository: Path, shipped: tuple[Profile, Catalogue], dispatch: str, robots: int) -> None:
    factory = p4(repository, dispatch, robots)
    solution = plan_factory(factory, *shipped, explained=False)
    share, count = in_time(solution, factory, shipped[1], starts=6)
    assert solution.feasible and share > 0.99 - 3 * math.sqrt(2 * 0.99 * 0.01 / count)


def test_caps_are_not_those_of_a_lucky_start(repository: Path, shipped: tuple[Profile, Catalogue]) -> None:
    """The highest of many caps that eight starts kept had 98.7 % in time of 99 in twelve others."""
    factory = p4(repository, "balanced")
    solution = plan_factory(factory, *shipped, explained=False)
    share, _ = in_time(solution, factory, shipped[1], starts=3)
    assert solution.feasible and share > 0.988


def test_a_queue_is_watched_for_longer_where_chance_may_decide() -> None:
    def waited(late: int) -> ClientWaits:
        response_s = np.where(np.arange(6000) < late, 0.3, 0.1)
        return ClientWaits((response_s,), (response_s,))

    assert [waited(late).is_in_doubt(99.0, 0.2) for late in (0, 30, 50, 60, 80, 200)] == [False, False, True, True, True, False]


def test_a_queue_is_ranked_by_the_policy_that_serves() -> None:
    """The last come first: of nine that two at a time are served, some wait for very long, and the others hardly."""
    typical_s, longest_s = ({}, {})
    for order in ("fifo", "newest"):
        found = closed_queue.waits(CROWD, BatchService(batch_size=2, mean_s=0.1, jitter=0.05, order=order)).all
        typical_s[order], longest_s[order] = found.response_s(50), found.response_s(95)
    assert typical_s["newest"] < typical_s["fifo"] and longest_s["newest"] > 1.5 * longest_s["fifo"]


@pytest.mark.parametrize("order", DISPATCH_POLICIES)
def test_every_policy_of_ours_is_predicted(order: str) -> None:
    assert not why_unpredictable(order)


def test_what_cannot_be_predicted_is_named_with_the_reason() -> None:
    assert not why_unpredictable("newest")
    assert "request.images" in why_unpredictable("brightest")
    assert "ranked again" in why_unpredictable("dice")
    assert "gone" in why_unpredictable("gone")
    assert "KeyError: 'no such robot'" in why_unpredictable("raising")
    assert "each once" in why_unpredictable("losing")
    assert "ranked again" in why_unpredictable("remembering")


def test_a_policy_with_a_state_of_its_own_is_predicted_with_it() -> None:
    assert not why_unpredictable("turning")
    longest_s = {}
    for order in ("fifo", "turning", "newest"):
        longest_s[order] = closed_queue.waits(
            CROWD, BatchService(batch_size=2, mean_s=0.1, jitter=0.05, order=order)
        ).all.response_s(95)
    assert longest_s["fifo"] < longest_s["turning"] < longest_s["newest"]


def test_a_policy_that_starves_robots_is_predicted_to_miss_their_slo() -> None:
    """It does the same each time, so a queue tells what it does."""
    assert not why_unpredictable("starving")
    crowd = (ClientGroup(num_robots=14, period_s=0.0, think_s=0.2, slo_s=0.6),)
    late = {
        order: closed_queue.waits(crowd, BatchService(batch_size=2, mean_s=0.1, jitter=0.05, order=order)).all.response_s(90) > 0.6
        for order in ("fifo", "starving")
    }
    assert late == {"fifo": False, "starving": True}


def test_a_plan_that_cannot_be_predicted_says_so_and_is_tried_in_virtual_time(
    repository: Path, shipped: tuple[Profile, Catalogue]
) -> None:
    factory = p4(repository, "dice", 24)
    untried = plan_factory(factory, *shipped, explained=False, work=0.0)
    assert any("'dice' cannot be predicted" in note for note in untried.notes)
    assert any("rfm simulate" in note for note in untried.notes)
    tried = plan_factory(factory, *shipped, explained=False, work=0.0, trial=virtual_time_trial(shipped[1], shipped[0]))
    assert tried.feasible and any("tried in virtual time" in note for note in tried.notes)


def test_a_trial_that_misses_asks_for_more_margin_and_refuses_at_last(repository: Path, shipped: tuple[Profile, Catalogue]) -> None:
    factory, asked = p4(repository, "dice", 24), []

    def trial(planned: Factory, solution: Solution) -> list[str]:
        asked.append(solution.objective)
        return [] if len(asked) == 3 else ["system1: too late"]

    cautious = plan_factory(factory, *shipped, explained=False, work=0.0, trial=trial)
    assert len(asked) == 3 and cautious.feasible and any("20 % of each left free" in note for note in cautious.notes)
    refused = plan_factory(factory, *shipped, explained=False, work=0.0, trial=lambda planned, solution: ["system1: too late"])
    assert not refused.feasible and "system1: too late" in refused.problems


def test_auto_is_chosen_by_the_objective_and_not_by_the_sum(repository: Path) -> None:
    """With `fifo` more actions would be done, and a class would stand for them."""
    worth = {"balanced": (10.0, 20.0), "fifo": (6.0, 24.0), "swift": (9.0, 21.0), "best": (9.5, 22.0)}

    def planned(factory: Factory) -> Solution:
        (name,) = factory.dispatch.values()
        objective, actions_hz = worth[name]
        return Solution(policy="best", feasible=True, objective=objective, bound=30.0, throughput=actions_hz, expected=actions_hz)

    factory, solution = chosen(p4(repository, "auto"), planned)
    assert set(factory.dispatch.values()) == {"balanced"} and solution.objective == 10.0
    assert "10.00 actions/s is expected" in solution.notes[0] and "6.00 with fifo" in solution.notes[0]


@pytest.mark.patient
def test_auto_is_the_policy_with_which_a_plan_serves_most(repository: Path, shipped: tuple[Profile, Catalogue]) -> None:
    factory = p4(repository, "auto")
    expected = {name: plan_factory(p4(repository, name), *shipped, explained=False).expected for name in CHOICES}
    solution = plan_factory(factory, *shipped, explained=False)
    assert (
        solution.feasible
        and solution.expected >= 0.989 * max(expected.values())
        and solution.notes[0].startswith("dispatch: auto is ")
    )
    chosen, why = without_automatic(factory, *shipped)
    (name,) = chosen.dispatch.values()
    assert expected[name] == solution.expected and f"auto is {name}" in why
    share, count = in_time(solution, chosen, shipped[1])
    assert share > 0.99 - 3 * math.sqrt(2 * 0.99 * 0.01 / count)


def test_where_nothing_speaks_for_another_auto_is_the_default(repository: Path, shipped: tuple[Profile, Catalogue]) -> None:
    chosen, why = without_automatic(p4(repository, "auto", 4).with_num_servers(4), *shipped)
    assert why and set(chosen.dispatch.values()) == {"balanced"}
    assert without_automatic(p4(repository, "fifo", 8), *shipped) == (p4(repository, "fifo", 8), "")


def test_auto_of_a_new_descriptor_is_what_the_servers_were_started_with(repository: Path) -> None:
    running, declared = p4(repository, "swift"), p4(repository, "auto", 8)
    assert set(decided_as(declared, running).dispatch.values()) == {"swift"}
    assert decided_as(p4(repository, "fifo"), running).dispatch == p4(repository, "fifo").dispatch

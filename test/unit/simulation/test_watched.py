"""Stories of factories that are not as they were planned for: what they reach with a scheduler that watches, and with one that does
not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import pytest

from ros2_rfm_serving.dispatch import DISPATCH_POLICIES, DispatchPolicy, EngineView, WaitingRequest
from ros2_rfm_serving.factory import Catalogue, Factory, parse_factory
from ros2_rfm_serving.factory.fleet import NetworkEntry as Declared
from ros2_rfm_serving.profiles import Profile, load_profiles
from ros2_rfm_serving.profiles.measure import measure, rates_hz, subject_of
from ros2_rfm_serving.scheduler import plan_factory, to_schedule
from ros2_rfm_serving.scheduler.estimates import AS_DECLARED
from ros2_rfm_serving.simulation import (
    Crash,
    NetworkConditions,
    Report,
    SimulationConditions,
    StragglerConditions,
    Unsureness,
    simulate,
    simulate_watched,
)
from ros2_rfm_serving.simulation.profiled_factories import profiled_factory
from ros2_rfm_serving.simulation.scheduler import SimulatedScheduler
from test.unit.simulation.simulated import models

CATALOGUE = models(jitter=0.05)
CHANGE_S, SETTLED_S = 6.0, 20.0
"""When something happens, and when whoever saw it has long done something about it."""


@pytest.fixture(scope="module")
def profile() -> Profile:
    """Of the laws that run."""
    rows = []
    for model, entry in CATALOGUE.models.items():
        service = entry.gpus["GPU"].service
        assert service is not None
        for size in service.batch_sizes:
            subject = subject_of(service.law(), size)
            key = (model, "GPU", service.batching, size)
            rows += [measure(subject, key, "fleet", rate_hz, 300) for rate_hz in rates_hz(subject.max_rate_hz)]
    return Profile.of(rows)


def factory(
    robots: int = 24, standby: int = 0, execution: str = "mode: sync", slo_ms: int = 250, dispatch: str = "balanced"
) -> Factory:
    return parse_factory(f"""
server_cluster: {{num_servers: 4, gpu_type: GPU, dispatch: {dispatch}}}
standby: {{num_servers: {standby}}}
robot_fleet: [{{task: pick, num_robots: {robots}}}]
pick:
  execution: {{{execution}}}
  pipeline: {{action_period_ms: 200}}
  components:
    system1: {{model: vla, prompt: go, slo_ms: {slo_ms}}}
""")


def told(
    declared: Factory,
    profile: Profile,
    settled_s: float,
    conditions: SimulationConditions,
    *,
    watches: bool,
    seconds: float = 10.0,
    seed: int = 1,
) -> tuple[Report, SimulatedScheduler]:
    """Measured from `settled_s` on."""
    return simulate_watched(
        declared,
        CATALOGUE,
        profile,
        seconds=seconds,
        seed=seed,
        warm_up_s=settled_s,
        conditions=conditions,
        watches=watches,
        work=0.1,
    )


def both(
    declared: Factory, profile: Profile, settled_s: float, conditions: SimulationConditions
) -> tuple[Report, Report, SimulatedScheduler]:
    """(without a scheduler that watches, with one, and that one)"""
    blind, _ = told(declared, profile, settled_s, conditions, watches=False)
    seeing, scheduler = told(declared, profile, settled_s, conditions, watches=True)
    return blind, seeing, scheduler


def slo(report: Report) -> float:
    return report.components["system1"].slo_attainment


def test_where_all_is_as_planned_nothing_happens(profile: Profile) -> None:
    seeing, scheduler = told(factory(), profile, 5.0, SimulationConditions(), watches=True, seconds=25.0)
    assert len(scheduler.schedules) == 1 and scheduler.lookout.watch.seen == AS_DECLARED and slo(seeing) == 1.0
    assert scheduler.lookout.broken == ()


def test_servers_that_no_schedule_uses_are_not_lost(profile: Profile) -> None:
    """They were silent here, and are not on a floor: ten seconds after the start two of these were planned without."""
    few = (
        JITTERY.replace("num_robots: 24", "num_robots: 2")
        .replace("mode: async", "mode: sync")
        .replace("slo_ms: 200", "slo_ms: 400")
    )
    _, scheduler = told(parse_factory(few), profile, 0.0, SimulationConditions(), watches=True, seconds=15.0)
    placed = {placement.server for placement in scheduler.schedules[-1].placements}
    assert len(placed) < 4 and scheduler.lookout.watch.seen == AS_DECLARED


def test_a_server_that_gets_slower_is_given_less_to_do(profile: Profile) -> None:
    """60 % slower, with room on the others: what it lost comes back, and every promise is kept all the time."""
    slow = StragglerConditions(share=1.0, factor=1.6, from_s=CHANGE_S, servers=frozenset({"server_1"}))
    blind, seeing, scheduler = both(factory(), profile, SETTLED_S, SimulationConditions(stragglers=slow))
    assert scheduler.lookout.watch.seen.paces == {"server_1": pytest.approx(1.6, abs=0.05)} and len(scheduler.schedules) == 2
    assert seeing.goodput > 1.04 * blind.goodput and slo(seeing) > 0.99


def test_a_server_that_gets_30_percent_slower_keeps_its_slo(profile: Profile) -> None:
    """No room to spare: robots that do not wait for answers would go on asking for more than it can do in time."""
    slow = StragglerConditions(share=1.0, factor=1.3, from_s=CHANGE_S, servers=frozenset({"server_1"}))
    declared = factory(slo_ms=180, execution="mode: async")
    blind, seeing, scheduler = both(declared, profile, SETTLED_S, SimulationConditions(stragglers=slow))
    assert scheduler.lookout.watch.seen.paces == {"server_1": pytest.approx(1.3, abs=0.05)} and len(scheduler.schedules) == 2
    assert slo(blind) < 0.97 and slo(seeing) > 0.99 and seeing.goodput > 1.05 * blind.goodput


class Frail(DispatchPolicy):
    def rank(self, waiting: Sequence[WaitingRequest], engine: EngineView, now_s: float) -> Sequence[WaitingRequest]:
        raise ZeroDivisionError("no time left")


def test_a_dispatch_policy_that_fails_is_told_and_loses_nobody_anything(
    profile: Profile, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As they came, then: the report is that of `fifo`, and does not say so."""
    monkeypatch.setitem(DISPATCH_POLICIES, "frail", Frail)

    def ran(dispatch: str) -> Report:
        declared = factory(robots=8, dispatch=dispatch)
        return told(declared, profile, 2.0, SimulationConditions(), watches=True, seconds=3.0)[0]

    with caplog.at_level("WARNING"):
        usual = ran("fifo")
        assert not caplog.records
        assert ran("frail").to_json() == usual.to_json()
    assert "server_1: dispatch_error, " in caplog.text and "ZeroDivisionError: no time left" in caplog.text


def test_two_servers_that_die_one_after_the_other(profile: Profile) -> None:
    """The standby takes over from the first; for the second there is none left, unless somebody looks for one."""
    crashes = tuple(
        Crash(server=f"server_{i + 1}", at_s=CHANGE_S + 9.0 * i, restart_after_s=math.inf if i else 1e9) for i in range(2)
    )
    declared = factory(robots=14, standby=1)
    blind, seeing, scheduler = both(declared, profile, SETTLED_S + 10.0, SimulationConditions(crashes=crashes))
    assert scheduler.lookout.watch.health.lost == ("server_1", "server_2")
    assert seeing.goodput > 1.08 * blind.goodput and slo(seeing) > 0.99
    for schedule in scheduler.schedules[1:]:
        assert "server_1" not in {route.server for route in schedule.routes}


def test_a_server_that_dies_and_returns_is_used_again(profile: Profile) -> None:
    crash = Crash(server="server_1", at_s=CHANGE_S, restart_after_s=10.0)
    _, scheduler = told(
        factory(robots=14, standby=1), profile, CHANGE_S, SimulationConditions(crashes=(crash,)), watches=True, seconds=30.0
    )
    assert scheduler.lookout.watch.seen == AS_DECLARED
    assert "server_1" in {placement.server for placement in scheduler.schedules[-1].placements}


def test_a_server_that_flaps_does_not_take_the_factory_along(profile: Profile) -> None:
    crashes = tuple(Crash(server="server_1", at_s=CHANGE_S + 14.0 * i, restart_after_s=6.0) for i in range(4))
    declared, conditions = factory(robots=14, standby=1), SimulationConditions(crashes=crashes)
    blind, _ = told(declared, profile, CHANGE_S, conditions, watches=False, seconds=56.0)
    seeing, scheduler = told(declared, profile, CHANGE_S, conditions, watches=True, seconds=56.0)
    assert seeing.goodput > 1.04 * blind.goodput and len(scheduler.schedules) <= 7


def test_horizons_that_shrink(profile: Profile) -> None:
    """Models are unsure of half of what they were sure of: robots have to ask twice as often, and the servers have room for it."""
    declared = factory(robots=16, execution="mode: async, horizon: {policy: confidence, mean_period_ms: 400}")
    conditions = SimulationConditions(unsureness=Unsureness(from_s=CHANGE_S, factor=0.5))
    blind, seeing, scheduler = both(declared, profile, SETTLED_S, conditions)
    assert scheduler.lookout.watch.seen.cycles_s == {"pick": pytest.approx(0.2, abs=0.02)}
    assert seeing.goodput > 1.5 * blind.goodput and slo(seeing) > 0.99


def test_a_network_that_gets_worse(profile: Profile) -> None:
    """80 ms longer there and back: what is left of the SLO is what servers are planned with. Half of those who do not see it are
    on small batches, and still in time."""
    network = NetworkConditions(trace=((0.0, 0.002), (CHANGE_S, 0.042), (1e4, 0.042)))
    blind, seeing, scheduler = both(
        factory(robots=16, execution="mode: async", slo_ms=200), profile, SETTLED_S, SimulationConditions(network=network)
    )
    assert scheduler.lookout.watch.seen.travels["pick"].mean_s == pytest.approx(0.084, abs=0.01)
    assert slo(blind) < 0.5 and slo(seeing) > 0.97 and seeing.goodput > 1.3 * blind.goodput


@pytest.mark.parametrize(("seed", "settled_s"), [(2, SETTLED_S), (3, 45.0)])
def test_the_network_is_known_whatever_queues_robots_have_met(profile: Profile, seed: int, settled_s: float) -> None:
    """Robots meet queues of their own, for as long as they keep their phases: the mean over them is sure enough long before it is
    sharp, and what their tails have from the queues before the new plan is not the network's."""
    network = NetworkConditions(trace=((0.0, 0.002), (CHANGE_S, 0.041), (1e4, 0.041)))
    declared = factory(robots=16, execution="mode: async", slo_ms=200)
    seeing, scheduler = told(
        declared, profile, settled_s, SimulationConditions(network=network), watches=True, seconds=8.0, seed=seed
    )
    travel = scheduler.lookout.watch.seen.travels["pick"]
    assert travel.mean_s == pytest.approx(0.082, abs=0.004) and travel.tail_s < 0.09
    assert slo(seeing) > 0.99 and seeing.goodput > 43.0


JITTERY = """
server_cluster: {num_servers: 4, gpu_type: GPU}
robot_fleet: [{task: pick, num_robots: 24, network: {round_trip_ms: 10, jitter_ms: 6}}]
pick: {execution: {mode: async}, pipeline: {action_period_ms: 200}, components: {system1: {model: vla, prompt: go, slo_ms: 200}}}
"""


def test_jitter_is_found_whatever_one_robot_waits_in_its_queue(profile: Profile) -> None:
    """Three times the declared one. Of each robot alone lots scatter by more than it is for as long as anybody listens."""
    network = NetworkConditions(latency_s=0.005, jitter_s=0.009)
    _, scheduler = told(parse_factory(JITTERY), profile, 5.0, SimulationConditions(network=network), watches=True, seconds=35.0)
    assert scheduler.lookout.watch.seen.travels["pick"].mean_s == pytest.approx(0.028, abs=0.003)


@pytest.mark.patient
def test_a_plan_that_undeclared_jitter_breaks_is_made_anew_and_kept(repository: Path) -> None:
    """38 robots on six servers with caps beyond the curves."""
    folder = repository / "config" / "profiles"
    shipped, catalogue = load_profiles(folder), Catalogue.load(folder / "models.yaml")
    declared = profiled_factory(10, network=True)
    (entry,) = declared.robot_fleet
    network = NetworkConditions(latency_s=entry.network.round_trip_ms / 2e3, jitter_s=3 * entry.network.jitter_ms / 2e3)

    def kept(*, watches: bool) -> float:
        watched = simulate_watched(
            declared,
            catalogue,
            shipped,
            seconds=20,
            seed=0,
            warm_up_s=40,
            conditions=SimulationConditions(network=network),
            watches=watches,
        )
        return slo(watched.report)

    blind, seeing = kept(watches=False), kept(watches=True)
    assert blind < 0.95 and seeing > 0.985


def test_asynchronous_robots_fall_out_of_each_other_s_way(profile: Profile) -> None:
    """Paced by the clock alone, who once meets at a server meets for ever: of this plan 82 % were in time, by a bad start."""
    declared = factory(robots=16, execution="mode: async", slo_ms=200)
    (entry,) = declared.robot_fleet
    fleet = (entry.model_copy(update={"network": Declared(round_trip_ms=84)}),)
    far = declared.model_copy(update={"robot_fleet": fleet})
    solution = plan_factory(far, profile, CATALOGUE, explained=False)
    assert solution.feasible and not solution.notes[1:]
    report = simulate(to_schedule(solution, far.robots, epoch=1), far, CATALOGUE, profile, seconds=10, seed=0)
    assert slo(report) > 0.98 and report.raw > 0.99 * solution.objective

"""A fleet whose servers are lost, come back, or are slower than their profile: what changes at once, and what need not move."""

from __future__ import annotations

import logging
from collections import Counter
from copy import copy
from dataclasses import replace

import pytest

from ros2_rfm_serving.errors import PlannerError, RfmError, ScheduleError
from ros2_rfm_serving.factory import Factory, RobotEntry, parse_factory
from ros2_rfm_serving.factory.cluster import StragglerConfig
from ros2_rfm_serving.scheduler import (
    ActiveFleet,
    AdmissionOffers,
    PlanJob,
    PlanResult,
    RobotRegistry,
    ScheduleManager,
    TelemetryController,
    answered,
    plan,
    rebuilt,
)
from ros2_rfm_serving.scheduler.degraded_mode import bare, deserted
from ros2_rfm_serving.scheduler.estimates import AS_DECLARED, FactoryEstimates
from ros2_rfm_serving.scheduler.estimation import EstimateChange, ServerStatusSample
from ros2_rfm_serving.scheduler.failover import seeing
from ros2_rfm_serving.scheduler.migration import gives_up, migration
from ros2_rfm_serving.scheduler.plan_service import refit_by
from ros2_rfm_serving.scheduler.promises import broken
from ros2_rfm_serving.scheduler.schedule_state import ATTEMPTS, COVERED_LOOKS, STRAGGLING, UNEXPLAINED
from ros2_rfm_serving.simulation.scheduler import NoScheduleLog
from ros2_rfm_serving.types import Schedule, ServerState
from test.unit.scheduler.test_adaptation import PROFILE

REFIT = refit_by(PROFILE, None)


def factory(standby: str = "{num_servers: 1}", robots: int = 6, servers: int = 5) -> Factory:
    return parse_factory(
        f"""
server_cluster: {{num_servers: {servers}, gpu_type: GPU}}
standby: {standby}
robot_fleet: [{{task: carry, num_robots: {robots}}}]
carry:
  pipeline: {{action_period_ms: 400}}
  components:
    system1: {{model: policy, slo_ms: 60}}
    monitor: {{model: judge, freq_hz: 2, slo_ms: 50}}
"""
    )


def planned(declared: Factory, seen: FactoryEstimates = AS_DECLARED, previous: Schedule | None = None) -> PlanResult:
    order = PlanJob(factory=declared, robots=tuple(declared.robots), policy="best", seen=seen, previous=previous)
    return plan(order, PROFILE, None)


def where(schedule: Schedule) -> dict[tuple[str, str], str]:
    return {(route.robot, route.component): route.server for route in schedule.routes}


def covered(schedule: Schedule) -> str:
    """A server whose robots have a standby."""
    return next(route.server for route in schedule.routes if route.standby)


def without(fleet: ActiveFleet, declared: Factory, *lost: str) -> tuple[ActiveFleet, dict[str, str]]:
    return seeing(fleet, declared, FactoryEstimates(lost=lost), lost, (), REFIT)


def test_robots_of_a_lost_server_stay_where_they_have_turned_to_and_nobody_else_moves() -> None:
    declared = factory()
    before = planned(declared).fleet
    lost = covered(before.schedule)
    after, refused = without(before, declared, lost)
    assert not refused and after.schedule.epoch == before.schedule.epoch + 1
    for route in before.schedule.routes:
        now = where(after.schedule)[route.robot, route.component]
        assert now == (route.standby if route.server == lost else route.server)
    assert lost not in {p.server for p in after.schedule.placements} | {r.standby for r in after.schedule.routes}
    assert not broken(after)
    used = {route.server for route in after.schedule.routes}
    assert not any(p.standby for p in after.schedule.placements if p.server in used)


def test_newcomers_are_never_sent_to_a_lost_server() -> None:
    """Also where the schedule cannot be without it."""
    declared = factory("{peers: false}")
    before = planned(declared).fleet
    for lost in {route.server for route in before.schedule.routes}:
        after, _ = without(before, declared, lost)
        for i in range(20):
            try:
                after = after.admit(RobotEntry(name=f"late_{i}", task="carry", index=9 + i))
            except ScheduleError:
                break
            assert lost not in {route.server for route in after.schedule.routes_of(f"late_{i}").values()}


def test_who_had_no_standby_is_spread_over_the_others_or_named() -> None:
    declared = factory("{peers: false}", robots=3)
    before = planned(declared).fleet
    lost = next(r.server for r in before.schedule.routes if r.component == "system1")
    stranded = {r.robot for r in before.schedule.routes if r.server == lost}
    after, refused = without(before, declared, lost)
    served = {route.robot for route in after.schedule.routes}
    assert served | set(refused) == {robot.name for robot in declared.robots} and set(refused) <= stranded
    assert len(refused) < len(stranded) or len({p.model for p in before.schedule.placements}) == len(before.schedule.placements)
    assert not broken(after)


def test_one_that_comes_back_stands_by_without_moving_anybody() -> None:
    declared = factory()
    before = planned(declared).fleet
    lost = covered(before.schedule)
    repaired, _ = without(before, declared, lost)
    after, _ = seeing(repaired, declared, AS_DECLARED, (), (lost,), REFIT)
    assert where(after.schedule) == where(repaired.schedule) and after.schedule.epoch == repaired.schedule.epoch + 1
    (placement,) = [p for p in after.schedule.placements if p.server == lost]
    assert placement.standby and lost in {route.standby for route in after.schedule.routes}


def test_a_standby_that_has_become_too_slow_covers_nobody_any_more() -> None:
    """Nobody is sent there; and anew as soon as it is quick enough again. Whoever another one covers keeps that one."""
    declared = factory("{num_servers: 2}", robots=12, servers=6)
    before = planned(declared).fleet
    assert not bare(before) and not before.uncovered
    slow = FactoryEstimates(paces={p.server: 3.0 for p in before.schedule.placements if p.standby})
    after, _ = seeing(before, declared, slow, (), (), REFIT)
    covered_by_those = {r.server for r in before.schedule.routes if r.standby in slow.paces}
    assert where(after.schedule) == where(before.schedule) and after.schedule.epoch == before.schedule.epoch + 1
    assert not {r.standby for r in after.schedule.routes} & slow.paces.keys() and not broken(after)
    assert bare(after) == list(after.uncovered) and set(after.uncovered) < covered_by_those, "others stand by for some"
    kept = {r.server: r.standby for r in before.schedule.routes if r.server not in covered_by_those}
    assert kept.items() <= {r.server: r.standby for r in after.schedule.routes}.items()
    assert gives_up(before, slower(before)) and not gives_up(after, slower(before)), "standbys of before were quick enough"
    again, _ = seeing(after, declared, AS_DECLARED, (), (), REFIT)
    assert not bare(again) and not again.uncovered and where(again.schedule) == where(before.schedule)


class Seeing:
    """The brain alone, with figures as they are told."""

    def __init__(self, declared: Factory) -> None:
        self.schedules: list[Schedule] = []
        log = logging.getLogger("test")
        self.brain = ScheduleManager(
            planned(declared), RobotRegistry(1), lambda schedule, _: self.schedules.append(schedule), log, NoScheduleLog()
        )
        self.rest(20)

    def see(self, paces: dict[str, float]) -> None:
        self.brain.see(EstimateChange(FactoryEstimates(paces=paces), (), (), "figures"), REFIT)
        self.rest(20)

    def rest(self, looks: int) -> None:
        for _ in range(looks):
            self.brain.settle()
            if order := self.brain.wanted:
                self.brain.planned(order, answered(order, PROFILE, None, work=0.02, explained=False))

    @property
    def standbys(self) -> list[str]:
        return [p.server for p in self.brain.fleet.schedule.placements if p.standby]


def test_a_cover_that_figures_took_is_planned_anew_and_not_for_each_of_them() -> None:
    """Quicker servers stand by in place of slow ones, which serve: nobody gets more done, so no plan was worth it. What follows is
    planned for the same reason when a schedule has lasted."""
    seeing_it = Seeing(factory("{num_servers: 2}", robots=12, servers=6))
    assert not bare(seeing_it.brain.fleet)
    slow = dict.fromkeys(seeing_it.standbys, 3.0)
    seeing_it.see(slow)
    assert not bare(seeing_it.brain.fleet) and not set(seeing_it.standbys) & slow.keys() and not broken(seeing_it.brain.fleet)
    count = len(seeing_it.schedules)
    seeing_it.see(dict.fromkeys(seeing_it.standbys, 3.0))
    assert bare(seeing_it.brain.fleet) and len(seeing_it.schedules) <= count + 1, "their table of failover alone"
    seeing_it.rest(COVERED_LOOKS)
    assert not bare(seeing_it.brain.fleet)


def test_where_standbys_are_quick_enough_a_slower_server_changes_no_schedule() -> None:
    declared = factory("{num_servers: 2}", robots=12, servers=6)
    before = planned(declared).fleet
    slow = FactoryEstimates(paces={p.server: 1.06 for p in before.schedule.placements if p.standby})
    after, _ = seeing(before, declared, slow, (), (), REFIT)
    assert after.schedule is before.schedule and not bare(after)


def slower(fleet: ActiveFleet) -> ActiveFleet:
    """It gets half as much done."""
    other = copy(fleet)
    routes = tuple(replace(r, predicted_rate_hz=0.5 * r.predicted_rate_hz) for r in fleet.schedule.routes)
    other.schedule = replace(fleet.schedule, routes=routes)
    return other


def test_a_loss_that_leaves_nothing_leaves_the_schedule() -> None:
    declared = factory("{num_servers: 0}", servers=2)
    before = planned(declared).fleet
    after, _ = without(before, declared, "server_1")
    assert after.schedule.routes == before.schedule.routes or "server_1" not in where(after.schedule).values()


@pytest.mark.parametrize("lost", ["server_1", "server_2"])
def test_one_with_a_pace_of_its_own_is_lost_as_others_are(lost: str) -> None:
    """Also where the schedule goes on naming it, for nothing would remain without."""
    declared = factory("{num_servers: 0}", servers=2)
    before = planned(declared).fleet
    after, refused = seeing(before, declared, FactoryEstimates(lost=(lost,), paces={lost: 1.3}), (lost,), (), REFIT)
    assert after.schedule.routes == before.schedule.routes and set(refused) == {robot.name for robot in declared.robots}


def test_whoever_sees_that_no_server_lives_goes_on_and_plans_when_one_is_back() -> None:
    """They say so themselves: all of them hang. A scheduler that heard nobody would call nobody lost."""
    declared = factory("{num_servers: 0}", robots=2, servers=3)
    schedules: list[Schedule] = []
    log = logging.getLogger("test")
    brain = ScheduleManager(
        planned(declared), RobotRegistry(1), lambda schedule, _: schedules.append(schedule), log, NoScheduleLog()
    )
    lookout, now_s = TelemetryController(brain, PROFILE, None), 0.0

    def hear(*states: ServerState, looks: int) -> None:
        nonlocal now_s
        for _ in range(looks):
            now_s += 0.5
            models = {p.server: p.model for p in brain.fleet.schedule.placements}
            for server, state in zip(declared.servers, states, strict=True):
                lookout.hear_server(ServerStatusSample(server=server, state=state, model=models.get(server, "")), now_s)
            lookout.look(now_s)
            brain.settle()
            while (order := brain.wanted) is not None:
                try:
                    made: PlanResult | AdmissionOffers | RfmError = answered(order, PROFILE, None)
                except RfmError as error:
                    made = error
                brain.planned(order, made)

    hear(*[ServerState.READY] * 3, looks=4)
    hear(*[ServerState.HUNG] * 3, looks=20)
    assert set(brain.seen.lost) == set(declared.servers) and len(schedules) == 1 and brain.is_short
    order = brain.replan(declared, declared_anew=False)
    hear(*[ServerState.HUNG] * 3, looks=1)
    assert "no server lives" in str(order.answer)
    hear(*[ServerState.READY] * 2, ServerState.HUNG, looks=200)
    assert brain.seen.lost == tuple(declared.servers[2:])
    assert not brain.is_short and set(where(brain.fleet.schedule).values()) <= set(declared.servers[:2])


def test_a_plan_without_a_lost_server_moves_only_who_has_to() -> None:
    declared = factory("{num_servers: 0}", robots=9)
    before = planned(declared).fleet
    lost = next(r.server for r in before.schedule.routes if r.component == "system1")
    after = planned(declared, FactoryEstimates(lost=(lost,)), before.schedule).fleet
    models = {p.server: p.model for p in before.schedule.placements}
    kept = [p for p in after.schedule.placements if models.get(p.server) == p.model]
    assert len(kept) >= len(after.schedule.placements) - 1, (models, after.schedule.placements)


@pytest.mark.parametrize("servers", [2, 3])
def test_a_factory_that_runs_is_never_planned_with_servers_that_nobody_started(servers: int) -> None:
    """Two models would share what is left of two servers; at its start the factory has that plan."""
    declared = factory("{num_servers: 0}", robots=1, servers=servers)
    before = planned(declared).fleet.schedule
    for lost in {p.server for p in before.placements}:
        try:
            after = planned(declared, FactoryEstimates(lost=(lost,)), before).fleet.schedule
        except (PlannerError, ScheduleError):
            continue
        assert {p.server for p in after.placements} <= set(declared.gpu_types)
    alone = factory("{num_servers: 0}", robots=1, servers=1)
    shared = planned(alone).fleet.schedule
    assert {p.gpu for p in shared.placements} == {"server_1"}
    assert {p.server for p in planned(alone, AS_DECLARED, shared).fleet.schedule.placements} == {
        p.server for p in shared.placements
    }


@pytest.mark.parametrize("robots", [3, 6, 9])
def test_the_same_factory_planned_again_moves_nobody(robots: int) -> None:
    """Whatever the names are that it had."""
    declared = factory(robots=robots)
    before = planned(declared).fleet.schedule
    names = {p.server for p in before.placements}
    turned = dict(zip(sorted(names), sorted(names)[1:] + sorted(names)[:1], strict=True))
    mixed = replace(
        before,
        placements=tuple(replace(p, server=turned[p.server]) for p in before.placements),
        routes=tuple(replace(r, server=turned[r.server], standby=turned.get(r.standby, "")) for r in before.routes),
    )
    again = planned(declared, previous=mixed).fleet
    assert where(again.schedule) == where(mixed)
    fleet = rebuilt(declared, mixed, declared.robots, PROFILE, None)
    move = migration(fleet, again.schedule)
    assert not move.moved_robots and not move.moved_servers and move.lost_actions == 0


def test_every_robot_that_moves_costs_actions() -> None:
    declared = factory()
    fleet = planned(declared).fleet
    one, other = [p.server for p in fleet.schedule.placements if p.model == "policy" and not p.standby][:2]
    routes = tuple(replace(r, server=other) if r.server == one else r for r in fleet.schedule.routes)
    moved = migration(fleet, replace(fleet.schedule, routes=routes))
    assert not moved.moved_servers and moved.lost_actions > 0 and not moved.worth_it


def test_a_slower_server_breaks_promises_that_it_kept() -> None:
    declared = factory(robots=9)
    fleet = planned(declared).fleet
    assert not broken(fleet)
    busiest = max((p.server for p in fleet.schedule.placements if p.model == "policy"), key=lambda s: fleet.hosts[s].load_hz)
    slower, _ = seeing(fleet, declared, FactoryEstimates(paces={busiest: 3.0}), (), (), REFIT)
    assert slower.schedule is fleet.schedule and any(busiest in words for words in broken(slower))
    again = planned(declared, FactoryEstimates(paces={busiest: 3.0}), fleet.schedule).fleet
    assert not broken(again) and {p.gpu_type for p in again.schedule.placements} == {"GPU"}, "servers know their own type alone"


class Watched:
    """The brain and its eyes, and whoever plans."""

    def __init__(self, declared: Factory) -> None:
        self.schedules: list[Schedule] = []
        log = logging.getLogger("test")
        first = planned(declared)
        self.fleet = ScheduleManager(
            first, RobotRegistry(1), lambda schedule, name: self.schedules.append(schedule), log, NoScheduleLog()
        )
        self.lookout = TelemetryController(self.fleet, PROFILE, None)
        self.words = {
            p.server: ServerStatusSample(server=p.server, state=ServerState.READY, model=p.model, batch_size=p.batch_size)
            for p in first.fleet.schedule.placements
        }
        self.now_s = 0.0
        self.plans = True

    def run(self, seconds: float, *silent: str) -> None:
        for _ in range(int(2 * seconds)):
            self.now_s += 0.5
            for name, word in self.words.items():
                if name not in silent:
                    self.lookout.hear_server(word, self.now_s)
            self.lookout.look(self.now_s)
            self.fleet.settle()
            if self.plans and (order := self.fleet.wanted):
                self.fleet.planned(order, self._made(order))

    @staticmethod
    def _made(order: PlanJob) -> PlanResult | AdmissionOffers | RfmError:
        try:
            return answered(order, PROFILE, None, work=0.02)
        except RfmError as error:
            return error


def test_a_loss_is_repaired_and_the_server_used_again() -> None:
    watched = Watched(factory())
    watched.run(10.0)
    assert len(watched.schedules) == 1
    lost = covered(watched.schedules[0])
    watched.run(10.0, lost)
    assert watched.fleet.seen.lost == (lost,) and lost not in where(watched.schedules[-1]).values()
    served = {route.robot for route in watched.schedules[-1].routes}
    watched.run(20.0)
    assert watched.fleet.seen == AS_DECLARED and lost in {p.server for p in watched.schedules[-1].placements}
    assert served == {route.robot for route in watched.schedules[-1].routes} == {f"carry_{i + 1}" for i in range(6)}
    assert len(watched.schedules) <= 4 and [s.epoch for s in watched.schedules] == list(range(1, len(watched.schedules) + 1))


def test_declared_robots_without_a_server_are_served_again_when_there_is_one() -> None:
    watched = Watched(factory("{peers: false}", robots=9, servers=2))
    lost = next(r.server for r in watched.schedules[0].routes if r.component == "system1")
    watched.run(15.0, lost)
    watched.run(30.0)
    assert {route.robot for route in watched.schedules[-1].routes} == {f"carry_{i + 1}" for i in range(9)}


def test_declared_robots_that_wait_for_a_server_are_not_forgotten_when_somebody_replans() -> None:
    """Two servers at once, more robots than are spread in one go: what an operator asks for meanwhile is planned first."""
    watched = Watched(factory("{peers: false}", robots=60, servers=5))
    counts = Counter(r.server for r in watched.schedules[0].routes if r.component == "system1")
    lost = [server for server, _ in counts.most_common(2)]
    watched.run(1.0)
    watched.plans = False
    watched.run(5.0, *lost)
    watched.fleet.replan(watched.fleet.factory, declared_anew=False)
    assert len(watched.fleet.fleet.robots) < 60, "or nobody waits"
    watched.plans = True
    watched.run(5.0, *lost)
    assert {route.robot for route in watched.schedules[-1].routes} == {f"carry_{i + 1}" for i in range(60)}


def waiting_for_a_server() -> tuple[Watched, set[str]]:
    """A factory that has lost two of its servers, and whom no other one has taken."""
    watched = Watched(factory("{peers: false}", robots=60, servers=5))
    counts = Counter(r.server for r in watched.schedules[0].routes if r.component == "system1")
    lost = [server for server, _ in counts.most_common(2)]
    watched.run(1.0)
    watched.plans = False
    watched.run(5.0, *lost)
    served = {robot.name for robot in watched.fleet.fleet.robots}
    return watched, {robot.name for robot in watched.fleet.factory.robots} - served


def test_who_has_lost_a_server_comes_before_newcomers() -> None:
    """Also where a newcomer would fit: that room is theirs. What is planned for somebody has everybody who waits."""
    watched, stranded = waiting_for_a_server()
    assert len(stranded) > 1 and watched.fleet.wanted and watched.fleet.wanted.needed
    order = watched.fleet.admit("guest", "carry")
    assert order.answer is None and f"after {len(stranded)} that wait" in order.why
    asked = watched.fleet.wanted
    assert stranded <= {robot.name for robot in asked.robots} and "guest" not in {robot.name for robot in asked.robots}
    watched.fleet.planned(asked, plan(asked, PROFILE, None, work=0.02))
    assert stranded <= {route.robot for route in watched.schedules[-1].routes}
    while (wanted := watched.fleet.wanted) and order.answer is None:
        watched.fleet.planned(wanted, plan(wanted, PROFILE, None, work=0.02))
    assert order.answer is not None and stranded <= {route.robot for route in watched.schedules[-1].routes}


def test_who_waits_and_cannot_be_served_keeps_no_newcomer_out() -> None:
    watched, stranded = waiting_for_a_server()
    wanted = watched.fleet.wanted
    assert wanted is not None
    watched.fleet.planned(wanted, ScheduleError("no schedule can"))
    order = watched.fleet.admit("guest", "carry")
    assert stranded and "that wait for a server" not in order.why
    asked = watched.fleet.wanted
    alone = (
        asked is not None
        and {"guest"} <= {robot.name for robot in asked.robots}
        and not stranded & {robot.name for robot in asked.robots}
    )
    assert isinstance(order.answer, int) or alone


def test_who_waits_is_served_by_what_others_leave_while_a_plan_is_made() -> None:
    watched, stranded = waiting_for_a_server()
    watched.fleet.replan(watched.fleet.factory, declared_anew=False)
    for name in sorted({robot.name for robot in watched.fleet.fleet.robots} - stranded)[:20]:
        watched.fleet.release(name)
    for name in sorted(stranded)[5:]:
        watched.fleet.release(name)
    assert watched.fleet.wanted and watched.fleet.wanted.needed, "the plan is being made all the time"
    for _ in range(5):  # one at each look
        watched.fleet.settle()
    served = {route.robot for route in watched.schedules[-1].routes}
    assert set(sorted(stranded)[:5]) <= served and not watched.fleet.no_room


def test_a_plan_made_with_other_eyes_is_not_taken() -> None:
    watched = Watched(factory())
    order = watched.fleet.replan(watched.fleet.factory, declared_anew=False)
    asked = watched.fleet.wanted
    assert asked is not None
    stale = plan(asked, PROFILE, None, work=0.02)
    watched.fleet.see(EstimateChange(FactoryEstimates(paces={"server_1": 1.5}), (), (), "server_1 is slower"), REFIT)
    watched.fleet.planned(asked, stale)
    assert order.answer is None and watched.fleet.wanted is not asked, "it is planned again"


def test_whoever_waits_is_answered_however_often_figures_change() -> None:
    """In a factory that takes longer to plan than its servers' paces last. What was planned with older figures is planned again."""
    watched = Watched(factory())
    order = watched.fleet.replan(watched.fleet.factory, declared_anew=False)
    for number in range(3):
        asked = watched.fleet.wanted
        assert order.answer is None and asked is not None
        made = plan(asked, PROFILE, None, work=0.02)
        watched.fleet.see(
            EstimateChange(FactoryEstimates(paces={"server_1": 1.2 + 0.1 * number}), (), (), "server_1 is slower"), REFIT
        )
        watched.fleet.planned(asked, made)
    assert isinstance(order.answer, int)
    again = watched.fleet.wanted
    assert again is not None and again.seen == watched.fleet.seen


SMALL = {"robots": 3, "servers": 3}
"""Two servers and one that stands by: one for each model at least, as the quickstart with a standby."""


@pytest.mark.parametrize("returns", ["server_1", "server_2", "server_3"])
def test_of_two_that_are_lost_together_one_comes_back_and_the_other_never(returns: str) -> None:
    """No schedule is without both, and so it stays as it was; with the one that is back all are served, be it as their standby."""
    for gone in {"server_1", "server_2", "server_3"} - {returns}:
        watched = Watched(factory(**SMALL))
        watched.run(10.0)
        watched.run(10.0, gone, returns)
        watched.run(15.0, gone)
        routes = watched.schedules[-1].routes
        assert {r.robot for r in routes} == {f"carry_{i + 1}" for i in range(3)} and not watched.fleet.is_short
        assert all(gone != route.server or route.standby not in ("", gone) for route in routes), (gone, routes)


def test_while_robots_stand_a_server_that_came_and_went_is_used_as_soon_as_it_lives() -> None:
    watched = Watched(factory(**SMALL))
    (judge,) = {route.server for route in watched.schedules[0].routes if route.component == "monitor"}
    flaps, other = sorted({"server_1", "server_2", "server_3"} - {judge})
    for _ in range(4):
        watched.run(5.0, flaps)
        watched.run(90.0)
    watched.run(10.0, flaps)
    assert watched.lookout.watch.health.lost == (flaps,)
    watched.run(5.0, flaps, other)
    assert watched.fleet.is_short
    watched.run(2.0, other)
    assert not watched.fleet.is_short
    assert {r.standby for r in watched.schedules[-1].routes if r.component == "system1"} == {flaps}


def test_one_that_comes_back_stands_by_for_one_that_is_lost_rather_than_for_who_has_most_to_do() -> None:
    declared = factory(**SMALL)
    before = planned(declared).fleet
    for lost in {route.server for route in before.schedule.routes}:
        spare = next(p.server for p in before.schedule.placements if p.standby)
        alone, _ = without(before, declared, spare)
        standing, refused = seeing(alone, declared, FactoryEstimates(lost=(lost, spare)), (lost,), (), REFIT)
        assert refused and deserted(standing.schedule, (lost, spare))
        after, _ = seeing(standing, declared, FactoryEstimates(lost=(lost,)), (), (spare,), REFIT)
        assert {route.standby for route in after.schedule.routes if route.server == lost} == {spare}
        assert not deserted(after.schedule, (lost,))


def test_one_that_everybody_needs_is_replaced_by_another() -> None:
    """The only one with the monitor's model: no robot could stay, so no local change helps; one of the others takes its place."""
    watched = Watched(factory("{peers: false}", robots=9, servers=4))
    (lost,) = {route.server for route in watched.schedules[0].routes if route.component == "monitor"}
    watched.run(1.0)
    watched.run(10.0, lost)
    routes = watched.schedules[-1].routes
    assert lost not in {route.server for route in routes} and {r.robot for r in routes} == {f"carry_{i + 1}" for i in range(9)}


def test_a_plan_that_is_needed_is_tried_again_when_its_planner_fails() -> None:
    """A few times: as long as the lost server's robots stand still nobody asks for them."""
    watched = Watched(factory("{peers: false}", robots=9, servers=2))
    lost = next(r.server for r in watched.schedules[0].routes if r.component == "system1")
    watched.run(1.0)
    watched.plans = False
    watched.run(5.0, lost)
    asked = []
    while order := watched.fleet.wanted:
        asked.append(order)
        watched.fleet.planned(order, PlannerError("killed"))
    assert len(asked) == ATTEMPTS and asked[0].needed


@pytest.mark.parametrize("asked_elsewhere", [False, True])
def test_who_was_stranded_goes_back_to_a_server_that_returned_though_the_planner_never_answers(asked_elsewhere: bool) -> None:
    """It serves as it did before the loss, in place of standing by; every promise in force is held."""
    watched, stranded = waiting_for_a_server()
    before = {p.server: p for p in watched.schedules[0].placements}
    lost = sorted(watched.fleet.seen.lost)
    if asked_elsewhere:
        assert watched.fleet.wanted
        watched.fleet.planned(watched.fleet.wanted, PlannerError("killed"))
    watched.run(20.0, lost[1])
    schedule = watched.schedules[-1]
    (placement,) = [p for p in schedule.placements if p.server == lost[0]]
    assert not placement.standby and placement.model == before[lost[0]].model
    back = {route.robot for route in schedule.routes if route.server == lost[0]}
    assert len(back) > 4 and back <= stranded and not broken(watched.fleet.fleet), "more than one look lets in"
    watched.run(20.0)
    schedule = watched.schedules[-1]
    also = {route.robot for route in schedule.routes if route.server == lost[1]}
    assert len(also) > 4 and also <= stranded - back and not broken(watched.fleet.fleet)


@pytest.mark.parametrize(
    ("stragglers", "why"), [({}, UNEXPLAINED), ({"server_1": StragglerConfig(share=0.1, factor=4.0)}, STRAGGLING)]
)
def test_a_promise_that_no_other_plan_would_keep_is_told_once_with_why(
    stragglers: dict[str, StragglerConfig], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Where nothing says that services take longer (a batch that goes on row by row is not looked at), and where plans know."""
    watched = Watched(factory())
    watched.fleet.see(EstimateChange(FactoryEstimates(stragglers=stragglers), (), (), "figures"), REFIT)
    caplog.clear()
    missed = ("'carry': 95 % of the answers of system1 are in time by what robots count, 99 % are promised",)
    with caplog.at_level("WARNING"):
        for _ in range(3):
            watched.fleet.tell(missed)
        for _ in range(3):
            watched.fleet.tell(())
    assert [record.getMessage() for record in caplog.records] == [f"{missed[0]}: {why}", "what is promised is in time again"]

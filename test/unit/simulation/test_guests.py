"""Guests among robots that tick: they are admitted, streamed to, moved with their models and released, and every promise holds.

What is promised is looked at from outside: schedules by the descriptor and the profile (`promises.py`), robots by what their brains
are told and do (`witness.py`), latencies and rates by the ledger of the simulation.
"""

from __future__ import annotations

import math
import os
import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from ros2_rfm_serving.errors import ScheduleError
from ros2_rfm_serving.factory import Catalogue, Factory, parse_factory
from ros2_rfm_serving.profiles import Profile
from ros2_rfm_serving.scheduler import ActiveFleet, SchedulerCommand
from ros2_rfm_serving.scheduler.prediction.placement_matching import MOVE_S
from ros2_rfm_serving.simulation import Crash, SimulationConditions, Turnover, simulate_watched
from ros2_rfm_serving.simulation.conditions import ConnectionCut, NetworkConditions
from ros2_rfm_serving.simulation.random_factories import rows_of
from ros2_rfm_serving.simulation.scheduled_factory import ScheduledFactory
from ros2_rfm_serving.simulation.scheduler import SimulatedScheduler
from ros2_rfm_serving.simulation.timing import Timing
from ros2_rfm_serving.simulation.world import World
from ros2_rfm_serving.types import SYSTEM1, Schedule
from test.unit.simulation.promises import Promises
from test.unit.simulation.test_scheduler_day import Told
from test.unit.simulation.witness import Seen, Witness

LOAD_S = 3.0
NOTICED_S = 2.5
"""Until robots know that a server is gone: `server_timeout_s`, and a status period."""
CONNECTED_S = 2.0
"""Until whoever turns to another server has its first chunk from there: two attempts to open a session, and a chunk."""
GONE_S = 12.0
"""Until the scheduler knows as well: 4 to 5 s, or 10 of one that loads; then it looks twice a second."""
SETTLED_S = 3.0
"""Until queues that a disturbance has left are gone."""
# What plans count for a robot that is sent elsewhere, `MOVE_S`, is also the longest that it may be without a chunk for that.
EXAMPLES = int(os.environ.get("RFM_GUEST_EXAMPLES", "4"))


def catalogue() -> Catalogue:
    """Two models for actions, one for checks."""

    def model(engine: dict[str, object], **service: object) -> dict[str, object]:
        gpu = {"memory_gb": 1, "load_s": LOAD_S, "source": "test", "derivation": "test", "service": {"jitter": 0.03, **service}}
        return {"engine": "emulated", "gpus": {"GPU": gpu}, **engine}

    arm = model({}, batching="fixed", base_ms=30, per_row_ms=8, batch_sizes=[1, 2, 4, 8, 16])
    base = model({}, batching="fixed", base_ms=20, per_row_ms=5, batch_sizes=[1, 2, 4, 8, 16])
    judge = model({"output": "judgement"}, batching="continuous", base_ms=90, per_request_ms=10)
    return Catalogue.model_validate({"models": {"arm": arm, "base": base, "judge": judge}})


CATALOGUE = catalogue()


def profile() -> Profile:
    """Of the laws that run, by queueing formulas."""
    laws = {name: entry.gpus["GPU"].service for name, entry in CATALOGUE.models.items()}
    return Profile.of([row for name, service in laws.items() if service for row in rows_of(name, "GPU", service.law())])


PROFILE = profile()


def factory(
    arms: int = 4,
    bases: int = 3,
    *,
    servers: int = 5,
    standby: int = 0,
    mode: str = "sync",
    floor_hz: float = 0.0,
    checks: bool = True,
) -> Factory:
    floor = f"min_action_rate_hz: {floor_hz}" if floor_hz else ""
    safety = "safety: {model: judge, prompt: safe, slo_ms: 400, freq_hz: 0.5}" if checks else ""
    return parse_factory(f"""
server_cluster: {{num_servers: {servers}, gpu_type: GPU}}
standby: {{num_servers: {standby}}}
robot_fleet: [{{task: pick, num_robots: {arms}}}, {{task: drive, num_robots: {bases}}}]
pick:
  {floor}
  execution: {{mode: {mode}}}
  pipeline: {{action_period_ms: 200}}
  components:
    system1: {{model: arm, prompt: go, slo_ms: 250}}
    {safety}
drive:
  pipeline: {{action_period_ms: 150}}
  components:
    system1: {{model: base, prompt: go, slo_ms: 200}}
""")


class Heard(Told):
    def saw(self, finding: object, waiting: object, after: ActiveFleet) -> None:
        """A server that is lost."""


class Visited:
    """One factory whose robots tick, with a witness; `present` are those that are there: robot -> task."""

    def __init__(self, declared: Factory, seed: int, dies_s: float = math.inf) -> None:
        """dies_s: when one of the servers that robots are on ends for ever."""
        self.factory, self.rng = declared, random.Random(seed)
        self.world = World(seed=seed, warm_up_s=0.0, conditions=SimulationConditions())
        self.events, self.told, self.witness = self.world.events, Heard(), Witness()
        self.scheduler = SimulatedScheduler(declared, PROFILE, CATALOGUE, self.events, lease_s=10.0, work=0.0, book=self.told)
        self.schedules: list[tuple[float, Schedule]] = []
        self.scheduler.published.append(self.hears)
        self.hears(self.scheduler.schedules[0], 0.0)
        if dies_s < math.inf:
            server = self.rng.choice(sorted({route.server for route in self.schedules[0][1].routes}))
            self.events.at(dies_s, self.dies, server)
            crash = Crash(server=server, at_s=dies_s, restart_after_s=math.inf)
            self.world = replace(self.world, conditions=SimulationConditions(crashes=(crash,)))
        self.floor = ScheduledFactory(self.scheduler, declared, Timing(catalogue=CATALOGUE, profile=PROFILE), self.world)
        self.scheduler.watch(self.floor.server_samples, self.floor.robot_samples, self.floor.lives)
        self.present = {robot.name: robot.task for robot in declared.robots}
        self.lives: dict[str, tuple[float, float]] = dict.fromkeys(self.present, (0.0, math.inf))
        """Robot -> from when to when it was there."""
        self.disturbed_s: list[tuple[float, float]] = []
        """From when, and how long at the most, servers could not answer everybody."""
        self.names, self.pending = 0, list[SchedulerCommand]()

    def hears(self, schedule: Schedule, now_s: float) -> None:
        """Before robots do."""
        served = {route.robot: route.task for route in schedule.routes}
        Promises(schedule, served, self.factory, PROFILE).hold(self.told.owed_hz)
        if self.schedules:
            hosted = {p.server: p.model for p in self.schedules[-1][1].placements}
            if any(hosted.get(p.server) != p.model for p in schedule.placements):
                self.disturbed_s.append((now_s, LOAD_S + CONNECTED_S))
        self.schedules.append((now_s, schedule))

    # --- what happens ---

    def comes(self, task: str = "") -> None:
        """task: at random, if none is given."""
        self.names += 1
        name, task = f"guest_{self.names}", task or self.rng.choice(sorted(self.factory.tasks))
        order = self.scheduler.admit(name, task)

        def answered() -> None:
            if isinstance(order.answer, int):
                self.floor.join(name, task)
                self.present[name], self.lives[name] = task, (self.events.now_s, math.inf)

        self.pending.append(order)
        if order.answer is None:
            order.watchers.append(answered)
        else:
            answered()

    def _goes(self, goodbye: bool) -> None:
        if guests := sorted(self.present.keys() - {robot.name for robot in self.factory.robots}):
            name = self.rng.choice(guests)
            self.floor.leave(name, goodbye)
            self.lives[name] = (self.lives[name][0], self.events.now_s)
            del self.present[name]
            if goodbye:
                self.scheduler.release(name)

    def leaves(self) -> None:
        self._goes(True)

    def falls_silent(self) -> None:
        self._goes(False)

    def many(self) -> None:
        for _ in range(self.rng.randint(3, 8)):
            self.comes()

    def is_planned_anew(self) -> None:
        self.pending.append(self.scheduler.replan())

    def dies(self, server: str) -> None:
        """Its standby, if it has one, takes over."""
        standbys = {route.standby for route in self.schedules[-1][1].routes if route.server == server}
        lasts_s = GONE_S + LOAD_S if "" in standbys else NOTICED_S
        self.disturbed_s.append((self.events.now_s, lasts_s + CONNECTED_S))

    def passes(self, seconds: float) -> None:
        self.events.run(self.events.now_s + seconds)

    # --- what is promised ---

    def everybody_has_chunks(self) -> None:
        """Nobody goes longer without one than its own period and its SLO allow; or for as long as its server was away."""
        for identity, seen in self.witness.robots.items():
            name = self.witness.names[identity]
            came_s, left_s = self.lives[name]
            until_s = min(left_s, self.events.now_s)
            times_s = [came_s, *seen.chunks_s, until_s]
            for a, b in pairwise(times_s):
                bound_s = self._bound_s(name, seen, a, b) + (CONNECTED_S if a == came_s else 0.0)
                assert b - a <= bound_s, f"{name} had no chunk from {a:.2f} to {b:.2f}, at most {bound_s:.2f} were to be"

    def _bound_s(self, name: str, seen: Seen, from_s: float, until_s: float) -> float:
        """By the schedules of that time; longer where it was sent elsewhere, or where a server was away."""
        told = [(since_s, s.routes_of(name).get(SYSTEM1)) for since_s, s in seen.told if since_s <= until_s]
        moved_s = from_s - MOVE_S  # what it has by then may still be of its former server
        before = [route for since_s, route in told if since_s <= moved_s][-1:]
        then = [*before, *(route for since_s, route in told if since_s > moved_s)]
        rate_hz = min((route.predicted_rate_hz for route in then if route), default=0.0)
        slo_s = max((route.slo_s for route in then if route), default=0.0)
        usual_s = 1.5 / rate_hz + slo_s if rate_hz else math.inf
        moves = sum(a != b for a, b in pairwise([route.server if route else "" for route in then]))
        away_s = sum(lasts_s for at_s, lasts_s in self.disturbed_s if at_s < until_s and from_s < at_s + lasts_s)
        return usual_s + MOVE_S * moves + away_s

    def slos_hold(self) -> None:
        """Of requests sent while every server was there and nobody was sent elsewhere, whatever happened before and after, and the
        share that a profile's percentile leaves."""
        in_time: dict[tuple[str, str], list[bool]] = defaultdict(list)
        for seen in self.witness.robots.values():
            moved_s = self._moved_s(seen)
            spans = [*self.disturbed_s, *((at_s, SETTLED_S) for at_s in moved_s)]
            task = seen.told[0][1].routes[0].task
            for component, sent_s, waited_s in seen.answers:
                slo_ms = self.factory.tasks[task].components[component].slo_ms
                if slo_ms and not any(at_s - slo_ms / 1e3 <= sent_s < at_s + lasts_s + SETTLED_S for at_s, lasts_s in spans):
                    in_time[task, component].append(waited_s <= slo_ms / 1e3)
        for key, kept in in_time.items():
            assert len(kept) <= 200 or sum(kept) > 0.985 * len(kept), f"{key}: {sum(kept)} of {len(kept)} in time"

    def _moved_s(self, seen: Seen) -> list[float]:
        """When it was sent elsewhere."""
        at = [(since_s, {r.component: r.server for r in schedule.routes}) for since_s, schedule in seen.told]
        return [since_s for (_, before), (since_s, now) in pairwise(at) if before != now]

    def rates_hold(self) -> None:
        """Of robots that stayed for a while, and whose servers stayed."""
        for identity, seen in self.witness.robots.items():
            chunks_s = [s for s in seen.chunks_s if not any(at_s <= s + 5.0 for at_s, _ in self.disturbed_s)]
            if len(chunks_s) > 20:
                task = self.factory.tasks[seen.told[0][1].routes[0].task]
                floor_hz = task.min_action_rate_hz
                rate_hz = (len(chunks_s) - 1) / (chunks_s[-1] - chunks_s[0])
                assert not isinstance(floor_hz, float) or rate_hz > 0.97 * floor_hz, f"{self.witness.names[identity]}: {rate_hz}"


def told_all(visited: Visited) -> None:
    """What holds at the end of every story."""
    visited.everybody_has_chunks()
    visited.slos_hold()
    visited.rates_hold()
    brain = visited.scheduler.brain
    assert all(order.answer is not None for order in visited.pending), "whoever asks is answered"
    assert {robot.name: robot.task for robot in brain.fleet.robots} == visited.present and not brain.no_room


def test_guests_are_admitted_streamed_to_moved_and_released() -> None:
    """So many that another model's server becomes theirs, while all others tick; then all go, half of them without a word."""
    visited = Visited(factory(checks=False), seed=1)
    with visited.witness.watching():
        visited.passes(3.0)
        for number in range(12):
            visited.comes("pick" if number < 4 else "")
            visited.passes(0.3)
        visited.passes(6.0)
        assert visited.disturbed_s, "a server has changed its model"
        told_all(visited)
        most = len(visited.present)
        while len(visited.present) > 7:
            visited.falls_silent() if len(visited.present) % 2 else visited.leaves()
            visited.passes(0.3)
        visited.passes(13.0)
        told_all(visited)
    assert most > 12 and len(visited.schedules) > 20


def test_the_report_says_who_came_and_how_steadily_everybody_got_chunks() -> None:
    """The same again with the same seed; who never came is not in it."""
    turnover = Turnover(arrivals_hz=0.6, stay_s=6.0, crashed=0.4)

    def visits(seed: int) -> dict[str, Any]:
        made = {"seconds": 15.0, "warm_up_s": 1.0, "work": 0.0, "seed": seed}
        report = simulate_watched(factory(standby=1), CATALOGUE, PROFILE, turnover=turnover, **made).report
        counters = report.counters
        ends = counters.answered + counters.late + counters.lost + counters.refused + counters.dropped + counters.in_flight
        assert counters.sent == ends and report.components[SYSTEM1].slo_attainment > 0.99
        told = report.to_json()["visits"]
        assert isinstance(told, dict)
        return told

    told = visits(1)
    came = told["at_once"] + told["planned_anew"]
    assert came >= 4 and told["left"] > 0 and told["silent"] > 0 and told["left"] + told["silent"] <= came
    assert sum(stay["robots"] for stay in told["stays"].values()) == 7 + came and told["schedules"] > came
    for stay in told["stays"].values():
        assert (
            stay["without"] <= 1
            and 0 < stay["longest_start_s"] < LOAD_S + CONNECTED_S
            and 0.2 < stay["longest_gap_s"] < LOAD_S + CONNECTED_S
        )
        assert 1.0 < stay["slowest_hz"] < 6.0
    assert told == visits(1) != visits(2)


@pytest.mark.parametrize("jump_s", [3_600.0, -400.0])
def test_a_clock_that_jumps_costs_nobody_a_place(jump_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scheduler's, while guests are admitted: a machine that was suspended, or a clock that should not have been set back."""
    visited, since_s = Visited(factory(standby=1), seed=3), 4.0
    lookout, roster = visited.scheduler.lookout, visited.scheduler.roster
    jumped = [jump_s]

    def shifted(hear: Callable[..., None]) -> Callable[..., None]:
        return lambda *said: hear(*said[:-1], said[-1] + jump_s * (said[-1] > since_s))

    for name in ("hear_server", "hear_robot", "look"):
        monkeypatch.setattr(lookout, name, shifted(getattr(lookout, name)))
    elapse = roster.elapse
    monkeypatch.setattr(
        roster, "elapse", lambda s: elapse(s + (jumped.pop() if jumped and visited.events.now_s > since_s else 0.0))
    )
    with visited.witness.watching():
        for _ in range(8):
            visited.comes()
            visited.passes(1.0)
        visited.falls_silent()
        visited.passes(6.0)
        assert len(visited.scheduler.roster.tasks) == 8, "a lease is no shorter"
        visited.passes(6.0)
        assert visited.scheduler.brain.seen.lost == () and not jumped
        told_all(visited)


def test_a_plan_keeps_nobody_s_lease_who_has_fallen_silent() -> None:
    """A look from before the scheduler listened went on beside it, and heard everybody after each plan."""
    visited = Visited(factory(1, 1, servers=3), seed=0)
    visited.comes()
    visited.comes()
    visited.passes(3.0)
    visited.falls_silent()
    visited.passes(3.0)
    visited.falls_silent()
    visited.passes(8.0)
    assert len(visited.schedules) > 3 and len(visited.scheduler.roster.tasks) == 1
    visited.passes(3.0)
    assert not visited.scheduler.roster.tasks


def test_who_has_a_gpu_alone_after_a_plan_is_as_quick_as_alone() -> None:
    """The model beside it went to another server's GPU: in virtual time it stayed half as quick, and 4 of 207 were in time."""
    visited = Visited(factory(1, 4, servers=3, standby=1), seed=1290)
    with visited.witness.watching():
        visited.passes(2.0)
        visited.many()
        visited.many()
        visited.passes(21.0)
    on_gpu = [sorted(p.model for p in s.placements if p.gpu == "server_2") for _, s in visited.schedules]
    assert on_gpu[0] == ["arm", "judge"] and on_gpu[-1] == ["arm"]
    told_all(visited)


EVENTS: list[Callable[[Visited], None]] = [
    Visited.comes,
    Visited.comes,
    Visited.many,
    Visited.leaves,
    Visited.leaves,
    Visited.falls_silent,
    Visited.is_planned_anew,
]


@given(
    seed=st.integers(0, 100_000),
    shape=st.tuples(st.integers(1, 5), st.integers(1, 4), st.integers(3, 6), st.integers(0, 1)),
    mode=st.sampled_from(["sync", "async"]),
    floor_hz=st.sampled_from([0.0, 1.5]),
    dies=st.booleans(),
    happens=st.lists(st.tuples(st.sampled_from(EVENTS), st.sampled_from([0.0, 0.7, 3.0])), min_size=3, max_size=8),
)
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
def test_every_promise_holds_among_robots_that_tick(
    seed: int,
    shape: tuple[int, int, int, int],
    mode: str,
    floor_hz: float,
    dies: bool,
    happens: list[tuple[Callable[[Visited], None], float]],
) -> None:
    arms, bases, servers, standby = shape
    dies_s = 4.0 if dies and standby and servers > 4 else math.inf  # enough are left for every model
    try:
        visited = Visited(factory(arms, bases, servers=servers, standby=standby, mode=mode, floor_hz=floor_hz), seed, dies_s)
    except ScheduleError:
        assume(False)
    with visited.witness.watching():
        visited.passes(2.0)
        for what, then_s in happens:
            what(visited)
            visited.passes(then_s)
        visited.passes(13.0)  # leases have ended
        told_all(visited)


@pytest.mark.parametrize(("cut", "open_s"), [((), 0.3), ((ConnectionCut(start_s=9.9, end_s=10.1),), math.inf)])
def test_a_goodbye_is_heard_as_late_as_anything_else(cut: tuple[ConnectionCut, ...], open_s: float) -> None:
    """Or never, in a cut: the session is there until its server misses the robot."""
    declared = factory()
    world = World(seed=1, warm_up_s=0.0, conditions=SimulationConditions(network=NetworkConditions(latency_s=0.3, cuts=cut)))
    scheduler = SimulatedScheduler(declared, PROFILE, CATALOGUE, world.events, work=0.0)
    floor = ScheduledFactory(scheduler, declared, Timing(catalogue=CATALOGUE, profile=PROFILE), world)
    robot = declared.robots[0].name

    def sessions() -> int:
        return sum(key[0] == robot for host in floor._hosts.values() for key in host._server.session_keys())

    world.events.run(10.0)
    before = sessions()
    assert before
    floor.leave(robot, goodbye=True)
    for now_s in (10.0, 10.29, 10.31, 11.0):
        world.events.run(now_s)
        assert sessions() == (before if now_s < 10.0 + open_s else 0)

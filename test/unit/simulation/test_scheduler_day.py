"""Robots come, go and fall silent for hours, in factories drawn at random: every promise in force holds after every event.

The scheduler is the live node's own (`scheduler/schedule_manager.py`), in virtual time. What is promised is looked at from outside.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from math import inf

import pytest
from hypothesis import HealthCheck, Phase, assume, example, given, settings
from hypothesis import strategies as st

from ros2_rfm_serving.cli.simulate_guests import turnover_of
from ros2_rfm_serving.errors import ConfigurationError, ScheduleError
from ros2_rfm_serving.factory import Factory
from ros2_rfm_serving.factory.cluster import Standby
from ros2_rfm_serving.factory.fleet import NetworkEntry
from ros2_rfm_serving.factory.machines import Machine
from ros2_rfm_serving.factory.task import ActionRateFloor, Execution, ExecutionMode
from ros2_rfm_serving.profiles import Profile
from ros2_rfm_serving.scheduler import ActiveFleet, PlanJob, PlanResult, SchedulerCommand, plan
from ros2_rfm_serving.scheduler.promises import broken
from ros2_rfm_serving.simulation.day import DayReport, live_through
from ros2_rfm_serving.simulation.dynamic_robots import Turnover
from ros2_rfm_serving.simulation.random_factories import Size, random_factory
from ros2_rfm_serving.simulation.scheduler import SimulatedScheduler
from ros2_rfm_serving.types import SYSTEM1, Schedule
from ros2_rfm_serving.virtual_time.events import Events
from test.unit.simulation.promises import Promises

LEASE_S = 60.0
PLANS_OWED = 8
PHASES = tuple(phase for phase in Phase if phase is not Phase.shrink)
"""A day takes seconds: a shorter one that fails as well would not be found in minutes."""


def drawn(seed: int) -> tuple[Factory, Profile]:
    """With floors, standbys and asynchronous tasks now and then."""
    rng = random.Random(seed)
    servers, classes = rng.randint(2, 5), rng.randint(1, 3)
    size = Size(servers=servers, robots=rng.randint(classes, 6 * servers), classes=classes, models=rng.randint(1, min(servers, 3)))
    made = random_factory(size, seed)
    tasks, counts = {}, Counter(robot.task for robot in made.factory.robots)
    for name, task in made.factory.tasks.items():
        highest_hz = 1.0 / task.cycle_period_s
        floor_hz = round(rng.uniform(0.1, 0.6) * highest_hz, 3) if rng.random() < 0.5 else None
        floor = ActionRateFloor(per_class=floor_hz * counts[name]) if floor_hz and rng.random() < 0.5 else floor_hz
        mode = ExecutionMode.ASYNC if rng.random() < 0.3 else ExecutionMode.SYNC
        percentile = rng.choice([99.0, 99.0, 95.0, 90.0])
        tasks[name] = task.model_copy(
            update={"min_action_rate_hz": floor, "execution": Execution(mode=mode), "percentile": percentile}
        )
    reserved = 1 if servers > 2 and rng.random() < 0.4 else 0
    standby = Standby(num_servers=reserved, peers=rng.random() < 0.7)
    factory = made.factory.model_copy(update={"tasks": tasks, "standby": standby})
    return on_two_hosts(factory, random.Random(f"links {seed}")), made.profile


def on_two_hosts(factory: Factory, rng: random.Random) -> Factory:
    """Half of them, with links that may be too narrow for what their servers could do."""
    if rng.random() < 0.5:
        return factory
    counts, hosts = Counter(factory.gpu_types.values()), {}
    for i, name in enumerate(("a", "b")):
        gpus = {gpu: (n + 1 - i) // 2 for gpu, n in counts.items() if (n + 1 - i) // 2}
        link = rng.choice([None, 2.0, 5.0, 20.0])
        hosts[name] = Machine(address=IPv4Address(f"10.0.0.{i + 1}"), gpus=gpus, bandwidth_mbit_s=link)
    fleet = tuple(
        entry.model_copy(update={"network": NetworkEntry(observation_kb=rng.choice([5.0, 30.0]), reply_kb=rng.choice([0.0, 10.0]))})
        for entry in factory.robot_fleet
    )
    return factory.model_copy(update={"hosts": hosts, "robot_fleet": fleet})


@dataclass
class Told:
    """The book of a scheduler: plans and changes, before they are published."""

    planned_hz: dict[tuple[str, str], float] = field(default_factory=dict)
    """Robot and task -> action rate that the last published plan of the whole factory gave."""
    highest_hz: dict[str, float] = field(default_factory=dict)
    """Task -> the highest of them."""
    plans: int = 0
    changes: int = 0

    def planned(self, planned: PlanResult, reason: str, *, background: bool = False, published: bool = True) -> None:
        if published:
            self.plans += 1
            routes = [route for route in planned.fleet.schedule.routes if route.component == SYSTEM1]
            self.planned_hz = {(route.robot, route.task): route.predicted_rate_hz for route in routes}
            self.highest_hz = {
                task: max(r.predicted_rate_hz for r in routes if r.task == task) for task in {r.task for r in routes}
            }

    def owed_hz(self, robot: str, task: str) -> float:
        """Half of what the plan gave it, whose robots go at the rates of their own servers; of the class's best to a newcomer."""
        return 0.5 * self.planned_hz.get((robot, task), self.highest_hz.get(task, 0.0))

    def changed(self, before: ActiveFleet, after: ActiveFleet, reason: str) -> None:
        self.changes += 1

    def saw(self, finding: object, waiting: object, after: ActiveFleet) -> None:
        raise AssertionError("nothing is measured here")


class Day:
    """What people and robots do, and what they are told."""

    book: type[Told] = Told

    def __init__(self, seed: int, unit_s: float) -> None:
        """unit_s: of planning; the longer, the more plans are of a fleet that has changed."""
        self.rng, self.events, self.told = random.Random(seed), Events(), self.book()
        self.factory, self.profile = drawn(seed)
        self.scheduler = SimulatedScheduler(
            self.factory, self.profile, None, self.events, lease_s=LEASE_S, work=0.0, unit_s=unit_s, book=self.told
        )
        self.present = self.declared()
        """Robot -> task, by what was answered."""
        self.silent_s: dict[str, float] = {}
        """Guests that crashed: when."""
        self.pending: list[SchedulerCommand] = []
        self.names = self.refused = self.served = 0
        self.schedules: list[Schedule] = []
        self.scheduler.published.append(self.hears)
        self.hears(self.scheduler.schedules[0], 0.0)

    def declared(self) -> dict[str, str]:
        return {robot.name: robot.task for robot in self.factory.robots}

    def hears(self, schedule: Schedule, now_s: float) -> None:
        assert all(schedule.epoch > before.epoch for before in self.schedules[-1:]), "epochs rise"
        self.schedules.append(schedule)
        served = {route.robot: route.task for route in schedule.routes}
        Promises(schedule, served, self.scheduler.brain.factory, self.profile).hold(self.told.owed_hz)

    def class_floors_hold(self) -> None:
        """Or there is no plan for those who are there, and the scheduler says so."""
        brain = self.scheduler.brain
        said = {word for words in broken(brain.fleet) for word in words.split("'")}
        try:
            plan(PlanJob(factory=brain.factory, robots=brain.fleet.robots, policy="best"), self.profile, None, work=0.0)
        except ScheduleError:
            pass
        else:
            said = set()
        Promises(self.schedules[-1], self.present, brain.factory, self.profile).class_floors_hold(but=said)

    # --- what happens ---

    def comes(self) -> None:
        self.names += 1
        self.admit(f"guest_{self.names}", self.rng.choice(sorted(self.factory.tasks)))

    def many(self) -> None:
        for _ in range(self.rng.randint(5, 30)):
            self.comes()

    def leaves(self) -> None:
        """Not of whom nobody knows whether its lease has ended."""
        if sure := [robot for robot in sorted(self.present) if self.events.now_s - self.silent_s.get(robot, inf) < LEASE_S - 5.0]:
            self.release(self.rng.choice(sure))

    def crashes(self) -> None:
        if guests := sorted(self.present.keys() - self.declared().keys()):
            robot = self.rng.choice(guests)
            self.scheduler.crash(robot)
            self.silent_s.setdefault(robot, self.events.now_s)

    def returns(self) -> None:
        """Before its lease has ended."""
        if self.silent_s:
            robot = self.rng.choice(sorted(self.silent_s))
            if self.events.now_s - self.silent_s[robot] < LEASE_S - 5.0:
                self.silent_s.pop(robot)
                self.scheduler.comes_back(robot)

    def asks_again(self) -> None:
        if self.present:
            robot = self.rng.choice(sorted(self.present))
            self.admit(robot, self.present[robot])

    def other_task(self) -> None:
        if guests := sorted(self.present.keys() - self.declared().keys()):
            self.admit(self.rng.choice(guests), self.rng.choice(sorted(self.factory.tasks)))

    def a_stranger_leaves(self) -> None:
        with pytest.raises(ConfigurationError, match="'stranger' is not in the factory"):
            self.scheduler.release("stranger")

    def is_planned_anew(self) -> None:
        self.take(self.scheduler.replan(), lambda: None)

    # --- what comes of it ---

    def admit(self, robot: str, task: str) -> None:
        self.silent_s.pop(robot, None)
        self.take(self.scheduler.admit(robot, task), lambda: self.present.update({robot: task}))

    def release(self, robot: str) -> None:
        self.silent_s.pop(robot, None)
        self.take(self.scheduler.release(robot), lambda: self.present.pop(robot, None))

    def take(self, order: SchedulerCommand, done: Callable[[], object]) -> None:
        def answered() -> None:
            if isinstance(order.answer, int):
                self.served += 1
                done()
            else:
                self.refused += 1

        if order.answer is None:
            order.watchers.append(answered)
            self.pending.append(order)
        else:
            answered()

    @property
    def waits(self) -> bool:
        return any(order.answer is None for order in self.pending)

    def passes(self, seconds: float) -> None:
        """A lease ends in its time; while others wait for somebody's plan, no later than that."""
        self.events.run(self.events.now_s + seconds)
        waits = self.waits
        for robot, since_s in list(self.silent_s.items()):
            if self.events.now_s >= since_s + LEASE_S + 2.0 and not waits:
                self.present.pop(robot, None)
                del self.silent_s[robot]
        served = {route.robot: route.task for route in self.schedules[-1].routes}
        unsure = self.silent_s.keys()
        assert {r: t for r, t in served.items() if r not in unsure} == {r: t for r, t in self.present.items() if r not in unsure}


EVENTS = [Day.comes, Day.many, Day.leaves, Day.crashes, Day.returns, Day.asks_again, Day.other_task, Day.a_stranger_leaves]
EVENTS += [Day.comes, Day.comes, Day.leaves, Day.is_planned_anew]


@pytest.mark.patient
@given(
    seed=st.integers(0, 100_000),
    unit_s=st.sampled_from([1.0, 1_000.0]),
    happens=st.lists(st.tuples(st.sampled_from(EVENTS), st.sampled_from([0.0, 1.0, 30.0, 900.0])), min_size=5, max_size=20),
)
@example(seed=702, unit_s=1.0, happens=[(Day.many, 0.0), (Day.comes, 0.0), (Day.comes, 0.0), (Day.many, 0.0)])
@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck), phases=PHASES)
def test_every_promise_holds_after_every_event(
    seed: int, unit_s: float, happens: list[tuple[Callable[[Day], None], float]]
) -> None:
    try:
        day = Day(seed, unit_s)
    except ScheduleError:
        assume(False)
    for what, then_s in happens:
        what(day)
        day.passes(then_s)
    day.passes(LEASE_S + 3_600.0)
    for _ in range(PLANS_OWED):  # of dozens that came at once, where one plan takes an hour
        day.passes(1_800.0 if day.waits else 0.0)
    assert not day.waits and day.scheduler.brain.wanted is None, "whoever asks is answered"
    assert not day.silent_s and not day.scheduler.brain.no_room
    day.class_floors_hold()


@pytest.mark.patient
def test_a_day_of_guests_adds_up_and_is_the_same_again() -> None:
    made = random_factory(Size(servers=2, robots=4, classes=1, models=1), 4)
    turnover = Turnover(arrivals_hz=60 / 3600, stay_s=600.0, crashed=0.3)

    def lived(seed: int) -> DayReport:
        return live_through(made.factory, made.profile, None, turnover, hours=0.5, seed=seed)

    report = lived(1)
    guests = report.at_once + report.planned_anew + report.refused.total()
    assert 15 < guests < 50 and 0 < report.left + report.silent <= report.at_once + report.planned_anew
    assert report.silent > 0 and report.most_robots > 4 and report.schedules > guests - report.refused.total()
    assert 0 <= report.lost_actions < report.actions and report.to_json() == lived(1).to_json() != lived(2).to_json()


@pytest.mark.parametrize("text", ["per_hour=0", "stay_min=-1", "silent=2", "per_hour=nan", "often", "per_hour"])
def test_guests_that_cannot_be_are_refused_by_name(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"--guests|turnover\.(arrivals_hz|stay_s|crashed)"):
        turnover_of(text)

"""Who was admitted: leases that end by themselves, and a scheduler that learns from the robots whom its predecessor admitted."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ros2_rfm_serving.scheduler import RobotClaim, RobotRegistry, newcomers, settled
from ros2_rfm_serving.scheduler.registry import LOOK_PERIOD_S, MAX_REMEMBERED
from ros2_rfm_serving.types import NOT_ADMITTED, AdmissionRecord, Route, Schedule, ScheduleFollower
from ros2_rfm_serving.types.schedule_follower import REPEAT_PERIOD_S
from test.unit.scheduler.test_adaptation import factory, fleet

ME, FORMER = 7, 5
LEASE_S = 60.0


def roster(**admitted: str) -> RobotRegistry:
    made = RobotRegistry(ME, LEASE_S)
    for robot, task in admitted.items():
        made.admit(robot, task)
    return made


def word(robot: str, task: str = "", by: int = 0, follows: int = ME) -> RobotClaim:
    return RobotClaim(robot=robot, follows=follows, admission=AdmissionRecord(scheduler=by, task=task))


def wait(book: RobotRegistry, seconds: float) -> list[str]:
    """Looks twice a second. Whose leases end."""
    return [robot for _ in range(round(2 * seconds)) for robot in book.elapse(0.5)]


# --- leases ---


def test_a_robot_that_is_not_heard_is_released_once_and_one_that_comes_back_is_admitted_again() -> None:
    book = roster(late="carry", here="carry")
    for _ in range(59):
        book.hear(word("here", "carry", ME))
        assert wait(book, 1.0) == []
    book.hear(word("here", "carry", ME))
    assert wait(book, 1.0) == ["late"] and dict(book.tasks) == {"here": "carry"} and book.ended == 1
    book.hear(word("late"))
    assert dict(book.tasks) == {"here": "carry", "late": "carry"}
    assert wait(book, 58.5) == []


def test_who_was_released_by_somebody_does_not_come_back_by_itself() -> None:
    book = roster(late="carry")
    book.release("late")
    for said in (word("late", "carry", ME), word("late")):  # before and after it has heard of that
        book.hear(said)
        assert not book.tasks


def test_a_scheduler_that_stood_still_releases_nobody_for_it() -> None:
    """Its process was stopped, or it planned for minutes: what the robots said meanwhile has not been read yet. Nor has it when it
    is stopped again before the robots come to a word."""
    book = roster(late="carry")
    assert book.elapse(3600.0) == [] and book.silences_s == {"late": LOOK_PERIOD_S}
    book.lease_s = 5.0
    assert [book.elapse(3.0) for _ in range(8)] == [[]] * 8


@given(
    looks_s=st.lists(st.integers(1, 160).map(lambda n: n / 16), max_size=300),
    heard=st.sets(st.integers(0, 300)),
    origin_s=st.sampled_from([0.0, -4096.0, 2.0**24]),
)
@settings(max_examples=150, deadline=None)
def test_a_lease_ends_after_just_so_much_silence_whatever_the_clock_says(
    looks_s: list[float], heard: set[int], origin_s: float
) -> None:
    """A virtual clock with any origin; the looks come late, sometimes by much. A plain count of the silence says when it ends."""
    book, now_s, silent_s = roster(late="carry"), origin_s, 0.0
    for number, duration_s in enumerate(looks_s):
        before_s, now_s = now_s, now_s + duration_s
        if number in heard:
            book.hear(word("late", "carry", ME))
            silent_s = 0.0
        ended = book.elapse(now_s - before_s)
        silent_s += min(duration_s, LOOK_PERIOD_S)
        there = silent_s < LEASE_S
        assert ended == ([] if there else ["late"]) and list(book.tasks) == (["late"] if there else [])
        if not there:
            book.admit("late", "carry")
            silent_s = 0.0


# --- what robots say of another scheduler ---


def test_a_robot_that_another_scheduler_admitted_is_taken_over_and_released_with_it() -> None:
    book = RobotRegistry(ME)
    book.hear(word("late", "carry", FORMER, follows=FORMER))
    assert dict(book.tasks) == {"late": "carry"} and book.inherited == 1
    book.hear(word("late", "weld", FORMER, follows=FORMER))
    assert dict(book.tasks) == {"late": "weld"}
    book.hear(word("late", follows=0))  # it was started again and has not heard of any schedule yet
    assert dict(book.tasks) == {"late": "weld"}
    book.hear(word("late", follows=FORMER))  # released there
    assert not book.tasks


@pytest.mark.parametrize("standing_by_s", [10, 100])
def test_who_was_released_while_this_scheduler_stood_by_does_not_come_back_with_it(standing_by_s: int) -> None:
    """With certificates: said to another scheduler (`Attendance._on_status`)."""
    book = RobotRegistry(ME)
    book.inherit("late", "carry")
    released = RobotClaim(robot="late", follows=FORMER, admission=AdmissionRecord())
    for _ in range(2 * standing_by_s):
        book.hear_elsewhere(released)
        book.elapse(0.5)
    book.hear(RobotClaim(robot="late", follows=ME, admission=AdmissionRecord()))
    assert not book.tasks


def test_who_is_served_by_another_scheduler_keeps_what_was_inherited() -> None:
    """However long this one stands by; who falls silent does not, and nobody is admitted or kept once it follows this one by it."""
    book, served = RobotRegistry(ME), word("late", "carry", FORMER, follows=FORMER)
    book.hear_elsewhere(served)
    assert not book.tasks and not book.knows("late")
    book.inherit("late", "carry")
    for _ in range(200):
        book.hear_elsewhere(served)
        assert not book.elapse(LOOK_PERIOD_S)
    book.hear(RobotClaim(robot="late", follows=ME, admission=AdmissionRecord(scheduler=ME, task="carry")))
    for _ in range(119):
        book.hear_elsewhere(served)
        assert not book.elapse(LOOK_PERIOD_S)
    assert book.elapse(LOOK_PERIOD_S) == ["late"] and book.knows("late")


def test_what_was_said_to_a_former_scheduler_ends_nobody_who_follows() -> None:
    book = RobotRegistry(ME)
    book.inherit("late", "carry")
    book.hear(RobotClaim(robot="late", follows=ME, admission=AdmissionRecord(scheduler=ME, task="carry")))
    book.hear_elsewhere(RobotClaim(robot="late", follows=FORMER, admission=AdmissionRecord()))  # recorded then
    assert dict(book.tasks) == {"late": "carry"}


def test_a_former_schedulers_word_does_not_count_against_an_order() -> None:
    book = RobotRegistry(ME)
    book.release("late")
    book.hear(word("late", "carry", FORMER, follows=FORMER))
    assert not book.tasks
    book.admit("late", "weld")
    book.hear(word("late", "carry", FORMER, follows=FORMER))
    assert dict(book.tasks) == {"late": "weld"}


def test_robots_that_were_never_admitted_are_nobody() -> None:
    book = RobotRegistry(ME)
    for follows in (0, ME, FORMER):
        book.hear(word("stranger", follows=follows))
    book.hear(word("stranger", "carry", ME))  # this scheduler knows better
    assert not book.tasks


def test_what_is_remembered_of_those_who_have_gone_does_not_grow_without_end() -> None:
    book = RobotRegistry(ME, lease_s=1.0)
    for number in range(MAX_REMEMBERED + 10):
        book.admit(f"r{number}", "carry")
        wait(book, 1.0)
        book.release(f"gone{number}")
    assert len(book._former) == len(book._released) == MAX_REMEMBERED


def test_another_descriptor_gives_leases_to_those_that_it_no_longer_declares() -> None:
    book, declared = roster(carry_1="carry", welder="weld", late="carry"), factory(robots=2)
    book.limit_to(declared, [*declared.robots, *factory(robots=3).robots])
    assert dict(book.tasks) == {"late": "carry", "carry_3": "carry"}


def test_a_robot_that_another_descriptor_declares_was_released_by_nobody() -> None:
    book, declared = roster(carry_1="carry", late="carry"), factory(robots=2)
    book.limit_to(declared, declared.robots)
    assert dict(book.tasks) == {"late": "carry"} and not book.released


# --- schedules that follow the roster ---


def test_the_fleet_follows_the_roster_and_leaves_the_declared_alone() -> None:
    declared = factory()
    before = fleet(declared)
    names = {robot.name for robot in declared.robots}
    with_late, refused = settled(before, {"late": "carry"}, names)
    assert not refused and {route.task for route in with_late.schedule.routes_of("late").values()} == {"carry"}
    assert settled(with_late, {"late": "carry"}, names) == (with_late, {})
    without, _ = settled(with_late, {}, names)
    assert without.schedule.routes == before.schedule.routes
    same, refused = settled(before, {"welder": "weld"}, names)
    assert same is before and "plan the whole factory anew" in refused["welder"]
    assert [robot.name for robot in newcomers(before, {"welder": "weld", "carry_1": "carry"})] == ["welder"]


# --- restarts ---


class Robot:
    def __init__(self, name: str) -> None:
        self.name = name
        self.boot()

    def boot(self) -> None:
        self.following, self.admission = ScheduleFollower(), NOT_ADMITTED

    def hear(self, schedule: Schedule, now_s: float) -> None:
        if self.following.on_schedule(schedule, now_s).is_accepted:
            self.admission = self.admission.updated_by(schedule, self.name)

    @property
    def word(self) -> RobotClaim:
        return RobotClaim(robot=self.name, follows=self.following.scheduler, admission=self.admission)


class Scheduler:
    def __init__(self, identity: int) -> None:
        self.roster, self.identity, self._epoch = RobotRegistry(identity), identity, 0
        self._served: Mapping[str, str] | None = None
        self._released: tuple[str, ...] = ()

    def schedule(self) -> Schedule:
        """Everybody fits."""
        if self._served != self.roster.tasks or not set(self.roster.released) <= set(self._released):
            self._epoch, self._served, self._released = self._epoch + 1, self.roster.tasks, self.roster.released
        routes = tuple(
            Route(robot=robot, component="system1", server="s", max_rate_hz=1.0, slo_s=0.0, task=task)
            for robot, task in self._served.items()
        )
        return Schedule(
            epoch=self._epoch,
            scheduler=self.identity,
            placements=(),
            routes=routes,
            predicted_actions_hz=1.0,
            policy="test",
            released=self._released,
        )

    def is_followed(self, robots: list[Robot]) -> bool:
        """And every robot knows whether it is admitted."""
        return all(
            robot.following.scheduler == self.identity and robot.admission.task == self.roster.tasks.get(robot.name, "")
            for robot in robots
        )


@given(seed=st.integers(0, 100_000))
@settings(max_examples=60, deadline=None)
def test_whatever_is_killed_and_started_again_serves_who_was_admitted_and_nobody_else(seed: int) -> None:
    """Messages get lost, robots and schedulers are killed and started again; orders go to the scheduler that is there."""
    rng, now_s, period_s = random.Random(seed), rng_origin(seed), 0.5
    robots, scheduler, wanted = [Robot(f"r{n}") for n in range(4)], Scheduler(1), dict[str, str]()
    for step in range(600):
        now_s += period_s
        if step % int(REPEAT_PERIOD_S / period_s) == 0:
            for robot in robots:
                if rng.random() < 0.9:
                    robot.hear(scheduler.schedule(), now_s)
        for robot in robots:
            if rng.random() < 0.9:
                scheduler.roster.hear(robot.word)
        assert scheduler.roster.elapse(period_s) == []
        if step > 540 or rng.random() > 0.1:
            continue  # all is quiet at the end
        robot = rng.choice(robots)
        event = rng.choice(["admit", "release", "robot dies", "scheduler dies"])
        if event == "admit":
            wanted[robot.name] = rng.choice(["carry", "weld"])
            scheduler.roster.admit(robot.name, wanted[robot.name])
        elif event == "release" and robot.name in scheduler.roster.tasks:
            scheduler.roster.release(robot.name)
            del wanted[robot.name]
        scheduler.schedule()  # every change is one
        if event == "robot dies" and scheduler.is_followed(robots):
            robot.boot()
        elif event == "scheduler dies" and scheduler.is_followed(robots):
            scheduler = Scheduler(scheduler.identity + 1)
            now_s += rng.choice([0.0, 3.0, 20.0, 600.0])
    assert dict(scheduler.roster.tasks) == wanted and all(robot.admission.task == wanted.get(robot.name, "") for robot in robots)


def rng_origin(seed: int) -> float:
    """Of the clock: any."""
    return float(seed % 3) * 1e6 - 1e6


@pytest.mark.parametrize("first", ["its schedule", "their word"])
def test_a_successor_that_is_followed_before_it_knows_anybody_still_learns_who_was_admitted(first: str) -> None:
    """A robot keeps its word until who admitted it, or a successor that knows it, says otherwise."""
    robot, former, successor = Robot("late"), Scheduler(FORMER), Scheduler(ME)
    former.roster.admit("late", "carry")
    robot.hear(former.schedule(), 0.0)
    for now_s in (10.0, 12.0, 14.0):  # the former one is dead
        if first == "its schedule":
            robot.hear(successor.schedule(), now_s)
    successor.roster.hear(robot.word)
    for now_s in (16.0, 18.0, 20.0):
        robot.hear(successor.schedule(), now_s)
    assert robot.admission == AdmissionRecord(scheduler=ME, task="carry")
    successor.roster.release("late")
    robot.hear(successor.schedule(), 22.0)
    successor.roster.hear(robot.word)
    assert robot.admission == NOT_ADMITTED and not successor.roster.tasks

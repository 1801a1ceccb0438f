"""From one schedule to the next: robots of a former scheduler that need another plan, and those for whom there is none."""

from __future__ import annotations

import logging
import pickle
from copy import copy
from dataclasses import replace
from pathlib import Path

import pytest

from ros2_rfm_serving.audit.schedulers.replay import SchedulerReplay
from ros2_rfm_serving.errors import ConfigurationError, PlannerError, RfmError, ScheduleError
from ros2_rfm_serving.factory import Catalogue, load_factory
from ros2_rfm_serving.profiles import load_profiles
from ros2_rfm_serving.scheduler import (
    AdmissionOffers,
    PlanJob,
    PlanResult,
    RobotClaim,
    RobotRegistry,
    ScheduleManager,
    SchedulerCommand,
    answered,
    resumed,
)
from ros2_rfm_serving.scheduler.estimates import FactoryEstimates
from ros2_rfm_serving.scheduler.estimation import EstimateChange
from ros2_rfm_serving.scheduler.plan_job import ExpectedActions
from ros2_rfm_serving.scheduler.plan_service import plan, refit_by
from ros2_rfm_serving.scheduler.policies.comparison import CLEARLY
from ros2_rfm_serving.scheduler.schedule_state import PATIENT, STAYS
from ros2_rfm_serving.simulation.profiled_factories import hurried_factory
from ros2_rfm_serving.types import NOT_ADMITTED, AdmissionRecord, Schedule
from test.unit.scheduler.kept_plans import KeptPlans

ME, FORMER = 7, 5
FACTORY = """
server_cluster: {num_servers: 2, gpu_type: EMULATED}
robot_fleet: [{task: arm, num_robots: 2}]
arm:
  pipeline: {action_period_ms: 400}
  components:
    system1: {model: emulated/arm-policy, slo_ms: 30}
wrist:
  pipeline: {action_period_ms: 500}
  components:
    system1: {model: emulated/arm-policy, slo_ms: 30}
sprint:
  pipeline: {action_period_ms: 10}
  min_action_rate_hz: 90
  components:
    system1: {model: emulated/arm-policy, slo_ms: 30}
"""


class Running:
    """A fleet, what it has published, and whoever plans for it, when told to."""

    def __init__(self, folder: Path, profiles: Path) -> None:
        self.file = folder / "factory.yaml"
        self.file.write_text(FACTORY)
        self.schedules: list[Schedule] = []
        self.roster, self.kept = RobotRegistry(ME), KeptPlans(profiles)
        self.profile, self.catalogue = load_profiles(profiles), Catalogue.load(profiles / "models.yaml")
        self.orders: list[PlanJob] = []
        """Planned so far."""
        factory = load_factory(self.file)
        first = self.plan(PlanJob(factory=factory, robots=tuple(factory.robots), policy="best"))
        assert isinstance(first, PlanResult)
        log = logging.getLogger("test")
        self.fleet = ScheduleManager(
            first, self.roster, lambda schedule, name: self.schedules.append(schedule), log, self.kept.book
        )

    def plan(self, order: PlanJob) -> PlanResult | AdmissionOffers | RfmError:
        self.orders.append(order)
        try:
            return answered(order, self.profile, self.catalogue)
        except RfmError as error:
            return error

    def plan_what_is_wanted(self) -> None:
        while (order := self.fleet.wanted) is not None:
            self.fleet.planned(order, self.plan(order))

    def replan(self, file: Path | None = None) -> SchedulerCommand:
        return self.fleet.replan(load_factory(file or Path(self.fleet.factory.file)), declared_anew=file is not None)

    def tasks(self) -> dict[str, str]:
        """Of the newest schedule."""
        return {route.robot: route.task for route in self.schedules[-1].routes}

    def says(self, robot: str, task: str) -> None:
        """A robot that another scheduler admitted."""
        self.roster.hear(RobotClaim(robot=robot, follows=FORMER, admission=AdmissionRecord(scheduler=FORMER, task=task)))


@pytest.fixture
def running(tmp_path: Path, repository: Path) -> Running:
    return Running(tmp_path, repository / "config" / "profiles")


def refused(order: SchedulerCommand) -> str:
    assert isinstance(order.answer, RfmError)
    return str(order.answer)


def test_robots_that_do_not_fit_the_placement_are_planned_for_in_the_background(running: Running) -> None:
    running.says("guest", "wrist")
    running.says("other", "arm")
    running.fleet.settle()
    assert running.tasks() == {"arm_1": "arm", "arm_2": "arm", "other": "arm"} and list(running.fleet.no_room) == ["guest"]
    running.plan_what_is_wanted()
    running.fleet.settle()
    assert not running.fleet.no_room
    assert running.tasks() == {"arm_1": "arm", "arm_2": "arm", "other": "arm", "guest": "wrist"}


def test_a_robot_that_no_plan_can_serve_waits_and_is_tried_once_per_schedule(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    running.says("guest", "sprint")
    running.fleet.settle()
    running.plan_what_is_wanted()
    assert "could not be planned anew" in caplog.text
    for _ in range(10):
        running.fleet.settle()
    assert running.fleet.wanted is None and "sprint" in running.fleet.no_room["guest"] and len(running.schedules) == 1
    running.fleet.admit("late", "arm")
    running.fleet.settle()
    assert running.fleet.wanted is not None and running.fleet.wanted.needed, "there may be room in another schedule"
    running.fleet.release("guest")
    assert running.roster.released == ("guest",) and running.fleet.epoch == running.schedules[-1].epoch == 3


def test_who_was_admitted_stays_when_another_descriptor_comes(running: Running, tmp_path: Path) -> None:
    running.fleet.admit("late", "arm")
    running.fleet.admit("arm_3", "arm")
    larger = tmp_path / "larger.yaml"
    larger.write_text(FACTORY.replace("num_robots: 2", "num_robots: 3"))
    running.replan(larger)
    running.plan_what_is_wanted()
    assert set(running.tasks()) == {"arm_1", "arm_2", "arm_3", "late"} and list(running.roster.tasks) == ["late"]
    larger.write_text(FACTORY.replace("num_robots: 2", "num_robots: 1"))
    running.replan()
    running.plan_what_is_wanted()
    assert set(running.tasks()) == {"arm_1", "arm_2", "arm_3", "late"}, "without another descriptor those of now stay"
    assert set(running.roster.tasks) == {"late", "arm_2", "arm_3"}, "with a lease, where they are no longer declared"


def test_the_descriptor_in_use_is_the_one_that_came_last(running: Running, tmp_path: Path) -> None:
    """Read again, it declares whom it declared: none of them gets a lease, which would end when it is switched off."""
    larger = tmp_path / "larger.yaml"
    larger.write_text(FACTORY.replace("num_robots: 2", "num_robots: 3"))
    running.replan(larger)
    running.plan_what_is_wanted()
    running.replan()
    running.plan_what_is_wanted()
    assert set(running.fleet.declared) == {"arm_1", "arm_2", "arm_3"} and not running.roster.tasks
    larger.write_text("broken: [")
    with pytest.raises(ConfigurationError):
        running.replan(running.file.with_name("missing.yaml"))
    with pytest.raises(ConfigurationError, match="larger"):
        running.replan()


def test_a_robot_that_comes_back_for_a_task_that_has_gone_is_nobody(running: Running, tmp_path: Path) -> None:
    running.fleet.admit("late", "wrist")
    running.plan_what_is_wanted()
    while not running.roster.elapse(2.0):
        pass
    running.fleet.settle()
    (tmp_path / "other.yaml").write_text(FACTORY.replace("wrist:", "lift:"))
    running.replan(tmp_path / "other.yaml")
    running.plan_what_is_wanted()
    running.roster.hear(RobotClaim(robot="late", follows=ME, admission=NOT_ADMITTED))
    running.fleet.settle()
    assert not running.roster.tasks and not running.fleet.no_room and running.fleet.wanted is None


def test_what_is_refused_changes_nothing(running: Running) -> None:
    for name, task in (("late", "leg"), ("arm_1", "wrist")):
        with pytest.raises(ConfigurationError, match=r"no task 'leg'; there are: arm|'arm_1' is declared for 'arm'"):
            running.fleet.admit(name, task)
    with pytest.raises(ConfigurationError, match="'late' is not in the factory"):
        running.fleet.release("late")
    for ask in (lambda: running.fleet.release("late" * 100_000), lambda: running.fleet.admit("late", "leg" * 100_000)):
        with pytest.raises(ConfigurationError) as refusal:
            ask()
        assert len(str(refusal.value)) < 300, "a name of half a megabyte is neither logged nor sent back"
    assert len(running.schedules) == 1 and not running.roster.tasks


@pytest.mark.parametrize("task", ["arm", "wrist"])
def test_whom_a_schedule_serves_again_it_does_not_call_released(running: Running, task: str) -> None:
    """At once, and with a plan: bodies publish who was released with every schedule, and repeat it until the next one."""
    running.fleet.admit("late", "arm")
    running.fleet.release("late")
    assert running.roster.released == ("late",)
    told: list[tuple[str, ...]] = []
    running.fleet._publish_it = lambda schedule, factory: told.append(running.roster.released)
    order = running.fleet.admit("late", task)
    running.plan_what_is_wanted()
    assert isinstance(order.answer, int) and told and not any(told)


# --- orders that wait for a plan of the whole factory ---


def test_others_come_and_go_while_the_factory_is_planned_for_one_who_does_not_fit(running: Running) -> None:
    """The plan of a fleet that has changed since is refused, and made again."""
    waits = running.fleet.admit("late", "wrist")
    first = running.fleet.wanted
    assert waits.answer is None and first is not None and first.needed
    assert running.fleet.admit("other", "arm").answer == 2 and running.fleet.release("arm_2").answer == 3
    assert running.tasks() == {"arm_1": "arm", "other": "arm"} and running.fleet.wanted is first
    running.fleet.planned(first, running.plan(first))
    assert waits.answer is None and running.fleet.epoch == 3 and running.fleet.wanted is not first
    running.plan_what_is_wanted()
    assert waits.answer == 4 and running.tasks() == {"arm_1": "arm", "other": "arm", "late": "wrist"}
    assert [schedule.epoch for schedule in running.schedules] == [1, 2, 3, 4] and running.roster.tasks["late"] == "wrist"


def test_whoever_waits_is_answered_however_often_the_fleet_changes(running: Running) -> None:
    """After two plans in vain the others wait, in their turn."""
    waits = running.fleet.admit("late", "wrist")
    later: list[SchedulerCommand] = []
    for number in range(3):
        order = running.fleet.wanted
        assert order is not None
        made = running.plan(order)
        later.append(running.fleet.admit(f"other_{number}", "arm") if number % 2 == 0 else running.fleet.release("other_0"))
        running.fleet.planned(order, made)
    assert waits.answer == 4 and [order.answer for order in later] == [2, 3, 5]
    assert set(running.tasks()) == {"arm_1", "arm_2", "late", "other_2"}


def test_a_lease_that_ends_while_others_wait_is_over(running: Running) -> None:
    """The plan that they wait for was made with the robot in it."""
    assert running.fleet.admit("silent", "arm").answer == 2
    waits = running.replan()
    for _ in range(2):
        order = running.fleet.wanted
        assert order is not None
        running.fleet.release("arm_2") if "arm_2" in running.tasks() else running.fleet.admit("arm_2", "arm")
        running.fleet.planned(order, running.plan(order))
    while not running.roster.elapse(0.5):
        running.fleet.settle()
    running.fleet.settle()
    running.plan_what_is_wanted()
    running.fleet.settle()
    assert isinstance(waits.answer, int) and running.tasks() == {"arm_1": "arm", "arm_2": "arm"} and not running.roster.tasks


def test_a_robot_that_is_released_while_it_waits_is_not_admitted(running: Running) -> None:
    waits, again = running.fleet.admit("late", "wrist"), running.fleet.admit("late", "wrist")
    order = running.fleet.wanted
    assert again is waits and order is not None
    assert running.fleet.release("late").answer == 2 and "was released while it waited" in refused(waits)
    running.fleet.planned(order, running.plan(order))
    assert "late" not in running.tasks() and running.roster.released == ("late",) and running.fleet.epoch == 2


def test_a_robot_that_asks_for_another_task_while_it_waits_gets_that_one(running: Running) -> None:
    waits = running.fleet.admit("late", "wrist")
    assert running.fleet.admit("late", "arm").answer == 2 and "asks for 'arm' now" in refused(waits)
    running.plan_what_is_wanted()
    assert running.tasks()["late"] == "arm"


def test_what_no_plan_can_serve_is_planned_once_and_then_known(running: Running) -> None:
    first = running.fleet.admit("fast", "sprint")
    running.plan_what_is_wanted()
    planned = len(running.orders)
    second = running.fleet.admit("faster", "sprint")
    assert refused(second) == refused(first) and "sprint" in refused(first) and len(running.orders) == planned
    assert running.fleet.admit("late", "arm").answer == 2 and running.fleet.admit("fast", "sprint").answer is None, "another fleet"


def test_a_planner_that_fails_is_an_answer_and_says_nothing_of_the_factory(running: Running) -> None:
    first = running.fleet.admit("late", "wrist")
    order = running.fleet.wanted
    assert order is not None
    running.fleet.planned(order, PlannerError("the planner's process ended"))
    assert refused(first) == "the planner's process ended" and running.tasks() == {"arm_1": "arm", "arm_2": "arm"}
    second = running.fleet.admit("late", "wrist")
    running.plan_what_is_wanted()
    assert second.answer == 2


def test_robots_that_wait_while_the_planner_fails_are_planned_for_when_it_does_not_any_more(running: Running) -> None:
    """As one whose process is killed for want of memory: it is let alone for a while, and not for ever."""
    running.says("guest", "wrist")
    failed = 0
    for look in range(1000):
        running.fleet.settle()
        while (order := running.fleet.wanted) and look < 300:
            running.fleet.planned(order, PlannerError("the planner's process ended"))
            failed += 1
    assert 3 <= failed <= 9
    running.plan_what_is_wanted()
    assert running.tasks()["guest"] == "wrist"


def test_who_waits_when_the_scheduler_ends_is_told(running: Running) -> None:
    told: list[str] = []
    orders = [running.fleet.admit("late", "wrist"), running.replan()]
    for order in orders:
        order.watchers.append(lambda order=order: told.append(refused(order)))  # type: ignore[misc]
    running.fleet.end()
    assert told == ["the scheduler ends: ask the next one"] * 2 and running.fleet.wanted is None


def test_a_descriptor_without_the_task_that_somebody_waits_for(running: Running, tmp_path: Path) -> None:
    replan = running.replan(running.file)
    waits = running.fleet.admit("late", "wrist")
    assert replan.answer is None and waits.answer is None
    other = tmp_path / "other.yaml"
    other.write_text(FACTORY.replace("wrist:", "lift:"))
    running.fleet.end()
    orders = [running.replan(other), running.fleet.admit("late", "wrist")]
    running.plan_what_is_wanted()
    assert orders[0].answer == 2 and "no task 'wrist'; there are: arm, lift, sprint" in refused(orders[1])


def test_whoever_asks_the_same_again_while_it_waits_waits_once(running: Running) -> None:
    """A button that is pressed twice: each release was another schedule, each replan another plan."""
    running.fleet.admit("other", "arm")
    first = running.fleet.admit("late", "wrist")
    first.in_vain = PATIENT  # from now on everybody waits
    released = [running.fleet.release("other") for _ in range(5)]
    replans = [running.replan() for _ in range(5)]
    assert len(set(map(id, released))) == len(set(map(id, replans))) == 1 and len(running.fleet._waiting) == 3
    back = running.fleet.admit("other", "arm")
    assert running.fleet.release("other") is released[0] and "was released while it waited" in refused(back)
    running.plan_what_is_wanted()
    assert isinstance(first.answer, int) and released[0].answer == first.answer + 1 and "other" not in running.tasks()
    assert running.replan() is not replans[0]


def test_a_crowd_that_waits_is_bounded_and_those_who_leave_are_heard(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ros2_rfm_serving.scheduler.schedule_manager.MOST_WAITING", 3)
    orders = [running.fleet.admit(f"late_{i}", "wrist") for i in range(5)]
    assert [order.answer is None for order in orders] == [True] * 3 + [False] * 2
    assert refused(orders[-1]) == "3 others wait for a plan: ask again later"
    assert isinstance(running.fleet.admit("other", "arm").answer, int) and isinstance(running.fleet.release("arm_2").answer, int)
    running.plan_what_is_wanted()
    assert all(isinstance(order.answer, int) for order in orders[:3])


def test_a_better_plan_waits_for_those_who_wait_for_one(running: Running) -> None:
    running.fleet.admit("other", "arm")
    better = running.fleet.wanted
    assert better is not None and not better.needed
    waits = running.fleet.admit("late", "wrist")
    asked = running.fleet.wanted
    assert asked is not None and asked.needed
    running.fleet.planned(better, running.plan(better))
    assert running.fleet.wanted is asked and running.fleet.epoch == 2
    running.plan_what_is_wanted()
    assert isinstance(waits.answer, int) and not isinstance(waits.answer, ScheduleError)


def cut_short(made: PlanResult | AdmissionOffers | RfmError, *, actions_hz: float | None = None) -> PlanResult:
    """A plan as it would be, had more work been of use; and worth so many actions/s."""
    assert isinstance(made, PlanResult)
    fleet = made.fleet
    if actions_hz is not None:
        more = actions_hz / fleet.actions_hz()
        routes = tuple(replace(route, predicted_rate_hz=more * route.predicted_rate_hz) for route in fleet.schedule.routes)
        fleet = copy(fleet)
        fleet.schedule = replace(fleet.schedule, routes=routes)
    return made._replace(fleet=fleet, complete=False)


def test_a_plan_that_was_cut_short_is_improved_while_nobody_wants_anything(running: Running) -> None:
    running.plan_what_is_wanted()
    replan = running.replan()
    asked = running.fleet.wanted
    assert asked is not None and asked.effort == 1
    running.fleet.planned(asked, cut_short(running.plan(asked)))
    assert replan.answer == 2
    efforts = []
    while (order := running.fleet.wanted) is not None:
        assert not order.needed and order.previous is running.schedules[-1], "whoever asks takes its place"
        efforts.append(order.effort)
        before = running.fleet.fleet.actions_hz()
        made = cut_short(running.plan(order), actions_hz=1.1 * before)
        running.fleet.planned(order, made)
        assert running.fleet.fleet is made.fleet, "it is worth it"
    assert efforts == [2, 4, 8, 16]


def test_looking_for_a_better_plan_ends_where_more_work_found_none(running: Running) -> None:
    running.plan_what_is_wanted()
    running.replan()
    for effort in (1, 2):
        order = running.fleet.wanted
        assert order is not None and order.effort == effort
        running.fleet.planned(order, cut_short(running.plan(order)))
    assert running.fleet.wanted is None and running.fleet.epoch == 2


def test_looking_for_a_better_plan_gives_way(running: Running) -> None:
    running.plan_what_is_wanted()
    running.replan()
    order = running.fleet.wanted
    assert order is not None
    running.fleet.planned(order, cut_short(running.plan(order)))
    better = running.fleet.wanted
    assert better is not None and better.effort == 2
    waits = running.fleet.admit("late", "wrist")
    assert running.fleet.wanted is not better
    running.fleet.planned(better, cut_short(running.plan(better)))
    assert running.fleet.epoch == 2 and waits.answer is None, "nobody wants it any more"
    running.plan_what_is_wanted()
    assert isinstance(waits.answer, int)
    running.fleet.planned(better, cut_short(running.plan(better)))
    assert running.fleet.epoch == waits.answer


def test_more_work_is_what_a_better_plan_is_made_with(running: Running) -> None:
    factory = running.fleet.factory
    once = PlanJob(factory=factory, robots=tuple(factory.robots), policy="best")
    made, better = running.plan(once), running.plan(replace(once, effort=4))
    assert isinstance(made, PlanResult) and isinstance(better, PlanResult)
    assert (made.effort, better.effort) == (1, 4) and better.work >= made.work
    assert better.fleet.actions_hz() >= made.fleet.actions_hz()


def test_what_a_predecessor_left_is_replayed(running: Running, repository: Path) -> None:
    """It is part of what the first schedule was made from."""
    profiles, factory = repository / "config" / "profiles", running.fleet.factory
    found = replace(running.fleet.fleet.schedule, epoch=41)
    order = PlanJob(factory=factory, robots=tuple(factory.robots), policy="best")
    made, _ = resumed(order, found, running.profile, running.catalogue)
    kept = KeptPlans(profiles)
    kept.listen()
    ScheduleManager(made, RobotRegistry(ME), lambda schedule, name: None, logging.getLogger("test"), kept.book)
    replay = SchedulerReplay(profiles)
    (record,) = [record for record in kept.records() if record["kind"] == "plan"]
    assert replay.feed(record)["schedule"] == record["schedule"] and record["schedule"]["epoch"] == 42


def test_nobody_is_admitted_to_servers_that_are_all_lost(running: Running) -> None:
    """They had room when they were last planned with: 'yes' was the answer, and nobody there to serve."""
    refit, both = refit_by(running.profile, running.catalogue), ("server_1", "server_2")
    running.fleet.see(EstimateChange(FactoryEstimates(lost=both), both, (), "all are lost"), refit)
    epoch = running.fleet.epoch
    order = running.fleet.admit("late", "arm")
    running.says("guest", "arm")
    running.fleet.settle()
    running.plan_what_is_wanted()
    assert "no server lives" in refused(order) and running.fleet.epoch == epoch
    running.fleet.see(EstimateChange(FactoryEstimates(), (), both, "all are back"), refit)
    for _ in range(5):
        running.plan_what_is_wanted()
        running.fleet.settle()
    assert running.tasks() == {"arm_1": "arm", "arm_2": "arm", "guest": "arm"}
    assert isinstance(running.fleet.admit("late", "arm").answer, int)


# --- room that is looked for elsewhere ---


def crowded(running: Running) -> tuple[SchedulerCommand, PlanJob]:
    """Arms come until one does not fit at a glance."""
    for number in range(100):
        order = running.fleet.admit(f"late_{number}", "arm")
        if order.answer is None:
            asked = running.fleet.wanted
            assert asked is not None and asked.needed and asked.first
            return order, asked
    raise AssertionError("there is room for a hundred")


def test_room_that_others_make_is_looked_for_elsewhere_and_taken_here(running: Running) -> None:
    order, asked = crowded(running)
    before = running.fleet.fleet.schedule
    made = running.plan(pickle.loads(pickle.dumps(asked)))  # in the planner's process
    assert isinstance(made, AdmissionOffers) and running.fleet.epoch == before.epoch, "nothing has changed yet"
    running.fleet.planned(asked, made)
    after = running.fleet.fleet.schedule
    (newcomer,) = {route.robot for route in after.routes} - {route.robot for route in before.routes}
    assert order.answer == after.epoch == before.epoch + 1 and running.roster.tasks[newcomer] == "arm"
    servers = {(r.robot, r.component): r.server for r in before.routes}
    assert servers.items() <= {(r.robot, r.component): r.server for r in after.routes}.items(), "nobody moves"
    assert max(r.max_rate_hz for r in after.routes) < max(r.max_rate_hz for r in before.routes), "others go slower"


def test_room_in_a_fleet_that_is_no_more_is_not_taken(running: Running) -> None:
    order, asked = crowded(running)
    made = running.plan(asked)
    assert running.fleet.release("arm_2").answer == running.fleet.epoch, "others come and go meanwhile"
    epoch = running.fleet.epoch
    running.fleet.planned(asked, made)
    assert running.fleet.epoch == epoch or isinstance(order.answer, int)
    running.plan_what_is_wanted()
    assert isinstance(order.answer, int) and "arm_2" not in running.tasks()


def test_who_finds_no_room_anywhere_is_told_what_there_is(running: Running) -> None:
    order = running.fleet.admit("fast", "sprint")
    running.plan_what_is_wanted()
    assert "on the servers as they are" in refused(order) and "actions/s" in refused(order)


def test_who_is_refused_after_plans_in_vain_is_told_what_there_is_too(running: Running) -> None:
    refusal = running.fleet.admit("fast", "sprint")
    for number in range(2):
        order = running.fleet.wanted
        assert order is not None
        made = running.plan(order)
        running.fleet.admit(f"other_{number}", "arm")
        running.fleet.planned(order, made)
    running.plan_what_is_wanted()
    assert "; 'fast' does not fit the placement: no server hosts what robots of 'sprint' need" in refused(refusal)


def slower(made: PlanResult | AdmissionOffers | RfmError, share: float = 0.5) -> PlanResult:
    """With that share of what it would do."""
    assert isinstance(made, PlanResult)
    fleet = copy(made.fleet)
    routes = tuple(replace(r, predicted_rate_hz=share * r.predicted_rate_hz) for r in fleet.schedule.routes)
    fleet.schedule = replace(fleet.schedule, routes=routes)
    return made._replace(fleet=fleet)


@pytest.mark.parametrize("ordered", [True, False])
def test_a_schedule_that_holds_does_not_give_way_to_a_worse_one(
    running: Running, ordered: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither where somebody has ordered a plan nor where one seemed to be needed."""
    running.fleet.judge()
    before = len(running.schedules)
    order = running.replan() if ordered else None
    if not ordered:
        running.fleet._background = running.fleet._order(running.fleet.factory, running.fleet._fleet.robots)
    wanted = running.fleet.wanted
    assert wanted and wanted.needed
    with caplog.at_level(logging.INFO):
        running.fleet.planned(wanted, slower(running.plan(wanted)))
    assert len(running.schedules) == before and (order is None or (order.answer, order.note) == (running.fleet.epoch, STAYS))
    assert (STAYS if ordered else "not worth it") in caplog.text


@pytest.mark.parametrize(("planned_hz", "stays"), [(9.8, True), (9.95, False)])
def test_where_robots_own_queues_say_what_is_done_they_decide_what_stays(running: Running, planned_hz: float, stays: bool) -> None:
    """And not the rates of schedules, which are by the curves: here a plan seems to get half as much done."""
    running.fleet.judge()
    order = running.replan()
    asked = running.fleet.wanted
    assert asked
    running.fleet.planned(asked, slower(running.plan(asked))._replace(doing=ExpectedActions(10.0, planned_hz)))
    assert (order.note == STAYS) == stays


def test_what_asynchronous_robots_do_in_their_own_queues_comes_with_a_plan(repository: Path) -> None:
    """The same schedule does the same again; of others nothing is said that the curves do not say."""
    folder = repository / "config" / "profiles"
    shipped = load_profiles(folder), Catalogue.load(folder / "models.yaml")
    factory = hurried_factory(7)
    order = PlanJob(factory=factory, robots=tuple(factory.robots), policy="best")
    first = plan(order, *shipped, work=0.0, explained=False)
    assert first.doing is None
    again = plan(replace(order, previous=first.fleet.schedule), *shipped, work=0.0)
    assert again.doing and again.doing.planned_hz == pytest.approx(again.doing.before_hz, rel=CLEARLY)
    fewer = plan(replace(order, robots=order.robots[1:], previous=first.fleet.schedule), *shipped, work=0.0)
    assert fewer.doing is None, "the schedule before is not of these robots"
    lost = FactoryEstimates(lost=(first.fleet.schedule.routes[0].server,))
    without = plan(replace(order, previous=first.fleet.schedule, seen=lost), *shipped, work=0.0)
    assert without.doing is None, "nor of servers that there are"


def test_a_schedule_that_does_not_hold_gives_way_to_a_worse_one(running: Running) -> None:
    running.fleet.judge()
    running.fleet.broken = ("server_1: an SLO",)
    order, before = running.replan(), len(running.schedules)
    assert running.fleet.wanted
    running.fleet.planned(running.fleet.wanted, slower(running.plan(running.fleet.wanted)))
    assert len(running.schedules) == before + 1 and order.answer == running.fleet.epoch


def test_a_schedule_that_was_taken_by_figures_of_before_gives_way_to_a_plan_by_those_of_now(running: Running) -> None:
    """By its own it may hold and get more done: they are not so any more."""
    refit = refit_by(running.profile, running.catalogue)
    order = running.replan()
    for pace in [1.02 + 0.02 * i for i in range(PATIENT)] + [1.5]:  # it changes while it is planned, until nobody waits for that
        asked = running.fleet.wanted
        assert asked
        made, seen = running.plan(asked), FactoryEstimates(models={("emulated/arm-policy", "EMULATED"): pace})
        running.fleet.see(EstimateChange(seen, (), (), "slower"), refit)
        running.fleet.planned(asked, made)
    assert order.answer == running.fleet.epoch
    running.fleet.judge()
    assert not running.fleet.broken and not running.fleet.is_unsure and running.fleet.fleet.problem.seen != seen
    running.plan_what_is_wanted()
    assert running.fleet.fleet.problem.seen == seen and running.fleet.epoch == running.schedules[-1].epoch


def test_an_order_that_found_a_worse_plan_is_looked_further_for_if_it_was_cut_short(running: Running) -> None:
    running.plan_what_is_wanted()
    running.fleet.judge()
    running.replan()
    asked = running.fleet.wanted
    assert asked
    running.fleet.planned(asked, cut_short(slower(running.plan(asked))))
    better = running.fleet.wanted
    assert better and better.effort == 2 and not better.needed

"""Newcomers are judged by the robots' own queue where plans are: curves say too little of some servers, too much of others."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from ros2_rfm_serving.audit.schedulers.book import stepped, steps_of
from ros2_rfm_serving.errors import ScheduleError
from ros2_rfm_serving.factory import Catalogue, Factory, RobotEntry, parse_factory
from ros2_rfm_serving.factory.cluster import Standby
from ros2_rfm_serving.factory.task import ComponentEntry
from ros2_rfm_serving.profiles import COLUMNS, load_profiles, parse_profiles
from ros2_rfm_serving.scheduler import ActiveFleet, admission, fleet_of, plan_factory, start_fleet
from ros2_rfm_serving.scheduler.admission_query import AT_ONCE, AdmissionQuery, at_once, rooms, taken
from ros2_rfm_serving.scheduler.degraded_mode import bare
from ros2_rfm_serving.scheduler.prediction import closed_queue
from ros2_rfm_serving.scheduler.problem import TaskClass
from ros2_rfm_serving.scheduler.promises import broken
from ros2_rfm_serving.scheduler.queues import Queues
from ros2_rfm_serving.simulation.profiled_factories import profiled_factory
from ros2_rfm_serving.types import SYSTEM1
from ros2_rfm_serving.types.desynchronisation import is_paced

PROFILE = parse_profiles(
    f"""{",".join(COLUMNS)}
policy,GPU,fixed,1,1,50,50,51,52,53
policy,GPU,fixed,1,20,52,50,52,53,55
"""
)
"""Of robots that happened not to meet."""
LATE = RobotEntry(name="late", task="carry", index=99)


@pytest.fixture(autouse=True)
def nobody_gives_way_by_executing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TaskClass, "gives_way", lambda task, period_s: is_paced(period_s, task.cycle_s))


def factory(floor_hz: float, servers: int = 1) -> Factory:
    """Asynchronous robots, for whom an SLO of 92 ms leaves hardly any room to meet another: those at 2 actions/s meet for ever, for
    nobody gives way at the pace of its actions here."""
    return parse_factory(f"""
server_cluster: {{num_servers: {servers}, gpu_type: GPU, dispatch: fifo}}
standby: {{peers: false}}
robot_fleet: [{{task: carry, num_robots: {servers}}}]
carry:
  min_action_rate_hz: {floor_hz}
  execution: {{mode: async}}
  pipeline: {{action_period_ms: 500}}
  components: {{system1: {{model: policy, slo_ms: 92}}}}
""")


def fleet(declared: Factory) -> ActiveFleet:
    return start_fleet(declared, declared.robots, PROFILE, None, epoch=1)


def rate_hz(fleet: ActiveFleet) -> float:
    return fleet.schedule.routes_of("late")[SYSTEM1].max_rate_hz


def by_curves(running: ActiveFleet, robot: RobotEntry, monkeypatch: pytest.MonkeyPatch) -> ActiveFleet:
    with monkeypatch.context() as patch:
        patch.setattr(Queues, "judges", lambda queues, server: False)
        return running.admit(robot, adjusting=False)


def test_whom_the_curve_admits_wrongly_is_refused_with_the_rate_that_it_could_have(monkeypatch: pytest.MonkeyPatch) -> None:
    running = fleet(factory(1.95))
    assert rate_hz(by_curves(running, LATE, monkeypatch)) > 1.95, "by the curve there is room"
    with pytest.raises(ScheduleError, match=r"could have 0.97 actions/s on server_1, .*own queue .* 1.95 are owed"):
        running.admit(LATE)


def test_a_newcomer_goes_as_fast_as_the_queue_keeps_every_slo(monkeypatch: pytest.MonkeyPatch) -> None:
    running = fleet(factory(0.5))
    fast, admitted = by_curves(running, LATE, monkeypatch), running.admit(LATE)
    assert 0.9 < rate_hz(admitted) < rate_hz(fast)
    assert admitted.queues().kept({"server_1"}) and not fast.queues().kept({"server_1"})


def test_whom_the_curve_refuses_wrongly_is_admitted(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan loads a server further than its curve says, for its robots' queue keeps every SLO: with one more it still does."""
    folder = repository / "config" / "profiles"
    shipped = load_profiles(folder), Catalogue.load(folder / "models.yaml")
    declared = profiled_factory(2, network=True)
    running = fleet_of(declared, plan_factory(declared, *shipped, work=0.0, explained=False), declared.robots, *shipped, epoch=1)
    late = RobotEntry(name="late", task="task_0", index=99)
    with pytest.raises(ScheduleError, match="no server with"):
        by_curves(running, late, monkeypatch)
    running._no_room.clear()
    admitted = running.admit(late, adjusting=False)
    server = admitted.schedule.routes_of("late")[SYSTEM1].server
    assert admitted.queues().kept({server}) and not broken(admitted)


def test_whom_a_standby_that_is_idle_and_alike_carries_is_not_refused_for_it(repository: Path) -> None:
    """Robots whose queue lets them go further than the curve says keep there what they keep where they are: with one that takes the
    place of another one, too."""
    folder = repository / "config" / "profiles"
    shipped = load_profiles(folder), Catalogue.load(folder / "models.yaml")
    drawn = profiled_factory(4, network=True)
    (cluster,) = drawn.server_cluster
    servers = cluster.model_copy(update={"num_servers": cluster.num_servers + 1})
    declared = drawn.model_copy(update={"server_cluster": (servers,), "standby": Standby(num_servers=1, peers=False)})
    running = fleet_of(declared, plan_factory(declared, *shipped, work=0.0, explained=False), declared.robots, *shipped, epoch=1)
    gone = next(robot for robot in running.robots if robot.task == "task_1")
    assert not broken(running.release(gone.name))
    admitted = running.release(gone.name).admit(gone, adjusting=False)
    (route,) = admitted.schedule.routes_of(gone.name).values()
    host = admitted.hosts[route.server]
    assert route.standby and host.load_hz > host.capacity_hz(host.slos, admitted.curves), "the plan goes further than the curve"
    assert route.server not in bare(admitted) and not broken(admitted)


def test_who_makes_room_does_not_fall_back_to_the_curve_where_their_queue_keeps_more(repository: Path) -> None:
    folder = repository / "config" / "profiles"
    shipped = load_profiles(folder), Catalogue.load(folder / "models.yaml")
    declared = profiled_factory(7, network=True)
    running = fleet_of(declared, plan_factory(declared, *shipped, work=0.0, explained=False), declared.robots, *shipped, epoch=1)
    late = [RobotEntry(name=f"late_{i}", task="task_2", index=90 + i) for i in range(4)]
    while late:
        before = running
        try:
            running = running.admit(late.pop(), adjusting=False)
        except ScheduleError:
            break
    robot = RobotEntry(name="last", task="task_2", index=99)
    admitted = before.admit(robot)
    assert not broken(admitted) and admitted.actions_hz() > 0.9 * before.actions_hz(), "0.83 of it by the curves"


def test_looks_at_queues_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many servers there are: equal ones are one."""
    running, looks = fleet(factory(1.95, servers=12)), list[object]()
    kept = Queues.kept

    def counted(queues: Queues, *asked: Any) -> set[str]:
        looks.append(asked)
        return kept(queues, *asked)

    monkeypatch.setattr(Queues, "kept", counted)
    monkeypatch.setattr(closed_queue, "REMEMBERED", 0)
    with pytest.raises(ScheduleError, match="could have"):
        running.admit(LATE, adjusting=False)
    assert 0 < len(looks) <= admission.LOOKS


def test_what_no_queue_judges_has_no_room_beyond_the_curve(repository: Path) -> None:
    """A monitor asks at its own pace: a server whose robots go further than its curve, by their queue, cannot be run with it."""
    shipped = load_profiles(repository / "config" / "profiles"), Catalogue(models={})  # which would refuse a policy as a judge
    declared = profiled_factory(2, network=True)
    acts = declared.tasks["task_0"]
    system1 = acts.components[SYSTEM1]
    watches = {SYSTEM1: system1, "monitor": ComponentEntry(model=system1.model, slo_ms=system1.slo_ms, freq_hz=4.0)}
    entry = declared.robot_fleet[0].model_copy(update={"task": "watch", "num_robots": 1})
    tasks = {**declared.tasks, "watch": acts.model_copy(update={"components": watches})}
    declared = declared.model_copy(update={"tasks": tasks, "robot_fleet": (*declared.robot_fleet, entry)})
    running = fleet_of(declared, plan_factory(declared, *shipped, work=0.0, explained=False), declared.robots, *shipped, epoch=1)
    assert not broken(running)
    try:
        admitted = running.admit(RobotEntry(name="late", task="watch", index=99), adjusting=False)
    except ScheduleError:
        return
    assert not broken(admitted)


def test_whom_one_look_refuses_is_not_refused_to_whoever_may_look_more_often() -> None:
    """Several at once have a look each; one of them that asks alone afterwards is asked for anew."""
    running = fleet(factory(0.5))
    _, refused = at_once(running, [LATE, RobotEntry(name="later", task="carry", index=100)])
    assert len(refused) == 2
    assert rate_hz(running.admit(LATE)) > 0.9


def test_several_newcomers_are_admitted_alike_when_their_book_is_read(repository: Path) -> None:
    """One of several has fewer looks at queues than one alone: what was found with them is in the book."""
    folder = repository / "config" / "profiles"
    shipped = load_profiles(folder), Catalogue.load(folder / "models.yaml")
    declared = profiled_factory(41, network=True)
    plan = plan_factory(declared, *shipped, work=0.0, explained=False)
    running, again = (fleet_of(declared, plan, declared.robots, *shipped, epoch=1) for _ in range(2))
    tasks = list(declared.tasks)
    late = [RobotEntry(name=f"late_{i}", task=task, index=90 + i) for i, task in enumerate((tasks * 3)[:3])]
    enquiry = AdmissionQuery(running, tuple(late))
    answer = rooms(pickle.loads(pickle.dumps(enquiry)))  # by another process
    admitted = taken(enquiry, answer)
    assert len(answer.found) > 1 and all(robot in late for robot, _ in answer.found)
    played = stepped(again, steps_of(running, admitted), declared, lambda *_: pytest.fail("nothing was seen"))
    assert played.schedule.routes == admitted.schedule.routes


def test_room_that_another_process_found_is_the_room_that_is_here() -> None:
    """A fleet that has remembered much, and was changed, is the same one there: to the last digit."""
    running = fleet(factory(0.5, servers=4))
    running = running.release(running.robots[0].name).admit(LATE)
    assert not broken(running)
    later = RobotEntry(name="later", task="carry", index=100)
    found = pickle.loads(pickle.dumps(running)).room(later)
    assert found == running.room(later)
    here, there = running.admit(later), running.taking(later, found)
    assert here.schedule == there.schedule and here.held == there.held and here.looks == there.looks


def test_at_once_a_few_looks_are_had_however_many_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever decides keeps everybody else waiting."""
    running, looks = fleet(factory(1.95, servers=12)), list[object]()
    kept = Queues.kept

    def counted(queues: Queues, *asked: Any) -> set[str]:
        looks.append(asked)
        return kept(queues, *asked)

    monkeypatch.setattr(Queues, "kept", counted)
    late = [RobotEntry(name=f"late_{i}", task="carry", index=90 + i) for i in range(20)]
    same, refused = at_once(running, late)
    assert same is running and len(refused) == 20 and len(looks) <= AT_ONCE

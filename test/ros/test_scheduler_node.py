"""The scheduler node with a server and a robot that follow it: what it grants, what it refuses, and what it leaves as it was."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import rclpy
from diagnostic_msgs.msg import DiagnosticArray
from rclpy.node import Node
from rfm_serving import msg, srv

from ros2_rfm_serving.ros.followers import SILENT_SERVER_S
from ros2_rfm_serving.ros.following import TWO_SCHEDULERS
from ros2_rfm_serving.ros.model_server_node import ModelServerNode
from ros2_rfm_serving.ros.node.runtime import executor
from ros2_rfm_serving.ros.robot_node import RobotNode
from ros2_rfm_serving.ros.scheduler_node import SchedulerNode
from ros2_rfm_serving.ros.wire import qos
from ros2_rfm_serving.types import ServerState

# Every robot must get 2.2 actions/s, and within 30 ms the model is measured up to some ten requests/s: a handful of robots fits.
FACTORY = """
server_cluster: {num_servers: 2, gpu_type: EMULATED}
standby: {num_servers: 1}
robot_fleet:
  - {task: arm, num_robots: 2}
arm:
  pipeline: {action_period_ms: 400}
  min_action_rate_hz: 2.2
  components:
    system1: {model: emulated/arm-policy, prompt: stay, slo_ms: 30}
"""


class Rig:
    """All nodes on one executor."""

    enter: Callable[[str], object] = staticmethod(lambda name: None)
    """Is called with the name of whoever comes to be next."""

    def __init__(self) -> None:
        self.scheduler, self.server = self._made(SchedulerNode, "scheduler"), self._made(ModelServerNode, "server_1")
        self.robot, self.peer = self._made(RobotNode, "arm_1"), Node("peer")
        self.nodes = [self.scheduler, self.server, self.robot, self.peer]
        self._executor = executor()
        for node in self.nodes:
            self._executor.add_node(node)
        self.schedules: list[Any] = []
        self.server_status: Any = None
        self.robot_status: Any = None
        self.peer.create_subscription(msg.Schedule, "/rfm/schedule", self._on_schedule, qos.SCHEDULE)
        self.peer.create_subscription(msg.ServerStatus, "/rfm/servers/server_1/status", self._on_server, qos.SERVER_STATUS)
        self.peer.create_subscription(msg.RobotStatus, "/arm_1/rfm/status", self._on_robot, qos.ROBOT_STATUS)
        self.rival = self.peer.create_publisher(msg.Schedule, "/rfm/schedule", qos.SCHEDULE)
        self.diagnostics: dict[str, Any] = {}
        """By the status' name: the newest."""
        self.peer.create_subscription(DiagnosticArray, "/diagnostics", self._on_diagnostics, 10)
        self._clients = {
            kind: self.peer.create_client(kind, f"/rfm/{name}")
            for kind, name in (
                (srv.AdmitRobot, "admit_robot"),
                (srv.ReleaseRobot, "release_robot"),
                (srv.Replan, "replan"),
            )
        }

    def close(self) -> None:
        self._executor.shutdown()
        self.server.stop()
        for node in self.nodes:
            node.destroy_node()

    def _made(self, kind: type, name: str) -> Any:
        type(self).enter(name)
        return kind()

    def start_scheduler(self) -> None:
        self.scheduler = self._made(SchedulerNode, "scheduler")
        self.nodes.append(self.scheduler)
        self._executor.add_node(self.scheduler)

    def restart_scheduler(self) -> None:
        self._executor.remove_node(self.scheduler)
        self.nodes.remove(self.scheduler)
        self.turn(0.1)  # what its timers have set off already
        self.scheduler.destroy_node()
        self.start_scheduler()

    def diagnosis(self, name: str) -> Any:
        self.wait(lambda: name in self.diagnostics)
        return self.diagnostics[name]

    def values(self, name: str) -> dict[str, str]:
        return {value.key: value.value for value in self.diagnosis(name).values}

    def _on_diagnostics(self, message: Any) -> None:
        self.diagnostics.update({status.name: status for status in message.status})

    def _on_schedule(self, message: Any) -> None:
        self.schedules.append(message)

    def _on_server(self, message: Any) -> None:
        self.server_status = message

    def _on_robot(self, message: Any) -> None:
        self.robot_status = message

    def wait(self, until: Callable[[], Any], seconds: float = 120.0) -> None:
        end_s = time.monotonic() + seconds
        while not until():
            assert time.monotonic() < end_s, f"waited in vain; epochs {[s.epoch for s in self.schedules]}"
            self._executor.spin_once(timeout_sec=0.02)

    def turn(self, seconds: float) -> None:
        end_s = time.monotonic() + seconds
        self.wait(lambda: time.monotonic() > end_s)

    def begin(self, kind: type, **fields: Any) -> Any:
        """The future answer."""
        client = self._clients[kind]
        self.wait(client.service_is_ready)
        return client.call_async(kind.Request(**fields))  # type: ignore[attr-defined]

    def call(self, kind: type, **fields: Any) -> Any:
        future = self.begin(kind, **fields)
        self.wait(future.done)
        return future.result()

    def schedule(self, epoch: int) -> Any:
        """As it was heard."""
        self.wait(lambda: any(s.epoch == epoch for s in self.schedules))
        return next(s for s in self.schedules if s.epoch == epoch)

    def refused(self, answer: Any, words: str, code: int) -> None:
        """A refusal gives the reason, and the factory in force stays in force. Its schedule may be another meanwhile: a server that
        nobody starts here is given up after some seconds."""
        assert not answer.success and words in answer.error_msg and answer.error_code == code, answer
        in_force = self.schedule(answer.schedule_epoch)
        self.schedules.clear()
        self.wait(lambda: self.schedules)  # it is repeated
        assert self.schedules[-1].descriptor == in_force.descriptor
        assert {route.robot for route in self.schedules[-1].routes} == {route.robot for route in in_force.routes}


@pytest.fixture
def rig(ros_domain: int, tmp_path: Path) -> Iterator[Rig]:
    (tmp_path / "factory.yaml").write_text(FACTORY)
    parameters = [
        f"scheduler:factory_file:={tmp_path / 'factory.yaml'}",
        "scheduler:look_around_s:=0.0",
        "model_server:server:=server_1",
        "robot:robot:=arm_1",
        "robot:task:=arm",
    ]
    rclpy.init(args=["--ros-args", *[part for p in parameters for part in ("-p", p)]])
    made = Rig()
    try:
        made.wait(lambda: made.schedules)
        yield made
    finally:
        made.close()
        rclpy.try_shutdown()


def fields(message: Any) -> dict[str, Any]:
    return {name: getattr(message, name) for name in message.get_fields_and_field_types()}


def routes(schedule: Any) -> list[dict[str, Any]]:
    return [fields(route) for route in schedule.routes]


def test_a_robot_comes_and_goes_and_the_others_keep_their_routes(rig: Rig) -> None:
    first = rig.schedules[0]
    assert [r.robot for r in first.routes] == ["arm_1", "arm_2"]
    assert {p.server: p.standby for p in first.placements} == {"server_1": False, "server_2": True}
    assert {(r.server, r.standby) for r in first.routes} == {("server_1", "server_2")}

    answer = rig.call(srv.AdmitRobot, robot="late", task="arm")
    assert answer.success and answer.schedule_epoch == first.epoch + 1, answer
    second = rig.schedule(first.epoch + 1)
    assert [r for r in routes(second) if r["robot"] != "late"] == routes(first)
    (late,) = [r for r in second.routes if r.robot == "late"]
    assert (late.server, late.standby) == ("server_1", "server_2") and late.max_rate_hz > 2.2

    answer = rig.call(srv.ReleaseRobot, robot="late")
    assert answer.success and routes(rig.schedule(answer.schedule_epoch)) == routes(first)
    rig.refused(rig.call(srv.ReleaseRobot, robot="late"), "'late' is not in the factory", 100)


def test_what_cannot_be_admitted_is_refused_with_the_reason(rig: Rig) -> None:
    rig.refused(rig.call(srv.AdmitRobot, robot="late", task="leg"), "no task 'leg'; there are: arm", 100)
    rig.refused(rig.call(srv.AdmitRobot, robot="a b", task="arm"), "cannot name a robot", 300)
    rig.refused(rig.call(srv.ReleaseRobot, robot=""), "is not in the factory", 100)


def test_a_robot_that_no_schedule_can_serve_is_refused_and_the_others_stay(rig: Rig) -> None:
    rig.scheduler._roster.lease_s = 1e6  # nobody speaks for them, and a busy machine takes long
    for number in range(3, 100):
        in_force = rig.scheduler._fleet.epoch
        answer = rig.call(srv.AdmitRobot, robot=f"arm_{number}", task="arm")
        if not answer.success:
            break
        rig.wait(lambda: rig.scheduler._fleet.wanted is None)  # another plan for this fleet, published if worth it
    assert number > 3, "not even one was admitted"
    assert answer.schedule_epoch == in_force
    rig.refused(answer, "arm", 120)
    assert {r.robot for r in rig.schedules[-1].routes} == {f"arm_{k}" for k in range(1, number)}


def test_a_new_plan_from_a_bad_file_is_refused_and_from_a_good_one_published(rig: Rig, tmp_path: Path) -> None:
    epoch = rig.schedules[-1].epoch
    rig.refused(rig.call(srv.Replan, factory_file=str(tmp_path / "none.yaml")), "none.yaml", 100)
    bad = tmp_path / "bad.yaml"
    bad.write_text(FACTORY.replace("num_robots", "num_robot"))
    rig.refused(rig.call(srv.Replan, factory_file=str(bad)), "did you mean `num_robots`?", 100)
    assert rig.schedules[-1].epoch == epoch

    good = tmp_path / "good.yaml"
    good.write_text(FACTORY.replace("num_robots: 2", "num_robots: 3"))
    answer = rig.call(srv.Replan, factory_file=str(good))
    assert answer.success and answer.schedule_epoch == epoch + 1, answer
    assert [r.robot for r in rig.schedule(epoch + 1).routes] == ["arm_1", "arm_2", "arm_3"]
    assert rig.scheduler._fleet.fleet.held, "it holds, as its planner knows: nobody has to look again"


def follows(status: Any, schedule: Any) -> bool:
    return bool(status) and (status.scheduler, status.schedule_epoch) == (schedule.scheduler, schedule.epoch)


def counted(status: Any, kind: str) -> int:
    return next((counter.count for counter in status.refused if counter.name == kind), 0)


def forged(schedule: Any, **changes: Any) -> Any:
    """A copy with another model everywhere, and what else is changed."""
    made = msg.Schedule(**{**fields(schedule), "policy": "forged", **changes})
    made.placements = [msg.Placement(**{**fields(p), "model": "emulated/instant"}) for p in schedule.placements]
    return made


@pytest.fixture
def running(rig: Rig) -> Rig:
    rig.wait(lambda: follows(rig.server_status, rig.schedules[-1]) and follows(rig.robot_status, rig.schedules[-1]))
    rig.wait(lambda: rig.server_status.state == ServerState.READY and rig.server_status.emulated)
    return rig


def test_server_and_robot_follow_the_newest_schedule_and_refuse_older_and_others(running: Rig) -> None:
    in_force = running.schedules[-1]
    assert in_force.scheduler and in_force.epoch == 1, "counted from 1 by an identity of its own"
    answer = running.call(srv.AdmitRobot, robot="late", task="arm")
    assert answer.success and answer.schedule_epoch == 2
    running.rival.publish(in_force)  # a replay
    running.rival.publish(forged(in_force, scheduler=66, epoch=4294967295))
    running.wait(lambda: counted(running.robot_status, "rival_schedule") and counted(running.server_status, "rival_schedule"))
    running.rival.publish(in_force)
    running.wait(lambda: counted(running.robot_status, "stale_schedule") and counted(running.server_status, "stale_schedule"))
    in_force = running.schedule(2)
    assert follows(running.server_status, in_force) and follows(running.robot_status, in_force)
    assert "arm-policy" in running.server_status.model
    running.wait(lambda: running.diagnosis("scheduler: schedule").message == TWO_SCHEDULERS)
    for name in ("server_1: server", "arm_1: robot"):
        assert running.values(name)["scheduler"] == f"{in_force.scheduler:x}"
        running.wait(lambda name=name: running.values(name)["rival_schedulers"] == "1")


def test_a_schedule_from_the_future_in_its_schedulers_name_wedges_nobody(running: Rig) -> None:
    in_force = running.schedules[-1]
    running.rival.publish(forged(in_force, epoch=4294967295))
    running.wait(lambda: running.server_status.schedule_epoch == running.robot_status.schedule_epoch == 4294967295)
    running.wait(lambda: follows(running.server_status, in_force) and follows(running.robot_status, in_force), seconds=30.0)
    running.wait(lambda: running.server_status.state == ServerState.READY and "arm-policy" in running.server_status.model)
    answer = running.call(srv.Replan)
    assert answer.success, answer.error_msg
    running.wait(lambda: running.server_status.schedule_epoch == running.robot_status.schedule_epoch == answer.schedule_epoch)
    running.wait(lambda: running.values("scheduler: schedule").get("schedules forged") == "1")
    running.wait(lambda: running.values("server_1: server").get("scheduler_takeovers") == "1")


def test_a_replan_is_no_success_while_somebody_speaks_in_the_schedulers_name(running: Rig) -> None:
    """Whatever a server says that it follows then, it is not known to be this scheduler's."""
    own = running.schedules[-1]
    forger = running.peer.create_timer(0.1, lambda: running.rival.publish(forged(own, epoch=own.epoch + 50)))
    running.wait(lambda: "in this scheduler's name" in running.diagnosis("scheduler: schedule").message)
    answer = running.call(srv.Replan)
    assert not answer.success and "in this scheduler's name" in answer.error_msg, answer
    running.peer.destroy_timer(forger)
    running.wait(lambda: running.call(srv.Replan).success, seconds=60.0)


def test_a_restarted_scheduler_takes_over_and_until_then_its_answers_wait(running: Rig) -> None:
    before = running.schedules[-1]
    running.restart_scheduler()
    answer = running.call(srv.Replan)
    assert answer.success, answer.error_msg
    assert running.server_status.scheduler not in (0, before.scheduler)
    running.wait(lambda: running.robot_status.scheduler == running.server_status.scheduler)
    running.wait(lambda: running.values("server_1: server")["scheduler_takeovers"] == "1")


def test_a_replan_that_a_server_does_not_follow_fails_and_names_it(running: Rig) -> None:
    """server_2 does not run in this rig: here it is somebody who follows another scheduler."""
    status = msg.ServerStatus(scheduler=0x42, schedule_epoch=7)
    status.header.frame_id = "server_2"
    strayed = running.peer.create_publisher(msg.ServerStatus, "/rfm/servers/server_2/status", qos.SERVER_STATUS)
    running.peer.create_timer(0.5, lambda: strayed.publish(status))
    running.wait(lambda: "server_2 follows another scheduler, 42" in running.diagnosis("scheduler: schedule").message)
    answer = running.call(srv.Replan)
    assert not answer.success and "server_2 follows another scheduler, 42" in answer.error_msg and answer.error_code == 120, answer


def planner(rig: Rig) -> int:
    """The process that plans, once there is one."""
    rig.wait(lambda: rig.scheduler._planner._worker)
    return int(rig.scheduler._planner._worker.process.pid)


def test_a_replan_that_takes_long_is_no_success_where_a_server_does_not_follow(running: Rig) -> None:
    follows_another = msg.ServerStatus(scheduler=0x42, schedule_epoch=7)
    follows_another.header.frame_id = "server_2"
    strayed = running.peer.create_publisher(msg.ServerStatus, "/rfm/servers/server_2/status", qos.SERVER_STATUS)
    running.peer.create_timer(0.2, lambda: strayed.publish(follows_another))
    running.wait(lambda: "server_2 follows another scheduler, 42" in running.diagnosis("scheduler: schedule").message)
    answer = running.begin(srv.Replan)
    os.kill(planner(running), signal.SIGSTOP)
    running.turn(SILENT_SERVER_S + 0.5)
    os.kill(planner(running), signal.SIGCONT)
    running.wait(answer.done)
    assert not answer.result().success and "server_2 follows another scheduler, 42" in answer.result().error_msg


def test_while_the_whole_factory_is_planned_robots_come_and_go_and_the_schedule_is_repeated(running: Rig) -> None:
    """Whoever plans is held up here: the scheduler is not. And a plan of a fleet that has changed since is made again."""
    running.call(srv.AdmitRobot, robot="late", task="arm")
    os.kill(planner(running), signal.SIGSTOP)
    waits = running.begin(srv.Replan)
    for number in range(2):
        assert running.call(srv.AdmitRobot, robot=f"more_{number}", task="arm").success
    assert running.call(srv.ReleaseRobot, robot="late").success
    running.schedules.clear()
    running.wait(lambda: len(running.schedules) > 1)
    assert not waits.done()
    os.kill(planner(running), signal.SIGCONT)
    running.wait(waits.done)
    assert waits.result().success, waits.result()
    planned = running.schedule(waits.result().schedule_epoch)
    assert {route.robot for route in planned.routes} == {"arm_1", "arm_2", "more_0", "more_1"}


def test_a_planner_that_is_killed_is_an_answer_and_the_next_one_plans(running: Rig) -> None:
    """As by a machine that runs out of memory."""
    waits = running.begin(srv.Replan)
    killed = planner(running)
    os.kill(killed, signal.SIGSTOP)
    os.kill(killed, signal.SIGKILL)
    running.wait(waits.done)
    assert (waits.result().success, waits.result().error_code) == (
        False,
        121,
    ) and "planner's process ended" in waits.result().error_msg
    answer = running.call(srv.Replan)
    assert answer.success, answer.error_msg
    assert planner(running) != killed


def test_a_planner_that_is_stopped_is_an_answer_after_a_while(running: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ros2_rfm_serving.ros.planner.LONGEST_PLAN_S", 3.0)
    waits = running.begin(srv.Replan)
    stopped = planner(running)
    os.kill(stopped, signal.SIGSTOP)
    running.wait(waits.done)
    assert (waits.result().success, waits.result().error_code) == (False, 121) and "no plan after 3 s" in waits.result().error_msg
    running.wait(lambda: not Path(f"/proc/{stopped}").exists())


def test_what_the_planner_does_not_expect_is_an_answer(running: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Profiles that cannot be: the planner raises what nobody raises on purpose."""
    monkeypatch.setattr(running.scheduler._planner, "_profile", None)
    answer = running.call(srv.Replan)
    assert not answer.success and answer.error_code == 121 and "AttributeError" in answer.error_msg


def test_a_whole_fleet_that_asks_at_once_is_answered(running: Rig) -> None:
    """As when the power comes back. By default ten requests would be kept, and of the answers ten by each who asked."""
    clients = [running.peer.create_client(srv.AdmitRobot, "/rfm/admit_robot", qos_profile=qos.CONTROL) for _ in range(40)]
    running.wait(lambda: all(client.service_is_ready() for client in clients))
    running.turn(1.0)
    answers = [client.call_async(srv.AdmitRobot.Request(robot="arm_2", task="arm")) for client in clients]
    running.wait(lambda: all(answer.done() for answer in answers))
    assert all(answer.result().success for answer in answers)


def test_a_rival_that_lives_moves_nobody_while_the_scheduler_that_is_followed_lives(running: Rig) -> None:
    in_force = running.schedules[-1]
    rival = forged(in_force, scheduler=66, epoch=4294967295)
    for _ in range(8):
        running.rival.publish(rival)
        running.turn(1.0)
    assert follows(running.server_status, in_force) and follows(running.robot_status, in_force)


def test_what_has_a_header_says_when_it_was_sent(running: Rig) -> None:
    for message in (running.schedules[-1], running.server_status, running.robot_status):
        assert abs(message.header.stamp.sec - time.time()) < 60.0, message

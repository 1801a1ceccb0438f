"""The scheduler node hears statuses: servers that fall silent, that are slow, that nobody declared, and figures that are none."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import rclpy
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from rclpy.node import Node
from rfm_serving import msg

from ros2_rfm_serving.profiles import load_profiles
from ros2_rfm_serving.ros.node.runtime import executor
from ros2_rfm_serving.ros.scheduler_node import SchedulerNode
from ros2_rfm_serving.ros.watching import STAYS_S, Watching
from ros2_rfm_serving.ros.wire import qos
from ros2_rfm_serving.scheduler.estimation.robot_latency import DistantRobot
from ros2_rfm_serving.types import ServerState
from test.waiting import eventually

FACTORY = """
server_cluster: {num_servers: 3, gpu_type: EMULATED}
standby: {num_servers: 1}
robot_fleet:
  - {task: arm, num_robots: 4}
arm:
  pipeline: {action_period_ms: 300}
  components:
    system1: {model: emulated/arm-policy, prompt: stay, slo_ms: 60}
"""
MODEL = "emulated/arm-policy"
SAID = "scheduler: servers"
STATUS_PERIOD_S = 0.25


class Rig:
    """The scheduler, and a peer that speaks for its servers."""

    def __init__(self) -> None:
        self.scheduler, self.peer = SchedulerNode(), Node("peer")
        self._executor = executor()
        for node in (self.scheduler, self.peer):
            self._executor.add_node(node)
        self.schedules: list[Any] = []
        self.told: Any = None
        self.peer.create_subscription(msg.Schedule, "/rfm/schedule", self.schedules.append, qos.SCHEDULE)
        self.peer.create_subscription(DiagnosticArray, "/diagnostics", self._on_diagnostics, 10)
        self._publishers = {
            f"server_{i}": self.peer.create_publisher(msg.ServerStatus, f"/rfm/servers/server_{i}/status", qos.SERVER_STATUS)
            for i in range(1, 5)
        }
        self.silent: set[str] = set()
        self.pace = dict.fromkeys(self._publishers, 1.0)
        self.words: dict[str, Any] = {}
        self.peer.create_timer(STATUS_PERIOD_S, self._speak)

    def close(self) -> None:
        self._executor.shutdown()
        for node in (self.scheduler, self.peer):
            node.destroy_node()

    def _on_diagnostics(self, message: Any) -> None:
        self.told = next((status for status in message.status if status.name == SAID), self.told)

    def value(self, key: str) -> str:
        return next((value.value for value in self.told.values if value.key == key), "") if self.told else ""

    def _speak(self) -> None:
        """Every server has given ten more replies, from full batches."""
        placements = {p.server: p for p in self.schedules[-1].placements} if self.schedules else {}
        for server, publisher in self._publishers.items():
            placement = placements.get(server)
            status = self.words.setdefault(server, msg.ServerStatus(latency_p50_s=math.nan, latency_p99_s=math.nan))
            status.header.frame_id = server
            status.state = int(ServerState.READY if placement else ServerState.LOADING)
            if placement:
                status.model, status.batch_size, status.mean_batch_size = MODEL, placement.batch_size, float(placement.batch_size)
                full_s = PROFILED_S[placement.batch_size] * self.pace[server]
                before = {h.name: h for h in status.histograms}
                replies = 10 + (before["inference_s"].counts[0] if before else 0)
                spent_s = 10 * full_s + (before["inference_s"].sum if before else 0.0)
                status.histograms = [
                    msg.Histogram(name="inference_s", bounds=[1.0], counts=[replies, 0], sum=spent_s),
                    msg.Histogram(name="queue_wait_s", bounds=[1.0], counts=[replies, 0], sum=0.0),
                ]
            if server not in self.silent:
                publisher.publish(status)

    def say(self, server: str, **fields: Any) -> None:
        """Once, out of turn."""
        status = msg.ServerStatus(state=int(ServerState.READY), model=MODEL)
        status.header.frame_id = server
        for name, value in fields.items():
            setattr(status, name, value)
        self._publishers[server].publish(status)

    def provoke(self, counter: str, server: str, **fields: Any) -> None:
        """Says it until it is counted: who takes the newest alone may get the next regular word in its place."""
        for _ in range(60):
            self.say(server, **fields)
            if eventually(lambda: int(self.value(counter)), 1.5, self._turn):
                return
        raise AssertionError(f"{counter} was never counted; {self.told}")

    def _turn(self) -> None:
        self._executor.spin_once(timeout_sec=0.05)

    def wait(self, until: Callable[[], Any], seconds: float = 120.0) -> None:
        found = eventually(until, seconds, self._turn)
        assert found, f"waited in vain; {self.told}"


PROFILED_S: dict[int, float] = {}


@pytest.fixture
def rig(ros_domain: int, tmp_path: Path, repository: Path) -> Iterator[Rig]:
    PROFILED_S.update(load_profiles(repository / "config" / "profiles").service_s(MODEL, "EMULATED", "fixed"))
    (tmp_path / "factory.yaml").write_text(FACTORY)
    parameters = [f"scheduler:factory_file:={tmp_path / 'factory.yaml'}", "scheduler:look_around_s:=0.0"]
    rclpy.init(args=["--ros-args", *[part for p in parameters for part in ("-p", p)]])
    made = Rig()
    try:
        yield made
    finally:
        made.close()
        rclpy.try_shutdown()


def test_statuses_become_schedules(rig: Rig) -> None:
    """One server falls silent and another is slower than its profile, while somebody talks nonsense."""
    rig.wait(lambda: rig.schedules and rig.told and rig.told.level == DiagnosticStatus.OK)
    lost = next(route.server for route in rig.schedules[-1].routes if route.standby)
    slow = next(route.server for route in rig.schedules[-1].routes if route.server != lost)
    rig.silent, rig.pace[slow] = {lost}, 1.5
    rig.say("server_4", batch_size=65535)  # nobody declared it
    rig.provoke("figures refused", slow, mean_batch_size=math.nan)
    rig.provoke("statuses refused", slow, state=250)
    rig.wait(lambda: lost not in {route.server for route in rig.schedules[-1].routes})
    assert {route.robot for route in rig.schedules[-1].routes} == {f"arm_{i + 1}" for i in range(4)}
    assert all(placement.predicted_p99_s > 0 for placement in rig.schedules[-1].placements)
    rig.wait(lambda: lost in rig.value("lost") and rig.told.level == DiagnosticStatus.WARN)
    rig.wait(lambda: re.search(r"expected 1\.[45]\d \(99 % sure: 1\.", rig.value(f"{slow} takes times its profile")))
    rig.silent = set()
    rig.wait(lambda: not rig.value("lost"))
    rig.wait(lambda: lost in {placement.server for placement in rig.schedules[-1].placements})
    rig.silent = {f"server_{i}" for i in range(1, 5)}
    rig.wait(lambda: "no server is heard" in rig.told.message and rig.told.level == DiagnosticStatus.WARN)


def test_a_robot_that_stays_where_no_schedule_has_it_is_told() -> None:
    """A new plan had moved it, and nobody said that it had not gone."""
    watching = Watching.__new__(Watching)
    watching._homes, watching._astray_s = {f"arm_{i}": "server_2" for i in range(5)}, {}
    for robot in ("arm_0", "arm_1", "nobody"):
        watching._find(robot, "server_1", 10.0)
    assert not watching._astray(10.0 + STAYS_S)
    assert watching._astray(10.1 + STAYS_S) == "arm_0 (server_1), arm_1 (server_1)"
    watching._find("arm_0", "server_2", 30.0)
    watching._find("arm_1", "server_1", 30.0)
    assert watching._astray(30.0) == "arm_1 (server_1)"
    for i in range(5):
        watching._find(f"arm_{i}", "server_3", 40.0)
    assert watching._astray(60.0) == "arm_1 (server_3), arm_0 (server_3), arm_2 (server_3) and 2 more"


def test_robots_whose_own_network_is_bad_are_named_in_diagnostics_and_log() -> None:
    """They were part of what their task has on average. Each is said in the log once, and again when it has been better."""
    said: list[str] = []
    watching = Watching.__new__(Watching)
    log = SimpleNamespace(warning=lambda words, **options: said.append(words))
    watching._node, watching._told_far = SimpleNamespace(get_logger=lambda: log), set()  # type: ignore[assignment]
    watch = SimpleNamespace(far=tuple(DistantRobot(f"arm_{i}", 0.2 - 0.02 * i, 0.012) for i in range(5)))
    watching._lookout = SimpleNamespace(watch=watch)  # type: ignore[assignment]
    worst = [f"arm_{i} (at least {200 - 20 * i} ms, planned 12)" for i in range(3)]
    named = f"{', '.join(worst)} and 2 more"
    assert watching._far() == named
    for many in (5, 5, 1, 2, 0):
        watch.far = watch.far[:many] if many != 2 else (DistantRobot("arm_0", 0.2, 0.012), DistantRobot("arm_7", 0.1, 0.012))
        watching._tell_far()
    assert len(said) == 2 and said[0].endswith(named) and "arm_7 (at least 100 ms, planned 12)" in said[1]
    assert watching._far() == ""

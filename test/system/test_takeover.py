"""The scheduler of a running factory is killed and started again: its successor takes up what runs; nothing reloads or moves."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import rclpy
from rclpy.node import Node
from rfm_serving import msg, srv

from ros2_rfm_serving.ros.node.runtime import executor
from ros2_rfm_serving.ros.robot_node import RobotNode
from ros2_rfm_serving.ros.wire import qos
from ros2_rfm_serving.types import ServerState
from test.waiting import eventually

FACTORY = """
server_cluster: {num_servers: 3, gpu_type: EMULATED}
robot_fleet: [{task: arm, num_robots: 4}]
arm:
  pipeline: {action_period_ms: 400}
  components:
    system1: {model: emulated/arm-policy, prompt: stay, slo_ms: 60}
"""
SERVERS = ("server_1", "server_2", "server_3")
GUESTS = ("guest_1", "guest_2", "guest_3")


class Floor:
    """Processes of a factory, one robot of it in this one, and what can be heard of them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        (folder / "factory.yaml").write_text(FACTORY)
        self.running: list[subprocess.Popen[bytes]] = []
        self.peer, self.robot, self._executor = Node("peer"), RobotNode(), executor()
        for node in (self.peer, self.robot):
            self._executor.add_node(node)
        self.schedules: list[Any] = []
        self.servers: dict[str, list[Any]] = defaultdict(list)
        self.moves: list[str] = []
        """Servers that the robot names in its status, one after the other."""
        self.peer.create_subscription(msg.Schedule, "/rfm/schedule", self.schedules.append, qos.SCHEDULE)
        for server in SERVERS:
            topic = f"/rfm/servers/{server}/status"
            self.peer.create_subscription(msg.ServerStatus, topic, self.servers[server].append, qos.SERVER_STATUS)
        self.peer.create_subscription(msg.RobotStatus, "/arm_1/rfm/status", self._on_robot, qos.ROBOT_STATUS)
        self.admit = self.peer.create_client(srv.AdmitRobot, "/rfm/admit_robot", qos_profile=qos.CONTROL)

    def start(self, node: str, *parameters: str, says_to: str = "") -> subprocess.Popen[bytes]:
        given = [part for parameter in parameters for part in ("-p", parameter)]
        command = [sys.executable, "-W", "ignore", "-m", f"ros2_rfm_serving.ros.{node}", "--ros-args", *given]
        with Path(says_to or self._folder / "log").open("ab") as log:
            environment = os.environ | {"OMP_NUM_THREADS": "1"}
            self.running.append(subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment))
        return self.running[-1]

    def start_scheduler(self, says_to: str = "") -> subprocess.Popen[bytes]:
        return self.start("scheduler_node", f"factory_file:={self._folder / 'factory.yaml'}", says_to=says_to)

    def _on_robot(self, status: Any) -> None:
        if not self.moves or self.moves[-1] != status.server:
            self.moves.append(status.server)

    def wait(self, until: Callable[[], Any]) -> None:
        found = eventually(until, 150.0, lambda: self._executor.spin_once(timeout_sec=0.02))
        assert found, (self._folder / "log").read_text(errors="replace")[-3000:]

    def everybody_follows(self, epoch: int, but: int = 0) -> bool:
        """A scheduler that is not `but`."""
        newest = [self.servers[server][-1] for server in SERVERS if self.servers[server]]
        return len(newest) == len(SERVERS) and all(
            s.state == ServerState.READY and s.schedule_epoch == epoch and s.scheduler != but for s in newest
        )

    def close(self) -> None:
        self._executor.shutdown()
        for node in (self.peer, self.robot):
            node.destroy_node()
        for process in self.running:
            process.kill()
            process.wait()


@pytest.fixture
def floor(ros_domain: int, tmp_path: Path) -> Iterator[Floor]:
    rclpy.init(args=["--ros-args", "-p", "robot:robot:=arm_1", "-p", "robot:task:=arm"])
    made = Floor(tmp_path)
    try:
        yield made
    finally:
        made.close()
        rclpy.try_shutdown()


@pytest.mark.timeout(400)
def test_nothing_reloads_and_nobody_moves(floor: Floor) -> None:
    scheduler = floor.start_scheduler()
    for server in SERVERS:
        floor.start("model_server_node", f"server:={server}")
    floor.wait(lambda: floor.schedules and floor.everybody_follows(floor.schedules[-1].epoch))
    floor.wait(floor.admit.service_is_ready)
    for guest in GUESTS:
        answer = floor.admit.call_async(srv.AdmitRobot.Request(robot=guest, task="arm"))
        floor.wait(answer.done)
        assert answer.result().success, answer.result().error_msg
    floor.wait(lambda: floor.moves and floor.moves[-1])
    scheduler.kill()
    scheduler.wait()
    floor.wait(lambda: floor.everybody_follows(floor.schedules[-1].epoch))
    before, loads, moves = floor.schedules[-1], {s: len(floor.servers[s]) for s in SERVERS}, len(floor.moves)
    floor.start_scheduler()
    floor.wait(lambda: floor.everybody_follows(before.epoch + 1, but=before.scheduler))
    floor.wait(lambda: floor.schedules[-1].scheduler != before.scheduler)  # servers may hear of it before this process
    after = next(schedule for schedule in floor.schedules if schedule.scheduler != before.scheduler)
    assert (after.epoch, after.placements, after.routes) == (before.epoch + 1, before.placements, before.routes)
    assert {route.robot for route in after.routes} > set(GUESTS)
    floor.wait(lambda: all(len(floor.servers[s]) > loads[s] + 2 for s in SERVERS))
    states = {status.state for server in SERVERS for status in floor.servers[server][loads[server] :]}
    assert states == {ServerState.READY} and len(floor.moves) == moves, floor.moves

"""Factories as a user starts them: `rfm up`, real processes, real DDS; watched and steered by a client that knows the interfaces
alone, and broken."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import rclpy
from action_msgs.msg import GoalStatus
from domain_coordinator import domain_id
from rclpy.action import ActionClient
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rfm_serving.action import ExecuteTask
from rfm_serving.msg import RobotStatus, ServerStatus

from test.waiting import eventually, watch

EMULATED = "config/factory_emulated.yaml"


@contextmanager
def rfm_up(repository: Path, logs: Path, *arguments: str, domain: int) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-W", "ignore", "-m", "ros2_rfm_serving.cli", "up", *arguments]
    command += ["--domain", str(domain), "--logs", str(logs)]
    process = subprocess.Popen(
        command,
        cwd=repository,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",  # a pipe cuts the long output of one process where another one writes, also within a character
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        try:
            process.communicate(timeout=60)
        finally:
            process.kill()
        assert pids(str(logs)) == [], "processes were left behind"


def pids(words: str) -> list[int]:
    """Processes whose command line contains `words`."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes().decode(errors="replace")
                state = (entry / "stat").read_text().rsplit(")", 1)[1].split()[0]
            except OSError:
                continue
            if words in line and "ros2_rfm_serving.ros." in line and state != "Z":
                found.append(int(entry.name))
    return found


class PlainClient(Node):
    """What any ROS 2 user would write; nothing of ours but the interfaces."""

    def __init__(self, robot: str, server: str) -> None:
        super().__init__("plain_client")
        self.robot: Any = None
        self.server: Any = None
        self.feedback: list[Any] = []
        # More than the newest: what is said while this process is kept waiting is seen too.
        self.create_subscription(RobotStatus, f"/{robot}/rfm/status", self._on_robot, 20)
        self.create_subscription(ServerStatus, f"/rfm/servers/{server}/status", self._on_server, 20)
        self.action = ActionClient(self, ExecuteTask, f"/{robot}/execute_task")
        self._executor = SingleThreadedExecutor()
        self._executor.add_node(self)

    def _on_robot(self, message: Any) -> None:
        self.robot = message

    def _on_server(self, message: Any) -> None:
        self.server = message

    def wait(self, until: Callable[[], Any], seconds: float = 90.0) -> Any:
        found = eventually(until, seconds, self._turn)
        assert found, f"waited in vain; the robot's last word: {self.robot}"
        return found

    def watch(self, seconds: float) -> None:
        watch(seconds, self._turn)

    def _turn(self) -> None:
        self._executor.spin_once(timeout_sec=0.05)

    def send(self, **goal: Any) -> Any:
        """From then on there is a last word of the robot."""
        self.wait(lambda: self.action.server_is_ready() and self.robot)
        sending = self.action.send_goal_async(ExecuteTask.Goal(**goal), lambda m: self.feedback.append(m.feedback))
        self.wait(sending.done)
        return sending.result()

    def result(self, handle: Any) -> Any:
        future = handle.get_result_async()
        self.wait(future.done)
        return future.result()


@contextmanager
def client_of(robot: str) -> Iterator[PlainClient]:
    rclpy.init()
    node = PlainClient(robot, "server_1")
    try:
        yield node
    finally:
        node.destroy_node()
        rclpy.try_shutdown()


def working(client: PlainClient) -> bool:
    return bool(client.robot and client.robot.state == RobotStatus.STREAMING and client.robot.action_rate_hz > 5)


@pytest.mark.timeout(280)
def test_any_action_client_works_and_a_killed_server_means_hold_then_recovery(
    repository: Path, tmp_path: Path, ros_domain: int
) -> None:
    with rfm_up(repository, tmp_path, EMULATED, "--no-foreman", domain=ros_domain) as factory, client_of("idle_arm_1") as client:
        # Goals that make no sense end at once with the reason, and nothing moves.
        for wrong in ({"task": "no_such_task"}, {"time_budget_s": float("nan")}):
            answer = client.result(client.send(**wrong))
            assert answer.result.error_code == ExecuteTask.Result.REJECTED and answer.result.error_msg

        # A task runs; a second one is told so meanwhile.
        handle = client.send(reset=True, time_budget_s=200.0, instruction="stay")
        assert handle.accepted and client.result(client.send()).result.error_code == ExecuteTask.Result.BUSY
        client.wait(lambda: working(client))
        client.wait(lambda: any(f.phase == "executing" and f.subgoal == "stay" and f.progress > 0 for f in client.feedback))

        # The server is killed: the robot holds, says why, and goes on by itself when it is back.
        (pid,) = pids(str(tmp_path / "server_1.yaml"))
        held = client.robot.held_ticks
        os.kill(pid, signal.SIGKILL)
        client.wait(lambda: client.robot.state != RobotStatus.STREAMING and "server_1" in client.robot.reason)
        client.wait(lambda: client.robot.held_ticks > held + 5)
        client.wait(lambda: client.robot.state == RobotStatus.STREAMING and client.robot.queue_depth)
        client.wait(lambda: working(client))
        assert pids(str(tmp_path / "server_1.yaml")) not in ([], [pid])

        # Cancel: canceled, with figures, and the robot is idle.
        cancelling = handle.cancel_goal_async()
        client.wait(cancelling.done)
        answer = client.result(handle)
        assert answer.status == GoalStatus.STATUS_CANCELED and answer.result.error_code == ExecuteTask.Result.CANCELED
        assert answer.result.executed_steps > 20 and answer.result.held_steps > 10
        client.wait(lambda: client.robot.phase == RobotStatus.IDLE)

        # A task that runs out of time says so.
        answer = client.result(client.send(time_budget_s=1.0, reset=True))
        assert answer.status == GoalStatus.STATUS_ABORTED and answer.result.error_code == ExecuteTask.Result.BUDGET_SPENT
        assert "1 s" in answer.result.error_msg
        assert (answer.result.episode, answer.result.retries) == (3, 1), "each attempt has its time"

        # Two goals in one breath: one is worked on, the other told so, and the robot takes the next as ever.
        pair = [client.action.send_goal_async(ExecuteTask.Goal(time_budget_s=100.0)) for _ in range(2)]
        client.wait(lambda: all(sending.done() for sending in pair))
        first, second = (sending.result() for sending in pair)
        results = [handle.get_result_async() for handle in (first, second)]
        client.wait(lambda: any(result.done() for result in results))
        works, told = sorted(zip((first, second), results, strict=True), key=lambda one: one[1].done())
        assert told[1].result().result.error_code == ExecuteTask.Result.BUSY and not works[1].done()
        client.wait(works[0].cancel_goal_async().done)
        client.wait(works[1].done)
        assert works[1].result().result.error_code == ExecuteTask.Result.CANCELED
        assert client.result(client.send(time_budget_s=1.0)).result.error_code == ExecuteTask.Result.BUDGET_SPENT

        # Ctrl-C stops everything.
        factory.send_signal(signal.SIGINT)
        output, _ = factory.communicate(timeout=60)
        assert factory.returncode == 0, output
        assert "EMULATED" in output and "server_1: ended (SIGKILL)" in output and "summary" in output


@pytest.mark.alone
@pytest.mark.timeout(280)
def test_two_factories_on_one_machine_do_not_disturb_each_other(repository: Path, tmp_path: Path) -> None:
    arguments = (EMULATED, "--seconds", "8", "--json")
    with domain_id() as one, domain_id() as two:
        assert one != two
        with (
            rfm_up(repository, tmp_path / "1", *arguments, str(tmp_path / "1.json"), domain=one) as first,
            rfm_up(repository, tmp_path / "2", *arguments, str(tmp_path / "2.json"), domain=two) as second,
        ):
            outputs = [process.communicate(timeout=150)[0] for process in (first, second)]
        for process, output, file in zip((first, second), outputs, ("1.json", "2.json"), strict=True):
            assert process.returncode == 0, output
            figures = json.loads((tmp_path / file).read_text())
            server, robot = figures["servers"]["server_1"], figures["robots"]["idle_arm_1"]
            assert server["served"] > 5 and server["sessions"] <= 1  # none once its robot has taken leave
            foreign = {"unknown_session", "unknown_component", "stale_epoch", "wrong_model", "stale_schedule"}
            assert not foreign & {*server["refused"], *robot["refused"]}


@pytest.mark.alone
@pytest.mark.timeout(400)
def test_the_quickstart_completes_episodes_and_ends_by_itself(repository: Path, tmp_path: Path, ros_domain: int) -> None:
    file = tmp_path / "summary.json"
    until = ("--episodes", "2", "--seconds", "150")
    with rfm_up(repository, tmp_path, *until, "--json", str(file), domain=ros_domain) as factory:
        output, _ = factory.communicate(timeout=300)
    assert factory.returncode == 0, output
    figures = json.loads(file.read_text())
    assert set(figures["tasks"]) == {"pick-place", "door-open", "push"}
    episodes = sum(task["episodes"] for task in figures["tasks"].values())
    successes = sum(task["successes"] for task in figures["tasks"].values())
    assert episodes >= 6 and successes >= 0.6 * episodes, figures["tasks"]
    for server in figures["servers"].values():
        assert server["served"] > 10 and not server["emulated"]
    for robot in figures["robots"].values():
        # How fast is a figure of the machine; that it is measured, and never faster than what is declared, is ours.
        assert robot["episodes"] >= 1 and 0.0 < robot["real_time_factor"] < 1.1 * robot["declared_time_scale"], robot


@pytest.mark.timeout(120)
def test_nothing_outlives_a_supervisor_that_was_killed(repository: Path, tmp_path: Path, ros_domain: int) -> None:
    with rfm_up(repository, tmp_path, EMULATED, "--no-foreman", domain=ros_domain) as factory:
        with client_of("idle_arm_1") as client:  # until all are nodes: those have asked to end with their parent
            client.wait(lambda: len(pids(str(tmp_path))) == 4 and len(set(client.get_node_names()) - {client.get_name()}) >= 4)
        factory.kill()
        assert eventually(lambda: pids(str(tmp_path)) == [], 60.0)

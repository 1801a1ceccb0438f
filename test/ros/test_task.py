"""`rfm task`: a person gives a robot a task without `ros2`, and is told in words what became of it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import rclpy
from rclpy.action import ActionServer
from rclpy.node import Node
from rfm_serving import action, msg
from std_srvs.srv import Trigger

from ros2_rfm_serving.monitoring.dashboard.control import NO_TASK, Answer, WantedTask
from ros2_rfm_serving.ros.monitor.hands import Hands
from ros2_rfm_serving.ros.node import task_client
from ros2_rfm_serving.ros.node.task_client import TaskClient
from ros2_rfm_serving.ros.wire import qos
from ros2_rfm_serving.security.own import ENCLAVE
from test.enclaves import Enclaves
from test.ros.test_task_door import PARAMETERS, DoorRig, done

RFM = (sys.executable, "-W", "ignore", "-m", "ros2_rfm_serving.cli", "task")


class TaskRig(DoorRig):
    def __init__(self) -> None:
        super().__init__()
        self.actions: list[Any] = []
        """Clients and servers that go when the executor has ended: one that goes before may crash it."""

    def stand_in(self, lost: int = 0) -> StandIn:
        robot = StandIn(lost)
        self.nodes.append(robot)
        self.executor.add_node(robot)
        self.actions.append(robot.server)
        return robot

    def close(self) -> None:
        self.executor.shutdown()
        for one in self.actions:
            one.destroy()
        super().close()


@pytest.fixture
def rig(ros_domain: int) -> Iterator[TaskRig]:
    rclpy.init(args=["--ros-args", *[part for given in PARAMETERS for part in ("-p", given)]])
    made = TaskRig()
    made.node.trigger_activate()
    try:
        yield made
    finally:
        made.close()
        rclpy.try_shutdown()


@contextlib.contextmanager
def command(repository: Path, *arguments: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [*RFM, *arguments],
        cwd=repository,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def told(rig: TaskRig, process: subprocess.Popen[str]) -> tuple[int, str]:
    """Its exit code and what it printed, while the robot goes on."""
    rig.wait(lambda: process.poll() is not None, "the command's end", seconds=90.0)
    assert process.stdout is not None
    return process.returncode, process.stdout.read()


def test_a_task_is_followed_to_its_end_and_says_in_words_how_it_ended(rig: TaskRig, repository: Path) -> None:
    with command(repository, "r1", "--instruction", "stack the cups", "--budget", "3") as given:
        rig.wait(lambda: rig.node._robots[0].brain.task is not None, "the task")
        goal = rig.node._robots[0].brain.task.goal
        code, said = told(rig, given)
    assert code == 1 and "r1: its time was up; " in said and "give a longer --budget" in said, said
    assert (goal.instruction, goal.time_budget_s, goal.reset) == ("stack the cups", 3.0, False), "nobody offers a reset"
    assert "r1: executing, " in said and "chunks/s; stack the cups" in said, said


def test_ctrl_c_cancels_and_the_robot_is_shown_with_what_it_offers(rig: TaskRig, repository: Path) -> None:
    rig.peer.create_service(Trigger, "/r1/reset", done)
    with command(repository, "r1") as given:
        rig.wait(lambda: rig.robot.feedback or rig.node._robots[0].brain.task, "the task")
        task = rig.node._robots[0].brain.task
        assert task.goal.reset, "it is offered"
        rig.moves()
        given.send_signal(signal.SIGINT)
        code, said = told(rig, given)
    assert code == 1 and "r1: canceled" in said and task.result.message == "canceled by the client", said
    with command(repository, "--list") as listed:
        code, said = told(rig, listed)
    assert code == 0 and "ready, idle" in said, said
    row = [cell.strip() for cell in next(line for line in said.splitlines() if "r1" in line).split("│")]
    assert row[4:6] == ["yes", "yes"], said


def test_whoever_asks_wrongly_is_told_what_there_is(rig: TaskRig, repository: Path) -> None:
    with command(repository, "r11") as misspelt:
        code, said = told(rig, misspelt)
    assert code == 2 and "no robot is called 'r11'" in said and "did you mean r1?" in said, said
    with command(repository, "r1", "--reset") as without:
        code, said = told(rig, without)
    assert code == 2 and "r1 offers no reset" in said, said
    empty = subprocess.run(RFM, cwd=repository, capture_output=True, text=True, timeout=60, check=False)
    assert empty.returncode == 2 and "rfm task --list" in empty.stderr


class StandIn(Node):
    """A robot that succeeds at once. It loses the first `lost` goals, as the middleware may."""

    def __init__(self, lost: int = 0) -> None:
        super().__init__("stand_in")
        self.goals: list[Any] = []
        self._status = self.create_publisher(msg.RobotStatus, qos.Names().robot("r2", "rfm/status"), qos.ROBOT_STATUS)
        self.create_timer(0.2, self._tell)
        self.server = Losing(self, action.ExecuteTask, "/r2/execute_task", self._work)
        self.server.lost = lost

    def _tell(self) -> None:
        status = msg.RobotStatus(state=msg.RobotStatus.STREAMING)
        status.header.frame_id = "r2"
        self._status.publish(status)

    def _work(self, goal: Any) -> Any:
        self.goals.append(goal.request)
        goal.succeed()
        return action.ExecuteTask.Result(error_code=0)


class Losing(ActionServer):
    lost = 0

    async def _execute_goal_request(self, request: Any) -> None:
        if self.lost:
            self.lost -= 1
            return
        await super()._execute_goal_request(request)


def test_success_is_exit_code_0(rig: TaskRig, repository: Path) -> None:
    robot = rig.stand_in()
    with command(repository, "r2", "--no-reset") as given:
        code, said = told(rig, given)
    assert code == 0 and "r2: succeeded" in said and not robot.goals[0].requester, said


def test_a_goal_that_got_lost_is_sent_again_and_given_once(rig: TaskRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_client, "ANSWER_S", 0.5)
    robot, ends = rig.stand_in(lost=2), list[int]()
    client = TaskClient(rig.peer, "r2", qos.Names(), None, None)
    rig.actions.append(client)
    rig.wait(lambda: client.is_ready, "the action")
    client.start(action.ExecuteTask.Goal(), lambda status, result: ends.append(result.error_code))
    rig.peer.create_timer(0.1, lambda: client.poll(task_client.clock()))
    rig.wait(lambda: ends, "the result")
    rig.spin(1.0)
    assert ends == [0] and len(robot.goals) == 1 and not client.is_busy


def test_with_a_certificate_it_is_canceled_by_an_order(rig: TaskRig, repository: Path, tmp_path: Path) -> None:
    enclave = Enclaves(tmp_path / "enclaves").make("operator")
    with command(repository, "r1", **{ENCLAVE: str(enclave)}) as given:
        rig.wait(lambda: rig.node._robots[0].brain.task, "the task")
        task = rig.node._robots[0].brain.task
        rig.moves()
        given.send_signal(signal.SIGINT)
        code, said = told(rig, given)
    assert code == 1 and "r1: canceled" in said and task.result.message == "canceled by an order", said


def test_a_page_gives_a_task_tells_its_end_and_says_a_refusal_in_words(rig: TaskRig) -> None:
    hands = Hands(rig.peer, qos.Names())

    def answered(action: str, robot: str = "r1", wanted: WantedTask = NO_TASK) -> Answer:
        future = hands.order(action, robot, "", wanted)
        return rig.wait(lambda: future.done() and future.result(), f"the answer to {action}")  # type: ignore[no-any-return]

    begun = answered("task", wanted=WantedTask("wave", 600.0))
    assert begun.done and begun.end is not None and rig.node._robots[0].brain.task.goal.instruction == "wave"
    again = answered("task")
    assert not again.done and "cancel it first" in again.message
    at_once = list[Future[Answer]]()
    begun.end.add_done_callback(lambda _: at_once.append(hands.order("task", "r1", "", NO_TASK)))
    assert answered("cancel") == Answer(True, "the task is canceled")
    rig.wait(begun.end.done, "its end")
    assert begun.end.result().message == "canceled; canceled by an order"
    next_one = rig.wait(lambda: at_once[0].done() and at_once[0].result(), "the task that is given at the very end of another")
    assert next_one.done and answered("cancel").done
    rig.wait(next_one.end.done, "its end")
    rig.node.trigger_deactivate()
    refused = answered("task")
    assert not refused.done and refused.end is None
    assert refused.message.startswith("the robot's node is not active; ") and "activate it" in refused.message

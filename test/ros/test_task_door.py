"""Who gets a robot to work, who has to wait, and that everybody is told why."""

from __future__ import annotations

import array
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rclpy
from action_msgs.msg import GoalStatus
from rclpy.executors import SingleThreadedExecutor
from rclpy.lifecycle import TransitionCallbackReturn
from rclpy.node import Node
from rfm_serving import action, msg
from sensor_msgs.msg import CompressedImage
from std_srvs.srv import Trigger

from ros2_rfm_serving.ros.foreman_node import ForemanNode
from ros2_rfm_serving.ros.robot import task_door
from ros2_rfm_serving.ros.robot_node import RobotNode
from ros2_rfm_serving.ros.wire import convert, qos
from ros2_rfm_serving.security.own import ENCLAVE
from ros2_rfm_serving.types import MAX_INSTRUCTION_CHARACTERS, TaskOutcome
from test.enclaves import Enclaves
from test.ros.robot_rig import Rig
from test.unit.fakes import JPEG, schedule

Result = action.ExecuteTask.Result
PARAMETERS = [
    "robot:state_size:=3",
    "robot:cameras:=[front]",
    "robot:action_names:=['x','y']",
    "robot:control_rate_hz:=50.0",
    "robot:command_type:=velocity",
    "robot:fallback:=[zero]",
    "robot:task:=stack",
    "robot:autostart:=false",
    "robot:robot:=r1",
    "foreman:robots:=[r1]",
    "foreman:pause_s:=0.1",
]


class DoorRig(Rig):
    """The robot `r1`, its sensors and a server."""

    def __init__(self) -> None:
        self.node = RobotNode()
        super().__init__(self.node, "r1")
        self.robot = self.robots["r1"]
        self.image = self.peer.create_publisher(CompressedImage, "/r1/camera/front/image/compressed", qos.SENSOR)
        self.frame = CompressedImage(format="jpeg")
        convert.put(self.frame, "data", array.array("B", JPEG))
        assert self.node.trigger_configure() == TransitionCallbackReturn.SUCCESS
        self.peer.create_timer(0.02, self._sense)
        self.schedule.publish(convert.schedule_to(schedule(), "f"))

    def _sense(self) -> None:
        self.image.publish(self.frame)
        self.robot.sense()

    def answer(self, **goal: Any) -> Any:
        """How a goal ended, and what its client was told."""
        future = self.goal("r1", **goal).get_result_async()
        return self.wait(lambda: future.done() and future.result(), "the result")

    def moves(self) -> None:
        self.robot.commands.clear()
        self.wait(lambda: self.robot.commands and np.any(self.robot.commands[-1]), "an action")


@pytest.fixture
def rig(ros_domain: int) -> Iterator[DoorRig]:
    rclpy.init(args=["--ros-args", *[part for given in PARAMETERS for part in ("-p", given)]])
    made = DoorRig()
    yield made
    made.close()
    rclpy.try_shutdown()


def test_a_goal_that_cannot_be_worked_on_ends_with_a_code_and_the_reason(rig: DoorRig) -> None:
    wrong: list[tuple[dict[str, Any], int, str]] = [
        ({"task": "sort"}, Result.REJECTED, "no task 'sort': this robot's is 'stack'"),
        ({"time_budget_s": float("nan")}, Result.REJECTED, "time_budget_s is nan"),
        ({"time_budget_s": -1.0}, Result.REJECTED, "time_budget_s is -1"),
        ({"instruction": "x" * (MAX_INSTRUCTION_CHARACTERS + 1)}, Result.REJECTED, "characters; at most"),
        ({}, Result.BUSY, "works on a goal of a person"),
        ({"requester": "foreman"}, Result.BUSY, "works on a goal of a person"),
    ]
    told = rig.answer()
    assert told.status == GoalStatus.STATUS_ABORTED
    assert told.result.error_code == Result.INACTIVE and "not active" in told.result.error_msg
    rig.node.trigger_activate()
    handle = rig.goal("r1", time_budget_s=600.0)
    rig.moves()
    for goal, code, reason in wrong:
        told = rig.answer(**goal)
        assert told.status == GoalStatus.STATUS_ABORTED
        assert told.result.error_code == code and reason in told.result.error_msg, (goal, told.result)
    rig.moves()
    handle.cancel_goal_async()
    assert rig.result(handle).error_code == Result.CANCELED
    assert rig.answer(time_budget_s=0.2).result.error_code == Result.BUDGET_SPENT


def test_a_result_is_kept_longer_than_rclpy_keeps_it_and_an_empty_one_is_no_success(rig: DoorRig) -> None:
    """After 10 s rclpy would answer STATUS_UNKNOWN with an empty message, whose code was that of a success."""
    handle = rig.goal("r1")
    rig.spin(11.0)
    future = handle.get_result_async()
    told = rig.wait(lambda: future.done() and future.result(), "the result")
    assert told.status == GoalStatus.STATUS_ABORTED and told.result.error_code == Result.INACTIVE
    assert Result().error_code == Result.NOT_KEPT == action.Infer.Result().error_code == action.Infer.Result.NOT_KEPT


def test_a_persons_goal_stops_a_programs_and_begins_when_the_robot_was_told_to_stand(rig: DoorRig) -> None:
    rig.node.trigger_activate()
    filling = rig.goal("r1", time_budget_s=600.0, requester="night shift")
    told = rig.answer(requester="foreman")
    assert told.result.error_code == Result.BUSY and "night shift" in told.result.error_msg
    rig.moves()
    rig.robot.commands.clear()
    person = rig.goal("r1", time_budget_s=600.0, instruction="now this")
    result = rig.result(filling)
    assert result.error_code == Result.PREEMPTED and result.error_msg == "preempted by a goal of a person"
    assert result.executed_steps > 0 and result.episode == 1
    rig.wait(lambda: any(not np.any(command) for command in rig.robot.commands), "a command to stand")
    rig.wait(lambda: rig.server.observations[-1].instruction == "now this", "the person's task")
    rig.moves()
    person.cancel_goal_async()
    assert rig.result(person).episode == 2


def test_the_foreman_gives_way_and_goes_on_when_the_person_is_done(rig: DoorRig) -> None:
    rig.node.trigger_activate()
    foreman = ForemanNode()
    rig.nodes.append(foreman)
    rig.executor.add_node(foreman)
    job = foreman._jobs["r1"]
    body = rig.node._robots[0]
    rig.peer.create_service(Trigger, "/r1/reset", done)
    rig.moves()
    person = rig.goal("r1", time_budget_s=600.0)
    rig.wait(lambda: job.idle, "a foreman who was told")
    assert body.brain.episode == 2 and job.done == 0
    rig.spin(3.0)  # longer than the foreman waits before asking again
    assert body.brain.episode == 2 and job.done == 0
    person.cancel_goal_async()
    assert rig.result(person).error_code == Result.CANCELED
    rig.wait(lambda: body.brain.episode == 3 and not job.idle, "the foreman's next task")


def test_a_foreman_begins_tasks_without_a_reset_that_a_robot_does_not_offer(rig: DoorRig) -> None:
    rig.node.trigger_activate()
    foreman = ForemanNode()
    rig.nodes.append(foreman)
    rig.executor.add_node(foreman)
    rig.moves()
    resets: list[bool] = []
    rig.peer.create_service(Trigger, "/r1/reset", lambda request, answer: resets.append(True) or done(request, answer))
    rig.wait(lambda: foreman.count_services("/r1/reset") > 0, "the discovery of the reset")
    foreman._jobs["r1"].client.cancel()
    rig.wait(lambda: resets, "a reset before the next task")
    rig.moves()


def test_a_reset_that_nobody_offers_is_named(rig: DoorRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_door, "RESET_TIMEOUT_S", 0.2)
    rig.node.trigger_activate()
    told = rig.answer(reset=True, time_budget_s=600.0).result
    assert told.error_code == Result.RESET_FAILED
    assert "nobody offers /r1/reset (std_srvs/srv/Trigger): start what offers it, or give the task with" in told.error_msg


def test_a_foreman_with_a_certificate_ends_tasks_of_a_robot_without(
    rig: DoorRig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.node.trigger_activate()
    monkeypatch.setenv(ENCLAVE, str(Enclaves(tmp_path / "enclaves").make("foreman")))
    foreman = ForemanNode()
    rig.nodes.append(foreman)
    rig.executor.add_node(foreman)
    job = foreman._jobs["r1"]
    rig.peer.create_service(Trigger, "/r1/reset", done)
    rig.moves()
    rig.wait(lambda: job.client.is_accepted, "the goal")
    task = rig.node._robots[0].brain.task
    job.on_score(msg.EpisodeScore(success=True))
    rig.wait(lambda: task.result is not None, "the end of the task")
    assert task.result.outcome is TaskOutcome.CANCELED, task.result


def test_a_task_whose_robot_was_ended_is_nothing_that_the_foreman_counts(rig: DoorRig, tmp_path: Path) -> None:
    """As at the end of `rfm up`, where robots go first and the foreman hears of it: no failed episode."""
    rig.node.trigger_activate()
    foreman = ForemanNode()
    foreman._results = tmp_path / "results.jsonl"
    rig.nodes.append(foreman)
    rig.executor.add_node(foreman)
    job = foreman._jobs["r1"]
    rig.peer.create_service(Trigger, "/r1/reset", done)
    rig.moves()
    rig.node.trigger_deactivate()
    rig.wait(lambda: job.idle, "a foreman who was told")
    assert job.done == 0 and not foreman._results.exists()


def test_a_reset_that_nobody_answers_is_asked_for_again(rig: DoorRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who took the first request ends before it answers, as a simulator that is started again: here its executor never runs."""
    monkeypatch.setattr(task_door, "RESET_TIMEOUT_S", 1.0)
    mute = Node("mute")
    mute.create_service(Trigger, "/r1/reset", done)
    rig.node.trigger_activate()
    body = rig.node._robots[0]
    goal = rig.goal("r1", reset=True, time_budget_s=600.0)
    rig.wait(lambda: body._door._reset_asks == 1, "a first request")
    mute.destroy_node()
    rig.peer.create_service(Trigger, "/r1/reset", done)
    rig.moves()
    goal.cancel_goal_async()
    assert rig.result(goal).error_code == Result.CANCELED


def test_a_reset_that_answers_late_is_waited_for(rig: DoorRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """It lives, and is asked no more; its last answer counts, since until then it moves the robot."""
    monkeypatch.setattr(task_door, "RESET_TIMEOUT_S", 0.5)
    slow, executor, ended = Node("slow"), SingleThreadedExecutor(), threading.Event()

    def reset(request: Any, response: Any) -> Any:
        time.sleep(0.8)
        return done(request, response)

    def spin() -> None:
        while not ended.is_set():
            executor.spin_once(timeout_sec=0.1)

    slow.create_service(Trigger, "/r1/reset", reset)
    executor.add_node(slow)
    thread = threading.Thread(target=spin)
    thread.start()
    try:
        rig.node.trigger_activate()
        goal = rig.goal("r1", reset=True, time_budget_s=600.0)
        rig.moves()
        goal.cancel_goal_async()
        assert rig.result(goal).error_code == Result.CANCELED
    finally:
        ended.set()
        thread.join()
        slow.destroy_node()


def test_a_reset_that_is_never_answered_ends_the_task(rig: DoorRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_door, "RESET_TIMEOUT_S", 0.2)
    mute = Node("mute")
    mute.create_service(Trigger, "/r1/reset", done)
    rig.node.trigger_activate()
    told = rig.answer(reset=True, time_budget_s=600.0).result
    assert told.error_code != Result.NONE and "no answer within 0.2 s (asked 3 times)" in told.error_msg
    mute.destroy_node()


def test_a_goal_right_after_a_cancel_is_worked_on(rig: DoorRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not wait for the next control period, which here does not come before."""
    rig.node.trigger_activate()
    first = rig.goal("r1", time_budget_s=600.0)
    rig.moves()
    body = rig.node._robots[0]
    with monkeypatch.context() as still:
        still.setattr(body, "tick", lambda now_s, *, may_act=True: None)
        cancelling = first.cancel_goal_async()
        rig.wait(cancelling.done)
        second = rig.goal("r1", time_budget_s=600.0)
        assert rig.result(first).error_code == Result.CANCELED
        assert body.brain.episode == 2, "the second goal has begun"
    rig.moves()
    second.cancel_goal_async()
    assert rig.result(second).error_code == Result.CANCELED


def done(request: Any, response: Any) -> Any:
    response.success = True
    return response


def test_an_episode_is_one_line_of_the_log(rig: DoorRig, capfd: pytest.CaptureFixture[str]) -> None:
    rig.node.trigger_activate()
    capfd.readouterr()
    for _ in range(3):
        assert rig.answer(time_budget_s=0.3).result.error_code == Result.BUDGET_SPENT
    lines = [line for line in capfd.readouterr().err.splitlines() if "r1" in line and "conditioning" not in line]
    assert len(lines) == 3 and all("BUDGET_SPENT" in line for line in lines), lines


class SlowReset:
    """A reset service, in a process of its own as it were, that answers when the test says so."""

    def __init__(self) -> None:
        self.over, self.asked = threading.Event(), 0
        self._node, self._executor = rclpy.create_node("slow_reset"), SingleThreadedExecutor()
        self._node.create_service(Trigger, "/r1/reset", self._reset)
        self._executor.add_node(self._node)
        self._thread = threading.Thread(target=self._executor.spin, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self.over.set()
        self._executor.shutdown()
        self._thread.join(10.0)
        self._node.destroy_node()

    def _reset(self, request: Any, response: Any) -> Any:
        self.asked += 1
        self.over.wait(60.0)
        return done(request, response)


@pytest.fixture
def reset(rig: DoorRig) -> Iterator[SlowReset]:
    made = SlowReset()
    yield made
    made.close()


def test_a_robot_is_nobodys_until_its_reset_is_over(rig: DoorRig, reset: SlowReset) -> None:
    rig.node.trigger_activate()
    program = rig.goal("r1", time_budget_s=600.0, reset=True, requester="night shift")
    rig.wait(lambda: reset.asked, "the reset")
    program.cancel_goal_async()
    person = rig.goal("r1", time_budget_s=600.0)
    assert rig.answer(requester="day shift").result.error_code == Result.BUSY
    rig.robot.commands.clear()
    rig.spin(1.0)
    assert rig.node._robots[0].brain.episode == 1 and not rig.robot.commands, "who resets it moves it alone"
    reset.over.set()
    assert rig.result(program).error_code in (Result.CANCELED, Result.PREEMPTED)
    rig.moves()
    person.cancel_goal_async()
    assert rig.result(person).episode == 2


def test_a_robot_that_is_deactivated_during_its_reset_is_nobodys_until_that_is_over(rig: DoorRig, reset: SlowReset) -> None:
    rig.node.trigger_activate()
    first = rig.goal("r1", time_budget_s=600.0, reset=True)
    rig.wait(lambda: reset.asked, "the reset")
    rig.node.trigger_deactivate()
    assert rig.result(first).error_code == Result.SHUTDOWN
    rig.node.trigger_activate()
    given_up = rig.goal("r1", time_budget_s=600.0)
    given_up.cancel_goal_async()
    assert rig.result(given_up).error_code == Result.CANCELED
    second = rig.goal("r1", time_budget_s=600.0)
    assert rig.answer().result.error_code == Result.BUSY
    rig.robot.commands.clear()
    rig.spin(1.0)
    assert not rig.robot.commands and rig.node._robots[0].brain.task is None, "who resets it moves it alone"
    reset.over.set()
    rig.moves()
    second.cancel_goal_async()
    assert rig.result(second).executed_steps > 0


def test_a_goal_that_waits_for_a_reset_is_told_when_the_robot_is_deactivated_again(rig: DoorRig, reset: SlowReset) -> None:
    rig.node.trigger_activate()
    rig.goal("r1", time_budget_s=600.0, reset=True)
    rig.wait(lambda: reset.asked, "the reset")
    rig.node.trigger_deactivate()
    rig.node.trigger_activate()
    waiting = rig.goal("r1", time_budget_s=600.0)
    rig.node.trigger_deactivate()
    assert rig.result(waiting).error_code == Result.INACTIVE

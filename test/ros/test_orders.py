"""Robots and servers with certificates, over real DDS: nobody gives a task, pauses, drains or changes them without the certificate
of somebody who may. All of it is counted, and whoever may still does."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import rclpy
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState
from rcl_interfaces.srv import SetParameters, SetParametersAtomically
from rclpy.parameter import Parameter
from rfm_serving import action, msg, srv

from ros2_rfm_serving.errors import UnprovenError
from ros2_rfm_serving.monitoring.dashboard.control import Answer
from ros2_rfm_serving.ros.foreman_node import ForemanNode
from ros2_rfm_serving.ros.monitor.hands import Hands
from ros2_rfm_serving.ros.node.doorkeeper import MOST_SIGNED, sign
from ros2_rfm_serving.ros.node.runtime import clock
from ros2_rfm_serving.ros.robot_node import RobotNode
from ros2_rfm_serving.ros.wire import qos
from ros2_rfm_serving.security.own import ENCLAVE
from ros2_rfm_serving.security.signing import Prover
from ros2_rfm_serving.types import TaskOutcome
from test.enclaves import Enclaves

from .robot_rig import Rig
from .server_fleet import Fleet, serving

PARAMETERS = ["robot:robot:=r1", "robot:state_size:=3", "robot:action_names:=['x','y']", "robot:control_rate_hz:=20.0"]
PARAMETERS += ["robot:cameras:=['']", "foreman:robots:=[r1]", "foreman:pause_s:=0.1"]
DRAIN, UP = Transition(id=Transition.TRANSITION_DEACTIVATE), Transition(id=Transition.TRANSITION_ACTIVATE)


@pytest.fixture
def enclaves(tmp_path: Path) -> Enclaves:
    return Enclaves(tmp_path / "enclaves")


@pytest.fixture
def rig(ros_domain: int, enclaves: Enclaves, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    """A robot with a certificate."""
    monkeypatch.setenv(ENCLAVE, str(enclaves.make("r1")))
    rclpy.init(args=["--ros-args", *[part for each in PARAMETERS for part in ("-p", each)]])
    made = Rig(RobotNode(), "r1")
    try:
        made.wait(lambda: made.tested._robots, "it is configured")  # type: ignore[attr-defined]
        monkeypatch.delenv(ENCLAVE)
        yield made
    finally:
        made.close()
        rclpy.try_shutdown()


def unproven(rig: Rig) -> int:
    status = rig.robots["r1"].status
    return next((c.count for c in status.refused if c.name == "unproven"), 0) if status else 0


def counted(rig: Rig, number: int) -> None:
    rig.wait(lambda: unproven(rig) == number, f"{number} counted, not {unproven(rig)}")


def asked(rig: Any, client: Any, request: Any) -> Any:
    rig.wait(client.service_is_ready)
    future = client.call_async(request)
    rig.wait(future.done)
    return future.result()


def outcome(rig: Rig, **goal: Any) -> Any:
    return rig.result(rig.goal("r1", **goal))


def test_nobody_gives_a_robot_a_task_or_cancels_it_who_may_not(
    rig: Rig, enclaves: Enclaves, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = outcome(rig, instruction="go", time_budget_s=9.0)
    assert bare.error_code == TaskOutcome.UNPROVEN and len(bare.challenge) == 16
    challenge = bytes(bare.challenge)

    def goal(by: Path, asked: str = "r1", **changes: Any) -> dict[str, Any]:
        wanted = action.ExecuteTask.Goal(instruction="go", time_budget_s=9.0)
        sign(Prover(by), wanted, asked, challenge)
        return {"instruction": "go", "time_budget_s": 9.0, "proof": wanted.proof, **changes}

    for who in ("r2", "observer", "s1", "foremanx"):
        refused = outcome(rig, **goal(enclaves.make(who)))
        assert f"{who} may not" in refused.error_msg and refused.error_code == TaskOutcome.UNPROVEN
    operator = enclaves.make("operator")
    assert "not what was signed" in outcome(rig, **goal(operator, instruction="stop")).error_msg
    assert "not what was signed" in outcome(rig, **goal(operator, asked="r2")).error_msg, "of another robot"
    foreign = Enclaves(enclaves.root / "else").make("operator")
    assert "another authority's" in outcome(rig, **goal(foreign)).error_msg
    proven = goal(operator)
    handle = rig.goal("r1", **proven)
    rig.wait(lambda: rig.robots["r1"].feedback, "it is worked on")
    assert outcome(rig, **proven).error_code == TaskOutcome.UNPROVEN, "good once"
    assert rig.tested._robots[0].brain.task.result is None, "the other goes on"  # type: ignore[attr-defined]
    counted(rig, 1 + 4 + 3 + 1)

    brain = rig.tested._robots[0].brain  # type: ignore[attr-defined]
    for by in (None, enclaves.root / "r2"):
        monkeypatch.setenv(ENCLAVE, str(by)) if by else monkeypatch.delenv(ENCLAVE, raising=False)
        cancel, ordered = handle.cancel_goal_async(), Hands(rig.peer, qos.Names()).order("cancel", "r1", "")
        rig.wait(lambda: cancel.done() and ordered.done())  # noqa: B023
        assert not cancel.result().goals_canceling and not ordered.result().done and brain.task.result is None
    counted(rig, 9 + 2 * (1 + 1))
    monkeypatch.setenv(ENCLAVE, str(operator))
    ordered = Hands(rig.peer, qos.Names()).order("cancel", "r1", "")
    result = rig.result(handle)
    rig.wait(ordered.done)
    assert ordered.result().done and result.error_code == TaskOutcome.CANCELED and "by an order" in result.error_msg
    ordered = Hands(rig.peer, qos.Names()).order("cancel", "r1", "")
    rig.wait(ordered.done)
    assert ordered.result() == Answer(False, "there is no task")


def test_a_cancel_that_names_a_goal_ends_no_other(rig: Rig, enclaves: Enclaves) -> None:
    """As one that comes late, or is said again by somebody when the next task runs."""
    operator, wanted = Prover(enclaves.make("operator")), action.ExecuteTask.Goal(instruction="go", time_budget_s=600.0)
    client = rig.peer.create_client(srv.Order, "/r1/rfm/order", qos_profile=qos.CONTROL)

    def challenge() -> bytes:
        return bytes(asked(rig, client, srv.Order.Request()).challenge)

    def ordered(goal: Any, said: Any) -> Any:
        order = srv.Order.Request(what="cancel", goal=goal)
        sign(operator, order, "r1", challenge())
        order.goal = said
        return asked(rig, client, order)

    sign(operator, wanted, "r1", challenge())
    handle = rig.goal("r1", instruction="go", time_budget_s=600.0, proof=wanted.proof)
    rig.wait(lambda: rig.robots["r1"].feedback, "it is worked on")
    brain = rig.tested._robots[0].brain  # type: ignore[attr-defined]
    own, former = handle.goal_id.uuid, list(range(16))
    late = ordered(former, former)
    assert not late.success and late.message == "that task is over" and not late.error_code
    assert "not what was signed" in ordered(former, own).message and brain.task.result is None
    assert ordered(own, own).success and rig.result(handle).error_code == TaskOutcome.CANCELED
    assert ordered(own, own).message == "that task is over"


def test_nobody_pauses_a_robot_or_changes_it_who_may_not(rig: Rig, enclaves: Enclaves, monkeypatch: pytest.MonkeyPatch) -> None:
    robot = rig.robots["r1"]
    rig.wait(lambda: robot.status is not None)
    for service in robot.services.values():
        answer = rig.call(service)
        assert not answer.success and "rfm order" in answer.message
    peer, parameter = rig.peer, Parameter("max_action_age_s", value=9.0).to_parameter_msg()
    change = peer.create_client(ChangeState, "/robot/change_state")
    assert not asked(rig, change, ChangeState.Request(transition=DRAIN)).success
    for kind, leaf in ((SetParameters, "set_parameters"), (SetParametersAtomically, "set_parameters_atomically")):
        client = peer.create_client(kind, f"/robot/{leaf}")
        answer = asked(rig, client, kind.Request(parameters=[parameter]))
        result = answer.result if kind is SetParametersAtomically else answer.results[0]
        assert not result.successful and "certificates" in result.reason
    assert rig.tested.get_parameter("max_action_age_s").value != 9.0
    order = peer.create_client(srv.Order, "/r1/rfm/order", qos_profile=qos.CONTROL)
    bare = asked(rig, order, srv.Order.Request(what="pause"))
    assert not bare.success and bare.error_code == UnprovenError.code and len(bare.challenge) == 16
    of_another = srv.Order.Request(what="pause")
    sign(Prover(enclaves.make("r2")), of_another, "r1", bytes(bare.challenge))
    assert "r2 may not" in asked(rig, order, of_another).message
    counted(rig, 3 + 1 + 2 + 2)
    assert not rig.tested._robots[0].brain.paused  # type: ignore[attr-defined]

    monkeypatch.setenv(ENCLAVE, str(enclaves.make("dashboard")))
    hands = Hands(peer, qos.Names())
    for what, paused in (("pause", True), ("resume", False)):
        ordered = hands.order(what, "r1", "")
        rig.wait(ordered.done)
        assert ordered.result().done, ordered.result().message
        assert rig.tested._robots[0].brain.paused == paused  # type: ignore[attr-defined]
    ordered = hands.order("abort", "r1", "")
    rig.wait(ordered.done)
    assert not ordered.result().done and "certificate" not in ordered.result().message, "it has no task"


def test_a_page_gives_tasks_by_its_certificate_and_nobody_without_one(
    rig: Rig, enclaves: Enclaves, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answered(hands: Hands, action: str) -> Any:
        ordered = hands.order(action, "r1", "")
        rig.wait(ordered.done, f"the answer to {action}")
        return ordered.result()

    refused = answered(Hands(rig.peer, qos.Names()), "task")
    assert not refused.done and "it is not proven that you may give tasks" in refused.message
    assert "RFM_SERVING_ENCLAVE=DIR/enclaves/operator" in refused.message
    monkeypatch.setenv(ENCLAVE, str(enclaves.make("dashboard")))
    hands = Hands(rig.peer, qos.Names())
    begun = answered(hands, "task")
    assert begun.done and begun.end is not None, begun.message
    task = rig.tested._robots[0].brain.task  # type: ignore[attr-defined]
    assert answered(hands, "cancel").done
    rig.wait(begun.end.done, "its end")
    assert begun.end.result().message == "canceled; canceled by an order" and task.result.outcome is TaskOutcome.CANCELED


def comes(rig: Rig) -> ForemanNode:
    """And goes with all others, when their executor has ended: a client of an action that goes before has crashed it."""
    foreman = ForemanNode()
    rig.nodes.append(foreman)
    rig.executor.add_node(foreman)
    return foreman


def test_a_foreman_has_its_proof_with_it(rig: Rig, enclaves: Enclaves, monkeypatch: pytest.MonkeyPatch) -> None:
    bare = comes(rig)
    rig.wait(lambda: unproven(rig) > 1, "one without a certificate tries in vain")
    job = bare._jobs["r1"]
    rig.wait(lambda: job.idle and job.not_before_s > clock(), "a moment in which nothing of it is under way")
    assert rig.tested._robots[0].brain.task is None  # type: ignore[attr-defined]
    bare._timer.cancel()
    monkeypatch.setenv(ENCLAVE, str(enclaves.make("foreman_hall")))
    before = rig.tested._robots[0].brain.refused["unproven"]  # type: ignore[attr-defined]
    comes(rig)
    rig.wait(lambda: rig.tested._robots[0].brain.task, "a task")  # type: ignore[attr-defined]
    assert rig.tested._robots[0].brain.refused["unproven"] == before, "nobody was refused for that"  # type: ignore[attr-defined]


def test_a_foreman_ends_a_task_that_the_simulator_says_is_done(
    rig: Rig, enclaves: Enclaves, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENCLAVE, str(enclaves.make("foreman")))
    foreman = comes(rig)
    job, body = foreman._jobs["r1"], rig.tested._robots[0]  # type: ignore[attr-defined]
    rig.wait(lambda: body.brain.task and job.client.is_accepted, "a task")
    task = body.brain.task
    job.on_score(msg.EpisodeScore(success=True))
    rig.wait(lambda: task.result is not None, "its end")
    assert task.result.outcome is TaskOutcome.CANCELED and task.result.message == "canceled by an order"


def test_whoever_tells_a_new_challenge_every_time_is_not_asked_for_ever(
    rig: Rig, enclaves: Enclaves, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENCLAVE, str(enclaves.make("operator")))
    heard: list[Any] = []

    def answer(request: Any, response: Any) -> Any:
        heard.append(request)
        response.challenge = os.urandom(16)
        return response

    rig.peer.create_service(srv.Order, "/r9/rfm/order", answer, qos_profile=qos.CONTROL)
    ordered = Hands(rig.peer, qos.Names()).order("pause", "r9", "")
    rig.wait(ordered.done)
    assert not ordered.result().done and "somebody else may be answering in its name" in ordered.result().message
    assert len(heard) == 1 + MOST_SIGNED and not heard[0].what


@pytest.mark.parametrize("folder", ["", "nowhere"])
def test_a_robot_whose_enclave_is_bad_is_changed_by_nobody(
    ros_domain: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, folder: str
) -> None:
    monkeypatch.setenv(ENCLAVE, str(tmp_path / folder) if folder else "")
    rclpy.init(args=["--ros-args", *[part for each in PARAMETERS for part in ("-p", each)]])
    made = Rig(RobotNode(), "r1")
    try:
        change = made.peer.create_client(ChangeState, "/robot/change_state")
        assert not asked(made, change, ChangeState.Request(transition=Transition(id=Transition.TRANSITION_CONFIGURE))).success
        client = made.peer.create_client(SetParameters, "/robot/set_parameters")
        parameter = Parameter("max_action_age_s", value=9.0).to_parameter_msg()
        answer = asked(made, client, SetParameters.Request(parameters=[parameter])).results[0]
        assert not answer.successful and "shut where there are certificates" in answer.reason
        assert not made.tested._robots, "nor is it configured"  # type: ignore[attr-defined]
    finally:
        made.close()
        rclpy.try_shutdown()


def test_nobody_drains_a_server_who_may_not(
    ros_domain: int, enclaves: Enclaves, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENCLAVE, str(enclaves.make("s1")))
    with serving(tmp_path) as (fleet, process):
        monkeypatch.delenv(ENCLAVE)
        change = fleet.create_client(ChangeState, "/model_server/change_state")
        for transition in (DRAIN, Transition(label="shutdown"), UP):
            assert not asked(fleet, change, ChangeState.Request(transition=transition)).success
        setting = fleet.create_client(SetParameters, "/model_server/set_parameters")
        parameter = Parameter("max_sessions", value=1).to_parameter_msg()
        assert not asked(fleet, setting, SetParameters.Request(parameters=[parameter])).results[0].successful
        order = fleet.create_client(srv.Order, "/rfm/servers/s1/order", qos_profile=qos.CONTROL)
        bare = asked(fleet, order, srv.Order.Request(what="drain"))
        assert not bare.success and bare.error_code == UnprovenError.code
        of_a_robot = srv.Order.Request(what="drain")
        sign(Prover(enclaves.make("arm_1")), of_a_robot, "s1", bytes(bare.challenge))
        assert "arm_1 may not" in asked(fleet, order, of_a_robot).message
        fleet.wait(lambda: fleet.refused("unproven") == 3 + 1 + 2, what="counted")
        assert fleet.status.state == msg.ServerStatus.READY
        assert ordered(fleet, "drain").done is False, "not by who has no certificate"

        for who, what, state in (
            ("operator", "drain", "DRAINING"),
            ("dashboard", "activate", "READY"),
            ("s1", "drain", "DRAINING"),
        ):
            monkeypatch.setenv(ENCLAVE, str(enclaves.root / who if who == "s1" else enclaves.make(who)))
            answer = ordered(fleet, what)
            assert answer.done, answer.message
            fleet.wait(lambda state=state: fleet.status.state == getattr(msg.ServerStatus, state), what=state)
        assert not ordered(fleet, "drain").done, "its state does not allow it"
        typed = [sys.executable, "-W", "ignore", "-m", "ros2_rfm_serving.cli", "order", "s1", "activate"]
        for who, code, said in (("observer", 2, "observer may not"), ("operator", 0, "takes sessions and requests again")):
            enclave = enclaves.root / who if who == "operator" else enclaves.make(who)
            done = subprocess.run(typed, env={**os.environ, ENCLAVE: str(enclave)}, capture_output=True, text=True, check=False)
            assert done.returncode == code and said in done.stdout + done.stderr, done.stderr
        assert process.poll() is None


def ordered(fleet: Fleet, what: str) -> Answer:
    future = Hands(fleet, qos.Names()).order(what, "s1", "")
    fleet.wait(future.done)
    return future.result()

"""How a model server stops serving: deactivated, turned to another model, with an engine that is of no use any more. Real processes
over real DDS; the engine is `mirror_engine.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState
from rcl_interfaces.srv import SetParameters
from rclpy.parameter import Parameter
from rfm_serving import action, msg, srv

from ros2_rfm_serving.ros.model_server_node import EXIT_HUNG
from ros2_rfm_serving.ros.wire import convert, qos
from ros2_rfm_serving.types import Placement, Schedule
from test.waiting import eventually

from .server_fleet import JPEG, UNHURRIED, Fleet, Gate, launched, serving

READY, DRAINING = msg.ServerStatus.READY, msg.ServerStatus.DRAINING


def change(fleet: Fleet, transition: int) -> None:
    client = fleet.create_client(ChangeState, "/model_server/change_state")
    fleet.wait(client.service_is_ready)
    future = client.call_async(ChangeState.Request(transition=Transition(id=transition)))
    fleet.wait(future.done)
    assert future.result().success
    fleet.destroy_client(client)


def goal(fleet: Fleet, instruction: str) -> Any:
    """The future of a goal's result."""
    fleet.wait(fleet.inference.server_is_ready)
    observed = fleet._observation("any", 0, 0.0, instruction, 1, JPEG)
    sending = fleet.inference.send_goal_async(action.Infer.Goal(observation=observed))
    fleet.wait(sending.done)
    return sending.result().get_result_async()


def settle(fleet: Fleet, robots: list[str]) -> None:
    """Everybody has a session, is heard and hears."""
    for robot in robots:
        assert fleet.open(robot).success
        fleet.ask(robot)
    fleet.wait(lambda: fleet.status.waiting == 0)
    fleet.chunks.clear()


def one_runs_and_two_wait(fleet: Fleet, gate: Gate, robots: list[str]) -> dict[str, set[int]]:
    """Requests of three robots behind a shut gate, by their numbers. Best effort: again until all have arrived."""
    first, *others = robots
    asked = {first: fleet.held(gate, first, 1.0), **{robot: set[int]() for robot in others}}

    def wait_behind() -> bool:
        for robot in others:
            asked[robot].add(fleet.send(robot, 1.0))
        return bool(eventually(lambda: fleet.status.waiting >= len(others), 5.0, fleet._turn))

    fleet.wait(wait_behind, what="one runs, two wait")
    return asked


def give_up_after(fleet: Fleet, seconds: float) -> None:
    client = fleet.create_client(SetParameters, "/model_server/set_parameters")
    fleet.wait(client.service_is_ready)
    parameter = Parameter("drain_timeout_s", value=seconds).to_parameter_msg()
    future = client.call_async(SetParameters.Request(parameters=[parameter]))
    fleet.wait(future.done)
    assert future.result().results[0].successful


def test_a_server_that_is_deactivated_answers_what_it_has_and_says_why_it_takes_nothing_new(
    ros_domain: int, tmp_path: Path
) -> None:
    robots = ["r1", "r2", "r3"]
    limits = {"max_sessions": 16, "infer_waiting": 16, "infer_rate_hz": 0.0}
    with serving(tmp_path, *robots, batch_size=1, dispatch="fifo", **limits, **UNHURRIED) as (fleet, _):
        settle(fleet, robots)
        gate = Gate(tmp_path)
        gate.shut()
        asked = one_runs_and_two_wait(fleet, gate, robots)
        change(fleet, Transition.TRANSITION_DEACTIVATE)  # which is answered: the executor is not held
        refusal = fleet.open("r4")
        assert (refusal.success, refusal.error_code) == (False, 221) and "draining (deactivated)" in refusal.error_msg
        assert fleet.infer("go").error_code == 221
        gate.open()
        fleet.wait(lambda: all(fleet.chunks[robot] for robot in robots), what="the answers to what ran and waited")
        assert all(fleet.chunks[robot][0][1].id.sequence in asked[robot] for robot in robots)
        fleet.is_refused("draining", "r1")
        assert fleet.status.state == DRAINING and fleet.open("r4").error_code == 221, "and so it remains"
        change(fleet, Transition.TRANSITION_ACTIVATE)
        fleet.wait(lambda: fleet.status.state == READY)
        assert fleet.ask("r1", 3.0).chunk_robot.data[0] == 3.0, "in the session that it had"

        # What takes longer than it may is refused with a reason, and no client waits on.
        give_up_after(fleet, 1.0)
        results = [goal(fleet, "go")]
        fleet.wait(results[0].done, what="an answer")
        gate.shut()
        results += [goal(fleet, "go") for _ in range(7)]
        change(fleet, Transition.TRANSITION_DEACTIVATE)
        fleet.wait(lambda: any(result.done() for result in results[1:]), what="a refusal")
        gate.open()
        fleet.wait(lambda: all(result.done() for result in results), what="an end of every goal")
        codes = [result.result().result.error_code for result in results]
        assert codes.count(221) >= 1 and codes.count(0) >= 1 and set(codes) == {0, 221}
        change(fleet, Transition.TRANSITION_CLEANUP)
        change(fleet, Transition.TRANSITION_CONFIGURE)
        change(fleet, Transition.TRANSITION_ACTIVATE)
        fleet.wait(lambda: fleet.status.state == READY and fleet.status.model_hash == "load 2", what="the model anew")
        assert fleet.open("r1").success and fleet.ask("r1", 4.0).chunk_robot.data[0] == 4.0


def test_sessions_that_come_and_go_leave_no_topics(ros_domain: int, tmp_path: Path) -> None:
    with serving(tmp_path, "r1", absent_grace_s=0.5) as (fleet, process):
        settle(fleet, ["r1"])
        closer = fleet.create_client(srv.CloseSession, qos.Names().server("s1", "close_session"))
        fleet.wait(closer.service_is_ready)
        for i in range(400):
            epoch = fleet.open(f"guest{i}").session_epoch
            closing = closer.call_async(srv.CloseSession.Request(robot=f"guest{i}", component="system1", session_epoch=epoch))
            fleet.wait(closing.done)

        def topics() -> int:
            return sum("action_chunk" in name for name, _ in fleet.get_publisher_names_and_types_by_node("model_server", "/"))

        fleet.wait(lambda: topics() == 1, what="only r1's topic is left")
        assert fleet.ask("r1", 5.0).chunk_robot.data[0] == 5.0 and process.poll() is None
        assert fleet.open("guest1").success
        fleet.wait(lambda: topics() == 2, what="who comes back is written to again")


def test_a_server_turned_to_another_model_answers_what_it_has_and_an_engine_that_fails_ends_it(
    ros_domain: int, tmp_path: Path
) -> None:
    with launched(tmp_path, "r1", model="''", max_engine_errors=3, **UNHURRIED) as (fleet, process):
        says = fleet.create_publisher(msg.Schedule, qos.Names().schedule, qos.SCHEDULE)

        def place(epoch: int, model: str) -> None:
            placed = {"gpu_type": "CPU", "batching": "fixed", "batch_size": 1, "max_sessions": 2, "predicted_p99_s": 0.1}
            placement = Placement(server="s1", model=model, components=("system1",), **placed)  # type: ignore[arg-type]
            schedule = Schedule(epoch=epoch, placements=(placement,), routes=(), predicted_actions_hz=0.0, policy="test")
            says.publish(convert.schedule_to(schedule, "test"))
            fleet.wait(lambda: fleet.status and fleet.status.schedule_epoch == epoch, what=f"epoch {epoch} is followed")

        place(1, "mirror")
        fleet.wait(lambda: fleet.status.state == READY)
        settle(fleet, ["r1"])
        gate = Gate(tmp_path)
        gate.shut()
        asked = fleet.held(gate, "r1", 2.0)
        place(2, "slow")
        assert fleet.status.state == DRAINING and fleet.open("r1").error_code == 221
        gate.open()
        fleet.wait(lambda: fleet.chunks["r1"], what="the answer of the model before")
        assert fleet.chunks["r1"][0][1].id.sequence in asked
        served = len(fleet.chunks["r1"])
        fleet.wait(lambda: fleet.status.state == READY and fleet.status.model == "slow", what="the other model")
        assert fleet.status.served >= served > 0, "a process that counts anew was started again"
        settle(fleet, ["r1"])

        # Requests that no engine can answer are no reason to end. An engine that answers nothing is.
        fleet.is_refused("engine_error", "r1", instruction="out of memory")
        assert fleet.ask("r1", 3.0).chunk_robot.data[0] == 3.0

        def ended() -> bool:
            fleet.send("r1", instruction="break")
            fleet.spin(0.2)
            return process.poll() is not None

        fleet.wait(ended, what="the end of the process")
        assert process.poll() == EXIT_HUNG and msg.ServerStatus.FAILED in fleet.states
        assert "in a row, last with MemoryError" in fleet.details[-1]

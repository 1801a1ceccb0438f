"""A model server process over real DDS when things go wrong: robots that flood, share, leave; engines that hang, spoil, run out of
memory; an end while it works. The engine is `mirror_engine.py`: every action is the state of the robot that asked."""

from __future__ import annotations

import signal
import time
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import rclpy
from rfm_serving import msg

from ros2_rfm_serving.factory.nodes import NodeSpec
from ros2_rfm_serving.operate.supervisor import Supervisor
from ros2_rfm_serving.ros.model_server_node import EXIT_HUNG
from ros2_rfm_serving.ros.wire import convert, qos
from ros2_rfm_serving.types import HorizonRequest, Placement, Route, Schedule
from test.ports import free_port
from test.waiting import eventually

from .mirror_engine import NAMES, UNSURE_ROW
from .server_fleet import JPEG, STARTS_S, UNHURRIED, Fleet, Gate, launched, serving, started, write_profiles


def test_robots_share_an_engine_and_nobody_pays_for_another(ros_domain: int, tmp_path: Path) -> None:
    robots = [f"r{i}" for i in range(6)]
    with serving(tmp_path, *robots, max_sessions=6, max_request_rate_hz=20.0, request_burst=5, **UNHURRIED) as (fleet, process):
        failure = fleet.infer("nan")
        assert failure.error_code == 200 and failure.error_msg == "the model could not answer; the server's log says why"

        # Capacity and contract.
        for robot in robots:
            assert fleet.open(robot).success
        full = fleet.open("r9")
        assert (full.success, full.error_code, full.sessions, full.max_sessions) == (False, 220, 6, 6)
        assert "6 of 6 sessions are open" in full.error_msg
        assert fleet.open("r1", action_names=NAMES[::-1]).error_code == 210

        # Contamination: everybody gets an answer made of its own state alone, however they are batched.
        fleet.wait(lambda: all(fleet.hears[r].get_publisher_count() for r in robots), what="discovery")

        def together() -> bool:
            return any(chunk.served.batch_size > 1 for robot in robots for _, chunk in fleet.chunks[robot])

        for turn in range(15):
            for i, robot in enumerate(robots):
                fleet.send(robot, 100.0 * i + turn)
            fleet.spin(0.1)
        gate = Gate(tmp_path)
        gate.shut()
        fleet.held(gate, robots[0])
        for i, robot in enumerate(robots):
            fleet.send(robot, 100.0 * i)
        fleet.wait(lambda: fleet.status.waiting > 1, what="several that wait for one")
        gate.open()
        fleet.wait(together, what="an answer to several at once")
        for i, robot in enumerate(robots):
            fleet.wait(lambda robot=robot: fleet.chunks[robot], what=robot)
            for _, chunk in fleet.chunks[robot]:
                values = set(convert.tensor_from(chunk.chunk_robot)[:, 0].tolist())
                assert len(values) == 1 and 100.0 * i <= values.pop() < 100.0 * (i + 1), robot

        # A spoilt row, a batch without memory, an image of 5 MB, one that is none.
        fleet.is_refused("non_finite_output", "r0", instruction="nan")
        for counter, instruction in [
            ("engine_error", "out of memory"),
            ("engine_error", "exit"),
            ("bad_output", "none"),
            ("bad_output", "rank"),
        ]:
            fleet.is_refused(counter, "r0", instruction=instruction)
        fleet.is_refused("bad_image", "r0", image=JPEG[:40])
        assert fleet.ask("r0", 7.0).chunk_robot.data[0] == 7.0
        assert "secret" not in fleet.status.detail and process.poll() is None

        # A flood from one robot: it is cut to its quota, the others keep their SLO.
        slo_s = 1.0

        def in_time() -> list[bool]:
            fleet.chunks.clear()
            for robot in robots[1:]:
                fleet.send(robot, 1.0)
            sent_s = time.monotonic()
            while time.monotonic() - sent_s < 0.25:
                for _ in range(5):
                    fleet.send("r0")
                fleet.executor_.spin_once(timeout_sec=0.005)
            while time.monotonic() - sent_s < slo_s and not all(fleet.chunks[robot] for robot in robots[1:]):
                fleet.executor_.spin_once(timeout_sec=0.005)
            return [any(arrived_s - sent_s < slo_s for arrived_s, _ in fleet.chunks[robot]) for robot in robots[1:]]

        def kept() -> bool:
            answers = [answer for _ in range(6) for answer in in_time()]
            return answers.count(False) <= len(answers) // 20

        # A flood would make them late each time, a machine that stands still does now and then.
        fleet.wait(kept, what="a flood in which well-behaved robots are answered in time")
        fleet.wait(lambda: fleet.refused("over_quota") > 100, what="a quota")


def test_a_fleet_that_opens_its_sessions_at_once_is_answered(ros_domain: int, tmp_path: Path) -> None:
    with serving(tmp_path, max_sessions=200) as (fleet, _):
        openings = [fleet.opening(f"r{i}") for i in range(200)]
        fleet.wait(lambda: all(opening.done() for opening in openings), what="every answer")
        assert all(opening.result().success for opening in openings)


def test_how_much_of_a_chunk_is_executed_is_what_the_session_asked_for(ros_domain: int, tmp_path: Path) -> None:
    policies = {
        "r1": (HorizonRequest(policy="confidence"), UNSURE_ROW),
        "r2": (HorizonRequest(policy="confidence", threshold=2.0), 8),
        "r3": (HorizonRequest(policy="static", steps=3), 3),
        "r4": (HorizonRequest(), 0),
    }
    with serving(tmp_path, *policies, dispatch="best", batching="wait") as (fleet, _):
        for robot, (horizon, steps) in policies.items():
            assert fleet.open(robot, horizon=horizon).success
            chunk = fleet.ask(robot)
            assert chunk.execution_horizon == steps and len(chunk.confidence) == 8
            assert min(range(8), key=chunk.confidence.__getitem__) == UNSURE_ROW
        refusal = fleet.open("r1", horizon=HorizonRequest(policy="guess"))
        assert refusal.error_code == 210 and "guess" in refusal.error_msg
        assert fleet.status.dispatch == "best"


def test_a_robot_that_waits_for_long_is_asked_for_a_newer_observation(ros_domain: int, tmp_path: Path) -> None:
    with serving(tmp_path, "r1", "r2", batch_s=0.5, batch_size=1, refetch_after_s=0.2) as (fleet, _):
        asked: list[Any] = []
        fleet.create_subscription(msg.RequestId, qos.Names().robot("r2", "rfm/refetch"), asked.append, qos.REFETCH)
        for robot in ("r1", "r2"):
            assert fleet.open(robot).success
            fleet.ask(robot)

        def newer() -> bool:
            fleet.chunks.clear()
            del asked[:]
            fleet.send("r1", 1.0)
            fleet.spin(0.05)
            old = fleet.send("r2", 2.0)
            end_s = time.monotonic() + 1.0
            while time.monotonic() < end_s and not asked:
                fleet.executor_.spin_once(timeout_sec=0.02)
            if not asked or asked[0].sequence != old:
                return False
            new = fleet.send("r2", 3.0)
            end_s = time.monotonic() + 5.0
            while time.monotonic() < end_s and not fleet.chunks["r2"]:
                fleet.executor_.spin_once(timeout_sec=0.02)
            if not fleet.chunks["r2"]:  # best effort: it was lost
                return False
            chunk = fleet.chunks["r2"][0][1]
            return chunk.id.sequence == new and chunk.chunk_robot.data[0] == 3.0 and chunk.served.superseded == 1

        fleet.wait(newer, what="a newer observation in time")


def test_what_the_edge_cannot_answer_in_time_is_answered_in_the_cloud(ros_domain: int, tmp_path: Path) -> None:
    port = free_port()
    robots = [f"r{i}" for i in range(4)]
    edge = {"batch_s": 0.3, "batch_size": 1, "dispatch": "best", "overflow_url": f"ws://127.0.0.1:{port}"}
    with started(tmp_path / "cloud", server="s2", gateway_port=port):
        assert _is_ready(f"http://127.0.0.1:{port}/healthz")
        with serving(tmp_path, *robots, **edge) as (fleet, _):
            cloud: list[Any] = []
            fleet.create_subscription(msg.ServerStatus, qos.Names().server("s2", "status"), cloud.append, qos.SERVER_STATUS)
            for robot in robots:
                assert fleet.open(robot).success
                fleet.ask(robot, 0.0)
            fleet.chunks.clear()
            for turn in range(20):
                for i, robot in enumerate(robots):
                    fleet.send(robot, 100.0 * i + turn)
                fleet.spin(0.2)
            for i, robot in enumerate(robots):
                values = [chunk.chunk_robot.data[0] for _, chunk in fleet.chunks[robot]]
                assert values and all(value == 0.0 or 100.0 * i <= value < 100.0 * (i + 1) for value in values)
            fleet.wait(lambda: cloud and cloud[-1].served > 0, what="something answered in the cloud")
            assert fleet.status.served > cloud[-1].served, "and something at the edge"


def _is_ready(url: str) -> bool:
    end_s = time.monotonic() + 60.0
    while time.monotonic() < end_s:
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                if answer.status == 200:
                    return True
        except OSError:
            time.sleep(0.1)
    return False


def test_a_robot_that_leaves_makes_room(ros_domain: int, tmp_path: Path) -> None:
    with serving(tmp_path, "r1", "r2", max_sessions=1, absent_grace_s=1.0) as (fleet, _):
        assert fleet.open("r1").success
        fleet.ask("r1")
        assert fleet.open("r2").error_code == 220
        fleet.destroy_subscription(fleet.hears.pop("r1"))
        fleet.wait(lambda: fleet.refused("robot_gone") == 1, what="collection")
        assert fleet.open("r2").success and fleet.ask("r2", 3.0).chunk_robot.data[0] == 3.0


def test_a_model_that_keeps_state_has_one_robot_and_forgets_with_the_episode(ros_domain: int, tmp_path: Path) -> None:
    with serving(tmp_path, "r1", "r2", mode="exclusive") as (fleet, _):
        answer = fleet.open("r1")
        assert answer.success and answer.serving == "exclusive" and answer.max_sessions == 1
        refusal = fleet.open("r2")
        assert refusal.error_code == 220 and "serves one session, r1's" in refusal.error_msg
        resets = [fleet.ask("r1", episode=episode).chunk_robot.data[2] for episode in (1, 1, 2)]
        assert resets == [1.0, 1.0, 2.0]


def test_at_its_end_a_server_finishes_what_runs_and_refuses_what_is_new(ros_domain: int, tmp_path: Path) -> None:
    with serving(tmp_path, "r1", "r2", **UNHURRIED) as (fleet, process):
        assert fleet.open("r1").success and fleet.open("r2").success
        fleet.ask("r1"), fleet.ask("r2")
        fleet.wait(lambda: fleet.status.waiting == 0)
        fleet.chunks.clear()
        gate = Gate(tmp_path)
        gate.shut()
        asked = fleet.held(gate, "r1", 5.0)
        process.send_signal(signal.SIGTERM)
        fleet.wait(lambda: fleet.status.state == msg.ServerStatus.DRAINING, what="draining")
        refusal = fleet.open("r2")
        assert not refusal.success and refusal.error_code == 221 and "draining" in refusal.error_msg
        gate.open()
        fleet.wait(lambda: fleet.chunks["r1"], what="the answer to what ran")
        assert fleet.chunks["r1"][0][1].id.sequence in asked
        assert process.wait(timeout=120) == 0


def test_a_hung_engine_ends_its_process_which_says_so_before_and_is_started_again(ros_domain: int, tmp_path: Path) -> None:
    write_profiles(tmp_path)
    parameters = {"server": "s1", "model": "mirror", "profiles_folder": str(tmp_path / "profiles"), "hung_after_s": 1.0}
    node = NodeSpec(name="s1", executable="model_server_node", parameters={**parameters, "max_sessions": 8})
    supervisor = Supervisor([node], tmp_path / "logs")
    supervisor.start()
    rclpy.init()
    fleet = Fleet("r1")
    try:
        fleet.wait(lambda: fleet.status and fleet.status.state == msg.ServerStatus.READY, what="ready")
        assert fleet.open("r1").success
        fleet.ask("r1")
        events: list[str] = []

        def ended() -> bool:
            fleet.send("r1", instruction="hang")
            fleet.spin(0.3)
            events.extend(supervisor.watch())
            return bool(events)

        fleet.wait(ended, what="the end of the process")
        assert f"exit code {EXIT_HUNG}" in events[0] and fleet.states[-1] == msg.ServerStatus.HUNG
        assert fleet.status.detail == "the engine does not come back"
        fleet.wait(lambda: supervisor.watch() or fleet.status.state == msg.ServerStatus.READY, what="a new process")
        fleet.wait(lambda: fleet.status.state == msg.ServerStatus.READY, what="ready again")
        assert fleet.open("r1").success and fleet.ask("r1", 3.0).chunk_robot.data[0] == 3.0
    finally:
        fleet.executor_.shutdown()
        fleet.destroy_node()
        rclpy.try_shutdown()
        supervisor.stop()


@pytest.mark.parametrize("model", ["nobody/knows", "absent"])
def test_a_model_that_cannot_be_loaded_is_said_without_a_path(ros_domain: int, tmp_path: Path, model: str) -> None:
    with launched(tmp_path, model=model, models_folder="/nowhere") as (fleet, process):
        fleet.wait(lambda: fleet.status and fleet.status.state == msg.ServerStatus.FAILED)
        assert "cannot be loaded" in fleet.status.detail and "/nowhere" not in fleet.status.detail
        answer = fleet.open("r1")
        assert answer.error_code == 200 and "/nowhere" not in answer.error_msg and process.poll() is None


SLOW = Placement(
    server="s1",
    model="slow",
    components=("system1",),
    gpu_type="CPU",
    batching="fixed",
    batch_size=1,
    max_sessions=2,
    predicted_p99_s=0.1,
)


def test_a_model_that_does_not_end_loading_ends_the_process(
    ros_domain: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    Gate(tmp_path, "load_gate").shut()
    with started(tmp_path, model="slow", load_timeout_s=0.5) as process:
        assert process.wait(timeout=STARTS_S) == EXIT_HUNG
    assert "slow is not loaded after 0.5 s (`load_timeout_s`)" in capfd.readouterr().err


@pytest.mark.thorough
def test_who_waits_for_a_model_is_told_what_it_is_about_and_may_stop_waiting(
    ros_domain: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """In its status and in the log, while one thread is deep in code that nobody can stop."""
    Gate(tmp_path, "load_gate").shut()
    with launched(tmp_path, "r1", model="slow") as (fleet, process):
        fleet.wait(lambda: fleet.status and "so far: reading it" in fleet.status.detail, what="a word of what takes long")
        assert fleet.status.state == msg.ServerStatus.LOADING and fleet.status.detail.startswith("loading slow, for ")
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 0
    said = capfd.readouterr().err
    assert "loading slow, for " in said and "Traceback" not in said


def test_a_model_that_is_replaced_twice_while_it_loads_is_loaded_after_what_was_there(ros_domain: int, tmp_path: Path) -> None:
    """The one that nobody wants any more when its turn comes is never loaded. A robot may ask as often as its schedule says."""
    gate = Gate(tmp_path, "load_gate")
    gate.shut()
    with launched(tmp_path, "r1", model="''", request_burst=1) as (fleet, _):
        says = fleet.create_publisher(msg.Schedule, qos.Names().schedule, qos.SCHEDULE)
        route = Route(robot="r1", component="system1", server="s1", max_rate_hz=1.0, slo_s=0.5)
        for epoch, model in enumerate(("slow", "mirror", "slow"), start=1):
            placed = replace(SLOW, model=model)
            schedule = Schedule(epoch=epoch, placements=(placed,), routes=(route,), predicted_actions_hz=0.0, policy="test")
            says.publish(convert.schedule_to(schedule, "test"))
            fleet.wait(lambda epoch=epoch: fleet.status and fleet.status.schedule_epoch == epoch, what="the schedule is heard")
            fleet.wait(gate.holds, what="the first one's loading")
        gate.open()
        fleet.wait(lambda: fleet.status.state == msg.ServerStatus.READY, what="ready")
        assert (fleet.status.model, fleet.status.model_hash) == ("slow", "load 2")
        fleet.open("r1")

        def refused() -> bool:
            """Of forty in one breath."""
            for _ in range(40):
                fleet.send("r1")
            return bool(eventually(lambda: fleet.refused("over_quota") >= 15, 2.0, fleet._turn))

        fleet.wait(refused, what="the quota of its rate")


def test_a_schedule_that_comes_while_the_model_loads_is_followed_without_another_load(ros_domain: int, tmp_path: Path) -> None:
    gate = Gate(tmp_path, "load_gate")
    gate.shut()
    with launched(tmp_path, "r1", model="''") as (fleet, _):
        says = fleet.create_publisher(msg.Schedule, qos.Names().schedule, qos.SCHEDULE)
        for epoch, more in ((1, {}), (2, {"max_sessions": 5, "batch_size": 4})):
            schedule = Schedule(
                epoch=epoch, placements=(replace(SLOW, **more),), routes=(), predicted_actions_hz=0.0, policy="test"
            )
            says.publish(convert.schedule_to(schedule, "test"))
            fleet.wait(lambda epoch=epoch: fleet.status and fleet.status.schedule_epoch == epoch, what="the schedule is heard")
        assert fleet.status.state == msg.ServerStatus.LOADING
        gate.open()
        fleet.wait(lambda: fleet.status.state == msg.ServerStatus.READY, what="ready")
        fleet.wait(lambda: (fleet.status.max_sessions, fleet.status.batch_size) == (5, 4), what="the newer limits")
        assert fleet.status.model_hash == "load 1"

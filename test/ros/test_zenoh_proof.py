"""A robot and a server that both have certificates, with a door and a router between them that has rules: what is sealed arrives
sealed."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rclpy
import zenoh
from rfm_serving import msg

from ros2_rfm_serving.factory import load_factory
from ros2_rfm_serving.factory.nodes import ZENOH_PORT
from ros2_rfm_serving.robot import Sensors
from ros2_rfm_serving.ros.fleet_client import FleetClient
from ros2_rfm_serving.ros.model_server_node import ModelServerNode
from ros2_rfm_serving.ros.node.draft import draft
from ros2_rfm_serving.ros.node.runtime import executor
from ros2_rfm_serving.ros.robot.settings import robot_settings
from ros2_rfm_serving.ros.scheduler_node import SchedulerNode
from ros2_rfm_serving.ros.wire import convert, qos
from ros2_rfm_serving.ros.zenoh.door import ZenohDoorNode
from ros2_rfm_serving.ros.zenoh.robot import ZenohRobot, settings_of
from ros2_rfm_serving.ros.zenoh_door_node import SPECS
from ros2_rfm_serving.security.authority import utc_now
from ros2_rfm_serving.security.folder import Folder
from ros2_rfm_serving.security.issuing import add, start
from ros2_rfm_serving.security.members import Member
from ros2_rfm_serving.security.own import ENCLAVE
from ros2_rfm_serving.security.record import Record
from ros2_rfm_serving.security.wire_table import Role
from ros2_rfm_serving.types import EncodedImage, RobotState
from test.unit.fakes import schedule
from test.waiting import eventually
from test.zenoh_robot import CAMERAS, STATE_SIZE

from .herald import Herald
from .mirror_engine import NAMES
from .server_fleet import JPEG, STARTS_S, serving
from .test_zenoh_robot import free_port
from .zenoh_rig import WAITING

__all__ = ["free_port"]
GIVEN = {
    "action_names": list(NAMES),
    "cameras": ["front"],
    "state_size": 3,
    "control_rate_hz": 20.0,
    "max_action_age_s": 1.0,
    "conditioning": "none",
}


@pytest.fixture
def secured(ros_domain: int, free_port: int, tmp_path: Path) -> Iterator[Folder]:
    """Its router runs."""
    folder = written(tmp_path, ros_domain, s1=Role.SERVER, scheduler=Role.SCHEDULER)
    at_port(folder, free_port)
    session = zenoh.open(zenoh.Config.from_file(str(folder.router)))
    yield folder
    session.close()


def written(folder: Path, domain: int, **more: Role) -> Folder:
    made = Folder(folder / "security")
    roles = {"arm_1": Role.ROBOT, "door": Role.DOOR, "router": Role.ROUTER, **more}
    members = {name: Member(name=name, role=role, of=name) for name, role in roles.items()}
    start(made, Record(factory="f", domain=domain, members={}), members, [], utc_now(), 30.0)
    return made


def at_port(folder: Folder, port: int) -> None:
    for file in folder.root.rglob("*.json5"):
        file.write_text(file.read_text().replace(f":{ZENOH_PORT}", f":{port}"))


def test_a_robot_on_zenoh_proves_who_it_is(
    ros_domain: int, secured: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENCLAVE, str(secured.enclave("s1")))
    with serving(tmp_path, "arm_1") as (fleet, process):
        monkeypatch.setenv(ENCLAVE, str(secured.enclave("door")))
        door = ZenohDoorNode(SPECS)
        door.begin()
        fleet.executor_.add_node(door)
        plans = fleet.create_publisher(msg.Schedule, "/rfm/schedule", qos.SCHEDULE)
        plan = convert.schedule_to(schedule("arm_1", server="s1"), "hall")
        plans.publish(Herald(secured.enclave("scheduler"), fleet, plan).word())
        monkeypatch.setenv(ENCLAVE, str(secured.enclave("arm_1")))
        robot = ZenohRobot(robot_settings(draft(GIVEN), "arm_1"), domain=ros_domain)
        robot.start("go")
        commands = []

        def served() -> bool:
            now_s = time.monotonic()
            image = EncodedImage(camera="front", format="jpeg", data=JPEG, height_px=16, width_px=16)
            state = np.array([0.1, 0.2, 0.3], np.float32)
            command = robot.tick(Sensors(state=state, state_s=now_s, images=(image,), images_s=now_s))
            commands.extend([command] if command is not None else [])
            return len(commands) > 5

        fleet.wait(served, what=f"commands; refused: {robot.brain.refused}")
        assert len(fleet.status.challenge) and not fleet.refused("unproven")
        forged = msg.ActionChunk(chunk_robot=convert.tensor_to(np.full((8, 3), 5.0, np.float32)), action_names=NAMES)
        (_, *identity), _ = next(iter(robot._servers.proofs._opened.items()))
        forged.header.frame_id, (forged.id.robot, forged.id.component, forged.id.session_epoch) = "s1", identity
        intruder = fleet.create_publisher(msg.ActionChunk, "/arm_1/rfm/action_chunk", qos.REPLY)

        def refused() -> bool:
            intruder.publish(forged)
            served()
            fleet.spin(0.05)
            return robot.brain.refused["unproven"] > 5

        fleet.wait(refused, what=f"what is not sealed is refused behind the door: {robot.brain.refused}")
        before = len(commands)
        fleet.wait(lambda: served() and len(commands) > before + 10, what="it goes on")
        assert max(np.abs(command).max() for command in commands) < 0.5
        robot.close()
        fleet.executor_.remove_node(door)
        fleet.spin(0.1)  # what its timers have set off already
        door.stop()
        door.destroy_node()
        assert process.poll() is None


FACTORY = """
server_cluster: {num_servers: 1, gpu_type: EMULATED}
robot_fleet:
  - {task: arm, num_robots: 1}
arm:
  pipeline: {action_period_ms: 400}
  components:
    system1: {model: emulated/arm-policy, prompt: stay, slo_ms: 300}
"""


def test_a_newcomer_is_served_through_the_end_of_scheduler_and_router(
    ros_domain: int, free_port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One whom the descriptor does not name, with a certificate that was issued later, by mutual TLS and the router's rules."""
    file = tmp_path / "factory.yaml"
    file.write_text(FACTORY)
    folder = written(tmp_path, ros_domain, scheduler=Role.SCHEDULER, server_1=Role.SERVER, operator=Role.OPERATOR)
    add(folder, {"arm_9": Member(name="arm_9", role=Role.ROBOT, of="arm_9")}, utc_now(), 30.0)
    at_port(folder, free_port)
    routing = zenoh.open(zenoh.Config.from_file(str(folder.router)))
    parameters = (f"scheduler:factory_file:={file}", "scheduler:look_around_s:=0.0", "model_server:server:=server_1")
    rclpy.init(args=["--ros-args", *(part for p in parameters for part in ("-p", p))])

    def under(name: str) -> None:
        monkeypatch.setenv(ENCLAVE, str(folder.enclave(name)))

    with contextlib.ExitStack() as stack:
        stack.callback(rclpy.try_shutdown)
        running = executor()
        stack.callback(running.shutdown)

        def started(name: str, make: Callable[[], Any]) -> Any:
            under(name)
            node = make()
            running.add_node(node)
            stack.callback(node.destroy_node)
            return node

        scheduler = started("scheduler", SchedulerNode)
        server = started("server_1", ModelServerNode)
        stack.callback(server.stop)
        door = started("door", lambda: ZenohDoorNode(SPECS))
        door.begin()
        stack.callback(door.stop)
        under("operator")
        people = FleetClient()
        stack.callback(people.destroy_node)
        under("arm_9")
        robot = ZenohRobot(settings_of(load_factory(file), "arm_9", "arm"), domain=ros_domain)
        stack.callback(robot.close)
        robot.start("stay", budget_s=600.0)
        commands = list[Any]()

        def turn() -> None:
            """A control period; meanwhile all that comes, and some events at least, though a busy machine has no moment for one: of
            fewer it falls behind for ever."""
            end_s = time.monotonic() + 0.02
            while time.monotonic() < end_s:
                running.spin_once(timeout_sec=0.02)
            for _ in range(WAITING):
                running.spin_once(timeout_sec=0.0)
            now_s = time.monotonic()
            images = tuple(EncodedImage(camera=c, format="jpeg", data=JPEG, height_px=16, width_px=16) for c in CAMERAS)
            sensors = Sensors(state=np.zeros(STATE_SIZE, np.float32), state_s=now_s, images=images, images_s=now_s)
            commands.extend([command] if (command := robot.tick(sensors)) is not None else [])

        def wait(until: Callable[[], Any], what: str) -> None:
            assert eventually(until, STARTS_S, turn), f"waited in vain for {what}: {robot.brain.refused} {robot.ends.figures()}"

        def more(what: str) -> None:
            number = len(commands)
            wait(lambda: len(commands) > number + 20 and robot.brain.state is RobotState.STREAMING, what)

        with ThreadPoolExecutor(1) as pool:
            admitted = pool.submit(people.admit, "arm_9", "arm")
            wait(admitted.done, "its admission")
            assert admitted.result()
        more("its first commands")
        wait(lambda: robot._servers._servers["server_1"].observation._own["arm_9"].is_heard, "the door that hears its own name")
        before = robot.brain.schedule_follower.schedule.scheduler
        running.remove_node(scheduler)
        turn(), turn()  # what its timers have set off already
        scheduler.destroy_node()
        more("commands without a scheduler")
        started("scheduler", SchedulerNode)
        wait(
            lambda: robot.brain.schedule_follower.schedule.scheduler != before,
            "the next scheduler, which has it by its signed status",
        )
        more("commands under the next scheduler")
        routing.close()
        wait(lambda: robot.brain.state is not RobotState.STREAMING, "its noticing that the router is gone")
        routing = zenoh.open(zenoh.Config.from_file(str(folder.router)))
        stack.callback(routing.close)
        more("commands through the next router")
        assert not robot.brain.refused["unproven"], robot.brain.refused

"""A robot and a server that both have certificates, with a door and a router between them that has rules: what is sealed arrives
sealed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import zenoh
from rfm_serving import msg

from ros2_rfm_serving.factory.nodes import ZENOH_PORT
from ros2_rfm_serving.robot import Sensors
from ros2_rfm_serving.ros.node.draft import draft
from ros2_rfm_serving.ros.robot.settings import robot_settings
from ros2_rfm_serving.ros.wire import convert, qos
from ros2_rfm_serving.ros.zenoh.door import ZenohDoorNode
from ros2_rfm_serving.ros.zenoh.robot import ZenohRobot
from ros2_rfm_serving.ros.zenoh_door_node import SPECS
from ros2_rfm_serving.security.authority import utc_now
from ros2_rfm_serving.security.folder import Folder
from ros2_rfm_serving.security.issuing import start
from ros2_rfm_serving.security.members import Member
from ros2_rfm_serving.security.own import ENCLAVE
from ros2_rfm_serving.security.record import Record
from ros2_rfm_serving.security.wire_table import Role
from ros2_rfm_serving.types import EncodedImage
from test.unit.fakes import schedule

from .mirror_engine import NAMES
from .server_fleet import JPEG, serving
from .test_zenoh_robot import free_port

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
    folder = Folder(tmp_path / "security")
    roles = {"s1": Role.SERVER, "arm_1": Role.ROBOT, "door": Role.DOOR, "router": Role.ROUTER}
    members = {name: Member(name=name, role=role, of=name) for name, role in roles.items()}
    start(folder, Record(factory="f", domain=ros_domain, members={}), members, [], utc_now(), 30.0)
    for file in folder.root.rglob("*.json5"):
        file.write_text(file.read_text().replace(f":{ZENOH_PORT}", f":{free_port}"))
    session = zenoh.open(zenoh.Config.from_file(str(folder.router)))
    yield folder
    session.close()


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
        plans.publish(convert.schedule_to(schedule("arm_1", server="s1"), "hall"))
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
        door.stop()
        door.destroy_node()
        assert process.poll() is None

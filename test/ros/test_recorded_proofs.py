"""Whose words a recording has: the bytes as they came, by the certificates that were good then."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import rclpy
from rclpy.node import Node
from rclpy.serialization import serialize_message
from rfm_serving import msg
from typer.testing import CliRunner

from ros2_rfm_serving.audit.bag import Message
from ros2_rfm_serving.audit.bag_writer import BagWriter
from ros2_rfm_serving.cli.main import app
from ros2_rfm_serving.ros.monitor import definitions
from ros2_rfm_serving.ros.monitor.recorded import check
from test.enclaves import Enclaves
from test.ros.herald import Herald, speaker
from test.ros.test_proven_views import plan, robot_status, server_status

ARM, SERVER, SCHEDULE = "/arm_1/rfm/status", "/rfm/servers/s1/status", "/rfm/schedule"
KINDS = {ARM: "rfm_serving/msg/RobotStatus", SERVER: "rfm_serving/msg/ServerStatus", SCHEDULE: "rfm_serving/msg/Schedule"}


@pytest.fixture
def node(ros_domain: int) -> Iterator[Node]:
    rclpy.init()
    made = Node("says")
    yield made
    made.destroy_node()
    rclpy.try_shutdown()


def recorded(topic: str, data: bytes, at_s: float = 0.0) -> Message:
    return Message(topic, KINDS[topic], int(1e9 * (time.time() + at_s)), bytes(data))


def genuine(enclaves: Enclaves, node: Node) -> list[Message]:
    robot, server = speaker(enclaves.make("arm_1")), speaker(enclaves.make("s1"))
    herald = Herald(enclaves.make("scheduler"), node, plan())
    return [
        one
        for _ in range(2)
        for one in (
            recorded(ARM, robot.numbered(robot_status())),
            recorded(SERVER, server.numbered(server_status())),
            recorded(SCHEDULE, herald.word()),
        )
    ]


def forged(enclaves: Enclaves, node: Node) -> list[Message]:
    stranger = Enclaves(enclaves.root / "else")
    return [
        recorded(ARM, serialize_message(robot_status())),
        recorded(ARM, speaker(enclaves.make("arm_2")).numbered(robot_status())),
        recorded(ARM, speaker(enclaves.root / "arm_1").numbered(robot_status("arm_2"))),
        recorded(SERVER, speaker(stranger.make("s1")).numbered(server_status())),
        recorded(SCHEDULE, serialize_message(plan(epoch=9))),
    ]


def test_what_was_said_by_others_is_told_from_what_was_not(enclaves: Enclaves, node: Node) -> None:
    said = genuine(enclaves, node)
    found = check([*said, said[0], said[2], *forged(enclaves, node)], enclaves.make("observer"))
    assert (found.proven, found.repeated, dict(found.unproven)) == (6, 2, {ARM: 3, SERVER: 1, SCHEDULE: 1})
    assert "no certificate" in found.problems[ARM] and "another authority's" in found.problems[SERVER]


def test_a_certificate_counts_that_was_good_when_it_was_recorded(enclaves: Enclaves) -> None:
    robot, observer = speaker(enclaves.make("arm_1", begun_days=9, days=3)), enclaves.make("observer")
    word = robot.numbered(robot_status())
    assert check([recorded(ARM, word, at_s=-8 * 86_400.0)], observer).proven == 1
    assert check([recorded(ARM, word)], observer).unproven[ARM] == 1, "signed since it has ended"


def test_the_command_says_whose_words_are_in_a_recording(enclaves: Enclaves, node: Node, tmp_path: Path) -> None:
    said = [*genuine(enclaves, node), *forged(enclaves, node)]
    bag = tmp_path / "bag"
    with BagWriter(bag) as writer:
        for one in said:
            writer.write(one.topic, one.type, definitions.text(one.type), one.data, one.time_ns)
        chain = msg.AuditPage(writer="robot/arm_1", run=1, records='{"kind":"opened"}')
        writer.write("/arm_1/rfm/audit", "rfm_serving/msg/AuditPage", definitions.text("rfm_serving/msg/AuditPage"), page(chain), 1)
    observer = str(enclaves.make("observer"))
    done = CliRunner().invoke(app, ["audit", "verify", str(bag), "--enclave", observer])
    assert done.exit_code == 1 and "/arm_1/rfm/status: 3 unproven" in done.output, done.output
    assert "6 statuses and schedules are proven, 0 repeat one; 5 UNPROVEN" in done.output
    told = json.loads(CliRunner().invoke(app, ["audit", "verify", str(bag), "--enclave", observer, "--json"]).output)
    assert told["proofs"]["proven"] == 6 and told["proofs"]["unproven"][ARM] == 3


def page(message: msg.AuditPage) -> bytes:
    return bytes(serialize_message(message))


@pytest.fixture
def enclaves(tmp_path: Path) -> Enclaves:
    return Enclaves(tmp_path / "enclaves")

"""What a server process decides, heard by somebody who subscribes: its chain, decided again, and its batches run again."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rclpy
from rclpy.serialization import serialize_message
from rfm_serving import msg
from typer.testing import CliRunner

from lab.benchmarks.path.sides import camera_image
from ros2_rfm_serving.audit.bag_writer import BagWriter
from ros2_rfm_serving.audit.chain import Checked, Page, records
from ros2_rfm_serving.audit.servers.infer import ALONE_LIMIT
from ros2_rfm_serving.cli.main import app
from ros2_rfm_serving.ros.node.audit import page_from
from ros2_rfm_serving.ros.wire import convert, qos
from ros2_rfm_serving.ros.wire.session_messages import session_request_to
from ros2_rfm_serving.types import Conditioning, EncodedImage, ObservationRequest, RequestId, SessionRequest, empty
from test.ros.server_fleet import STARTS_S, Fleet
from test.unit.audit.recorded import definition
from test.waiting import eventually

Heard = tuple[int, str, str, bytes]
"""When, ns; topic; type; CDR"""
MODEL = "rfm/metaworld-flow"
FEWEST_CHUNKS, MOST_ROUNDS = 48, 200
"""Until so many have come, and the server has answered several robots at once: whether it does is a matter of moments."""
ROBOTS = "abcd"


class Listener(Fleet):
    """Robots, and somebody who keeps the audit log."""

    def __init__(self, *robots: str) -> None:
        super().__init__(*robots)
        self.pages: list[Page] = []
        self.sent: list[Heard] = []
        self.heard_s: list[Heard] = []
        self.contract: Any = None

    def listen(self) -> None:
        topic = qos.Names().server("s1", "audit")

        def hear(page: Any) -> None:
            self.pages.append(page_from(page))
            self.heard_s.append((time.time_ns(), topic, "rfm_serving/msg/AuditPage", serialize_message(page)))

        self.create_subscription(msg.AuditPage, topic, hear, qos.AUDIT)

    def kinds(self) -> list[str]:
        return [record["kind"] for page in self.pages for record in records(page)]

    def join(self, robot: str) -> None:
        self.wait(self.opener.service_is_ready)
        asked = {"robot": robot, "component": "system1", "action_names": self.contract.action_names}
        more = {"cameras": self.contract.cameras, "state_size": self.contract.state_size, "conditioning": Conditioning.PREFIX}
        future = self.opener.call_async(session_request_to(SessionRequest(**asked, **more)))
        self.wait(future.done)
        assert future.result().success, future.result().error_msg
        self.epochs[robot] = future.result().session_epoch

    def observe_all(self, sequence: int) -> None:
        """In one breath: nothing is made between one robot's message and the next one's."""
        messages = [self._message(robot, sequence) for robot in ROBOTS]
        data = [serialize_message(message) for message in messages]
        for message, its_bytes in zip(messages, data, strict=True):
            self.sent.append((time.time_ns(), self.out.topic_name, "rfm_serving/msg/Observation", its_bytes))
            self.out.publish(message)

    def answered(self, sequence: int) -> bool:
        """Every robot. What is lost, one way or the other, is asked for again by the next one."""
        return all(self.chunks[r] and self.chunks[r][-1][1].id.sequence >= sequence for r in ROBOTS)

    def shared(self) -> bool:
        """Some batch had several rows, and is not the first one."""
        return any(chunk.served.batch_size > 1 and chunk.id.sequence > 1 for r in ROBOTS for _, chunk in self.chunks[r])

    def _message(self, robot: str, sequence: int) -> Any:
        contract, rng = self.contract, np.random.default_rng(sequence)
        prefix = rng.random((3, len(contract.action_names)), np.float32) if sequence > 1 else empty(0, len(contract.action_names))
        images = [EncodedImage(camera=c, format="jpeg", data=camera_image(96, sequence)) for c in contract.cameras]
        request = ObservationRequest(
            id=RequestId(robot=robot, component="system1", session_epoch=self.epochs[robot], episode=1, sequence=sequence),
            stamp_ns=sequence,
            instruction="push the cube to the goal",
            state=rng.random(contract.state_size, np.float32),
            images=tuple(images),
            inference_delay_steps=len(prefix),
            prefix_model=prefix,
            prefix_robot=prefix,
        )
        return convert.observation_to(request)


@contextmanager
def serving() -> Iterator[tuple[Listener, subprocess.Popen[bytes]]]:
    command = [sys.executable, "-W", "ignore", "-m", "ros2_rfm_serving.ros.model_server_node", "--ros-args"]
    for name, value in {"server": "s1", "model": MODEL, "gpu_type": "CPU", "batch_size": 4, "max_sessions": 8}.items():
        command += ["-p", f"{name}:={value}"]
    process = subprocess.Popen(command, start_new_session=True)
    rclpy.init()
    fleet = Listener(*ROBOTS)
    try:
        fleet.wait(lambda: fleet.status and fleet.status.state == msg.ServerStatus.READY, STARTS_S, "ready")
        yield fleet, process
    finally:
        fleet.executor_.shutdown()
        fleet.destroy_node()
        rclpy.try_shutdown()
        process.kill()
        process.wait()


@pytest.mark.timeout(600)
def test_what_a_server_decided_is_decided_again_and_its_batches_give_the_same_bytes(ros_domain: int, tmp_path: Path) -> None:
    from ros2_rfm_serving.engines.embedded.engine import load_embedded
    from ros2_rfm_serving.shipped import shipped

    with serving() as (fleet, process):
        fleet.contract = load_embedded(MODEL, shipped("models", "metaworld_flow")).contract
        fleet.join("a")  # before anybody listens
        fleet.listen()
        fleet.wait(lambda: "snapshot" in fleet.kinds(), what="a snapshot")
        for robot in ROBOTS[1:]:
            fleet.join(robot)
        fleet.wait(lambda: fleet.out.get_subscription_count() and all(fleet.hears[r].get_publisher_count() for r in ROBOTS))
        rounds = iter(range(1, MOST_ROUNDS))
        while sum(map(len, fleet.chunks.values())) < FEWEST_CHUNKS or not fleet.shared():
            sequence = next(rounds)
            fleet.observe_all(sequence)
            eventually(lambda: fleet.answered(sequence), 5.0, fleet._turn)  # noqa: B023
        process.send_signal(signal.SIGTERM)
        fleet.wait(lambda: "closed" in fleet.kinds(), what="an orderly end")
    _verified(fleet.pages)
    bag = str(_bag(fleet, tmp_path))
    decided = _rfm("replay", bag)
    assert decided["difference"] is None and not decided["refused"] and decided["decisions"] > 60, decided
    ran = _rfm("replay", bag, "--infer")
    assert ran["rows"] > ran["batches"] >= 8 and ran["unrecorded"] == 1 and not ran["skipped"] and not ran["notes"], ran
    assert ran["same"] == ran["rows"] and ran["alone"] <= ALONE_LIMIT, ran


def _verified(pages: list[Page]) -> None:
    checked = Checked(pages[0].writer, pages[0].run)
    for page in pages:
        checked.add(page)
    checked.end()
    assert not checked.flaws


def _bag(fleet: Listener, folder: Path) -> Path:
    """As a recorder would have written it, to whom the first observation that was answered got lost."""
    bag = BagWriter(folder / "bag")
    lost = (fleet.chunks[ROBOTS[0]][0][1].id.sequence - 1) * len(ROBOTS)
    heard = sorted([*fleet.sent[:lost], *fleet.sent[lost + 1 :], *fleet.heard_s], key=lambda one: one[0])
    for time_ns, topic, kind, data in heard:
        bag.write(topic, kind, definition(kind), data, time_ns)
    bag.close()
    return folder / "bag"


def _rfm(*args: str) -> dict[str, Any]:
    result = CliRunner().invoke(app, [*args, "--json"])
    assert result.exit_code == 0, result.output
    (chain,) = json.loads(result.output)["chains"]
    return dict(chain)

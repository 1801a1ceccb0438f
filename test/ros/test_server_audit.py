"""What a server process decides, heard by somebody who subscribes: its chain, decided again, and its batches run again."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import rclpy
from rfm_serving import msg

from ros2_rfm_serving.audit.chain import Checked, Page, records
from ros2_rfm_serving.audit.replay import brains, replay
from ros2_rfm_serving.audit.servers.infer import ALONE_LIMIT, Inference
from ros2_rfm_serving.audit.servers.replay import ServerReplay
from ros2_rfm_serving.benchmarks.path.sides import camera_image
from ros2_rfm_serving.ros.node.audit import page_from
from ros2_rfm_serving.ros.wire import convert, qos
from ros2_rfm_serving.ros.wire.session_messages import session_request_to
from ros2_rfm_serving.types import Conditioning, EncodedImage, ObservationRequest, RequestId, SessionRequest, empty
from test.ros.server_fleet import Fleet

MODEL = "rfm/metaworld-flow"
ROBOTS = "abcd"


class Listener(Fleet):
    """Robots, and somebody who keeps the audit log."""

    def __init__(self, *robots: str) -> None:
        super().__init__(*robots)
        self.pages: list[Page] = []
        self.sent: list[ObservationRequest] = []
        self.contract: Any = None

    def listen(self) -> None:
        topic = qos.Names().server("s1", "audit")
        self.heard = self.create_subscription(msg.AuditPage, topic, lambda m: self.pages.append(page_from(m)), qos.AUDIT)

    def kinds(self) -> list[str]:
        return [record["kind"] for page in self.pages for record in records(page)]

    def join(self, robot: str) -> None:
        self.wait(lambda: self.opener.service_is_ready())
        asked = {"robot": robot, "component": "system1", "action_names": self.contract.action_names}
        more = {"cameras": self.contract.cameras, "state_size": self.contract.state_size, "conditioning": Conditioning.PREFIX}
        future = self.opener.call_async(session_request_to(SessionRequest(**asked, **more)))
        self.wait(future.done)
        assert future.result().success, future.result().error_msg
        self.epochs[robot] = future.result().session_epoch

    def observe(self, robot: str, sequence: int) -> None:
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
        self.sent.append(request)
        self.out.publish(convert.observation_to(request))


@contextmanager
def serving() -> Iterator[tuple[Listener, subprocess.Popen[bytes]]]:
    command = [sys.executable, "-W", "ignore", "-m", "ros2_rfm_serving.ros.model_server_node", "--ros-args"]
    for name, value in {"server": "s1", "model": MODEL, "gpu_type": "CPU", "batch_size": 4, "max_sessions": 8}.items():
        command += ["-p", f"{name}:={value}"]
    process = subprocess.Popen(command, start_new_session=True)
    rclpy.init()
    fleet = Listener(*ROBOTS)
    try:
        fleet.wait(lambda: fleet.status and fleet.status.state == msg.ServerStatus.READY, what="ready")
        yield fleet, process
    finally:
        fleet.executor_.shutdown()
        fleet.destroy_node()
        rclpy.try_shutdown()
        process.kill()
        process.wait()


def test_what_a_server_decided_is_decided_again_and_its_batches_give_the_same_bytes() -> None:
    from ros2_rfm_serving.engines.embedded.engine import load_embedded
    from ros2_rfm_serving.shipped import shipped

    with serving() as (fleet, process):
        fleet.contract = load_embedded(MODEL, shipped("models", "metaworld_flow")).contract
        fleet.join("a")  # before anybody listens
        fleet.listen()
        fleet.wait(lambda: "snapshot" in fleet.kinds(), what="a snapshot")
        for robot in ROBOTS[1:]:
            fleet.join(robot)
        for sequence in range(1, 9):
            for robot in ROBOTS:
                fleet.observe(robot, sequence)
            fleet.wait(lambda: all(len(fleet.chunks[r]) == sequence for r in ROBOTS), 20.0, f"chunks {sequence}")  # noqa: B023
        process.send_signal(signal.SIGTERM)
        fleet.wait(lambda: "closed" in fleet.kinds(), what="an orderly end")
    _verified(fleet.pages)
    _decided_again(fleet.pages)
    _run_again(fleet)


def _verified(pages: list[Page]) -> None:
    checked = Checked(pages[0].writer, pages[0].run)
    for page in pages:
        checked.add(page)
    checked.end()
    assert not checked.flaws


def _decided_again(pages: list[Page]) -> None:
    (result,) = {id(one): one for one in replay(pages, {"server": brains(ServerReplay)})}.values()
    assert result.difference is None and not result.refused and result.decisions > 60, result


def _run_again(fleet: Listener) -> None:
    inference = Inference("server/s1")
    for observation in fleet.sent[1:]:  # the first one was lost
        inference.observations.add(observation)
    for page in fleet.pages:
        for record in records(page):
            inference.feed(record)
    found = inference.result
    assert found.rows > found.batches >= 8 and found.unrecorded == 1 and not found.notes and not found.skipped
    assert found.same == found.rows, found.different
    assert found.alone <= ALONE_LIMIT
    print(f"{found.batches} batches, {found.rows} rows, {found.same} the same; alone {found.alone:g}")

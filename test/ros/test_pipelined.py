"""Pipelined sessions over real DDS: a chunk per frame, and refusals where they are not to be had (AURAS §4.2.2)."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import pytest
import rclpy
from rfm_serving import msg

from lab.benchmarks.path.sides import camera_image
from ros2_rfm_serving.errors import ContractError
from ros2_rfm_serving.ros.wire import convert
from ros2_rfm_serving.ros.wire.session_messages import session_request_to
from ros2_rfm_serving.types import EncodedImage, ObservationRequest, PipelineConfig, RequestId, SessionRequest, empty

from .test_server_node import Client

THREE = PipelineConfig(pp_generation=2, alpha=1.0)
ENTERED = 4
"""Words of a server about itself, two a second: what was sent before the first of them is with the engine by the last."""
Serve = Callable[..., Client]


@contextmanager
def serving(**parameters: object) -> Iterator[Client]:
    """A server's process, and a robot of the test's beside it."""
    command = [sys.executable, "-W", "ignore", "-m", "ros2_rfm_serving.ros.model_server_node", "--ros-args"]
    for name, value in {"server": "s1", **parameters}.items():
        command += ["-p", f"{name}:={value}"]
    process = subprocess.Popen(command, start_new_session=True)
    rclpy.init()
    node = Client()
    try:
        node.wait(lambda: node.status and node.status.state == msg.ServerStatus.READY, 120.0)
        yield node
        assert process.poll() is None, "the server died"
    finally:
        node._executor.shutdown()
        node.destroy_node()
        rclpy.try_shutdown()
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 0


@pytest.fixture
def serve(ros_domain: int) -> Iterator[Serve]:
    with ExitStack() as stack:
        yield lambda **parameters: stack.enter_context(serving(**parameters))


def opened(client: Client, pipelining: PipelineConfig | None) -> Any:
    """The server's answer to a robot that fits its model otherwise."""
    described = client.call(client.describe, client.describe.srv_type.Request())
    request = SessionRequest(
        robot="r1",
        component="system1",
        action_names=tuple(described.action_names),
        cameras=tuple(described.cameras),
        state_size=described.state_size,
        pipelining=pipelining,
    )
    return client.call(client.open, session_request_to(request))


def send(client: Client, session: Any, sequence: int) -> None:
    images = tuple(EncodedImage(camera=name, format="jpeg", data=camera_image(96, sequence)) for name in session.cameras)
    columns = len(session.action_names)
    request = ObservationRequest(
        id=RequestId(robot="r1", component="system1", session_epoch=session.session_epoch, episode=1, sequence=sequence),
        stamp_ns=sequence,
        instruction="reach the red goal",
        state=np.zeros(session.state_size, np.float32),
        images=images,
        prefix_model=empty(0, columns),
        prefix_robot=empty(0, columns),
    )
    client.out.publish(convert.observation_to(request))


def test_a_pipelined_session_gets_a_chunk_per_frame(serve: Serve) -> None:
    client = serve(model="rfm/metaworld-flow", gpu_type="CPU", batch_size=8, batching="continuous")
    session = opened(client, THREE)
    assert session.success and session.pipelines, session.error_msg
    client.wait(lambda: client.out.get_subscription_count() and client.count_publishers("/r1/rfm/action_chunk"))
    for sequence in range(1, 11):
        send(client, session, sequence)
        if sequence >= THREE.depth:
            client.wait(lambda expected=sequence - THREE.depth + 1: len(client.chunks) >= expected, 30.0)
        else:
            told = len(client.told)  # it enters: a newer one would take the place of one that waits
            client.wait(lambda told=told: len(client.told) >= told + ENTERED and client.status.waiting == 0)
    told = [(chunk.id.sequence, chunk.ended_with) for chunk in client.chunks]
    assert told == [(sequence, sequence + 2) for sequence in range(1, 9)]
    assert all(np.isfinite(chunk.chunk_robot.data).all() and len(chunk.chunk_robot.data) for chunk in client.chunks)
    assert opened(client, PipelineConfig(pp_generation=60)).error_code == ContractError.code, "more stages than solver steps"
    plain = opened(client, None)
    send(client, plain, 1)
    client.wait(lambda: client.chunks[-1].id.session_epoch == plain.session_epoch, 30.0)
    assert client.chunks[-1].ended_with == 0, "what is not pipelined goes on beside it as before"


def test_who_cannot_serve_one_says_what(serve: Serve) -> None:
    client = serve(model="emulated/instant", gpu_type="EMULATED", batch_size=8)
    answer = opened(client, THREE)
    assert not answer.success and answer.error_code == ContractError.code
    assert "pipelining: the robot asks for it, this model answers one request of a robot after the other" in answer.error_msg
    assert not opened(client, None).pipelines

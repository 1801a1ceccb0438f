"""A real model server process over real DDS: what it refuses, and that it lives on."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import rclpy
from rclpy.action import ActionClient
from rclpy.node import Node
from rfm_serving import action, msg, srv

from lab.benchmarks.path.sides import camera_image
from ros2_rfm_serving.ros.node.runtime import executor
from ros2_rfm_serving.ros.server.infer_door import ALL, BURST, TOLD
from ros2_rfm_serving.ros.wire import convert, qos
from ros2_rfm_serving.ros.wire.session_messages import grant_from, session_request_to
from ros2_rfm_serving.types import Conditioning, EncodedImage, ObservationRequest, RequestId, SessionRequest, empty
from test.waiting import eventually

from .server_fleet import STARTS_S

NAMES = ("delta_x", "delta_y", "delta_z", "gripper")
CAMERAS = ("side", "front")
INFER_RATE_HZ = 2.0
"""The default of `infer_rate_hz`."""


class Client(Node):
    """A robot of the test's: keeps what it hears."""

    def __init__(self) -> None:
        super().__init__("test_client")
        names = qos.Names()
        self.chunks: list[Any] = []
        self.status: Any = None
        self.told: list[Any] = []
        """All that the server said of itself: time as it has it, however long this process or that one stood still."""
        self.out = self.create_publisher(msg.Observation, names.server("s1", "observation"), qos.OBSERVATION_SENT)
        self.create_subscription(msg.ActionChunk, names.robot("r1", "rfm/action_chunk"), self.chunks.append, qos.REPLY)
        self.create_subscription(msg.ServerStatus, names.server("s1", "status"), self._on_status, qos.SERVER_STATUS)
        self.open = self.create_client(srv.OpenSession, names.server("s1", "open_session"))
        self.describe = self.create_client(srv.DescribeServer, names.server("s1", "describe"))
        self.reset = self.create_client(srv.ResetEpisode, names.server("s1", "reset_episode"))
        self.infer = ActionClient(self, action.Infer, names.server("s1", "infer"))
        self._executor = executor()
        self._executor.add_node(self)

    def _on_status(self, message: Any) -> None:
        self.status = message
        self.told.append(message)

    def wait(self, until: Callable[[], Any], seconds: float = STARTS_S) -> Any:
        found = eventually(until, seconds, lambda: self._executor.spin_once(timeout_sec=0.05))
        assert found, "waited in vain"
        return found

    def call(self, client: Any, request: Any) -> Any:
        self.wait(client.service_is_ready)
        future = client.call_async(request)
        self.wait(future.done)
        return future.result()

    def refused(self, kind: str) -> int:
        return next((c.count for c in self.status.refused if c.name == kind), 0) if self.status else 0


@pytest.fixture
def client(ros_domain: int) -> Iterator[Client]:
    command = [sys.executable, "-W", "ignore", "-m", "ros2_rfm_serving.ros.model_server_node", "--ros-args"]
    for parameter in ("server:=s1", "model:=emulated/instant", "gpu_type:=EMULATED", "batch_size:=8"):
        command += ["-p", parameter]
    process = subprocess.Popen(command, start_new_session=True)
    rclpy.init()
    node = Client()
    try:
        node.wait(lambda: node.status and node.status.state == msg.ServerStatus.READY)
        yield node
        assert process.poll() is None, "the server died"
    finally:
        node._executor.shutdown()  # else it keeps publishers alive, which the next test would hear
        node.destroy_node()
        rclpy.try_shutdown()
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=120) == 0


def session(**changes: Any) -> Any:
    fields = {"robot": "r1", "component": "system1", "action_names": NAMES, "cameras": CAMERAS, "state_size": 39, **changes}
    return session_request_to(SessionRequest(**fields))


def observation(epoch: int, sequence: int) -> Any:
    return convert.observation_to(
        ObservationRequest(
            id=RequestId(robot="r1", component="system1", session_epoch=epoch, episode=1, sequence=sequence),
            stamp_ns=42,
            instruction="reach the red goal",
            state=np.zeros(39, np.float32),
            images=tuple(EncodedImage(camera=c, format="jpeg", data=camera_image(64, 0)) for c in CAMERAS),
            prefix_model=empty(0, 4),
            prefix_robot=empty(0, 4),
        )
    )


def spoiled(kind: str, epoch: int, sequence: int) -> Any:
    message = observation(epoch, sequence)
    if kind == "bad_shape":
        message.prefix_model.rows = 3
    elif kind == "non_finite":
        message.state[3] = float("nan")
    elif kind == "unknown_session":
        message.id.robot = "ghost"
    elif kind == "stale_epoch":
        message.id.session_epoch = epoch - 1
    elif kind == "bad_image":
        message.images[0].data = message.images[0].data[:100]
    return message


def infer(client: Client, request: Any) -> Any:
    """One goal of the Infer action: its result."""
    client.wait(client.infer.server_is_ready)
    sending = client.infer.send_goal_async(action.Infer.Goal(observation=request))
    client.wait(sending.done)
    result = sending.result().get_result_async()
    client.wait(result.done)
    return result.result().result


def test_hostile_messages_are_refused_counted_and_reported_and_the_server_lives_on(client: Client) -> None:
    answer = client.call(client.open, session())
    assert answer.success and answer.emulated and "emulated" in answer.model
    epoch, sequence = answer.session_epoch, 0
    for kind in ("bad_shape", "non_finite", "unknown_session", "stale_epoch", "bad_image"):

        def send_and_look(kind: str = kind) -> bool:
            nonlocal sequence
            sequence += 1
            client.out.publish(spoiled(kind, epoch, sequence))  # best effort: one may be lost, so again
            end_s = time.monotonic() + 1.5
            while time.monotonic() < end_s and not client.refused(kind):
                client._executor.spin_once(timeout_sec=0.05)
            return client.refused(kind) > 0

        client.wait(send_and_look)
    assert client.chunks == []

    # 50 MB do not even arrive best effort; an action goal is reliable and does.
    huge = observation(0, 0)
    huge.images[0].data.frombytes(bytes(50_000_000))
    assert infer(client, huge).error_code == 300
    client.wait(lambda: client.refused("image_too_large") == 1)

    def answered() -> bool:
        nonlocal sequence
        sequence += 1
        client.out.publish(observation(epoch, sequence))
        return bool(eventually(lambda: client.chunks, 1.0, lambda: client._executor.spin_once(timeout_sec=0.05)))

    client.wait(answered)
    chunk = client.chunks[0]
    assert (chunk.id.robot, chunk.id.session_epoch, chunk.stamp_ns, chunk.emulated) == ("r1", epoch, 42, True)
    assert list(chunk.action_names) == list(NAMES) and (chunk.chunk_robot.rows, chunk.chunk_robot.columns) == (16, 4)


def test_sessions_are_refused_with_what_differs(client: Client) -> None:
    for change, words in [
        ({"action_names": NAMES[::-1]}, "action names and order"),
        ({"cameras": ("side",)}, "cameras"),
        ({"state_size": 7}, "state size"),
        ({"schema_version": 9}, "schema version"),
        ({"expected_model_hash": "cafe"}, "model hash"),
    ]:
        answer = client.call(client.open, session(**change))
        assert not answer.success and answer.error_code == 210 and words in answer.error_msg
    for field, value, words in [
        ("conditioning", "magic", "none of 'none', 'prefix', 'guided'"),
        ("guidance_schedule", "cubic", "none of 'zeros'"),
        ("guidance_max_weight", -1.0, "it must be finite and above 0"),
    ]:
        request = session()
        setattr(request, field, value)
        answer = client.call(client.open, request)
        assert not answer.success and answer.error_code == 300 and words in answer.error_msg
    client.wait(lambda: client.refused("bad_session") == 3)
    for robot in ("", "a b", "r/1", "x" * 500):
        answer = client.call(client.open, session(robot=robot))
        assert not answer.success and answer.error_code == 300 and "cannot name a robot" in answer.error_msg
    assert client.call(client.reset, srv.ResetEpisode.Request(robot="r1", component="system1", session_epoch=1)).error_code == 230
    description = client.call(client.describe, srv.DescribeServer.Request())
    assert list(description.action_names) == list(NAMES) and list(description.sessions) == []


def test_delays_beyond_the_envelope_are_refused_and_conditioning_is_told(client: Client) -> None:
    answer = client.call(client.open, session(conditioning=Conditioning.GUIDED))
    assert grant_from(answer).contract.conditionings == tuple(Conditioning)
    assert list(client.call(client.describe, srv.DescribeServer.Request()).conditionings) == ["none", "prefix", "guided"]
    sequence = 0

    def send_and_look() -> bool:
        nonlocal sequence
        sequence += 1
        message = observation(answer.session_epoch, sequence)
        message.inference_delay_steps = 16
        client.out.publish(message)  # best effort: it may be lost, so again
        client._executor.spin_once(timeout_sec=0.2)
        return client.refused("delay_too_long") > 0

    client.wait(send_and_look)
    assert client.chunks == []


def test_one_inference_on_demand(client: Client) -> None:
    answer = infer(client, observation(0, 0))
    assert answer.error_code == 0 and answer.chunk.chunk_robot.rows == 16 and answer.chunk.emulated
    spoilt = observation(0, 0)
    spoilt.state = spoilt.state[:5]
    assert infer(client, spoilt).error_code == 210
    assert list(client.call(client.describe, srv.DescribeServer.Request()).sessions) == []


def test_who_infers_in_a_loop_is_refused_and_others_are_served(client: Client) -> None:
    client.wait(client.infer.server_is_ready)
    greedy = observation(0, 0)
    greedy.id.robot = "greedy"
    ends, num_rejected = [], 0
    for _ in range(60):
        sending = client.infer.send_goal_async(action.Infer.Goal(observation=greedy))
        client.wait(sending.done)
        if sending.result().accepted:
            ends.append(sending.result().get_result_async())
        else:
            num_rejected += 1
    client.wait(lambda: all(end.done() for end in ends))
    codes = [end.result().result.error_code for end in ends]
    assert codes.count(0) >= 1 and codes.count(220) >= TOLD and set(codes) == {0, 220} and num_rejected
    told = next(end.result().result.error_msg for end in ends if end.result().result.error_code)
    assert "infer_rate_hz" in told or "infer_waiting" in told
    refusals = codes.count(220) + num_rejected
    client.wait(lambda: client.refused("infer_over_quota") + client.refused("infer_full") == refusals)
    modest = observation(0, 0)
    modest.id.robot = "modest"
    assert infer(client, modest).error_code == 0


def test_who_infers_under_a_new_name_each_time_is_refused_as_well(client: Client) -> None:
    client.wait(client.infer.server_is_ready)
    answered, begun_s = 0, time.monotonic()
    for number in range(60):
        goal = observation(0, 0)
        goal.id.robot = f"greedy_{number}"
        sending = client.infer.send_goal_async(action.Infer.Goal(observation=goal))
        client.wait(sending.done)
        if sending.result().accepted:
            end = sending.result().get_result_async()
            client.wait(end.done)
            answered += end.result().result.error_code == 0
    most = BURST + ALL * INFER_RATE_HZ * (time.monotonic() - begun_s)
    assert 1 <= answered <= most + 1, f"{answered} of 60, at most {most:.1f}"
    client.wait(lambda: client.refused("infer_over_quota") == 60 - answered)


def test_who_opens_sessions_in_a_loop_is_refused_and_keeps_the_one_it_has(client: Client) -> None:
    topic = qos.Names().server("s1", "open_session")
    opener = client.create_client(srv.OpenSession, topic, qos_profile=qos.CONTROL)  # by default it would keep ten answers
    client.wait(opener.service_is_ready)
    asked = [opener.call_async(session()) for _ in range(40)]
    client.wait(lambda: all(one.done() for one in asked))
    answers = [one.result() for one in asked]
    granted = [answer for answer in answers if answer.success]
    refused = [answer for answer in answers if not answer.success]
    assert granted and refused and {answer.error_code for answer in refused} == {220}
    assert "asks for sessions more than" in refused[0].error_msg
    client.wait(lambda: client.refused("opens_over_quota") == len(refused))
    assert client.call(client.open, session(robot="r2")).success

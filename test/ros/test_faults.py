"""Faults on purpose in a live node: what is wrapped is late, lost, doubled or damaged, and costs nothing without."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import rclpy
from rclpy.node import Node
from rclpy.parameter import Parameter
from rclpy.task import Future
from rfm_serving import msg

from ros2_rfm_serving.errors import BadMessageError, ConfigurationError
from ros2_rfm_serving.faults import Direction
from ros2_rfm_serving.ros.node.faulty import Faults
from ros2_rfm_serving.ros.node.runtime import executor
from ros2_rfm_serving.ros.wire import convert, qos

TOPIC = "arm/rfm/action_chunk"


class Pair(Node):
    """A publisher with faults, and a subscription that hears what is left."""

    def __init__(self, faults: str) -> None:
        super().__init__("faulty", parameter_overrides=[Parameter("faults", value=faults)])
        self.heard: list[tuple[float, Any]] = []
        self.publisher = self.create_publisher(msg.ActionChunk, TOPIC, qos.REPLY)
        self.create_subscription(msg.ActionChunk, TOPIC, lambda m: self.heard.append((time.monotonic(), m)), 1000)
        self.faults = Faults(self)
        self.send = self.faults.passing(self.publisher.publish, Direction.DOWN)
        self._executor = executor()
        self._executor.add_node(self)

    def wait(self, until: Callable[[], Any], seconds: float = 60.0) -> None:
        end_s = time.monotonic() + seconds
        while not until():
            assert time.monotonic() < end_s, "waited in vain"
            self._executor.spin_once(timeout_sec=0.02)

    def close(self) -> None:
        self._executor.shutdown()
        self.destroy_node()


@pytest.fixture
def pair(ros_domain: int) -> Iterator[Callable[[str], Pair]]:
    made: list[Pair] = []

    def make(faults: str) -> Pair:
        made.append(Pair(faults))
        made[-1].wait(made[-1].publisher.get_subscription_count)
        return made[-1]

    rclpy.init()
    try:
        yield make
    finally:
        for node in made:
            node.close()
        rclpy.try_shutdown()


def chunk(sequence: int) -> Any:
    rows = np.ones((4, 2), np.float32)
    message = msg.ActionChunk(chunk_model=convert.tensor_to(rows), chunk_robot=convert.tensor_to(rows))
    message.id.sequence = sequence
    return message


def numbers(node: Pair) -> list[int]:
    return [message.id.sequence for _, message in node.heard]


def test_without_faults_nothing_is_wrapped(pair: Callable[[str], Pair]) -> None:
    clean = pair("")
    assert clean.send == clean.publisher.publish and clean.faults.calling(print) is print  # type: ignore[arg-type]
    assert not clean.faults.happened


def test_messages_are_late_and_doubled_in_order(pair: Callable[[str], Pair]) -> None:
    slow = pair("delay_ms=100 duplicate=1")
    sent_s = time.monotonic()
    for i in range(5):
        slow.send(chunk(i))
    slow.wait(lambda: len(slow.heard) == 10)
    assert numbers(slow) == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4] and slow.heard[0][0] - sent_s >= 0.1
    assert slow.faults.happened == {"duplicated": 5}


def test_a_damaged_message_is_refused_by_whoever_reads_it(pair: Callable[[str], Pair]) -> None:
    rough = pair("corrupt=1")
    for i in range(60):
        rough.send(chunk(i))
        rough.wait(lambda i=i: len(rough.heard) > i)  # type: ignore[misc]
    assert rough.faults.happened == {"corrupted": 60}
    for i, (_, message) in enumerate(rough.heard):
        try:
            read = convert.chunk_from(message)
        except BadMessageError:
            continue
        good = convert.chunk_from(chunk(i))
        same = read.id == good.id and read.model_hash == good.model_hash and read.chunk_model.shape == read.chunk_robot.shape
        assert not (same and read.chunk_robot.shape == (4, 2) and np.isfinite(read.chunk_robot).all())


def test_in_a_cut_nothing_passes_and_nobody_answers(pair: Callable[[str], Pair]) -> None:
    asked: list[object] = []

    def call(request: object) -> Future:
        asked.append(request)
        return Future()

    cut = pair("cut_down=0-")
    cut.send(chunk(1))
    up = cut.faults.passing(cut.publisher.publish, Direction.UP)
    up(chunk(2))
    cut.wait(lambda: cut.heard)
    assert numbers(cut) == [2]
    assert not cut.faults.calling(call)("open").done() and not asked
    later = pair("cut=3600-")
    later.faults.calling(call)("open")
    assert asked == ["open"]


def test_a_callback_that_raises_costs_its_own_message(pair: Callable[[str], Pair]) -> None:
    slow, heard = pair("delay_ms=20"), []

    def hear(number: int) -> None:
        heard.append(number)
        if number == 1:
            raise RuntimeError("on purpose")

    faulty = slow.faults.passing(hear, Direction.DOWN)
    for i in range(3):
        faulty(i)
    with pytest.raises(RuntimeError, match="on purpose"):
        slow.wait(lambda: False)
    slow.wait(lambda: heard == [0, 1, 2])


def test_faults_that_make_no_sense_are_refused(pair: Callable[[str], Pair]) -> None:
    with pytest.raises(ConfigurationError, match=r"faults\.drop: is 2; give a share"):
        pair("drop=2")

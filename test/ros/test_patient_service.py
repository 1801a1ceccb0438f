"""Services whose answers take long: they come, each its own, and cost nothing meanwhile."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
import rclpy
from rclpy.node import Node
from std_srvs.srv import SetBool

from ros2_rfm_serving.ros.node.patient_service import Awaited, create_patient_service
from ros2_rfm_serving.ros.node.runtime import executor
from test.waiting import eventually

TURNS, TURN_S = 100, 0.02


class Rig:
    def __init__(self) -> None:
        self.node, self.executor, self.waiting = Node("patient"), executor(), dict[bool, Awaited]()
        self.executor.add_node(self.node)
        create_patient_service(self.node, SetBool, "ask", self._serve)
        self._client = self.node.create_client(SetBool, "ask")

    async def _serve(self, request: Any, response: Any) -> Any:
        self.waiting[request.data] = Awaited(executor=self.node.executor)
        response.message = await self.waiting[request.data]
        return response

    def turn(self) -> None:
        self.executor.spin_once(timeout_sec=TURN_S)

    def ask(self, data: bool) -> Any:
        assert eventually(self._client.service_is_ready, pause=self.turn)
        future = self._client.call_async(SetBool.Request(data=data))
        assert eventually(lambda: data in self.waiting, pause=self.turn)
        return future


@pytest.fixture
def rig(ros_domain: int) -> Iterator[Rig]:
    rclpy.init()
    made = Rig()
    yield made
    made.executor.shutdown()
    made.node.destroy_node()
    rclpy.shutdown()


def test_each_answer_comes_when_it_is_known(rig: Rig) -> None:
    first, second = rig.ask(False), rig.ask(True)
    rig.waiting[True].set_result("later asked")
    assert eventually(second.done, pause=rig.turn) and second.result().message == "later asked" and not first.done()
    rig.waiting[False].set_result("first asked")
    assert eventually(first.done, pause=rig.turn) and first.result().message == "first asked"


def test_the_executor_sleeps_while_somebody_waits(rig: Rig) -> None:
    """Where rclpy resumes the coroutine, no turn lasts: all of them together took a millisecond."""
    rig.ask(True)
    begin_s = time.monotonic()
    for _ in range(TURNS):
        rig.turn()
    assert time.monotonic() - begin_s > 0.5 * TURNS * TURN_S

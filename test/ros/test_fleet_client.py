"""Programs that ask a scheduler which may end before it answers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import rclpy
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rfm_serving import srv

from ros2_rfm_serving.errors import ScheduleError
from ros2_rfm_serving.ros import fleet_client
from ros2_rfm_serving.ros.fleet_client import FleetClient


@pytest.fixture
def client(ros_domain: int) -> Iterator[FleetClient]:
    rclpy.init()
    made = FleetClient()
    yield made
    made.destroy_node()
    rclpy.try_shutdown()


def test_who_ends_before_it_answers_is_asked_no_longer(client: FleetClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here its executor never runs."""
    monkeypatch.setattr(fleet_client, "AGAIN_S", 0.5)
    mute, heir, executor = Node("mute"), Node("heir"), SingleThreadedExecutor()
    mute.create_service(srv.AdmitRobot, "/rfm/admit_robot", admitted)
    executor.add_node(heir)
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(client.admit, "guest", "arm")
        while not mute.count_clients("/rfm/admit_robot"):
            time.sleep(0.05)
        time.sleep(0.5)
        mute.destroy_node()
        heir.create_service(srv.AdmitRobot, "/rfm/admit_robot", admitted)
        while not answer.done():
            executor.spin_once(timeout_sec=0.1)
    assert answer.result() == 7
    heir.destroy_node()


def test_nobody_has_to_wait_for_a_scheduler_that_is_gone(client: FleetClient) -> None:
    with pytest.raises(ScheduleError, match="does not answer on /rfm/release_robot within 0 s"):
        client.release("guest", given_up=lambda: True)


def admitted(request: Any, response: Any) -> Any:
    response.success, response.schedule_epoch = True, 7
    return response

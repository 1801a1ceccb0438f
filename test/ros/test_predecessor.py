"""What a scheduler that is started finds of its predecessor: by the word of servers, whatever those say or do not say."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import rclpy
from rclpy.node import Node
from rclpy.task import Future
from rfm_serving import msg, srv

from ros2_rfm_serving.ros import predecessor
from ros2_rfm_serving.ros.node.runtime import executor
from ros2_rfm_serving.ros.predecessor import Left, found_in_force
from ros2_rfm_serving.ros.wire import qos
from ros2_rfm_serving.types import Schedule

LOOKS_S = 8.0
"""For those who are not there, and on a busy machine for those who are."""
FORMER, OTHER = 7, 8
"""Schedulers."""


def following(epoch: int, scheduler: int = FORMER, hosts: tuple[str, ...] = ("a",)) -> msg.Schedule:
    placements = [msg.Placement(server=server, model="m", gpu_type="GPU", batch_size=1, max_sessions=1) for server in hosts]
    return msg.Schedule(epoch=epoch, scheduler=scheduler, policy="best", placements=placements)


@contextmanager
def servers(schedules: dict[str, msg.Schedule | None]) -> Iterator[None]:
    """None: one that hangs, and answers nobody."""
    rclpy.init(args=[])
    spinner, ends, nodes = executor(), threading.Event(), []
    for name, schedule in schedules.items():
        node = Node(name)
        node.create_publisher(msg.ServerStatus, f"/rfm/servers/{name}/status", qos.SERVER_STATUS)

        def answer(request: Any, response: Any, schedule: Any = schedule) -> Any:
            response.schedule = schedule
            return response

        node.create_service(srv.GetSchedule, f"/rfm/servers/{name}/get_schedule", answer, qos_profile=qos.CONTROL)
        nodes.append(node)
        if schedule is not None:
            spinner.add_node(node)

    def serve() -> None:
        while not ends.is_set():
            spinner.spin_once(timeout_sec=0.02)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join()
        spinner.shutdown()
        for node in nodes:
            node.destroy_node()
        rclpy.try_shutdown()


def left(*declared: str) -> Left:
    return found_in_force(qos.Names(""), declared, LOOKS_S, logging.getLogger())


def epoch_of(schedule: Schedule | None) -> tuple[int, int]:
    assert schedule is not None
    return schedule.scheduler, schedule.epoch


def test_in_the_middle_of_a_change_the_newer_one_is_taken_up(ros_domain: int) -> None:
    """Half of the servers have heard of it when their scheduler is killed; and who is missing is not planned with."""
    with servers(
        {"a": following(4, hosts=("a", "b")), "b": following(5, hosts=("a", "b")), "c": following(9, OTHER), "d": following(0)}
    ):
        schedule, missing = left("a", "b", "c", "d", "gone")
    assert epoch_of(schedule) == (FORMER, 5) and missing == ("gone",)


def test_a_server_that_hangs_and_words_that_cannot_be_are_not_waited_for(ros_domain: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predecessor, "ANSWER_S", 1.0)
    nameless = following(6)
    nameless.placements[0].server = "/etc/passwd"
    with servers({"hangs": None, "endless": following(2**32 - 1), "nameless": nameless, "a": following(3, OTHER)}):
        schedule, missing = left("hangs", "endless", "nameless", "a")
    assert epoch_of(schedule) == (OTHER, 3) and missing == ()


def test_an_answer_that_has_failed_costs_that_answer_alone(caplog: pytest.LogCaptureFixture) -> None:
    failed, empty, told = Future(), Future(), Future()
    failed.set_exception(RuntimeError("the middleware gave up"))
    empty.set_result(None)  # as one that was cancelled
    told.set_result(srv.GetSchedule.Response(schedule=following(4)))
    schedules = predecessor._told([failed, empty, told], logging.getLogger())
    assert [epoch_of(schedule) for schedule in schedules] == [(FORMER, 4)]
    assert "the middleware gave up" in caplog.text and caplog.text.count("has failed") == 2

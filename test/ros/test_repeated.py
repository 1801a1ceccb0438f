"""What is said over and over is read once: a schedule is as long as its fleet is large, and everybody hears it every 2 s."""

from __future__ import annotations

import pytest
from rclpy.serialization import serialize_message
from rfm_serving import msg

from ros2_rfm_serving.errors import BadMessageError
from ros2_rfm_serving.ros.wire.bounded import REMEMBERED, Repeated
from ros2_rfm_serving.ros.wire.schedules import ScheduleReader


def said(epoch: int, second: int, robots: int = 3) -> bytes:
    routes = [msg.Route(robot=f"arm_{i + 1}", component="system1", server="s1", max_rate_hz=1.0) for i in range(robots)]
    schedule = msg.Schedule(epoch=epoch, scheduler=7, routes=routes)
    schedule.header.stamp.sec, schedule.header.stamp.nanosec = second, 10 * second
    return bytes(serialize_message(schedule))


def test_what_differs_in_its_stamp_alone_is_the_same() -> None:
    read, schedule_of = Repeated(msg.Schedule), ScheduleReader()
    first = read(said(1, 100))
    assert read(said(1, 102)) is first and first.header.stamp.sec == 0, "when it was said first is not when it is said now"
    assert schedule_of(read(said(1, 104))) is schedule_of(first)
    newer = read(said(2, 104))
    assert newer is not first and schedule_of(newer).epoch == 2
    assert len(schedule_of(read(said(2, 106, robots=4))).routes) == 4, "an epoch alone tells nothing"


def test_rivals_do_not_push_out_one_another() -> None:
    read = Repeated(msg.Schedule)
    first = [read(said(epoch, 1)) for epoch in range(1, REMEMBERED + 1)]
    assert all(read(said(epoch, 2)) is first[epoch - 1] for epoch in range(1, REMEMBERED + 1))
    for epoch in range(10, 200):
        read(said(epoch, 1))
    assert read._read.cache_info().currsize == REMEMBERED, "whoever makes up schedules fills no memory"


@pytest.mark.parametrize("size", [0, 3, 4, 7, 11, 12, 30])
def test_what_ends_too_soon_is_refused_as_ever(size: int) -> None:
    read = Repeated(msg.Schedule)
    for _ in range(2):
        with pytest.raises(BadMessageError):
            read(said(1, 100)[:size])
    assert read(said(1, 100)).epoch == 1

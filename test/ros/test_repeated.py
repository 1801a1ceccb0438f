"""What is said over and over is read once: a schedule is as long as its fleet is large, and everybody hears it every 2 s."""

from __future__ import annotations

from dataclasses import replace

import pytest
from builtin_interfaces.msg import Time
from rclpy.serialization import deserialize_message, serialize_message
from rfm_serving import msg

from ros2_rfm_serving.errors import BadMessageError
from ros2_rfm_serving.ros.wire.bounded import REMEMBERED, Repeated
from ros2_rfm_serving.ros.wire.convert import Routes, schedule_to, stamped_bytes
from ros2_rfm_serving.ros.wire.schedules import ScheduleReader
from ros2_rfm_serving.types import Route, Schedule


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
    assert len(read._known) == REMEMBERED, "whoever makes up schedules fills no memory"


@pytest.mark.parametrize("size", [0, 3, 4, 7, 11, 12, 30])
def test_what_ends_too_soon_is_refused_as_ever(size: int) -> None:
    read = Repeated(msg.Schedule)
    for _ in range(2):
        with pytest.raises(BadMessageError):
            read(said(1, 100)[:size])
    assert read(said(1, 100)).epoch == 1


def test_ones_own_word_is_known_and_not_read() -> None:
    read, own = Repeated(msg.Schedule), msg.Schedule(epoch=1)
    read.expect(said(1, 0), own)
    assert read(said(1, 100)) is own and read(said(1, 102)) is own and not read._known
    other = read(said(1, 104, robots=4))
    assert other is not own and len(other.routes) == 4, "in the same epoch, and not what was said"
    read.expect(said(2, 0), msg.Schedule(epoch=2))
    assert read(said(1, 106)) is not own and read(said(2, 106)).epoch == 2


def test_a_stamp_is_put_into_what_was_written() -> None:
    data = said(3, 0)
    stamped = stamped_bytes(data, Time(sec=1_800_000_000, nanosec=7))
    again = deserialize_message(stamped, msg.Schedule)
    assert (
        (again.header.stamp.sec, again.header.stamp.nanosec) == (1_800_000_000, 7)
        and again.epoch == 3
        and len(again.routes) == 3
        and len(stamped) == len(data)
    )


def test_routes_that_stay_are_converted_once() -> None:
    routes = tuple(
        Route(robot=f"arm_{i}", component="system1", server="s1", max_rate_hz=1.0, slo_s=0.1, task="arm") for i in range(3)
    )
    before = Schedule(epoch=1, placements=(), routes=routes, predicted_actions_hz=1.0, policy="best")
    after = replace(before, epoch=2, routes=(replace(routes[0], max_rate_hz=2.0), routes[2]))
    kept = Routes()
    first, second = schedule_to(before, "f", kept), schedule_to(after, "f", kept)
    assert second.routes == schedule_to(after, "f").routes and second.routes[1] is first.routes[2] and len(kept._kept) == 2

"""What of a recording is shown again, and when."""

from __future__ import annotations

import struct

import pytest

from ros2_rfm_serving.audit.playing import OWN, Pacing, is_shown, restamped, shape


@pytest.mark.parametrize(
    ("topic", "kind"),
    [
        ("/push_1/command", "std_msgs/msg/Float32MultiArray"),
        ("/push_1/command", "sensor_msgs/msg/JointState"),
        ("/push_1/cmd_vel", "geometry_msgs/msg/TwistStamped"),
        ("/push_1/arm/joint_trajectory", "trajectory_msgs/msg/JointTrajectory"),
        ("/rfm/servers/server_1/observation", "rfm_serving/msg/Observation"),
        ("/push_1/rfm/refetch", "rfm_serving/msg/RequestId"),
        ("/push_1/rfm/name", "rfm_serving/msg/NameClaim"),
        ("/push_1/rfm/audit", "rfm_serving/msg/AuditPage"),
        ("/push_1/execute_task/_action/feedback", "rfm_serving/action/ExecuteTask_FeedbackMessage"),
        ("/chatter", "std_msgs/msg/String"),
    ],
)
def test_what_makes_somebody_do_something_is_never_played(topic: str, kind: str) -> None:
    assert not is_shown(topic, kind)


@pytest.mark.parametrize(
    ("topic", "kind"),
    [
        ("/push_1/rfm/status", "rfm_serving/msg/RobotStatus"),
        ("/rfm/schedule", "rfm_serving/msg/Schedule"),
        ("/push_1/rfm/action_chunk", "rfm_serving/msg/ActionChunk"),
        ("/push_1/joint_states", "sensor_msgs/msg/JointState"),
        ("/push_1/state", "std_msgs/msg/Float32MultiArray"),
        ("/tf_static", "tf2_msgs/msg/TFMessage"),
        ("/push_1/robot_description", "std_msgs/msg/String"),
        ("/push_1/camera/top/image/compressed", "sensor_msgs/msg/CompressedImage"),
    ],
)
def test_what_tells_how_things_were_is_played(topic: str, kind: str) -> None:
    assert is_shown(topic, kind)


def test_a_message_is_due_as_long_after_the_first_as_it_was_divided_by_the_rate() -> None:
    pacing = Pacing(begins_ns=5_000_000_000, starts_s=100.0, rate=2.0)
    assert [pacing.due_s(ns) for ns in (5_000_000_000, 6_000_000_000, 25_000_000_000)] == [100.0, 100.5, 110.0]


@pytest.mark.parametrize(("endian", "order"), [(1, "<"), (0, ">")])
def test_a_header_says_now_and_nothing_else_changes(endian: int, order: str) -> None:
    kind = sorted(OWN)[0]
    data = bytes([0, endian, 0, 0]) + struct.pack(f"{order}iI", 1, 2) + b"the rest"
    made = restamped(kind, data, 1_700_000_000_123_456_789)
    assert struct.unpack_from(f"{order}iI", made, 4) == (1_700_000_000, 123_456_789)
    assert made[:4] == data[:4] and made[12:] == b"the rest"
    assert restamped("std_msgs/msg/Float32MultiArray", data, 7) == data and restamped(kind, data[:8], 7) == data[:8]


def test_two_definitions_are_one_whatever_their_comments_say() -> None:
    assert shape("uint8 A=1   # one\n\nstring  b\n====\nMSG: x/Y\nint32 c") == shape(
        "# what\nuint8 A=1\nstring b\n=====\nMSG: x/Y\nint32 c"
    )
    assert shape("string b") != shape("string c")

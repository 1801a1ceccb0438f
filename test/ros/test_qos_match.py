"""Which QoS of a publisher a subscription does not match, by the middleware's own judgement, and with both values."""

from __future__ import annotations

from typing import Any

import pytest
import rclpy
from rclpy.duration import Duration, Infinite
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, LivelinessPolicy, QoSProfile, ReliabilityPolicy
from sensor_msgs.msg import Imu

from ros2_rfm_serving.ros.robot.reading_times import CLOCK_QOS
from ros2_rfm_serving.ros.wire import qos
from ros2_rfm_serving.ros.wire.qos_match import mismatch
from test.waiting import eventually

WEAKEST: dict[str, Any] = {
    "depth": 1,
    "reliability": ReliabilityPolicy.BEST_EFFORT,
    "durability": DurabilityPolicy.VOLATILE,
    "liveliness": LivelinessPolicy.AUTOMATIC,
    "deadline": Infinite,
    "liveliness_lease_duration": Infinite,
}
"""What a publisher offers at least."""


@pytest.mark.parametrize(
    ("requested", "says"),
    [
        ({"reliability": ReliabilityPolicy.RELIABLE}, "reliability reliable, where best_effort is offered"),
        ({"durability": DurabilityPolicy.TRANSIENT_LOCAL}, "durability transient_local, where volatile is offered"),
        ({"liveliness": LivelinessPolicy.MANUAL_BY_TOPIC}, "liveliness manual_by_topic, where automatic is offered"),
        ({"deadline": Duration(seconds=0.25)}, "deadline 0.25 s, where no limit is offered"),
        ({"liveliness_lease_duration": Duration(seconds=2)}, "liveliness_lease_duration 2 s, where no limit is offered"),
        ({"depth": 9, "lifespan": Duration(seconds=1)}, ""),
    ],
)
def test_each_policy_is_named_with_both_values(requested: dict[str, Any], says: str) -> None:
    offered = QoSProfile(**WEAKEST)
    assert mismatch(offered, QoSProfile(**{**WEAKEST, **requested})) == says
    assert mismatch(QoSProfile(**{**WEAKEST, **requested}), offered) == "", "more is offered than is asked for"


def test_a_sensor_of_any_publisher_is_read(ros_domain: int) -> None:
    """A robot's subscriptions ask for the least of every policy."""
    context = rclpy.Context()
    rclpy.init(context=context)
    node = Node("sensor", context=context)
    try:
        for number, profile in enumerate((qos.SENSOR, qos.JOINTS, CLOCK_QOS)):
            topic = f"/sensor_{number}"
            node.create_publisher(Imu, topic, QoSProfile(**WEAKEST))
            node.create_subscription(Imu, topic, lambda message: None, profile)
            assert eventually(lambda topic=topic: node.get_subscriptions_info_by_topic(topic), 30.0)
            (offered,), (requested,) = node.get_publishers_info_by_topic(topic), node.get_subscriptions_info_by_topic(topic)
            assert mismatch(offered.qos_profile, requested.qos_profile) == ""
    finally:
        node.destroy_node()
        rclpy.try_shutdown(context=context)

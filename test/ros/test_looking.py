"""How long a factory is watched for its causes: over DDS, with a robot that is found after the others."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import rclpy
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from rclpy.node import Node
from rfm_serving import msg

from ros2_rfm_serving.monitoring.findings.causes import findings
from ros2_rfm_serving.operate.looking import look_at
from ros2_rfm_serving.ros.node.diagnostics import TOPIC
from ros2_rfm_serving.ros.wire import qos
from test.ros.test_proven_views import plan

SECONDS = 4.0


def publish_twice(context: rclpy.Context, is_over: threading.Event) -> None:
    """Publish a schedule without robots, and one second after somebody subscribed, the next one with a robot."""
    node = Node("two_schedules", context=context)
    publisher = node.create_publisher(msg.Schedule, qos.Names().schedule, qos.SCHEDULE)
    first, second = plan(), plan(epoch=4)
    first.routes = []
    publisher.publish(first)
    while not publisher.get_subscription_count() and not is_over.wait(0.05):
        pass
    is_over.wait(1.0)
    publisher.publish(second)
    is_over.wait()
    node.destroy_node()


def test_a_robot_that_is_found_late_is_watched_as_long_as_the_others(ros_domain: int, tmp_path: Path) -> None:
    context, is_over = rclpy.Context(), threading.Event()
    rclpy.init(context=context, domain_id=ros_domain)
    publishing = threading.Thread(target=publish_twice, args=(context, is_over))
    publishing.start()
    try:
        begun_s = time.monotonic()
        look = look_at("", SECONDS, 60.0, tmp_path, threading.Event())
    finally:
        is_over.set()
        publishing.join()
        rclpy.shutdown(context=context)
    assert look.robots == {"arm_1": []}
    assert SECONDS <= look.silent_s("arm_1", []) <= look.seconds <= time.monotonic() - begun_s


def publish_refusals(context: rclpy.Context, is_over: threading.Event) -> None:
    """Publish a schedule, and diagnostics of the Zenoh door, which refuses more and more, of the recorder, and of a stranger."""
    node = Node("statuses", context=context)
    schedules = node.create_publisher(msg.Schedule, qos.Names().schedule, qos.SCHEDULE)
    diagnostics = node.create_publisher(DiagnosticArray, TOPIC, 10)
    schedules.publish(plan())
    num_refused = 0
    while not is_over.wait(0.2):
        num_refused += 5
        refused = [KeyValue(key="refused_stale_hash", value=str(num_refused))]
        array = DiagnosticArray(status=[DiagnosticStatus(name="zenoh_door: door", message="carrying", values=refused)])
        array.status.append(DiagnosticStatus(name="recorder: recording", level=b"\1", message="12 messages were lost"))
        array.status.append(DiagnosticStatus(name="camera_driver: camera", level=b"\2", message="no device"))
        diagnostics.publish(array)
    node.destroy_node()


def test_what_the_zenoh_door_and_the_recorder_report_is_found_over_dds(ros_domain: int, tmp_path: Path) -> None:
    context, is_over = rclpy.Context(), threading.Event()
    rclpy.init(context=context, domain_id=ros_domain)
    publishing = threading.Thread(target=publish_refusals, args=(context, is_over))
    publishing.start()
    try:
        look = look_at("", SECONDS, 60.0, tmp_path, threading.Event())
    finally:
        is_over.set()
        publishing.join()
        rclpy.shutdown(context=context)
    found = {(one.cause, one.about) for one in findings(look)}
    assert {("refused messages", "zenoh_door"), ("incomplete recording", "recorder")} <= found
    assert "camera_driver: camera" not in look.diagnoses

"""`rfm topic`, beside a publisher as any ROS 2 user would write it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import rclpy
import yaml
from rclpy.executors import SingleThreadedExecutor
from rclpy.qos import qos_profile_sensor_data
from sensor_msgs.msg import JointState

TOPIC, RATE_HZ, NUM_JOINTS = "/cell/joint_states", 20.0, 40


@pytest.fixture
def driver(ros_domain: int) -> Iterator[None]:
    context, ending = rclpy.Context(), threading.Event()
    rclpy.init(context=context)
    node = rclpy.create_node("arm_driver", context=context)
    publisher = node.create_publisher(JointState, TOPIC, qos_profile_sensor_data)
    state = JointState(name=[f"joint_{i}" for i in range(NUM_JOINTS)], position=[0.5] * NUM_JOINTS)
    node.create_timer(1.0 / RATE_HZ, lambda: publisher.publish(state))
    executor = SingleThreadedExecutor(context=context)
    executor.add_node(node)

    def spin() -> None:
        while not ending.is_set():
            executor.spin_once(timeout_sec=0.1)

    thread = threading.Thread(target=spin, daemon=True)
    thread.start()
    yield
    ending.set()
    thread.join(timeout=10)
    context.try_shutdown()


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-W", "ignore", "-m", "ros2_rfm_serving.cli", "topic", *arguments]


def run(repository: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*arguments), cwd=repository, capture_output=True, text=True, timeout=100, check=False)


@pytest.mark.timeout(280)
def test_topics_are_listed_echoed_and_timed(repository: Path, driver: None) -> None:
    listed = run(repository, "list", "joint")
    assert listed.stdout == f"{TOPIC}  sensor_msgs/msg/JointState  1 publisher, 0 subscribers\n", listed.stderr
    nodes = run(repository, "list", TOPIC)
    assert "/arm_driver publishes  sensor_msgs/msg/JointState  best_effort, volatile" in nodes.stdout

    echoed = run(repository, "echo", TOPIC, "--once")
    message, end = echoed.stdout.split("---")
    shown = yaml.safe_load(message)
    assert shown["position"] == [0.5] * 16 + [f"... {NUM_JOINTS - 16} more"] and not end.strip(), echoed.stderr
    whole = yaml.safe_load(run(repository, "echo", TOPIC, "--count", "1", "--full").stdout.split("---")[0])
    assert len(whole["name"]) == NUM_JOINTS and whole["header"]["stamp"] == {"sec": 0, "nanosec": 0}

    timed = run(repository, "hz", TOPIC, "--seconds", "3")
    rates = [float(rate) for rate in re.findall(r"average rate: ([0-9.]+)", timed.stdout)]
    assert timed.returncode == 0 and rates and 0.3 * RATE_HZ < rates[-1] < 1.5 * RATE_HZ, timed.stdout + timed.stderr
    assert re.search(r"min: [0-9.]+s max: [0-9.]+s std dev: [0-9.]+s window: [0-9]+", timed.stdout)


@pytest.mark.timeout(200)
def test_what_is_not_there_is_named_and_ctrl_c_ends_at_once(repository: Path, driver: None) -> None:
    misspelt = run(repository, "hz", "/cell/joint_state", "--wait", "0")
    assert misspelt.returncode == 2
    assert f"nobody publishes /cell/joint_state; did you mean `{TOPIC}`?" in misspelt.stderr
    assert "No such" not in run(repository, "list", "nothing_of_the_kind").stderr
    wrong = run(repository, "echo", "no topic")
    assert wrong.returncode == 2 and "Traceback" not in wrong.stderr

    endless = subprocess.Popen(
        command("echo", TOPIC), cwd=repository, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ.copy()
    )
    assert endless.stdout is not None and endless.stdout.readline()
    endless.send_signal(signal.SIGINT)
    _, problems = endless.communicate(timeout=60)
    assert endless.returncode == 0 and not problems

"""`rfm check --live` against real drivers on a real graph."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import rclpy
from rclpy.node import Node
from sensor_msgs.msg import Image, JointState
from trajectory_msgs.msg import JointTrajectory

from .spinning import living

ROBOT = """/**:
  ros__parameters:
    action_names: [shoulder, elbow]
    cameras: [front]
    state_size: 2
    control_rate_hz: 20.0
    camera_type: image
    camera_topics: [front=/cam/image_raw]
    state_parts: [joint_states]
    joint_topic: /joint_states
    joints: [shoulder, elbow]
    action_joints: [shoulder, elbow]
    command_type: position
    limits.max_velocity: [1.0, 1.0]
    sink: trajectory
    sink_topic: /controller/joint_trajectory
"""
FACTORY = """server_cluster: {num_servers: 1, gpu_type: EMULATED}
robot_fleet: [{task: pick, num_robots: 1}]
pick:
  pipeline: {action_period_ms: 200}
  execution: {mode: async}
  robot: mine.yaml
  components: {system1: {model: mine/policy, prompt: pick, slo_ms: 400}}
"""
MODELS = """models:
  mine/policy:
    engine: emulated
    action_names: [shoulder, elbow]
    cameras: [front]
    state_size: 2
    gpus: {EMULATED: {memory_gb: 1, load_s: 0, source: "for this test"}}
"""


class Arm(Node):
    def __init__(self, context: rclpy.Context) -> None:
        super().__init__("driver", context=context)
        self._states = self.create_publisher(JointState, "/joint_states", 10)
        self._images = self.create_publisher(Image, "/cam/image_raw", 1)
        self.create_subscription(JointTrajectory, "/controller/joint_trajectory", lambda message: None, 1)
        self.create_timer(0.02, self._publish)

    def _publish(self) -> None:
        self._states.publish(JointState(name=["shoulder", "elbow"], position=[0.0, 0.5]))
        self._images.publish(Image(height=8, width=8, step=24, encoding="rgb8", data=bytes(192)))


@pytest.fixture
def arm(ros_domain: int) -> Iterator[Node]:
    with living(Arm) as node:
        yield node


def checked(folder: Path, robot: str) -> tuple[int, str]:
    (folder / "mine.yaml").write_text(robot)
    (folder / "factory.yaml").write_text(FACTORY)
    (folder / "profiles").mkdir()
    (folder / "profiles" / "models.yaml").write_text(MODELS)
    row = "mine/policy,EMULATED,fixed,1,{},10,10,11,12,15\n"
    header = "model,gpu_type,batching,batch_size,rate_hz,mean_ms,p50_ms,p90_ms,p95_ms,p99_ms\n"
    (folder / "profiles" / "mine.csv").write_text(header + row.format(1) + row.format(20))
    command = [sys.executable, "-W", "ignore", "-m", "ros2_rfm_serving.cli", "check", "factory.yaml", "--live", "--seconds", "4"]
    command += ["--profiles", "profiles"]
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    return done.returncode, " ".join((done.stdout + done.stderr).split())


def test_a_robot_that_fits_the_graph(arm: Node, tmp_path: Path) -> None:
    code, said = checked(tmp_path, ROBOT)
    assert code == 0, said
    assert "factory.yaml: valid" in said and "live: pick_1: the graph has what its file says" in said


def test_what_differs_is_named_with_key_value_and_fix(arm: Node, tmp_path: Path) -> None:
    wrong = ROBOT.replace("camera_type: image", "camera_type: compressed").replace(
        "joints: [shoulder, elbow]", "joints: [shoulder, elbw]"
    )
    wrong = wrong.replace("/controller/", "/controler/")
    code, said = checked(tmp_path, wrong)
    assert code == 1, said
    assert "camera_types (front=compressed): /cam/image_raw is published as sensor_msgs/msg/Image by /driver" in said
    assert "joint 'elbw' is not in /joint_states, which has elbow, shoulder; did you mean `elbow`?" in said
    assert "nobody subscribes to /controler/joint_trajectory" in said and "/controller/joint_trajectory" in said

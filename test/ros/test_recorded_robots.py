"""Every kind of robot that can be declared, at work over DDS: what each decides is recorded, verified and decided again."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rclpy
import simplejpeg
from rclpy.parameter import Parameter
from rfm_serving import msg
from sensor_msgs.msg import JointState
from std_msgs.msg import Float32MultiArray, Float64MultiArray
from typer.testing import CliRunner

from ros2_rfm_serving.audit.bag import Bag
from ros2_rfm_serving.audit.chain import records
from ros2_rfm_serving.audit.recording.recorder import broken_chains
from ros2_rfm_serving.cli.main import app
from ros2_rfm_serving.factory.nodes import parameter_file
from ros2_rfm_serving.ros.monitor.recorder import RecorderNode
from ros2_rfm_serving.ros.robot.joints import StatePart
from ros2_rfm_serving.ros.robots_node import RobotsNode
from ros2_rfm_serving.ros.wire import convert, qos, session_messages
from ros2_rfm_serving.types import Schedule
from test.ros.pictures import compressed, png, raw, scene
from test.ros.robot_rig import FakeServer, Rig
from test.ros.test_robot_node import SUCCESS
from test.ros.test_state_parts import EXPECTED, message
from test.unit.fakes import CONTRACT, chunk, schedule

JPEG = compressed(simplejpeg.encode_jpeg(scene()), "rgb8; jpeg compressed bgr8")
DEPTH_MM = np.full((48, 64), 500, np.uint16)
JOINTS = {"state_parts": ["joint_states"], "joints": ["x", "y", "z"], "action_joints": ["x", "y"]}
POSITIONS = {"command_type": "position", "limits.max_velocity": [1.0, 1.0], "limits.max_acceleration": [4.0, 4.0], **JOINTS}
TRAJECTORY = {"sink": "trajectory", "sink_topic": "arm_controller/joint_trajectory"}
PARTS = ["odometry", "imu", "wrench", "pose"]
Feed = dict[str, Any]
"""Topic below the robot's namespace -> the message that is published on it at every period."""
ARRAY: Feed = {"state": Float32MultiArray(data=[0.1, 0.2, 0.3])}
FRONT: Feed = {"camera/front/image/compressed": JPEG}
JOINT_STATES: Feed = {"joint_states": JointState(name=["z", "y", "x"], position=[0.0, 0.0, 0.0])}
PART_TOPICS = {"odometry": "odom", "imu": "imu/data", "wrench": "wrench", "pose": "pose"}

KINDS: dict[str, tuple[dict[str, Any], Feed]] = {
    "compressed": ({}, ARRAY | FRONT),
    "raw": ({"camera_type": "image"}, ARRAY | {"camera/front/image_raw": raw(scene()[:, :, ::-1], "bgr8", padding=7)}),
    "depth": (
        {"camera_type": "image", "camera_depth_range_m": ["front=0.0:2.55"]},
        ARRAY | {"camera/front/image_raw": raw(DEPTH_MM, "16UC1")},
    ),
    "compressed_depth": (
        {"camera_depth_range_m": ["front=0.0:2.55"]},
        ARRAY | {"camera/front/image/compressed": compressed(png(DEPTH_MM), "16UC1; png compressed ")},
    ),
    "large": ({"max_image_size_px": 32}, ARRAY | FRONT),
    "broken": (  # a PNG whose header is right and whose rest is missing, which is found when it is encoded
        {},
        ARRAY | {"camera/front/image/compressed": compressed(png(scene())[:80], "bgr8; png compressed bgr8")},
    ),
    "mixed_cameras": (
        {"cameras": ["front", "wrist"], "camera_types": ["wrist=image"]},
        ARRAY | FRONT | {"camera/wrist/image_raw": raw(scene(), "rgb8")},
    ),
    "no_camera": ({"cameras": [""]}, ARRAY),
    "doubles": (
        {"state_type": "float64", "state_topic": "numbers", "action_state": [2, 0]},
        FRONT | {"numbers": Float64MultiArray(data=[0.1, 0.2, 0.3])},
    ),
    "joints": ({**JOINTS, "command_type": "position", **TRAJECTORY, "safe_pose": [0.1, 0.2]}, FRONT | JOINT_STATES),
    "chunks": ({**POSITIONS, **TRAJECTORY, "sink": "chunk"}, FRONT | JOINT_STATES),
    "base": (
        {
            "state_parts": PARTS,
            "state_size": sum(len(EXPECTED[StatePart(part)]) for part in PARTS),
            "command_type": "velocity",
            "fallback": ["ramp_down:0.3", "zero"],
            "sink": "twist",
            "sink_topic": "cmd_vel",
            "twist_axes": ["x=linear.x", "y=angular.z"],
        },
        FRONT | {PART_TOPICS[part]: message(StatePart(part)) for part in PARTS},
    ),
    "mixed_columns": (
        {
            "command_type": "velocity",
            "command_types": ["y=gripper"],
            "fallback": ["zero"],
            "limits.lower": [-1.0, 0.0],
            "limits.upper": [1.0, 1.0],
        },
        ARRAY | FRONT,
    ),
    "continuous": ({**JOINTS, "command_type": "position", "continuous_joints": ["y"], "interpolation": 2}, FRONT | JOINT_STATES),
    "timer": ({"tick": "timer", "blend_steps": 2, "gate.jump": "warn", "gate.max_jump": [0.01, 0.01]}, ARRAY | FRONT),
    "synchronous": ({"synchronous": True, "execution_horizon": 2}, ARRAY | FRONT),
    "appended": ({"replace_queue": False, "conditioning": "none"}, ARRAY | FRONT),
    "confidence": ({"horizon_policy": "confidence", "num_steps": 3}, ARRAY | FRONT),
    "pipelined": ({"pipelining.pp_perception": 1, "pipelining.pp_generation": 2, "execution_horizon": 2}, ARRAY | FRONT),
}
SHARED: dict[str, Any] = {"state_size": 3, "cameras": ["front"], "action_names": ["x", "y"], "control_rate_hz": 20.0}


class MirrorServer(FakeServer):
    """Serves whatever a robot is: its contract is what the robot asked for. A pipelined robot gets each answer a frame later."""

    def __init__(self) -> None:
        super().__init__()
        self._pipelined: set[str] = set()

    def _on_open(self, request: Any, response: Any) -> Any:
        answer = super()._on_open(request, response)
        if request.pp_perception:
            self._pipelined.add(request.robot)
        fits = replace(
            CONTRACT,
            action_names=tuple(request.action_names),
            cameras=tuple(request.cameras),
            state_size=request.state_size,
            chunk_length=16,
            pipelines=True,
            max_num_steps=10,
        )
        return session_messages.contract_to(fits, answer)

    def _on_observation(self, message: Any) -> None:
        self.observations.append(message)
        request = convert.observation_from(message)
        values = np.full((16, 2), 0.05, np.float32) * np.linspace(0.0, 1.0, 16, dtype=np.float32)[:, None]
        ended_with = {"ended_with": request.id.sequence} if request.id.robot in self._pipelined else {}
        self._chunks[request.id.robot].publish(convert.reply_to(chunk(request, values, execution_horizon=4, **ended_with)))


class RecordedRig(Rig):
    """Robots in one process, their sensors, their server, and a recorder."""

    make_server = MirrorServer

    def __init__(self, folder: Path, kinds: Sequence[str]) -> None:
        self.node, self.kinds = RobotsNode(), kinds
        super().__init__(self.node, *kinds)
        settings = {"folder": str(folder), "robots": list(kinds), "linger_s": 0.0}
        overrides = [Parameter(name, value=value) for name, value in settings.items()]
        self.recorder = RecorderNode(parameter_overrides=overrides, use_global_arguments=False)
        self.nodes.append(self.recorder)
        self.pages: list[Any] = []
        self.executor.add_node(self.recorder)
        self._sent = [self._publisher(kind, topic, sent) for kind in kinds for topic, sent in KINDS[kind][1].items()]

    def work(self) -> None:
        assert self.node.trigger_configure() == SUCCESS and self.node.trigger_activate() == SUCCESS
        self.peer.create_timer(1.0 / SHARED["control_rate_hz"], lambda: [send() for send in self._sent])
        routes = tuple(route for kind in self.kinds for route in schedule(kind).routes)
        whole = Schedule(epoch=1, placements=schedule().placements, routes=routes, predicted_actions_hz=1.0, policy="test")
        self.schedule.publish(convert.schedule_to(whole, "f"))
        self.wait(lambda: all(body._audit.journal.on for body in self.node._robots), "a recorder of each")
        for kind in self.kinds:
            self.goal(kind, time_budget_s=600.0)
        for body in self.node._robots:
            self.wait(lambda body=body: body.brain.task.executed_steps > 10, f"actions of {body.name}")
        for kind in self.kinds:  # a second listener gets a snapshot of a robot at work, with requests in flight
            self.peer.create_subscription(msg.AuditPage, qos.Names().robot(kind, "rfm/audit"), self.pages.append, qos.AUDIT)
        self.wait(lambda: {page.writer for page in self.pages} == {f"robot/{kind}" for kind in self.kinds}, "pages of each")
        self.spin(1.0)

    def end(self) -> None:
        assert self.node.trigger_deactivate() == SUCCESS and self.node.trigger_cleanup() == SUCCESS
        self.spin(0.5)
        self.recorder.stop()

    def _publisher(self, kind: str, topic: str, sent: Any) -> Callable[[], None]:
        publisher = self.peer.create_publisher(type(sent), qos.Names().robot(kind, topic), qos.SENSOR)

        def send() -> None:
            if hasattr(sent, "header"):
                sent.header.stamp = self.peer.get_clock().now().to_msg()
            publisher.publish(sent)

        return send


@pytest.fixture
def make_rig(ros_domain: int, tmp_path: Path) -> Iterator[Callable[..., RecordedRig]]:
    made: list[RecordedRig] = []

    def make(*kinds: str) -> RecordedRig:
        file = tmp_path / "robots.yaml"
        own = {kind: json.loads(json.dumps(KINDS[kind][0])) for kind in kinds if KINDS[kind][0]}  # no YAML aliases
        file.write_text(parameter_file({"robots": list(kinds), **SHARED, "autostart": False, **own}))
        rclpy.init(args=["--ros-args", "--params-file", str(file)])
        made.append(RecordedRig(tmp_path / "bag", kinds))
        return made[0]

    try:
        yield make
    finally:
        for rig in made:
            rig.close()
        rclpy.try_shutdown()


def rfm(*arguments: str) -> tuple[int, dict[str, Any]]:
    result = CliRunner().invoke(app, [*arguments, "--json"])
    return result.exit_code, json.loads(result.stdout)


@pytest.mark.timeout(300)
def test_every_kind_of_robot_is_recorded_verified_and_decided_again(make_rig: Callable[..., RecordedRig], tmp_path: Path) -> None:
    rig = make_rig(*KINDS)
    rig.work()
    failed = {body.name: body._audit.journal.problem for body in rig.node._robots if body._audit.journal.failures}
    assert not failed
    rig.end()
    code, verified = rfm("audit", "verify", str(tmp_path / "bag"))
    chains = {chain["writer"].removeprefix("robot/"): chain for chain in verified["chains"]}
    assert code == 0 and chains.keys() >= KINDS.keys(), verified["flaws"]
    assert len(chains) == len(verified["chains"]), "a chain began anew"
    code, again = rfm("replay", str(tmp_path / "bag"))
    assert code == 0, [chain for chain in again["chains"] if chain["difference"] or chain["refused"]]
    decided = {chain["writer"].removeprefix("robot/"): chain["decisions"] for chain in again["chains"]}
    assert decided.keys() >= KINDS.keys() and all(decided[kind] > 20 for kind in KINDS), decided
    assert all(chain["snapshots"] for chain in again["chains"] if chain["writer"].startswith("robot/")), "no state was compared"
    assert seen(Bag(tmp_path / "bag")) == {f"robot/{kind}" for kind in KINDS} - {"robot/no_camera", "robot/broken"}


def seen(bag: Bag) -> set[str]:
    """Return the robots of whose records some name an image that an observation of the recording has."""
    ticks = [(page.writer, record) for page in bag.pages() for record in records(page) if record["kind"] == "tick"]
    images = [(writer, image["data"]) for writer, tick in ticks for image in (tick["sensors"] or {}).get("images", [])]
    return {writer for writer, data in images if "sha256" in data and bag.blob(data["sha256"]) is not None}


@pytest.mark.timeout(200)
def test_a_robot_whose_records_have_a_gap_is_named_by_everybody(make_rig: Callable[..., RecordedRig], tmp_path: Path) -> None:
    rig = make_rig("raw", "no_camera")
    rig.work()
    (body,) = [body for body in rig.node._robots if body.name == "raw"]
    body.brain.hat = object()  # what no recording knows: the next snapshot fails
    body._audit.journal.listeners(5, 0.0)
    rig.wait(lambda: body._audit.journal.failures > 0, "a failure")
    del body.brain.hat
    rig.wait(lambda: body._audit.journal.on, "another chain")
    rig.wait(lambda: rig.recorder.told.broken, "the recorder's knowing")
    rig.wait(lambda: "robot/raw" in rig.diagnostics["recorder: recording"].message, "the recorder's warning")
    rig.end()
    assert rig.recorder.told.broken.keys() == broken_chains(tmp_path / "bag").keys() == {"robot/raw"}
    code, verified = rfm("audit", "verify", str(tmp_path / "bag"))
    assert code == 1 and {flaw["writer"] for flaw in verified["flaws"]} == {"robot/raw"}
    assert all("builtins.object cannot be recorded" in flaw["problem"] for flaw in verified["flaws"])
    code, again = rfm("replay", str(tmp_path / "bag"))
    assert code == 2 and {chain["writer"] for chain in again["chains"] if chain["broke_off"]} == {"robot/raw"}
    assert all(chain["difference"] is None and not chain["refused"] for chain in again["chains"])

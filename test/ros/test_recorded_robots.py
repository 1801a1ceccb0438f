"""Every kind of robot that can be declared, at work over DDS: what each decides is recorded, verified and decided again."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import rclpy
import simplejpeg
from rclpy.parameter import Parameter
from rfm_serving import msg
from sensor_msgs.msg import JointState
from std_msgs.msg import Float32MultiArray, Float64MultiArray
from typer.testing import CliRunner

from ros2_rfm_serving.audit import codec
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
    "guided": ({"conditioning": "guided", "guidance_max_weight": 3.0}, ARRAY | FRONT),
    "scaled": ({"command_scale": [2.0, 0.5], "command_offset": [0.1, 0.0]}, ARRAY | FRONT),
    "velocities": (
        {
            **JOINTS,
            **TRAJECTORY,
            "command_type": "velocity",
            "fallback": ["zero"],
            "joint_fields": ["velocity"],
            "unit_scale": ["x=0.0174533"],
        },
        FRONT | {"joint_states": JointState(name=["z", "y", "x"], position=[0.0] * 3, velocity=[0.0, 0.0, 1.0])},
    ),
    "gripper_trajectory": ({**POSITIONS, **TRAJECTORY, "command_types": ["y=gripper"]}, FRONT | JOINT_STATES),
    "jerk": ({**POSITIONS, "limits.max_jerk": [40.0, 40.0]}, FRONT | JOINT_STATES),
    "stamped_twist": (
        {
            "command_type": "velocity",
            "fallback": ["zero"],
            "sink": "twist",
            "sink_topic": "cmd_vel",
            "twist_axes": ["x=linear.x", "y=angular.z"],
            "twist_stamped": True,
        },
        ARRAY | FRONT,
    ),
    "own_sink": ({"sink": "custom", "sink_class": "test.ros.test_recorded_robots:OwnSink"}, ARRAY | FRONT),
    "arrival": (
        {
            "use_arrival_time": True,
            "interpolation": 3,
            "command_type": "position",
            "action_state": [0, 1],
            "limits.max_velocity": [1.0, 1.0],
            "limits.max_acceleration": [4.0, 4.0],
        },
        ARRAY | FRONT,
    ),
    "pipelined": ({"pipelining.pp_perception": 1, "pipelining.pp_generation": 2, "execution_horizon": 2}, ARRAY | FRONT),
}


class Recorded(NamedTuple):
    """What a recording has of one robot."""

    config: dict[str, Any]
    records: list[dict[str, Any]]
    messages: dict[str, set[str]]
    """Topic below the robot's namespace -> types."""
    blob: Callable[[str], bytes | None]
    """Bytes of an image of the recording, by its SHA-256."""

    @property
    def ticks(self) -> list[dict[str, Any]]:
        return [one for one in self.records if one["kind"] == "tick"]

    @property
    def requests(self) -> list[dict[str, Any]]:
        return [request for tick in self.ticks for request in tick["requests"]]

    @property
    def sensors(self) -> list[dict[str, Any]]:
        return [tick["event"]["sensors"] for tick in self.ticks if tick["event"]["sensors"]]

    def configured(self, name: str) -> Any:
        return self.config.get(name)

    def sensed(self, name: str) -> list[Any]:
        """Values of a part of the readings, where it was read."""
        return [codec.value(found[name]) for found in self.sensors if found.get(name) is not None]

    def images(self) -> list[dict[str, Any]]:
        """Images that the requests took along."""
        return [image for found in self.sensors for image in found["images"]]

    def cameras(self) -> set[str]:
        return {image["camera"] for image in self.images()}

    def pixels(self) -> Any:
        """The first image that is in the recording, RGB."""
        blobs = (self.blob(image["data"]["sha256"]) for image in self.images())
        return simplejpeg.decode_jpeg(next(blob for blob in blobs if blob is not None))

    def replies(self) -> list[dict[str, Any]]:
        events = (one["event"] for one in self.records if one["kind"] == "event")
        return [event["reply"] for event in events if event["~"] == "ReplyReceived"]


TRAJECTORIES, TWIST = {"trajectory_msgs/msg/JointTrajectory"}, {"geometry_msgs/msg/Twist"}


class OwnSink:
    """A sink of a user's own: it is told each command."""

    def __init__(self, node: Any, config: Any, names: Any = None) -> None:
        self.sent = 0

    def send(self, command: Any, period_s: float) -> None:
        self.sent += 1

    def close(self) -> None: ...


def is_scene(one: Recorded) -> bool:
    """What the camera showed is in the recording, give or take what JPEG makes of it."""
    return one.cameras() == {"front"} and float(np.abs(one.pixels().astype(int) - scene().astype(int)).mean()) < 12.0


def is_depth(one: Recorded) -> bool:
    """0.5 m of 0 to 2.55 m is a grey of 50."""
    return one.cameras() == {"front"} and float(np.abs(one.pixels().astype(int) - 50).max()) < 5.0


PROOFS: dict[str, Callable[[Recorded], bool]] = {
    "compressed": is_scene,
    "raw": is_scene,
    "depth": is_depth,
    "compressed_depth": is_depth,
    "large": lambda one: one.cameras() == {"front"} and max(one.pixels().shape) == 32,
    "broken": lambda one: one.cameras() == {"front"} and not any("sha256" in image["data"] for image in one.images()),
    "mixed_cameras": lambda one: one.cameras() == {"front", "wrist"},
    "no_camera": lambda one: not one.images() and len(one.requests) > 2,
    "doubles": lambda one: bool(np.allclose(one.sensed("positions")[-1], [0.3, 0.1])),
    "joints": lambda one: one.messages["arm_controller/joint_trajectory"] == TRAJECTORIES and len(one.sensed("positions")) > 20,
    "chunks": lambda one: any(tick.get("trajectory") for tick in one.ticks),
    "base": lambda one: one.messages["cmd_vel"] == TWIST and len(one.sensed("state")[-1]) == KINDS["base"][0]["state_size"],
    "mixed_columns": lambda one: any(tick["command"] is not None and codec.value(tick["command"])[1] > 0 for tick in one.ticks),
    "continuous": lambda one: len(one.ticks) > 20 and one.messages["command"] == {"std_msgs/msg/Float64MultiArray"},
    "timer": lambda one: not any(tick["event"]["may_act"] is False for tick in one.ticks),
    "synchronous": lambda one: one.configured("synchronous") is True,
    "appended": lambda one: all(request["prefix_steps"] == 0 for request in one.requests),
    "confidence": lambda one: len(one.replies()) > 2,
    "guided": lambda one: any(request["prefix_steps"] for request in one.requests),
    "scaled": lambda one: one.messages["command"] == {"std_msgs/msg/Float64MultiArray"},
    "velocities": lambda one: abs(float(one.sensed("state")[-1][0]) - 0.0174533) < 1e-6,
    "gripper_trajectory": lambda one: one.messages["arm_controller/joint_trajectory"] == TRAJECTORIES,
    "jerk": lambda one: any(tick["why"].get("limited_from") is not None for tick in one.ticks),
    "stamped_twist": lambda one: one.messages["cmd_vel"] == {"geometry_msgs/msg/TwistStamped"},
    "own_sink": lambda one: "command" not in one.messages and any(tick["command"] is not None for tick in one.ticks),
    "arrival": lambda one: any(tick["why"]["source"] == "partial_step" for tick in one.ticks),
    "pipelined": lambda one: any(reply.get("ended_with") for reply in one.replies()),
}
"""What shows that the records are of that kind of robot, and not of the usual one under its name."""
GROUPS = 3
"""Of robots that are at work at once: all of them in one process would starve each other on two cores."""
SHARED: dict[str, Any] = {"state_size": 3, "cameras": ["front"], "action_names": ["x", "y"], "control_rate_hz": 10.0}


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
@pytest.mark.parametrize("group", range(GROUPS))
def test_every_kind_of_robot_is_recorded_verified_and_decided_again(
    make_rig: Callable[..., RecordedRig], tmp_path: Path, group: int
) -> None:
    kinds = list(KINDS)[group::GROUPS]
    rig = make_rig(*kinds)
    rig.work()
    failed = {body.name: body._audit.journal.problem for body in rig.node._robots if body._audit.journal.failures}
    assert not failed
    rig.end()
    code, verified = rfm("audit", "verify", str(tmp_path / "bag"))
    chains = {chain["writer"].removeprefix("robot/"): chain for chain in verified["chains"]}
    assert code == 0 and chains.keys() >= set(kinds), verified["flaws"]
    assert len(chains) == len(verified["chains"]), "a chain began anew"
    code, again = rfm("replay", str(tmp_path / "bag"))
    assert code == 0, [chain for chain in again["chains"] if chain["difference"] or chain["refused"]]
    decided = {chain["writer"].removeprefix("robot/"): chain["decisions"] for chain in again["chains"]}
    assert decided.keys() >= set(kinds) and all(decided[kind] > 20 for kind in kinds), decided
    assert all(chain["snapshots"] for chain in again["chains"] if chain["writer"].startswith("robot/")), "no state was compared"
    there = recorded(Bag(tmp_path / "bag"), kinds)
    assert PROOFS.keys() == KINDS.keys()
    assert all(any(tick["why"]["source"] in ("step", "partial_step") for tick in there[kind].ticks) for kind in kinds)
    assert [kind for kind in kinds if not PROOFS[kind](there[kind])] == []
    assert seen(Bag(tmp_path / "bag")) == {f"robot/{kind}" for kind in kinds} - {"robot/no_camera", "robot/broken"}


def recorded(bag: Bag, kinds: Sequence[str]) -> dict[str, Recorded]:
    """By robot."""
    found = {kind: Recorded({}, [], {}, bag.blob) for kind in kinds}
    for page in bag.pages():
        if (one := found.get(page.writer.removeprefix("robot/"))) is not None:
            one.records.extend(records(page))
    for topic, kind in bag.topics.items():
        robot, _, leaf = topic.removeprefix("/").partition("/")
        if robot in found:
            found[robot].messages.setdefault(leaf, set()).add(kind)
    for one in found.values():
        one.config.update(one.records[0]["config"])
    return found


def seen(bag: Bag) -> set[str]:
    """Return the robots of whose records some name an image that an observation of the recording has."""
    ticks = [(page.writer, record) for page in bag.pages() for record in records(page) if record["kind"] == "tick"]
    images = [(writer, image["data"]) for writer, tick in ticks for image in (tick["event"]["sensors"] or {}).get("images", [])]
    return {writer for writer, data in images if "sha256" in data and bag.blob(data["sha256"]) is not None}


@pytest.mark.timeout(200)
def test_a_robot_whose_records_have_a_gap_is_named_by_everybody(make_rig: Callable[..., RecordedRig], tmp_path: Path) -> None:
    rig = make_rig("raw", "no_camera")
    rig.work()
    (body,) = [body for body in rig.node._robots if body.name == "raw"]
    body.brain.snapshot = lambda: {"hat": object()}  # what cannot be recorded
    body._audit.journal.listeners(5, 0.0)
    rig.wait(lambda: body._audit.journal.failures > 0, "a failure")
    del body.brain.snapshot
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

"""What `rfm connect` makes of a graph: what fits is taken, what is ambiguous is asked, and what is missing is named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.factory.live_graph.files import FactoryEntry, factory_text, robot_text, stand_in_catalogue, stand_in_contract
from ros2_rfm_serving.factory.live_graph.presets import load_preset, preset_names
from ros2_rfm_serving.factory.live_graph.propose import Answers, Proposal, UndecidedError, answered, propose
from ros2_rfm_serving.factory.live_graph.snapshot import (
    COMPRESSED_IMAGE,
    FLOAT64_ARRAY,
    IMAGE,
    JOINT_STATE,
    ODOMETRY,
    TRAJECTORY,
    TWIST_STAMPED,
    GraphEndpoint,
    GraphSnapshot,
    GraphTopic,
    ImageSample,
    TopicSample,
    snapshot_of,
)
from ros2_rfm_serving.factory.ros_yaml import RosLoader
from ros2_rfm_serving.shipped import shipped
from ros2_rfm_serving.types import Conditioning, ModelContract, OutputKind

ARM = ("shoulder", "elbow", "wrist")
URDF = """<robot name="arm">
  <joint name="shoulder" type="revolute"><limit lower="-1.5" upper="1.5" velocity="0.3" effort="9"/></joint>
  <joint name="elbow" type="continuous"><limit velocity="2.0" effort="9"/></joint>
  <joint name="wrist" type="revolute"><limit lower="0" upper="2" velocity="2.0" effort="9"/></joint>
</robot>"""
UR = load_preset(shipped("config", "robots", "presets"), "ur")
MODEL = ModelContract(
    model="my/policy",
    model_hash="",
    output=OutputKind.ACTION_CHUNK,
    action_names=("a", "b", "c"),
    cameras=("wrist",),
    state_size=6,
    chunk_length=16,
    control_rate_hz=10.0,
    conditionings=(Conditioning.NONE, Conditioning.GUIDED),
)


def states(topic: str, joints: tuple[str, ...], node: str = "/driver") -> GraphTopic:
    sample = TopicSample(num_messages=99, seconds=1.0, rate_hz=100.0, joints={joint: {"position": (0.0, 0.1)} for joint in joints})
    return GraphTopic(name=topic, publishers=(GraphEndpoint(node=node, type=JOINT_STATE),), sample=sample)


def images(topic: str, kind: str = IMAGE, encoding: str = "rgb8") -> GraphTopic:
    sample = TopicSample(num_messages=9, image=ImageSample(encoding=encoding, width_px=8, height_px=6, num_bytes=144))
    return GraphTopic(name=topic, publishers=(GraphEndpoint(node="/camera", type=kind),), sample=sample)


def takes(topic: str, kind: str, node: str) -> GraphTopic:
    return GraphTopic(name=topic, subscribers=(GraphEndpoint(node=node, type=kind),))


def arm(*more: GraphTopic, joints: tuple[str, ...] = (*ARM, "gripper"), **changed: Any) -> GraphSnapshot:
    topics = [states("/joint_states", joints), takes("/jtc/joint_trajectory", TRAJECTORY, "/jtc"), *more]
    return snapshot_of(topics, **({"controller_joints": {"/jtc": ARM}} | changed))


def base(*more: GraphTopic) -> GraphSnapshot:
    sample = TopicSample(num_messages=99, rate_hz=20.0, fields=("position",))
    odometry = GraphTopic(name="/odom", publishers=(GraphEndpoint(node="/base", type=ODOMETRY),), sample=sample)
    return snapshot_of([odometry, takes("/cmd_vel", TWIST_STAMPED, "/base"), *more])


def test_an_arm_without_a_model_is_its_controllers_joints() -> None:
    found = propose(arm(), None, None, Answers(robot="arm"))
    assert found.action_names == ARM
    assert found.value("sink_topic") == "/jtc/joint_trajectory"
    assert found.value("sink_joints") == list(ARM)
    assert (found.value("joints"), found.state_size) == (list(ARM), 3)
    assert found.positions == (0, 1, 2)
    assert found.value("cameras") == [""]
    assert found.value("limits.max_velocity") == [0.5] * 3
    assert "NOT KNOWN" in next(line.comment for line in found.lines if line.key == "limits.lower")


def test_limits_and_endless_joints_are_those_of_the_robots_description() -> None:
    found = propose(arm(robot_descriptions={"/robot_description": URDF}), None, None, Answers())
    assert found.value("limits.lower") == pytest.approx([-1.5, -3.14159, 0.0], abs=1e-4)
    assert found.value("limits.upper") == pytest.approx([1.5, 3.14159, 2.0], abs=1e-4)
    assert found.value("continuous_joints") == ["elbow"]
    assert found.value("limits.max_velocity") == [0.3, 0.5, 0.5]


def test_a_models_contract_decides_names_state_rate_and_conditioning() -> None:
    found = propose(
        arm(images("/wrist/image_raw"), images("/front/image_raw")),
        MODEL,
        None,
        Answers(joints=ARM, state=("joint_states:position+velocity",)),
    )
    assert found.action_names == ("a", "b", "c")
    assert found.value("sink_joints") == list(ARM)
    assert (found.value("control_rate_hz"), found.value("conditioning")) == (10.0, "guided")
    assert found.value("camera_topics") == ["wrist=/wrist/image_raw"]
    assert found.value("camera_types") == ["wrist=image"]
    assert found.value("joint_fields") == ["position", "velocity"]


def test_the_models_order_counts_where_its_names_are_the_joints() -> None:
    model = replace(MODEL, action_names=("wrist", "shoulder", "elbow"), cameras=(), state_size=3)
    assert propose(arm(), model, None, Answers()).value("sink_joints") == ["wrist", "shoulder", "elbow"]


def test_compressed_images_are_preferred_and_depth_is_no_camera() -> None:
    model = replace(MODEL, state_size=3)
    topics = (
        images("/cam/image_raw"),
        images("/cam/image_raw/compressed", COMPRESSED_IMAGE, "jpeg"),
        images("/cam/depth", IMAGE, "16UC1"),
    )
    found = propose(arm(*topics), model, None, Answers())
    assert found.value("camera_topics") == ["wrist=/cam/image_raw/compressed"]


def test_a_base_has_odometry_and_a_twist_that_ends_with_zero() -> None:
    found = propose(base(), None, None, Answers())
    assert (found.value("state_parts"), found.state_size) == (["odometry"], 13)
    assert found.value("twist_axes") == ["linear_x=linear.x", "angular_z=angular.z"]
    assert found.value("twist_stamped") is True
    assert found.value("fallback")[-1] == "zero"
    assert (found.value("limits.upper"), found.value("limits.lower")) == ([0.2, 0.5], [-0.2, -0.5])


UNDECIDED: dict[str, tuple[GraphSnapshot, ModelContract | None, Answers]] = {
    "command": (arm(takes("/other/joint_trajectory", TRAJECTORY, "/other")), None, Answers()),
    "joints": (arm(controller_joints={}), None, Answers()),
    "joint-topic": (arm(states("/again/joint_states", ARM)), None, Answers()),
    "command-type": (
        snapshot_of([states("/joint_states", ARM), takes("/c/commands", FLOAT64_ARRAY, "/c")], controller_joints={"/c": ARM}),
        None,
        Answers(),
    ),
    "camera": (arm(images("/one"), images("/two")), replace(MODEL, state_size=3), Answers()),
    "state": (arm(), replace(MODEL, cameras=(), state_size=11), Answers()),
    "twist-axes": (base(), replace(MODEL, cameras=(), state_size=13, action_names=("a", "b", "c", "d")), Answers()),
    "odometry": (base(GraphTopic(name="/odom2", publishers=(GraphEndpoint(node="/b", type=ODOMETRY),))), None, Answers()),
}


@pytest.mark.parametrize("option", UNDECIDED)
def test_what_is_ambiguous_is_asked_by_the_option_that_answers_it(option: str) -> None:
    snapshot, contract, answers = UNDECIDED[option]
    with pytest.raises(UndecidedError) as undecided:
        propose(snapshot, contract, None, answers)
    assert undecided.value.option == option
    assert f"give --{option} " in undecided.value.fix
    if option not in ("state", "twist-axes"):  # the example is an answer
        propose(snapshot, contract, None, answered(answers, option, undecided.value.example))


@pytest.mark.parametrize(
    ("snapshot", "answers", "says"),
    [
        (snapshot_of([states("/joint_states", ARM)]), Answers(), "nobody subscribes to commands"),
        (arm(), Answers(command="/jtc/joint_trajectori"), "did you mean `/jtc/joint_trajectory`"),
        (arm(joints=("x",)), Answers(), "no joint states with shoulder"),
        (arm(), Answers(joint_topic="/nowhere"), "/nowhere has no joint states"),
        (arm(), Answers(max_velocity=(1.0, 2.0)), "2 velocities for 3 actions"),
        (base(), Answers(odometry="/odon"), "did you mean `/odom`"),
        (arm(), Answers(state=("imu",)), "'imu' cannot be connected"),
        (arm(), Answers(cameras={"front": "/none"}), "nobody publishes images on /none"),
    ],
)
def test_what_the_graph_lacks_is_named(snapshot: GraphSnapshot, answers: Answers, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        propose(snapshot, None, None, answers)


def test_a_prefix_of_joints_and_topics_is_found_by_a_preset() -> None:
    preset = UR
    joints = tuple(f"left_{joint}" for joint in preset.value("joints"))
    topic = f"/left{preset.value('sink_topic')}"
    graph = snapshot_of([states("/left/joint_states", joints), takes(topic, TRAJECTORY, "/left/jtc")])
    found = propose(graph, None, preset, Answers())
    assert found.value("sink_topic") == topic
    assert found.value("sink_joints") == list(joints)
    assert found.value("limits.upper") == preset.value("limits.upper")


def two_arms(**changed: Any) -> GraphSnapshot:
    """Two URs on one topic of joint states; their controllers do not say their joints."""
    names = UR.value("joints")
    joints = tuple(f"{side}_{joint}" for side in ("left", "right") for joint in names)
    topic = UR.value("sink_topic")
    commands = [takes(f"/{side}{topic}", TRAJECTORY, f"/{side}/jtc") for side in ("left", "right")]
    return snapshot_of([states("/joint_states", joints), *commands], **changed)


def test_of_two_arms_on_one_topic_the_commanded_ones_joints_are_meant() -> None:
    found = propose(two_arms(), None, UR, Answers(command=f"/right{UR.value('sink_topic')}"))
    assert found.value("joints") == [f"right_{joint}" for joint in UR.value("joints")]
    joints = tuple(f"{side}_{joint}" for side in ("a", "b") for joint in UR.value("joints"))
    graph = snapshot_of([states("/joint_states", joints), takes(UR.value("sink_topic"), TRAJECTORY, "/jtc")])
    with pytest.raises(UndecidedError, match="may move the joints of several robots"):
        propose(graph, None, UR, Answers())


def test_sensors_and_description_in_the_commands_namespace_are_meant() -> None:
    wide = URDF.replace("-1.5", "-9.5")
    topics = [
        *(states(f"/{side}/joint_states", ARM) for side in ("left", "right")),
        *(takes(f"/{side}/jtc/joint_trajectory", TRAJECTORY, f"/{side}/jtc") for side in ("left", "right")),
    ]
    descriptions = {"/left/robot_description": URDF, "/right/robot_description": wide}
    graph = snapshot_of(topics, controller_joints={"/left/jtc": ARM, "/right/jtc": ARM}, robot_descriptions=descriptions)
    for side, lower in (("left", -1.5), ("right", -9.5)):
        found = propose(graph, None, None, Answers(command=f"/{side}/jtc/joint_trajectory"))
        assert (found.value("joint_topic"), found.value("limits.lower")[0]) == (f"/{side}/joint_states", lower)


def test_limits_of_a_presets_positions_are_none_of_velocities_or_of_another_robots_joints() -> None:
    joints = tuple(UR.value("joints"))
    topics = [states("/joint_states", joints), takes("/forward_velocity_controller/commands", FLOAT64_ARRAY, "/fvc")]
    graph = snapshot_of(topics, controller_joints={"/fvc": joints})
    found = propose(graph, None, UR, Answers(command="/forward_velocity_controller/commands"))
    assert (found.value("command_type"), found.value("limits.upper")) == ("velocity", [0.3] * 6)
    others = tuple(f"axis_{number}" for number in range(6))
    graph = snapshot_of([states("/joint_states", others), takes("/jtc/t", TRAJECTORY, "/jtc")], controller_joints={"/jtc": others})
    found = propose(graph, None, UR, Answers())
    assert (found.value("limits.upper"), found.value("limits.max_velocity")) == ([float("inf")] * 6, [0.5] * 6)
    assert "NOT KNOWN" in next(line.comment for line in found.lines if line.key == "limits.upper")


ODD_URDF = """<robot name="arm">
  <joint name="shoulder" type="revolute"><limit effort="9" velocity="0"/></joint>
  <joint name="elbow" type="prismatic"><limit lower="0" upper="0.04" velocity="0.2" effort="9"/></joint>
  <joint name="wrist" type="revolute"><limit lower="-1" upper="1" velocity="2" effort="9"/></joint>
  <joint name="flange" type="fixed"/>
  <joint name="finger" type="prismatic"><limit lower="0" upper="1"/><mimic joint="elbow"/></joint>
</robot>"""


def test_what_a_description_leaves_out_is_not_known_and_a_sliding_joint_is_slow() -> None:
    found = propose(arm(robot_descriptions={"/robot_description": ODD_URDF}), None, None, Answers())
    assert found.value("limits.upper") == [float("inf"), 0.04, 1.0]
    assert found.value("limits.max_velocity") == [0.5, 0.05, 0.5]
    assert "NOT KNOWN of shoulder:" in next(line.comment for line in found.lines if line.key == "limits.upper")


def test_a_stand_in_goes_where_there_is_room() -> None:
    at = {"shoulder": (1.5, 1.5), "elbow": (3.1, 3.1), "wrist": (0.0, 0.0)}
    sample = TopicSample(num_messages=9, rate_hz=100.0, joints={joint: {"position": range_} for joint, range_ in at.items()})
    measured = GraphTopic(name="/joint_states", publishers=(GraphEndpoint(node="/driver", type=JOINT_STATE),), sample=sample)
    proposal = propose(arm(measured, robot_descriptions={"/robot_description": URDF}), None, None, Answers(max_velocity=(0.5,)))
    catalogue = yaml.safe_load(stand_in_catalogue("m", proposal))["models"]["m"]
    down, endless, up = catalogue["options"]["amplitudes"]
    assert down < 0.0 < min(endless, up)


def test_names_that_yaml_reads_otherwise_have_quotes() -> None:
    proposal = propose(base(), replace(MODEL, cameras=(), state_size=13, action_names=("x", "y", "no")), None, Answers())
    assert '[x, "y", "no"]' in robot_text(proposal, "a test")


@pytest.mark.parametrize("name", preset_names(shipped("config", "robots", "presets")))
def test_every_value_of_a_preset_has_a_source_or_is_said_to_be_chosen(name: str) -> None:
    preset = load_preset(shipped("config", "robots", "presets"), name)
    assert {source.commit for source in preset.sources.values()}
    assert all(preset.comment(key) for key in preset.parameters)


def written(proposal: Proposal) -> dict[str, Any]:
    text = robot_text(proposal, "a test")
    lines = [line for line in text.splitlines() if line.startswith("    ") and not line.strip().startswith("#")]
    comments = [line for line in lines if "# " in line]
    assert len(comments) + text.count("\n    # ") >= len(lines), "a line has no comment"
    parameters: dict[str, Any] = yaml.load(text, RosLoader)["/**"]["ros__parameters"]
    return parameters


@pytest.mark.parametrize(
    "snapshot", [arm(), base(), arm(robot_descriptions={"/robot_description": URDF})], ids=["arm", "base", "urdf"]
)
def test_the_written_file_has_every_parameter_with_a_comment(snapshot: GraphSnapshot) -> None:
    proposal = propose(snapshot, None, None, Answers())
    found = written(proposal)
    assert found.keys() == {line.key for line in proposal.lines}
    for line in proposal.lines:
        numbers = isinstance(line.value, list) and isinstance(line.value[0], float)
        assert found[line.key] == (pytest.approx(line.value, rel=1e-4) if numbers else line.value)


def test_the_descriptor_overlaps_chunks_only_where_the_model_can_continue_them(tmp_path: Path) -> None:
    proposal = propose(arm(), None, None, Answers(robot="arm"))
    entry = FactoryEntry(
        task="arm", robot_file="arm.yaml", model="m", gpu_type="CPU", prompt='say "go": now', slo_ms=500.0, is_stand_in=False
    )
    task = yaml.safe_load(factory_text(entry, proposal, replace(MODEL, chunk_length=16)))["arm"]
    assert (task["execution"]["mode"], task["pipeline"]["action_period_ms"]) == ("async", 400)
    assert task["components"]["system1"]["prompt"] == 'say "go": now'
    contract = stand_in_contract("stand_in/arm", proposal)
    task = yaml.safe_load(factory_text(entry, proposal, contract))["arm"]
    assert (task["execution"]["mode"], task["pipeline"]["action_period_ms"]) == ("sync", 2000)
    entry_of = yaml.safe_load(stand_in_catalogue("stand_in/arm", proposal))["models"]["stand_in/arm"]
    assert entry_of["chunk_length"] == contract.chunk_length == 40
    assert all(0.0 < amplitude <= 0.3 for amplitude in entry_of["options"]["amplitudes"])

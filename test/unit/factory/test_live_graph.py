"""What a robot's file says differently from a graph: each honest mistake is named with key, value and fix."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ros2_rfm_serving.factory.live_graph.compare import GraphFinding, compare
from ros2_rfm_serving.factory.live_graph.interface import CameraTopic, CommandTopicSpec, RobotInterface, StateTopic
from ros2_rfm_serving.factory.live_graph.similar import similar_topics, type_fix
from ros2_rfm_serving.factory.live_graph.snapshot import (
    COMPRESSED_IMAGE,
    FLOAT32_ARRAY,
    FLOAT64_ARRAY,
    IMAGE,
    JOINT_STATE,
    ODOMETRY,
    TRAJECTORY,
    TWIST,
    GraphEndpoint,
    GraphSnapshot,
    GraphTopic,
    ImageSample,
    TopicSample,
    snapshot_of,
)

JOINTS = ("shoulder_joint", "elbow_joint")
ROBOT = RobotInterface(
    name="arm_1",
    file="arm.yaml",
    status_topic="/arm_1/rfm/status",
    control_rate_hz=20.0,
    cameras=(CameraTopic(name="front", topic="/cam/image", type=IMAGE),),
    state=(StateTopic(part="joint_states", topic="/joint_states", type=JOINT_STATE, key="joint_topic"),),
    joints=dict.fromkeys(JOINTS, ("position",)),
    action_joints=JOINTS,
    lower=(-3.1, -3.1),
    upper=(3.1, 3.1),
    command=CommandTopicSpec(topic="/jtc/joint_trajectory", types=(TRAJECTORY,), sink="trajectory", num_actions=2, joints=JOINTS),
)


def published(name: str, kind: str, sample: TopicSample | None, node: str = "/driver") -> GraphTopic:
    return GraphTopic(name=name, publishers=(GraphEndpoint(node=node, type=kind),), sample=sample)


def joint_states(**changed: Any) -> TopicSample:
    joints = {joint: {"position": (0.1, 0.2), "velocity": (0.0, 0.0)} for joint in JOINTS}
    return replace(TopicSample(num_messages=300, seconds=3.0, rate_hz=100.0, joints=joints), **changed)


def images(**changed: Any) -> TopicSample:
    image = ImageSample(encoding="rgb8", width_px=320, height_px=240, num_bytes=230_400)
    return replace(TopicSample(num_messages=90, seconds=3.0, rate_hz=30.0, image=image), **changed)


def taken(name: str = "/jtc/joint_trajectory", kind: str = TRAJECTORY, **more: Any) -> GraphTopic:
    return GraphTopic(name=name, subscribers=(GraphEndpoint(node="/jtc", type=kind, **more),))


def graph(*topics: GraphTopic, **more: Any) -> GraphSnapshot:
    """Return a graph that fits the robot, but for the topics that are given."""
    usual = (published("/cam/image", IMAGE, images()), published("/joint_states", JOINT_STATE, joint_states()), taken())
    return snapshot_of([*usual, *topics], **more)


def without(name: str, *topics: GraphTopic) -> GraphSnapshot:
    whole = graph(*topics)
    return replace(whole, topics={key: topic for key, topic in whole.topics.items() if key != name})


def only(found: list[GraphFinding]) -> GraphFinding:
    assert len(found) == 1, "\n".join(map(str, found))
    return found[0]


def test_a_graph_that_fits_has_no_findings() -> None:
    assert compare(ROBOT, graph()) == []


def test_a_missing_sensor_is_named_with_the_nearest_topic_of_its_type() -> None:
    found = only(compare(ROBOT, without("/cam/image", published("/cam/image_raw", IMAGE, images()))))
    assert (found.key, found.value, found.is_error) == ("camera_topics", "front=/cam/image", True)
    assert "nobody publishes /cam/image" in found.problem
    assert "/cam/image_raw" in found.fix
    found = only(compare(ROBOT, without("/joint_states", published("/arm/joint_states", JOINT_STATE, joint_states()))))
    assert (found.key, "/arm/joint_states" in found.fix) == ("joint_topic", True)
    assert str(found).startswith("arm.yaml: joint_topic (/joint_states): nobody publishes /joint_states; ")


def test_raw_images_in_place_of_compressed_ones_are_named_with_the_parameter() -> None:
    camera = replace(ROBOT.cameras[0], type=COMPRESSED_IMAGE)
    found = only(compare(replace(ROBOT, cameras=(camera,)), graph()))
    assert found.problem == "/cam/image is published as sensor_msgs/msg/Image by /driver"
    assert (found.key, found.fix) == ("camera_types", "set camera_types: [front=image]")


def test_a_topic_that_may_be_meant_comes_with_what_makes_the_robot_accept_its_type() -> None:
    found = only(compare(ROBOT, without("/cam/image", published("/cam/image/compressed", COMPRESSED_IMAGE, images()))))
    assert found.fix.endswith("name /cam/image/compressed (sensor_msgs/msg/CompressedImage: set camera_types: [front=compressed])")


@pytest.mark.parametrize(
    ("kind", "wanted", "part"),
    [
        (FLOAT64_ARRAY, FLOAT32_ARRAY, "set `state_type: float64`"),
        (FLOAT64_ARRAY, JOINT_STATE, "set `state_parts: [array]`"),
        (JOINT_STATE, FLOAT32_ARRAY, "set `state_parts: [joint_states]`"),
        (IMAGE, COMPRESSED_IMAGE, "set `camera_type: image`"),
        (FLOAT64_ARRAY, IMAGE, ""),
        (JOINT_STATE, COMPRESSED_IMAGE, ""),
        (IMAGE, JOINT_STATE, ""),
        (IMAGE, IMAGE, ""),
    ],
)
def test_no_parameter_is_proposed_that_would_not_help(kind: str, wanted: str, part: str) -> None:
    assert type_fix(kind, [wanted]).startswith(part)
    assert bool(type_fix(kind, [wanted])) is bool(part)


def test_topics_of_another_robot_are_not_meant_where_this_one_has_some() -> None:
    there = {"/arm_1/camera/raw": [IMAGE], "/arm_2/camera/image": [IMAGE], "/arm_1/camera/imag": ["std_msgs/msg/String"]}
    found = similar_topics("/arm_1/camera/image", there, [IMAGE], same_robot=True)
    assert found == ["/arm_1/camera/imag", "/arm_1/camera/raw"]
    assert similar_topics("/arm_3/camera/image", there, [IMAGE], same_robot=True)[0] == "/arm_2/camera/image"


def test_a_topic_of_the_wanted_type_is_proposed_beside_any_number_of_similar_names() -> None:
    there = {f"/arm/command_{place}": ["std_msgs/msg/String"] for place in range(5)} | {"/controller": [FLOAT64_ARRAY]}
    found = similar_topics("/arm/command", there, [FLOAT64_ARRAY])
    assert len(found) == 3 and found[-1] == "/controller"


def test_a_camera_on_a_topic_without_images_and_two_cameras_on_one_topic_are_named() -> None:
    camera = ROBOT.cameras[0]
    found = only(compare(replace(ROBOT, cameras=(replace(camera, topic="/joint_states"),)), graph()))
    assert (found.key, found.value) == ("camera_topics", "front=/joint_states") and "name /cam/image" in found.fix
    found = only(compare(replace(ROBOT, cameras=(camera, replace(camera, name="side"))), graph()))
    assert (found.key, found.is_error) == ("camera_topics", False)
    assert found.problem == "front and side have the images of one topic, /cam/image"


def test_stamps_that_fall_behind_are_named_and_clocks_that_are_apart_are_not() -> None:
    def stamped(*ages_s: float) -> GraphTopic:
        return published("/cam/image", IMAGE, replace(images(), stamp_age_s=ages_s))

    found = only(compare(ROBOT, graph(stamped(17.0, 22.0))))
    assert (found.key, found.is_error) == ("arrival_time_sensors", False)
    assert "up to 5.0 s older than others" in found.problem and "arrival_time_sensors: [front]" in found.fix
    assert compare(ROBOT, graph(stamped(-3600.1, -3600.0))) == []
    assert compare(ROBOT, graph(stamped(17.0, 22.0), published("/clock", "rosgraph_msgs/msg/Clock", None))) == []
    by_arrival = replace(ROBOT, cameras=(replace(ROBOT.cameras[0], by_arrival=True),))
    assert compare(by_arrival, graph(stamped(17.0, 22.0))) == []


def test_a_missing_joint_is_named_with_the_one_that_may_be_meant() -> None:
    robot = replace(
        ROBOT, joints={"shoulder_joint": ("position",), "elbow": ("position",)}, action_joints=("shoulder_joint", "elbow")
    )
    found = only(compare(robot, graph()))
    assert found.problem == "joint 'elbow' is not in /joint_states, which has elbow_joint, shoulder_joint"
    assert found.fix == "did you mean `elbow_joint`?"


def test_a_field_that_joint_states_lack_is_named() -> None:
    found = only(compare(replace(ROBOT, joints=dict.fromkeys(JOINTS, ("position", "effort"))), graph())[:1])
    assert (found.key, "effort" in found.problem, "joint_fields_of: [shoulder_joint=position]" in found.fix) == (
        "joint_fields",
        True,
        True,
    )


def test_numbers_that_look_like_degrees_are_named_with_the_factor() -> None:
    degrees = {"shoulder_joint": {"position": (10.0, 57.3)}, "elbow_joint": {"position": (0.0, 0.1)}}
    sample = joint_states(joints=degrees)
    found = only(compare(ROBOT, graph(published("/joint_states", JOINT_STATE, sample))))
    assert "at 57.3 in /joint_states, and may be -3.1 to 3.1: degrees?" in found.problem
    assert found.fix.endswith("set unit_scale: [shoulder_joint=0.0174533]")
    unlimited = replace(ROBOT, lower=(), upper=())
    found = only(compare(unlimited, graph(published("/joint_states", JOINT_STATE, sample))))
    assert (found.key, found.is_error) == ("unit_scale", False)


def test_a_robot_outside_of_its_limits_is_not_taken_for_degrees() -> None:
    sample = joint_states(joints={joint: {"position": (3.5, 3.5)} for joint in JOINTS})
    found = compare(replace(ROBOT, unit_scale={"elbow_joint": 2.0}), graph(published("/joint_states", JOINT_STATE, sample)))
    assert [one.key for one in found] == ["unit_scale", "limits"]
    assert "degrees?" not in found[1].problem


@pytest.mark.parametrize(("ticks_with_state", "severity"), [(True, "error"), (False, "warning")])
def test_a_state_slower_than_the_control_rate(ticks_with_state: bool, severity: str) -> None:
    slow = published("/joint_states", JOINT_STATE, joint_states(rate_hz=9.8, num_messages=30))
    found = only(compare(replace(ROBOT, ticks_with_state=ticks_with_state), graph(slow)))
    assert (found.key, found.value, found.severity) == ("control_rate_hz", "20", severity)
    assert "/joint_states comes at 9.8 Hz" in found.problem


def test_a_silent_a_slow_and_a_broken_camera_are_three_causes() -> None:
    def camera(**changed: Any) -> GraphFinding:
        return only(compare(ROBOT, graph(published("/cam/image", IMAGE, images(**changed)))))

    assert "nothing arrived on /cam/image in 3.0 s, though /driver publishes it" in camera(num_messages=0, image=None).problem
    assert "would be refused: 4 bytes" in camera(problem="4 bytes, 320 x 240 'rgb8' in rows of 960").problem
    assert camera(rate_hz=1.0).key == "max_observation_age_s"
    depth = ImageSample(encoding="16UC1", width_px=4, height_px=4, num_bytes=32)
    assert camera(image=depth).key == "camera_depth_range_m"


def test_two_publishers_of_a_camera() -> None:
    two = GraphTopic(
        name="/cam/image", publishers=tuple(GraphEndpoint(node=node, type=IMAGE) for node in ("/a", "/b")), sample=images()
    )
    assert "2 publishers (/a, /b)" in only(compare(ROBOT, graph(two))).problem


def test_a_command_topic_that_nobody_hears_or_that_takes_another_type() -> None:
    found = only(compare(ROBOT, without("/jtc/joint_trajectory", taken("/arm/joint_trajectory"))))
    assert (found.key, found.value) == ("sink_topic", "/jtc/joint_trajectory")
    assert "nobody subscribes to /jtc/joint_trajectory" in found.problem
    assert "/arm/joint_trajectory" in found.fix
    watched = taken(is_observer=True)
    assert "nobody but /jtc, which only watches," in only(compare(ROBOT, graph(watched))).problem
    found = only(compare(ROBOT, graph(taken(kind=FLOAT64_ARRAY))))
    assert (found.key, found.fix) == ("sink", "set sink: array")


def test_controllers_that_do_not_fit_the_commands() -> None:
    found = only(compare(ROBOT, graph(controller_joints={"/jtc": ("elbow_joint", "wrist_joint")})))
    assert (found.key, found.value) == ("sink_joints", "shoulder_joint, elbow_joint")
    mismatch = "durability transient_local, where volatile is offered"
    assert mismatch in only(compare(ROBOT, graph(taken(command_mismatch=mismatch)))).problem
    array = replace(ROBOT, command=replace(ROBOT.command, types=(FLOAT64_ARRAY,), sink="array", joints=()))
    three = graph(taken(kind=FLOAT64_ARRAY), controller_joints={"/jtc": ("a", "b", "c")})
    assert "takes 3 numbers (a, b, c), and an action has 2" in only(compare(array, three)).problem


def test_another_publisher_of_commands_is_named_and_the_robots_own_node_is_not() -> None:
    topic = replace(taken(), publishers=(GraphEndpoint(node="/arm_1/robot", type=TRAJECTORY),))
    assert "/arm_1/robot publishes" in only(compare(ROBOT, graph(topic))).problem
    status = published("/arm_1/rfm/status", "rfm_serving/msg/RobotStatus", None, "/arm_1/robot")
    assert compare(ROBOT, graph(topic, status)) == []


def test_odometry_and_a_twist() -> None:
    base = replace(
        ROBOT,
        state=(StateTopic(part="odometry", topic="/odom", type=ODOMETRY, key="state_topics", fields=("position",)),),
        joints={},
        action_joints=(),
        command=CommandTopicSpec(topic="/cmd_vel", types=(TWIST, "geometry_msgs/msg/TwistStamped"), sink="twist", num_actions=2),
    )
    there = published("/odom", ODOMETRY, TopicSample(num_messages=60, seconds=3.0, rate_hz=20.0, fields=("position",)))
    assert compare(base, graph(there, taken("/cmd_vel", "geometry_msgs/msg/TwistStamped"))) == []
    assert {one.key for one in compare(base, graph())} == {"state_topics", "sink_topic"}

"""Parts of a state over real messages: odometry, IMU, wrench and pose beside joints, what is refused, and clocks."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import rclpy
from diagnostic_msgs.msg import DiagnosticStatus
from geometry_msgs.msg import PoseStamped, WrenchStamped
from nav_msgs.msg import Odometry
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import Imu, JointState

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.ros.robot.joints import StateConfig, StatePart, StateReader
from ros2_rfm_serving.ros.wire import qos
from test.ros import robot_rig
from test.ros.parameters import settings
from test.ros.pictures import sent
from test.ros.test_audit import AuditRig, replayed
from test.ros.test_robot_node import PARAMETERS, SUCCESS

MESSAGES = {StatePart.ODOMETRY: Odometry, StatePart.IMU: Imu, StatePart.WRENCH: WrenchStamped, StatePart.POSE: PoseStamped}
NAN = math.nan


def put(vector: Any, *values: float) -> None:
    for axis, value in zip("xyzw", values, strict=False):
        setattr(vector, axis, value)


def message(part: StatePart, first: float = 1.0) -> Any:
    """Numbers that count up from `first` in the documented order; every orientation is (0, 0, 0.6, 0.8)."""
    made = MESSAGES[part]()
    n = [first + index for index in range(16)]
    if part is StatePart.ODOMETRY:
        put(made.pose.pose.position, *n[:3])
        put(made.pose.pose.orientation, 0.0, 0.0, 0.6, 0.8)
        put(made.twist.twist.linear, *n[3:6])
        put(made.twist.twist.angular, *n[6:9])
    elif part is StatePart.IMU:
        put(made.orientation, 0.0, 0.0, 0.6, 0.8)
        put(made.angular_velocity, *n[:3])
        put(made.linear_acceleration, *n[3:6])
    elif part is StatePart.WRENCH:
        put(made.wrench.force, *n[:3])
        put(made.wrench.torque, *n[3:6])
    else:
        put(made.pose.position, *n[:3])
        put(made.pose.orientation, 0.0, 0.0, 0.6, 0.8)
    return made


TURN = [0.0, 0.0, 0.6, 0.8]
EXPECTED = {
    StatePart.ODOMETRY: [1.0, 2.0, 3.0, *TURN, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0],
    StatePart.IMU: [*TURN, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
    StatePart.WRENCH: [1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
    StatePart.POSE: [1.0, 2.0, 3.0, *TURN],
}


def reader(**config: Any) -> tuple[StateReader, Counter[str]]:
    refused: Counter[str] = Counter()
    return StateReader(StateConfig(**config), refused), refused


def joint_state(positions: dict[str, float], **fields: list[float]) -> Any:
    return JointState(name=list(positions), position=list(positions.values()), **fields)


@pytest.mark.parametrize("part", list(EXPECTED))
def test_each_part_gives_its_numbers_in_the_documented_order(part: StatePart) -> None:
    made, refused = reader(size=len(EXPECTED[part]), parts=(part,))
    assert made.take_part(part, sent(message(part)), 1.0)
    assert made.state is not None and made.state.dtype == np.float32
    assert made.state == pytest.approx(EXPECTED[part]) and made.state_s == 1.0 and not refused


def test_some_fields_of_a_part_in_the_order_of_its_message() -> None:
    fields = {StatePart.ODOMETRY: ("angular_velocity", "position")}
    made, _ = reader(size=6, parts=(StatePart.ODOMETRY,), part_fields=fields)
    assert made.take_part(StatePart.ODOMETRY, message(StatePart.ODOMETRY), 1.0)
    assert made.state == pytest.approx([1.0, 2.0, 3.0, 7.0, 8.0, 9.0])


def spoiled(part: StatePart, spoil: Callable[[Any], object]) -> Any:
    made = message(part)
    spoil(made)
    return made


@pytest.mark.parametrize(
    ("part", "spoil", "counter", "problem"),
    [
        (StatePart.POSE, lambda m: put(m.pose.position, 0.0, NAN), "bad_state", "position y is nan in /pose"),
        (StatePart.WRENCH, lambda m: put(m.wrench.torque, math.inf), "bad_state", "torque x is inf in /wrench"),
        (StatePart.ODOMETRY, lambda m: put(m.twist.twist.linear, 1e300), "bad_state", "linear_velocity x is 1e+300 in /odom"),
        (StatePart.POSE, lambda m: put(m.pose.orientation, 0.0, 0.0, 0.0, 0.0), "bad_state", "no rotation"),
        (StatePart.IMU, lambda m: put(m.orientation, 1.0, 1.0, 0.0, 0.0), "bad_state", "orientation in /imu/data is no rotation"),
        (StatePart.IMU, lambda m: m.orientation_covariance.__setitem__(0, -1.0), "missing_field", "/imu/data has no orientation"),
    ],
)
def test_bad_values_are_refused_by_name(part: StatePart, spoil: Any, counter: str, problem: str) -> None:
    made, refused = reader(size=len(EXPECTED[part]), parts=(part,))
    assert not made.take_part(part, sent(spoiled(part, spoil)), 1.0)
    assert made.state is None and refused == {counter: 1} and problem in made.problem
    assert made.take_part(part, message(part), 1.1) and not made.problem


def test_an_imu_without_orientation_serves_what_does_not_need_it() -> None:
    made, refused = reader(size=3, parts=(StatePart.IMU,), part_fields={StatePart.IMU: ("angular_velocity",)})
    assert made.take_part(StatePart.IMU, spoiled(StatePart.IMU, lambda m: m.orientation_covariance.__setitem__(0, -1.0)), 1.0)
    assert not refused


def test_each_part_has_its_own_age_and_the_oldest_one_counts() -> None:
    parts = (StatePart.JOINTS, StatePart.POSE, StatePart.WRENCH)
    made, refused = reader(size=14, parts=parts, joints=("a",), max_age_s=0.5)
    made.take_part(StatePart.POSE, message(StatePart.POSE), 0.0)
    made.take_part(StatePart.WRENCH, message(StatePart.WRENCH), 0.1)
    assert "nothing came on /joint_states" in made.problem
    assert made.take_joints(joint_state({"a": 7.0}), 0.2)
    assert made.state == pytest.approx([7.0, *EXPECTED[StatePart.POSE], *EXPECTED[StatePart.WRENCH]]) and made.state_s == 0.0
    refused.clear()
    made.take_part(StatePart.WRENCH, message(StatePart.WRENCH), 1.0)
    assert refused == {"incomplete_state": 1} and "/pose is 1.0 s old" in made.problem
    made.take_part(StatePart.POSE, spoiled(StatePart.POSE, lambda m: put(m.pose.position, NAN)), 1.1)
    made.take_joints(joint_state({"a": 7.0}), 1.2)
    assert "position x is nan in /pose" in made.problem, "and not only that the pose is missing"


# --- joints -------------------------------------------------------------------------------------------------------------------


def test_a_gripper_may_lack_the_velocities_that_the_arm_has() -> None:
    made, refused = reader(
        size=5,
        parts=(StatePart.JOINTS,),
        joints=("a", "b", "grip"),
        joint_fields=("position", "velocity"),
        joint_fields_of={"grip": ("position",)},
    )
    assert made.take_joints(sent(joint_state({"b": 2.0, "grip": 3.0, "a": 1.0}, velocity=[20.0, NAN, 10.0])), 1.0)
    assert made.state == pytest.approx([1.0, 2.0, 3.0, 10.0, 20.0])
    made.forget()
    made.take_joints(sent(joint_state({"a": 1.0, "b": 2.0}, velocity=[10.0, 20.0])), 2.0)
    assert made.take_joints(sent(joint_state({"grip": 3.0})), 2.0), "a message of its own, without velocities"
    assert refused == {"incomplete_state": 1}


@pytest.mark.parametrize(
    ("state", "problem"),
    [
        (joint_state({"wrist": 1.0, "elbow": 2.0}), "joint 'elbow' has no velocity in /joint_states (it has position alone)"),
        (JointState(name=["elbow", "wrist"]), "joint 'elbow' has no position in /joint_states (it has no values)"),
        (
            JointState(name=["elbow", "wrist"], velocity=[1.0, 2.0], effort=[1.0, 2.0]),
            "joint 'elbow' has no position in /joint_states (it has velocity and effort)",
        ),
        (
            joint_state({"elbow": 1.0, "wrist": 2.0}, velocity=[0.0, NAN]),
            "the velocity of joint 'wrist' is nan in /joint_states",
        ),
        (
            joint_state({"elbow_joint": 1.0, "wrist": 2.0}, velocity=[0.0, 0.0]),
            "joint 'elbow' is not in /joint_states, which has elbow_joint, wrist (did you mean `elbow_joint`?)",
        ),
        (joint_state({"q": 1.0, "wrist": 2.0}, velocity=[0.0, 0.0]), "joint 'elbow' is not in /joint_states, which has q, wrist"),
        (joint_state({"elbow": 1.0, "wrist": 2.0}, velocity=[0.0]), "1 values of velocity for 2 joints in /joint_states"),
    ],
)
def test_a_refused_joint_state_names_joint_field_and_topic(state: Any, problem: str) -> None:
    made, refused = reader(size=4, parts=(StatePart.JOINTS,), joints=("elbow", "wrist"), joint_fields=("position", "velocity"))
    assert not made.take_joints(sent(state), 1.0)
    assert made.problem == problem and refused.total() == 1


def test_what_is_wrong_with_one_message_of_two_is_not_called_missing() -> None:
    made, _ = reader(size=2, parts=(StatePart.JOINTS,), joints=("arm", "grip"))
    made.take_joints(joint_state({"grip": NAN}), 1.0)
    made.take_joints(joint_state({"arm": 1.0}), 1.0)
    assert made.problem == "the position of joint 'grip' is nan in /joint_states"


@pytest.mark.parametrize(
    ("last_s", "problem"),
    [
        (2.0, "joint 'grip' in /joint_states was measured 1.0 s ago, by its stamp"),
        (1.0, "joint 'grip' came last in /joint_states 1.0 s ago, and others come"),
    ],
)
def test_a_joint_whose_publisher_is_gone_is_not_called_old_by_its_stamp(last_s: float, problem: str) -> None:
    """The arm is published all the time; the gripper repeats its first reading until `last_s`."""
    made, _ = reader(size=2, parts=(StatePart.JOINTS,), joints=("arm", "grip"), max_age_s=0.5)
    for index in range(11):
        now_s = 1.0 + 0.1 * index
        if now_s <= last_s:
            grip = joint_state({"grip": 1.0})
            grip.header.stamp.sec = 7
            made.take_joints(grip, now_s)
        made.take_joints(joint_state({"arm": 1.0}), now_s)
    assert made.problem == problem


# --- parameters ---------------------------------------------------------------------------------------------------------------

ROBOT = {"action_names": ["x"], "cameras": ["front"], "state_parts": ["joint_states", "odometry"], "joints": ["a", "b"]}
ROBOT |= {"state_fields": ["odometry=linear_velocity"], "state_topics": ["odometry=/base/odom"]}


def test_the_parameters_of_parts_and_clocks() -> None:
    rclpy.init()
    try:
        given = {"state_size": 6, "joint_fields_of": ["b=position+velocity"], "arrival_time_sensors": ["front", "odometry"]}
        io = settings(ROBOT | given).io
        assert io.state.topics == {StatePart.JOINTS: "joint_states", StatePart.ODOMETRY: "/base/odom"}
        assert io.state.array_size == 0 and io.state.columns == (("position", ("a", "b")), ("velocity", ("b",)))
        assert io.state.by_arrival == {"front", "odometry"} and io.cameras[0].by_arrival
        assert settings(ROBOT | {"state_size": 5, "use_arrival_time": True}).io.cameras[0].by_arrival
        for wrong, key, problem in (
            ({"state_size": 9}, "state_size", "3 numbers of odometry and 2 joints x 1 fields are 5 of 9"),
            ({"joint_fields_of": ["c=position"]}, "joint_fields_of", "unknown: c"),
            ({"joint_fields_of": ["b=speed"]}, "joint_fields_of", "b has no field 'speed'"),
            ({"state_fields": ["odometry=speed"]}, "state_fields", "odometry has no field 'speed'"),
            ({"state_topics": ["joint_states=/j"]}, "state_topics", "joint_topic"),
            ({"state_topics": ["odometry=a b"]}, "state_topics", "a b"),
            ({"arrival_time_sensors": ["frnt"]}, "arrival_time_sensors", "did you mean `front`?"),
        ):
            with pytest.raises(ConfigurationError) as caught:
                settings(ROBOT | {"state_size": 5} | wrong)
            assert caught.value.key == key and problem in str(caught.value), str(caught.value)
    finally:
        rclpy.try_shutdown()


# --- over DDS -----------------------------------------------------------------------------------------------------------------

PARTS = "state_parts:=[joint_states,imu,wrench]"
FIELDS = "state_fields:=['imu=angular_velocity','wrench=force']"


class PartsRig(AuditRig):
    """A robot whose state are a joint, three numbers of an IMU and three of a wrench, in the time of a slow simulation."""

    def __init__(self) -> None:
        super().__init__()
        topics = {JointState: "joint_states", Imu: "imu/data", WrenchStamped: "wrench"}
        self.publishers = {kind: self.peer.create_publisher(kind, f"/r1/{leaf}", qos.SENSOR) for kind, leaf in topics.items()}
        self.clock = self.peer.create_publisher(Clock, "/clock", 10)
        self.published, self.velocity = 0, [0.0]

    def _sense(self) -> None:
        self.published += 1
        stamp = self.published * 0.02 * 0.4
        joints = JointState(name=["a"], position=[0.0], velocity=self.velocity)
        clock = Clock()
        for made in (joints, message(StatePart.IMU), message(StatePart.WRENCH), self.frame):
            made.header.stamp.sec, made.header.stamp.nanosec = int(stamp), int(stamp % 1.0 * 1e9)
            clock.clock = made.header.stamp
            if publisher := self.publishers.get(type(made)):
                publisher.publish(made)
        self.clock.publish(clock)
        self.image.publish(self.frame)


@pytest.fixture
def make_parts(ros_domain: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., PartsRig]]:
    made: list[PartsRig] = []
    monkeypatch.setattr(robot_rig, "CONTRACT", replace(robot_rig.CONTRACT, state_size=7))

    def make(*parameters: str) -> PartsRig:
        own = (*PARAMETERS, PARTS, FIELDS, "joints:=[a]", "joint_fields:=[velocity]", *parameters)
        rclpy.init(args=["--ros-args", *[part for p in own for part in ("-p", p)]])
        made.append(PartsRig())
        return made[0]

    try:
        yield make
    finally:
        for rig in made:
            rig.close()
        rclpy.try_shutdown()


@pytest.mark.parametrize("use_sim_time", ["true", "false"])
def test_a_robot_with_parts_works_in_a_slow_simulation_and_replays(make_parts: Callable[..., PartsRig], use_sim_time: str) -> None:
    """Real time factor 0.4: none of its readings is old, whether `/clock` counts or its pace is inferred; a recording replays."""
    rig = make_parts("state_size:=7", f"robot:use_sim_time:={use_sim_time}")
    rig.bring_up()
    pages = rig.listen()
    rig.work()
    rig.wait(lambda: any(page for page in pages), "a page")
    rig.spin(2.0)
    values = rig.wait(lambda: rig.values("r1") if "clock_pace imu" in rig.values("r1") else None, "its clock in diagnostics")
    (body,) = rig.node._robots
    assert values["time_source imu"] == ("/clock" if use_sim_time == "true" else "stamp")
    rig.wait(lambda: 0.2 < float(rig.values("r1")["clock_pace wrench"]) < 0.6, "the pace of the simulation")
    assert rig.server.observations[-1].state.tolist() == pytest.approx([0.0, 1.0, 2.0, 3.0, 1.0, 2.0, 3.0])
    before = body.brain.refused.copy()
    rig.spin(2.0)
    assert (body.brain.refused - before)["incomplete_state"] == 0
    assert rig.node.trigger_deactivate() == SUCCESS and rig.node.trigger_cleanup() == SUCCESS
    rig.wait(lambda: replayed(pages).decisions > 50, "decisions that replay")
    assert replayed(pages).difference is None


def test_a_refused_joint_is_named_in_status_and_diagnostics_and_mended_by_itself(make_parts: Callable[..., PartsRig]) -> None:
    rig = make_parts("state_size:=7")
    rig.velocity = []
    rig.bring_up()
    rig.feed()
    problem = "joint 'a' has no velocity in /r1/joint_states (it has position alone)"
    rig.wait(lambda: rig.robot.status and problem in rig.robot.status.reason, "the joint in the status")
    rig.wait(lambda: rig.values("r1").get("state_problem") == problem, "the joint in diagnostics")
    assert float(rig.values("r1")["arrival_age_s joint_states"]) < 1.5
    assert rig.diagnostics["r1: robot"].level != DiagnosticStatus.OK and problem in rig.diagnostics["r1: robot"].message
    rig.velocity = [0.0]
    rig.wait(lambda: problem not in rig.robot.status.reason, "its end")
    rig.wait(lambda: rig.values("r1").get("state_problem") == "", "its end in diagnostics")


def test_stamps_that_cannot_be_used_are_not_used(make_parts: Callable[..., PartsRig]) -> None:
    rig = make_parts("state_size:=7", "use_arrival_time:=true")
    rig.bring_up()
    rig.published = 10**9  # whatever the stamps are
    rig.work()
    rig.wait(lambda: rig.values("r1").get("time_source front") == "arrival", "the source of its times")


def test_a_topic_that_is_published_with_another_type_is_named(make_parts: Callable[..., PartsRig]) -> None:
    """By a process of its own: no message of it ever arrives, and the robot knows why."""
    rig, other = make_parts("state_size:=7"), rclpy.Context()
    rclpy.init(context=other)
    try:
        driver = rclpy.create_node("driver", context=other)
        driver.create_publisher(WrenchStamped, "/r1/imu/data", qos.SENSOR)
        rig.bring_up()
        problem = "/r1/imu/data is published as geometry_msgs/msg/WrenchStamped by /driver, and not as sensor_msgs/msg/Imu"
        rig.wait(lambda: rig.values("r1").get("type_problem imu") == problem, "the type in diagnostics")
        assert "type_problem wrench" not in rig.values("r1")
        driver.destroy_node()
    finally:
        other.try_shutdown()

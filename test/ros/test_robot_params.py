"""A robot's parameters: what they become, and what is wrong with them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import rclpy
import yaml
from rclpy.node import Node
from rclpy.parameter import Parameter

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.operate.drafts import declare_own
from ros2_rfm_serving.robot.config import CommandType, ComponentClientConfig, FailSafeConfig, Motion, Rung
from ros2_rfm_serving.robot.motion.fallback import check_ladder
from ros2_rfm_serving.ros.model_server_node import ModelServerNode
from ros2_rfm_serving.ros.node.draft import draft
from ros2_rfm_serving.ros.node.parameters import declare, unknown
from ros2_rfm_serving.ros.robot.cameras import CameraConfig
from ros2_rfm_serving.ros.robot.declared import SPECS, TickSource
from ros2_rfm_serving.ros.robot.settings import robot_settings
from ros2_rfm_serving.ros.robot_node import RobotNode
from ros2_rfm_serving.ros.server.settings import SPECS as SERVER_SPECS

from .parameters import flat, settings

JOINT_ROBOT: dict[str, Any] = {
    "action_names": ["x", "y"],
    "cameras": ["front", "wrist"],
    "state_size": 4,
    "state_parts": ["joint_states"],
    "joints": ["a", "b"],
    "joint_fields": ["position", "velocity"],
    "command_type": "position",
    "action_joints": ["a", "b"],
}


def test_checks_before_the_start_know_every_parameter_of_a_node(ros_domain: int) -> None:
    """What a running node declares, `rfm check` must not call misspelt."""
    given = ["robot:robot:=r1", "robot:autostart:=false", "robot:action_names:=[x]", "robot:cameras:=[c]", "robot:state_size:=3"]
    given += ["model_server:server:=s1"]
    rclpy.init(args=["--ros-args", *[part for one in given for part in ("-p", one)]])
    try:
        for node, executable, specs in (
            (RobotNode(), "robot_node", SPECS),
            (ModelServerNode(), "model_server_node", SERVER_SPECS),
        ):
            drafted = draft({})
            declare(drafted, specs)
            declare_own(drafted, executable)
            own = {name for name in node.get_parameters_by_prefix("") if not name.startswith(("qos_overrides", "use_sim_time"))}
            missing = {name for name in own if not drafted.has_parameter(name)} - {"start_type_description_service"}
            node.destroy_node()
            assert len(own) > 20 and not missing, executable
    finally:
        rclpy.try_shutdown()


@pytest.fixture
def ros(ros_domain: int) -> Iterator[None]:
    rclpy.init()
    yield
    rclpy.try_shutdown()


def test_every_parameter_is_described_and_has_a_usable_default(ros: None) -> None:
    made = Node("robot")
    read = robot_settings(made, "r1")
    described = made.describe_parameters(list(SPECS))
    assert all(parameter.description for parameter in described), [p.name for p in described if not p.description]
    assert all(parameter.additional_constraints for parameter in described)
    made.destroy_node()
    assert read.config.failsafe == FailSafeConfig() and read.config.link == ComponentClientConfig()
    assert read.config.name == "r1" and read.config.action_names == ("delta_x",)
    assert read.io.cameras == (CameraConfig(name="front", topic="camera/front/image/compressed"),)


def test_parameters_become_what_the_robot_is_told(ros: None) -> None:
    read = settings(
        JOINT_ROBOT
        | {
            "robot": "other",
            "control_rate_hz": 50,  # an integer will do
            "interpolation": 5,
            "tick": "timer",
            "limits.lower": [-1.0, -2.0],
            "limits.upper": [1.0, 2.0],
            "limits.max_velocity": [1, 2],
            "fallback": ["repeat_last:0.2", "ramp_down:0.5", "hold"],
            "camera_types": ["wrist=image"],
            "camera_topics": ["front=/cam/jpeg"],
            "camera_depth_range_m": ["wrist=0.2:1.5"],
            "unit_scale": ["a=0.5"],
            "sink": "trajectory",
            "link.request_timeout_s": 0.3,
            "failsafe.max_offline_s": 0.0,
            "component_fallbacks": ["safety=stop_and_replan"],
            "max_task_retries": 7,
        }
    )
    config, io_config = read.config, read.io
    assert (config.name, config.control_rate_hz, config.interpolation) == ("other", 50.0, 5)
    assert read.tick is TickSource.TIMER
    assert config.command_type is CommandType.POSITION and config.limits.max_velocity == (1.0, 2.0)
    assert config.fallback == (Rung(Motion.REPEAT_LAST, 0.2), Rung(Motion.RAMP_DOWN, 0.5), Rung(Motion.HOLD))
    assert (config.link.request_timeout_s, config.failsafe.max_offline_s, config.policy.max_task_retries) == (0.3, 0.0, 7)
    assert config.policy.fallbacks["safety"].value == "stop_and_replan"
    assert io_config.cameras == (
        CameraConfig(name="front", topic="/cam/jpeg"),
        CameraConfig(name="wrist", topic="camera/wrist/image_raw", raw=True, depth_range_m=(0.2, 1.5)),
    )
    assert io_config.sink.trajectory_field == "positions" and io_config.state.unit_scale == {"a": 0.5}


def test_one_robot_of_several_may_differ(ros: None) -> None:
    given = {"state_size": 3, "max_action_age_s": 2.0, "r2.max_action_age_s": 1.0, "r2.task": "push", "task": "pick"}
    first, second = (settings(given, name, one_of_many=True) for name in ("r1", "r2"))
    assert (first.config.name, first.config.max_action_age_s, first.task) == ("r1", 2.0, "pick")
    assert (second.config.name, second.config.max_action_age_s, second.task) == ("r2", 1.0, "push")
    with pytest.raises(ConfigurationError) as caught:
        settings(given | {"r2.max_action_age_s": -1.0}, "r2", one_of_many=True)
    assert caught.value.key == "r2.max_action_age_s"


def test_misspelt_parameters_are_found(ros: None) -> None:
    made = Node("robot", parameter_overrides=[Parameter("control_rate", value=20.0), Parameter("state_size", value=3)])
    robot_settings(made, "r1")
    assert unknown(made) == {"control_rate": "control_rate_hz"}
    made.destroy_node()


def test_the_example_of_the_documentation_is_a_robot(ros: None, repository: Path) -> None:
    page = (repository / "docs/integrate.md").read_text()
    example = yaml.safe_load(page.split("```yaml")[1].split("```")[0])["/**"]["ros__parameters"]
    read = settings(flat(example))
    check_ladder(read.config)
    assert read.config.state_size == 9 and read.config.step_rate_hz == 20.0
    reference = (repository / "docs/reference/integrate.md").read_text()
    named = set(re.findall(r"`((?:camera|joint|state|sink|limits|command|twist|trajectory|safe)[_.][a-z_]+)`", page + reference))
    assert len(named) > 15 and named <= {*SPECS, "joint_states", "sink_failed"}


def test_columns_of_several_types_are_declared_by_exceptions_patterns_or_one_by_one(ros: None) -> None:
    """openpi's DROID: seven joint velocities and an absolute gripper."""
    names = [*(f"joint_{number}" for number in range(1, 8)), "gripper"]
    robot = {"action_names": names, "state_size": 8, "fallback": ["zero"]}
    wanted = (*(CommandType.VELOCITY,) * 7, CommandType.BINARY)
    for given in (
        {"command_type": "velocity", "command_types": ["gripper=gripper"]},
        {"command_types": ["joint_*=velocity", "gripper=binary"]},
        {"command_type": "gripper", "command_types": ["joint_?=velocity"]},
        {"command_types": [*["velocity"] * 7, "gripper"]},
        {"command_types": ["gripper=binary", "*=velocity"]},
    ):
        config = settings(robot | given).config
        assert config.command_types == wanted, given
        check_ladder(config)
    assert settings(robot | {"command_type": "velocity"}).config.command_types == ()


def test_continuous_joints_are_known_by_their_action_or_joint_and_suggested_by_limits(ros: None) -> None:
    turn = 2.0 * math.pi
    assert settings(JOINT_ROBOT | {"continuous_joints": ["b"]}).config.turns == (0.0, turn)
    assert settings(JOINT_ROBOT | {"continuous_joints": ["x=360.0", "b"]}).config.turns == (360.0, turn)
    spanning = {"limits.lower": [-3.14, -1.0], "limits.upper": [3.14, 1.0], "limits.max_velocity": [1.0, 1.0]}
    (warning,) = settings(JOINT_ROBOT | spanning).warnings
    assert "x" in warning and "continuous_joints: [x]" in warning
    assert not settings(JOINT_ROBOT | spanning | {"continuous_joints": ["a"]}).warnings
    rates = {"command_types": ["y=gripper"], "limits.max_velocity": [1.0, 1.0]}
    (warning,) = settings(JOINT_ROBOT | rates).warnings
    assert "limits.max_velocity of y does not count" in warning


POSITIONS = "measured positions"
TWIST = ["x=linear.x", "y=angular.z"]
WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"control_rate_hz": 0.0}, "control_rate_hz", "out of range"),
    ({"control_rate_hz": "fast"}, "control_rate_hz", "not a number"),
    ({"execution_horizon": 2.5}, "execution_horizon", "not an integer"),
    ({"synchronous": 1}, "synchronous", "not a truth value"),
    ({"conditioning": "prefx"}, "conditioning", "did you mean 'prefix'"),
    ({"action_names": [""]}, "action_names", "without actions"),
    ({"cameras": ["a", "a"]}, "cameras", "twice"),
    ({"component_prompts": ["no equals sign"]}, "component_prompts", "key=value"),
    ({"calls_per_action": ["system2=often"]}, "calls_per_action", "'often' is not a number"),
    ({"command_type": "delta", "interpolation": 2}, "interpolation", "displacements"),
    ({"limits.lower": [0.0]}, "limits.lower", "1 values for 2"),
    ({"limits.lower": [0.0, 0.0], "limits.upper": [1.0, 0.0]}, "limits.lower", "not below"),
    ({"limits.tolerance": -1.0}, "limits.tolerance", "out of range"),
    ({"command_type": "velocity", "limits.max_velocity": [1.0, 1.0]}, "limits.max_velocity", "velocities themselves"),
    ({"limits.max_velocity": [1.0, 1.0], "action_joints": [""]}, "limits.max_velocity", POSITIONS),
    ({"limits.max_acceleration": [1.0, 1.0], "action_joints": [""]}, "limits.max_acceleration", POSITIONS),
    ({"fallback": ["safe_pose"], "safe_pose": [0.0, 0.0], "action_joints": [""]}, "fallback", POSITIONS),
    ({"fallback": ["stop"]}, "fallback", "unknown motion"),
    ({"fallback": ["repeat_last:0"]}, "fallback", "lasts no time"),
    ({"safe_pose": [1.0]}, "safe_pose", "1 for 2 actions"),
    ({"safe_pose": [math.nan, 0.0]}, "safe_pose", "not finite"),
    ({"command_types": ["y=griper"]}, "command_types", "y has the unknown type 'griper', did you mean 'gripper'"),
    ({"command_types": ["z=gripper"]}, "command_types", "there is no 'z'"),
    ({"command_types": ["velocity"]}, "command_types", "1 types for 2 actions (it is ['velocity'])"),
    ({"command_types": ["y=delta"], "interpolation": 2}, "interpolation", "two displacements (y)"),
    ({"command_types": ["x=velocity"], "limits.max_velocity": [1.0, 1.0]}, "limits.max_velocity", "themselves in x"),
    ({"command_types": ["x=effort"], "sink": "trajectory"}, "sink", "takes each number as a velocity"),
    ({"command_types": ["y=gripper"], "sink": "twist", "twist_axes": TWIST}, "sink", "set the type of x, y to velocity"),
    ({"continuous_joints": ["c"]}, "continuous_joints", "there is no 'c'"),
    ({"continuous_joints": ["a=0"]}, "continuous_joints", "a turn of 0"),
    ({"continuous_joints": ["a=round"]}, "continuous_joints", "'round' is not a number"),
    (
        {"continuous_joints": ["b"], "limits.lower": [-9.0, -1.0], "limits.upper": [9.0, 1.0]},
        "continuous_joints",
        "y has limits from -1 to 1, less than its turn",
    ),
    ({"limits.max_jerk": [1.0, 1.0]}, "limits.max_jerk", "a jerk without an acceleration"),
    ({"camera_topics": ["top=/top"]}, "camera_topics", "no such camera: top"),
    ({"camera_topics": ["front=/1st camera"]}, "camera_topics", "topic name"),
    ({"camera_types": ["front=webcam"]}, "camera_types", "unknown type"),
    ({"camera_depth_range_m": ["front=2:1"]}, "camera_depth_range_m", "no range"),
    ({"jpeg_quality": 0}, "jpeg_quality", "out of range"),
    ({"state_parts": ["lidar"]}, "state_parts", "not the parts"),
    ({"joints": [""]}, "joints", "none are named"),
    ({"joint_fields": ["pose"]}, "joint_fields", "not fields"),
    ({"state_size": 5}, "state_size", "2 joints x 2 fields are 4 of 5"),
    ({"state_size": 4, "state_parts": ["joint_states", "array"]}, "state_size", "4 of 4"),
    ({"unit_scale": ["c=2.0"]}, "unit_scale", "no such joint: c"),
    ({"unit_scale": ["a=0"]}, "unit_scale", "factor of zero"),
    ({"action_joints": ["a"]}, "action_joints", "1 for 2 actions"),
    ({"action_state": [0, 1]}, "action_state", "not from both"),
    ({"action_state": [0, 4], "action_joints": [""]}, "action_state", "not places"),
    ({"sink": "serial"}, "sink", "unknown"),
    ({"sink": "custom"}, "sink_class", "needs its class"),
    ({"sink": "twist", "twist_axes": ["x=linear.x"]}, "twist_axes", "every action"),
    ({"sink": "twist", "twist_axes": ["x=linear.x", "y=linear.x"]}, "twist_axes", "every action"),
    ({"sink": "twist", "twist_axes": ["x=linear.x", "y=up"]}, "twist_axes", "every action"),
    ({"sink": "trajectory", "command_type": "delta"}, "command_type", "takes each number as a velocity"),
    ({"sink": "trajectory", "trajectory_field": "velocities"}, "command_type", "takes each number as a velocity"),
    ({"sink": "trajectory", "trajectory_field": "effort"}, "trajectory_field", "no effort stop a robot"),
    (
        {"sink": "chunk", "command_type": "velocity", "fallback": ["zero"]},
        "command_type",
        "a chunk takes each number as a position",
    ),
    ({"sink": "chunk", "command_type": "delta"}, "command_type", "a chunk takes each number as a position"),
    ({"sink": "chunk"}, "limits.max_velocity", "braking to a stand"),
    ({"sink": "chunk", "limits.max_velocity": [1.0, 1.0]}, "limits.max_acceleration", "braking to a stand"),
    (
        {"sink": "chunk", "limits.max_velocity": [1.0, 1.0], "limits.max_acceleration": [0.05, 1.0]},
        "limits.max_acceleration",
        "would take 20 s to brake",
    ),
    ({"sink": "twist", "twist_axes": TWIST, "command_type": "delta"}, "command_type", "a twist takes each number as a velocity"),
    ({"command_type": "velocity", "fallback": ["zero"], "command_offset": [0.3, 0.0]}, "command_offset", "velocity 0.3, 0"),
    ({"gate.jump": "refuse"}, "gate.max_jump", "has nothing to compare with"),
    ({"gate.jerk": "refuses"}, "gate.jerk", "did you mean 'refuse'"),
    ({"gate.max_velocity": [1.0]}, "gate.max_velocity", "1 values for 2 actions"),
    ({"sink_joints": ["a"]}, "sink_joints", "1 for 2 actions"),
    ({"command_scale": [1.0, 2.0, 3.0]}, "command_scale", "3 for 2 actions"),
    ({"component_fallbacks": ["safety=pray"]}, "component_fallbacks", "no fallback 'pray'"),
    ({"on_max_violation": "explode"}, "on_max_violation", "unknown"),
    ({"link.max_timeouts": 0}, "link.max_timeouts", "out of range"),
]


def test_a_wrong_parameter_is_named_with_its_value_and_the_fix(ros: None) -> None:
    for wrong, key, problem in WRONG:
        with pytest.raises(ConfigurationError) as caught:
            settings(JOINT_ROBOT | wrong)
        assert caught.value.key == key and problem in str(caught.value), (wrong, str(caught.value))
        assert caught.value.fix, wrong
        if key in wrong and not key.startswith("limits."):
            shown = wrong[key][0] if isinstance(wrong[key], list) else wrong[key]
            assert str(shown) in str(caught.value), str(caught.value)

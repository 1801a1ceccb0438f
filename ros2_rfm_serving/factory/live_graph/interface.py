"""Topics of one robot as its file declares them, as plain data for the comparison with a live graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ros2_rfm_serving.factory.live_graph.snapshot import FLOAT64_ARRAY, TRAJECTORY, TWIST, TWIST_STAMPED

SINKS_OF = {
    FLOAT64_ARRAY: ("array",),
    TRAJECTORY: ("trajectory", "chunk"),
    TWIST: ("twist",),
    TWIST_STAMPED: ("twist",),
}
"""Type of message -> values of the parameter `sink` that publish it."""


@dataclass(frozen=True, kw_only=True)
class CameraTopic:
    name: str
    """The model's name of the camera."""
    topic: str
    type: str
    """Type of its messages, such as sensor_msgs/msg/Image."""
    has_depth_range: bool = False
    by_arrival: bool = False
    """The stamps of its messages are not used."""


@dataclass(frozen=True, kw_only=True)
class StateTopic:
    part: str
    """joint_states, array, odometry, imu, wrench or pose."""
    topic: str
    type: str
    key: str
    """Parameter of the robot's file that names the topic."""
    size: int = 0
    """Numbers that an array must have; 0: other parts."""
    fields: tuple[str, ...] = ()
    """Fields of odometry, IMU, wrench and pose."""
    by_arrival: bool = False
    """The stamps of its messages are not used."""


@dataclass(frozen=True, kw_only=True)
class CommandTopicSpec:
    topic: str
    types: tuple[str, ...]
    """Types that the sink can publish; a twist has two. Empty: a custom sink, whose types are not known."""
    sink: str
    """Value of the parameter `sink`."""
    num_actions: int = 0
    joints: tuple[str, ...] = ()
    """[A] joints of a trajectory."""


@dataclass(frozen=True, kw_only=True)
class RobotInterface:
    """Interface of one robot; topic names are absolute."""

    name: str
    file: str = ""
    status_topic: str = ""
    """Topic on which the robot's own node publishes while it runs: its publishers are known nodes."""
    control_rate_hz: float
    ticks_with_state: bool = False
    """`tick: state`: each state begins a control period, so the state's rate has to be the control rate."""
    cameras: tuple[CameraTopic, ...] = ()
    state: tuple[StateTopic, ...] = ()
    joints: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Joint -> fields of it that the robot needs."""
    unit_scale: Mapping[str, float] = field(default_factory=dict)
    action_joints: tuple[str, ...] = ()
    """[A] joint of each action, or empty."""
    lower: tuple[float, ...] = ()
    upper: tuple[float, ...] = ()
    """[A] limits of position commands in the policy's units, infinite in other columns; empty: none."""
    command: CommandTopicSpec
    max_age_s: float = 0.5
    """Largest age of a sensor's reading."""

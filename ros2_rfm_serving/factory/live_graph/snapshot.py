"""A ROS graph at one moment, as plain data: topics with their nodes, and samples of sensor topics over a few seconds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

JOINT_STATE, IMAGE, COMPRESSED_IMAGE = "sensor_msgs/msg/JointState", "sensor_msgs/msg/Image", "sensor_msgs/msg/CompressedImage"
ODOMETRY, IMU = "nav_msgs/msg/Odometry", "sensor_msgs/msg/Imu"
WRENCH, POSE = "geometry_msgs/msg/WrenchStamped", "geometry_msgs/msg/PoseStamped"
FLOAT32_ARRAY, FLOAT64_ARRAY = "std_msgs/msg/Float32MultiArray", "std_msgs/msg/Float64MultiArray"
TWIST, TWIST_STAMPED = "geometry_msgs/msg/Twist", "geometry_msgs/msg/TwistStamped"
TRAJECTORY = "trajectory_msgs/msg/JointTrajectory"
SENSOR_TYPES = (JOINT_STATE, IMAGE, COMPRESSED_IMAGE, ODOMETRY, IMU, WRENCH, POSE, FLOAT32_ARRAY, FLOAT64_ARRAY)
"""Types of topics that a snapshot subscribes to."""
Range = tuple[float, float]
"""(lowest, highest)"""


@dataclass(frozen=True, kw_only=True)
class EndpointQos:
    """QoS of a publisher or a subscription, as the graph reports it."""

    reliability: str = "unknown"
    """reliable, best_effort or unknown."""
    durability: str = "unknown"
    """volatile, transient_local or unknown."""
    depth: int = 0
    """Depth of the history; 0: the middleware does not report it."""
    deadline_s: float = float("inf")
    liveliness: str = "unknown"
    """automatic, manual_by_topic or unknown."""


@dataclass(frozen=True, kw_only=True)
class GraphEndpoint:
    """A publisher or a subscription of a node."""

    node: str
    """Name with its namespace, such as /arm/driver."""
    type: str
    """Type of its messages, such as sensor_msgs/msg/Image."""
    qos: EndpointQos = field(default_factory=EndpointQos)
    command_mismatch: str = ""
    """QoS policies of a subscription that keep a robot's commands from reaching it; empty: commands reach it."""
    is_observer: bool = False
    """It belongs to `ros2 topic`, a recorder or a display, which execute no commands."""


@dataclass(frozen=True, kw_only=True)
class ImageSample:
    encoding: str
    """`encoding` of an Image, `format` of a CompressedImage."""
    width_px: int
    height_px: int
    """Both 0 where they cannot be read."""
    num_bytes: int
    """Size of the pixels or the compressed data in the newest message."""


@dataclass(frozen=True, kw_only=True)
class TopicSample:
    """Messages that arrived on a topic while the snapshot was made."""

    num_messages: int = 0
    seconds: float = 0.0
    """Duration of the subscription."""
    rate_hz: float = 0.0
    """Rate between the first and the last message; 0 with fewer than two messages."""
    frame_ids: tuple[str, ...] = ()
    stamp_age_s: Range | None = None
    """Age of `header.stamp` at arrival by this machine's clock; None: no header, or all stamps were zero."""
    joints: Mapping[str, Mapping[str, Range]] = field(default_factory=dict)
    """joint -> field (position, velocity, effort) that its messages have -> range of its values."""
    values: tuple[Range, ...] = ()
    """Range of each number of an array of the newest length."""
    image: ImageSample | None = None
    fields: tuple[str, ...] = ()
    """Fields that the messages of odometry, IMU, wrench and pose have; an IMU may lack some."""
    problem: str = ""
    """Reason why a robot would refuse the newest message, whatever the robot's file declares; empty: it would accept it."""


@dataclass(frozen=True, kw_only=True)
class GraphTopic:
    name: str
    publishers: tuple[GraphEndpoint, ...] = ()
    subscribers: tuple[GraphEndpoint, ...] = ()
    sample: TopicSample | None = None
    """Messages that arrived on it; None: it was not subscribed to."""

    @property
    def types(self) -> tuple[str, ...]:
        """Types of its publishers and subscriptions, sorted."""
        return tuple(sorted({endpoint.type for endpoint in (*self.publishers, *self.subscribers)}))

    @property
    def published_types(self) -> tuple[str, ...]:
        return tuple(sorted({endpoint.type for endpoint in self.publishers}))

    @property
    def executors(self) -> tuple[GraphEndpoint, ...]:
        """Subscriptions that may execute commands, without those that only observe."""
        return tuple(endpoint for endpoint in self.subscribers if not endpoint.is_observer)

    @property
    def executed_types(self) -> tuple[str, ...]:
        """Types of the messages that may be executed as commands, sorted."""
        return tuple(sorted({endpoint.type for endpoint in self.executors}))


@dataclass(frozen=True, kw_only=True)
class GraphSnapshot:
    """Topics, services and nodes of a graph. Names are absolute; hidden topics and the node that made the snapshot are left out."""

    domain: int = 0
    topics: Mapping[str, GraphTopic] = field(default_factory=dict)
    services: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Name -> types of the services that nodes offer."""
    actions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Name -> types of the actions that nodes offer."""
    nodes: tuple[str, ...] = ()
    controller_joints: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Node that accepts trajectories or arrays -> its parameter `joints`, as ros2_control's controllers have it."""
    robot_descriptions: Mapping[str, str] = field(default_factory=dict)
    """Topic -> URDF, for topics called robot_description."""

    def published_as(self, *types: str) -> list[GraphTopic]:
        """Return the topics that have a publisher of one of these types, in the order of their names."""
        return [topic for _, topic in sorted(self.topics.items()) if set(types) & set(topic.published_types)]

    def executed_as(self, *types: str) -> list[GraphTopic]:
        """Return the topics with a subscription of one of these types that may execute commands, in the order of their names."""
        found = sorted(self.topics.items())
        return [topic for _, topic in found if set(types) & set(topic.executed_types)]

    def topic(self, name: str) -> GraphTopic:
        """Return the topic, or one without publishers and subscribers where no node uses that name."""
        return self.topics.get(name, GraphTopic(name=name))


def snapshot_of(topics: Iterable[GraphTopic], **more: object) -> GraphSnapshot:
    """Return a snapshot of these topics."""
    return GraphSnapshot(topics={topic.name: topic for topic in topics}, **more)  # type: ignore[arg-type]

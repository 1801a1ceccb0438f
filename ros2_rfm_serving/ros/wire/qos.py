"""Every QoS profile on the wire, in one place, beside the names (docs/structures.md has the table)."""

from __future__ import annotations

from rclpy.duration import Duration
from rclpy.qos import DurabilityPolicy, HistoryPolicy, LivelinessPolicy, QoSProfile, ReliabilityPolicy

from ros2_rfm_serving.factory.graph_names import NAME, Names

__all__ = ["NAME", "Names"]

STATUS_PERIOD_S = 0.5
LIVELINESS_LEASE_S = 1.0
"""A server that is killed counts as lost after this. The middleware renews it after two thirds, on a thread of its own, so that
a busy interpreter loses no lease; a shorter one leaves too little for a busy machine."""

REPLY_LIFESPAN_S = 3.0
"""Of a reply that could not be delivered yet; `max_action_age_s` is as long by default."""


def _profile(reliability: ReliabilityPolicy, depth: int, **more: object) -> QoSProfile:
    return QoSProfile(reliability=reliability, history=HistoryPolicy.KEEP_LAST, depth=depth, **more)


SCHEDULE = _profile(ReliabilityPolicy.RELIABLE, 1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
SCHEDULE_HEARD = _profile(ReliabilityPolicy.RELIABLE, 32, durability=DurabilityPolicy.TRANSIENT_LOCAL)
"""With room for those of others: they must not push out the word of the scheduler that is followed."""
SERVER_STATUS = _profile(
    ReliabilityPolicy.RELIABLE,
    1,
    liveliness=LivelinessPolicy.AUTOMATIC,
    liveliness_lease_duration=Duration(seconds=LIVELINESS_LEASE_S),
    deadline=Duration(seconds=4 * STATUS_PERIOD_S),
)
NAME_CLAIM = _profile(ReliabilityPolicy.RELIABLE, 1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
NAME_CLAIM_HEARD = _profile(ReliabilityPolicy.RELIABLE, 16, durability=DurabilityPolicy.TRANSIENT_LOCAL)
"""With room for one's own word beside those of others."""
ROBOT_STATUS = _profile(ReliabilityPolicy.RELIABLE, 1)
OBSERVATION_SENT = _profile(ReliabilityPolicy.RELIABLE, 1)
"""The reader decides: to one that takes best effort this is best effort, to one across a bad network what is lost is sent again,
until the next observation replaces it (docs/networks.md)."""
OBSERVATION_RECEIVED = _profile(ReliabilityPolicy.BEST_EFFORT, 64)  # many robots write to one topic
REPLY = _profile(ReliabilityPolicy.RELIABLE, 2)
REPLY_SENT = _profile(ReliabilityPolicy.RELIABLE, 2, lifespan=Duration(seconds=REPLY_LIFESPAN_S))
"""The writer alone forgets what is too old to be executed: a reader would compare the clocks of two machines."""
REFETCH = _profile(ReliabilityPolicy.BEST_EFFORT, 2)
"""A lost one costs nothing: the request is answered with the observation that it has."""
PROCESS_STATUS = _profile(ReliabilityPolicy.RELIABLE, 1)
PROCESS_STATUS_RECEIVED = _profile(ReliabilityPolicy.RELIABLE, 256)
"""Every process writes to one topic."""
SCORE = _profile(ReliabilityPolicy.RELIABLE, 8)
AUDIT = _profile(ReliabilityPolicy.RELIABLE, 64)
SENSOR = _profile(ReliabilityPolicy.BEST_EFFORT, 1)
JOINTS = _profile(ReliabilityPolicy.BEST_EFFORT, 16)
"""An arm and its gripper may publish on one topic, each its own joints: the newest alone would be one of them."""
COMMAND = _profile(ReliabilityPolicy.RELIABLE, 1)
CONTROL = _profile(ReliabilityPolicy.RELIABLE, 4096)
"""Of services that a whole fleet calls at once, and of their clients, each of which hears the answers to all: what ROS takes by
default keeps ten, and loses the others without a word."""

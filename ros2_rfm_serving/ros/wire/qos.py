"""Every QoS profile on the wire, in one place, beside the names (docs/structures.md has the table)."""

from __future__ import annotations

from rclpy.duration import Duration
from rclpy.qos import DurabilityPolicy, HistoryPolicy, LivelinessPolicy, QoSProfile, ReliabilityPolicy

from ros2_rfm_serving.factory.graph_names import NAME, Names

__all__ = ["NAME", "Names"]

STATUS_PERIOD_S = 0.5
LIVELINESS_LEASE_S = 1.0
"""Time after which a killed server counts as lost. The middleware renews the lease after two thirds, on a thread of its own, so
that a busy interpreter loses no lease; a shorter one leaves too little margin for a busy machine."""

REPLY_LIFESPAN_S = 3.0
"""Lifespan of a reply that could not be delivered yet; `max_action_age_s` is as long by default."""


def _profile(reliability: ReliabilityPolicy, depth: int, **more: object) -> QoSProfile:
    return QoSProfile(reliability=reliability, history=HistoryPolicy.KEEP_LAST, depth=depth, **more)


SCHEDULE = _profile(ReliabilityPolicy.RELIABLE, 1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
SCHEDULE_HEARD = _profile(ReliabilityPolicy.RELIABLE, 32, durability=DurabilityPolicy.TRANSIENT_LOCAL)
"""QoS with room for other schedulers' schedules, which must not displace that of the followed scheduler."""
SERVER_STATUS = _profile(
    ReliabilityPolicy.RELIABLE,
    1,
    liveliness=LivelinessPolicy.AUTOMATIC,
    liveliness_lease_duration=Duration(seconds=LIVELINESS_LEASE_S),
    deadline=Duration(seconds=4 * STATUS_PERIOD_S),
)
NAME_CLAIM = _profile(ReliabilityPolicy.RELIABLE, 1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
NAME_CLAIM_HEARD = _profile(ReliabilityPolicy.RELIABLE, 16, durability=DurabilityPolicy.TRANSIENT_LOCAL)
"""QoS with room for the process' own claim beside those of others."""
ROBOT_STATUS = _profile(ReliabilityPolicy.RELIABLE, 1)
OBSERVATION_SENT = _profile(ReliabilityPolicy.RELIABLE, 1)
"""QoS whose reliability the subscription decides (docs/networks.md). For a best-effort subscription it is best effort; to one
across a bad network, lost data is sent again until the next observation replaces it."""
OBSERVATION_RECEIVED = _profile(ReliabilityPolicy.BEST_EFFORT, 64)  # many robots publish on one topic
REPLY = _profile(ReliabilityPolicy.RELIABLE, 2)
REPLY_SENT = _profile(ReliabilityPolicy.RELIABLE, 2, lifespan=Duration(seconds=REPLY_LIFESPAN_S))
"""QoS whose lifespan the writer alone enforces: a reader would compare the clocks of two machines."""
REFETCH = _profile(ReliabilityPolicy.BEST_EFFORT, 2)
"""QoS without retransmission: after a lost message the request is answered with the present observation."""
PROCESS_STATUS = _profile(ReliabilityPolicy.RELIABLE, 1)
PROCESS_STATUS_RECEIVED = _profile(ReliabilityPolicy.RELIABLE, 256)
"""QoS of a topic on which every process publishes."""
SCORE = _profile(ReliabilityPolicy.RELIABLE, 8)
AUDIT = _profile(ReliabilityPolicy.RELIABLE, 64)
SENSOR = _profile(ReliabilityPolicy.BEST_EFFORT, 1)
JOINTS = _profile(ReliabilityPolicy.BEST_EFFORT, 16)
"""QoS with a queue: an arm and its gripper may publish on one topic, each its own joints; the newest message has only one's."""
COMMAND = _profile(ReliabilityPolicy.RELIABLE, 1)
CONTROL = _profile(ReliabilityPolicy.RELIABLE, 4096)
"""QoS of services that a whole fleet calls at once, and of their clients, each of which receives the replies to all.
ROS' default keeps ten, and silently loses the others."""

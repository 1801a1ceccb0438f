"""QoS policies for which a subscription receives nothing from a publisher, with both values."""

from __future__ import annotations

from rclpy.duration import Duration, Infinite
from rclpy.qos import (
    DurabilityPolicy,
    LivelinessPolicy,
    QoSCompatibility,
    QoSProfile,
    ReliabilityPolicy,
    qos_check_compatible,
)

WEAKEST_FIRST = {
    "reliability": (ReliabilityPolicy.BEST_EFFORT, ReliabilityPolicy.RELIABLE),
    "durability": (DurabilityPolicy.VOLATILE, DurabilityPolicy.TRANSIENT_LOCAL),
    "liveliness": (LivelinessPolicy.AUTOMATIC, LivelinessPolicy.MANUAL_BY_TOPIC),
}
"""Policy -> its values; a publisher must offer at least what a subscription requests."""
LONGEST_FIRST = ("deadline", "liveliness_lease_duration")


def as_shown(profile: QoSProfile) -> QoSProfile:
    """Return the profile as the graph shows an endpoint that has it: a duration that is not given has no limit there."""
    durations = {name: getattr(profile, name) for name in ("deadline", "lifespan", "liveliness_lease_duration")}
    given = {name: value if value.nanoseconds else Infinite for name, value in durations.items()}
    return QoSProfile(
        history=profile.history,
        depth=profile.depth,
        reliability=profile.reliability,
        durability=profile.durability,
        liveliness=LivelinessPolicy.MANUAL_BY_TOPIC
        if profile.liveliness == LivelinessPolicy.MANUAL_BY_TOPIC
        else LivelinessPolicy.AUTOMATIC,
        **given,
    )


def mismatch(offered: QoSProfile, requested: QoSProfile) -> str:
    """Return each incompatible policy as "durability transient_local, where volatile is offered"; empty: all are compatible.

    offered: of the publisher. requested: of the subscription. Both are as the ROS graph shows them. The middleware decides which
    policies are compatible."""
    compatibility, reason = qos_check_compatible(offered, requested)
    if compatibility != QoSCompatibility.ERROR:
        return ""
    policies = [
        name
        for name, (weak, strong) in WEAKEST_FIRST.items()
        if getattr(requested, name) == strong and getattr(offered, name) == weak
    ]
    policies += [name for name in LONGEST_FIRST if getattr(requested, name) < getattr(offered, name)]
    values = {name: (_value(getattr(requested, name)), _value(getattr(offered, name))) for name in policies}
    found = " and ".join(f"{name} {wanted}, where {given} is offered" for name, (wanted, given) in values.items())
    return found or reason.replace("ERROR: ", "").rstrip(";")


def _value(value: ReliabilityPolicy | DurabilityPolicy | LivelinessPolicy | Duration) -> str:
    if not isinstance(value, Duration):
        return str(value.short_key)
    return "no limit" if value.nanoseconds >= (1 << 62) else f"{1e-9 * value.nanoseconds:g} s"

"""Events just before an incident that may be its cause; the report states no more than that."""

from __future__ import annotations

from collections.abc import Sequence

from ros2_rfm_serving.audit.report.incidents import Incident

BEFORE_S, AFTER_S = 6.0, 1.0
"""Window of causes around the begin of an incident: a server counts as lost some seconds after its last message."""
CAUSES = ("server", "person", "recorder")
CAUSED = ("held", "stopped", "failover", "refused")


def causes(incident: Incident, others: Sequence[Incident]) -> list[Incident]:
    """Return incidents of servers, operators and the recorder around its begin, the nearest first."""
    if incident.kind not in CAUSED:
        return []
    near = [one for one in others if one.kind in CAUSES and _comes_before(one, incident) and _concerns(one, incident)]
    return sorted(near, key=lambda one: abs(one.at_s - incident.at_s))[:3]


def _comes_before(one: Incident, incident: Incident) -> bool:
    return -BEFORE_S <= one.at_s - incident.at_s <= AFTER_S


def _concerns(one: Incident, incident: Incident) -> bool:
    """Return whether an incident concerns another one: the same robot's operator, or a server that is named or may be its own."""
    if one.kind == "server":
        named = one.who in incident.why or one.who in incident.what
        return named or not incident.server or incident.server == one.server
    return not one.robot or one.robot == incident.robot

"""Context of a server's incident from its own audit log: state changes, begins and ends."""

from __future__ import annotations

import math
from typing import Any

from ros2_rfm_serving.audit.explain.explanation import clock
from ros2_rfm_serving.audit.explain.processes import without_an_end
from ros2_rfm_serving.audit.log import SERVER, AuditLog, Entry
from ros2_rfm_serving.audit.report.incidents import Incident

BEFORE_S, AFTER_S = 5.0, 20.0
MOST = 8


def around(log: AuditLog, incident: Incident) -> list[str]:
    """Return lines about a server around its incident; empty for another incident, or without records."""
    if incident.kind != "server" or not math.isfinite(incident.at_s):
        return []
    writer = SERVER + incident.who
    since_s, until_s = incident.at_s - BEFORE_S, incident.at_s + AFTER_S
    found = log.within(writer, since_s, until_s, "transition", "begin", "closed")
    ends = [run.ends_s for run in without_an_end(log, writer) if since_s <= run.ends_s <= until_s]
    killed = [f"its records end at {clock(end_s)}, without an end: it was killed, or cut off" for end_s in ends]
    return killed + [f"{clock(one.stamp_s)} {_words(one)}" for one in found[:MOST]]


def _words(entry: Entry) -> str:
    body = entry.body
    if entry.kind == "begin":
        return "its audit log begins: it was started, or somebody began to record"
    if entry.kind == "closed":
        return f"its audit log ends: {body.get('why') or 'no reason was recorded'}"
    because = f": {body['reason']}" if body.get("reason") else ""
    return f"{_name(body.get('from'))} to {_name(body.get('to'))}{because}"


def _name(found: Any) -> str:
    return str(found.get("state", found)) if isinstance(found, dict) else str(found)

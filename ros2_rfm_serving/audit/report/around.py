"""What a server's or a robot's own audit log says around an incident: changes, beginnings, ends."""

from __future__ import annotations

import math
from typing import Any

from ros2_rfm_serving.audit.explain.explanation import clock
from ros2_rfm_serving.audit.log import SERVER, AuditLog, Entry
from ros2_rfm_serving.audit.report.incidents import Incident

BEFORE_S, AFTER_S = 5.0, 20.0
MOST = 8


def around(log: AuditLog, incident: Incident) -> list[str]:
    """Of a server; empty: the incident is none of one, or nothing was recorded."""
    if incident.kind != "server" or not math.isfinite(incident.at_s):
        return []
    writer = SERVER + incident.who
    found = log.within(writer, incident.at_s - BEFORE_S, incident.at_s + AFTER_S, "transition", "begin", "closed")
    killed = ["it was killed, or cut off: what it wrote before has no last word"] * _was_killed(found, log, writer)
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


def _was_killed(found: list[Entry], log: AuditLog, writer: str) -> bool:
    """A chain begins here, and the one before it was never closed."""
    begins = [one for one in found if one.kind == "begin"]
    chains = log.of(writer, "begin", "closed")
    if not begins:
        return False
    before = chains[: chains.index(begins[0])]
    return bool(before) and before[-1].kind != "closed"

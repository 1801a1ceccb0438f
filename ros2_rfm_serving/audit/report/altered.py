"""What was done to a recording's messages and files after it was written, as incidents of its shift."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable

from ros2_rfm_serving.audit.findings import Finding, Kind
from ros2_rfm_serving.audit.report.incidents import Incident


def altered(findings: Iterable[Finding]) -> list[Incident]:
    """Return one per topic or file and kind, from the first to the last message that it concerns."""
    groups: defaultdict[tuple[str, str, Kind], list[Finding]] = defaultdict(list)
    for one in findings:
        groups[one.topic, one.file, one.kind].append(one)
    return [_incident(topic or file, kind, found) for (topic, file, kind), found in groups.items()]


def _incident(who: str, kind: Kind, found: list[Finding]) -> Incident:
    times = sorted(one.time_ns / 1e9 for one in found if one.time_ns)
    what = f"{len(found)} messages {kind.value}" if len(found) > 1 else f"{'message ' if times else ''}{kind.value}"
    until_s = times[-1] if len(times) > 1 else math.nan
    return Incident(
        at_s=times[0] if times else math.nan, until_s=until_s, kind="audit log", who=who, what=what, why=found[0].problem
    )

"""Report of a recording as a page."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

from ros2_rfm_serving.audit.bag import Bag
from ros2_rfm_serving.audit.explain.explain import explain, window
from ros2_rfm_serving.audit.explain.explanation import Explanation
from ros2_rfm_serving.audit.explain.pictures import as_png
from ros2_rfm_serving.audit.log import AuditLog
from ros2_rfm_serving.audit.report.around import around
from ros2_rfm_serving.audit.report.causes import causes
from ros2_rfm_serving.audit.report.figures import attained, success
from ros2_rfm_serving.audit.report.incident_page import Told
from ros2_rfm_serving.audit.report.incidents import Incident, altered, incidents
from ros2_rfm_serving.audit.report.page import Shift, page
from ros2_rfm_serving.audit.report.tracks import ROBOT, SCORE, SERVER, Tracks
from ros2_rfm_serving.audit.verify_bag import verify_bag
from ros2_rfm_serving.errors import RfmError

MOST_EXPLAINED, MOST_PICTURES = 200, 60
"""Largest numbers of explained incidents and of pictures, so that a phone can open the page. Other incidents are listed; `rfm audit
explain` explains any moment."""
AFTER_S = 0.1
"""Delay of the explained control period after the begin of an incident, so that the incident affects it."""
FIRST = ("held", "stopped", "failover", "person", "refused")
"""Kinds in order of priority for explanations."""


class Blobs(Protocol):
    def blob(self, sha256: str, /) -> bytes | None: ...


def report(path: Path) -> str:
    """Return the HTML of the report. Raises: `RfmError` when it is not a recording, or empty."""
    bag = Bag(path)
    if not bag.begins_ns:
        raise RfmError(f"{path}: the recording is empty")
    begins_s, ends_s = bag.begins_ns / 1e9, bag.ends_ns / 1e9
    tracks = Tracks().add(_told_messages(bag))
    found = [*incidents(tracks, AuditLog(bag.pages(), ()), bag.pages, ends_s), *altered(verify_bag(bag).findings)]
    found.sort(key=lambda one: (math.isnan(one.at_s), one.at_s))
    chosen = _chosen(found)
    log = AuditLog(bag.pages(), [window(one.at_s) for one in chosen])
    told = list(_told(found, chosen, log, bag))
    shift = Shift(
        name=path.resolve().stem,
        begins_s=begins_s,
        ends_s=ends_s,
        robots=[tracks.robots[name] for name in sorted(tracks.robots)],
        servers=[tracks.servers[name] for name in sorted(tracks.servers)],
        by_task=success(tracks, by_task=True),
        by_robot=success(tracks, by_task=False),
        slos=attained(tracks),
        told=told,
        damages=[*bag.damages, *log.damaged],
    )
    return page(shift)


def _told_messages(bag: Bag) -> Iterator[tuple[str, float, Any]]:
    """Yield type, time (s) and content of the statuses of robots and servers; `damages` names unreadable ones."""
    for one in bag.messages(ROBOT, SERVER, SCORE):
        try:
            yield one.type, one.time_ns / 1e9, bag.read(one)
        except RfmError as error:
            bag.damages[f"{one.topic}: {error}"] = None


def _chosen(found: Iterable[Incident]) -> list[Incident]:
    """Return the incidents to explain: those of robots, in order of priority up to the limit."""
    of_robots = [one for one in found if one.robot and math.isfinite(one.at_s)]
    return sorted(of_robots, key=lambda one: (FIRST.index(one.kind), one.at_s))[:MOST_EXPLAINED]


def _told(found: list[Incident], chosen: list[Incident], log: AuditLog, bag: Blobs) -> Iterator[Told]:
    explained, num_pictures = {id(one) for one in chosen}, 0
    why = {id(one): causes(one, found) for one in found}
    for one in found:
        explanation, problem = _explained(log, one) if id(one) in explained else (None, "")
        pictures = {}
        if explanation is not None and num_pictures < MOST_PICTURES:
            pictures = {image.camera: png for image in explanation.images if (png := as_png(image, bag.blob))}
            num_pictures += len(pictures)
        yield Told(
            incident=one,
            causes=why[id(one)],
            effects=[other for other in found if one in why[id(other)]],
            notes=around(log, one),
            explanation=explanation,
            problem=problem,
            pictures=pictures,
        )


def _explained(log: AuditLog, one: Incident) -> tuple[Explanation | None, str]:
    try:
        return explain(log, one.robot, one.at_s + AFTER_S), ""
    except RfmError as error:
        return None, f"It cannot be explained: {error}"

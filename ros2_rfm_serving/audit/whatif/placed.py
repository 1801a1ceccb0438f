"""Servers in the recorded schedules, from the first to the last, as their journals describe them."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from ros2_rfm_serving.audit.whatif.case import Outage, ServerCase
from ros2_rfm_serving.audit.whatif.robots import RobotRead
from ros2_rfm_serving.audit.whatif.servers import ServerRead
from ros2_rfm_serving.types import Placement, Schedule

Schedules = Sequence[tuple[float, Schedule]]
"""Time of first reception -> schedule."""


@dataclass(frozen=True, kw_only=True)
class Placed:
    servers: Mapping[str, ServerCase]
    gaps: tuple[str, ...]
    """Descriptions of substitutes and omissions."""


def placed(
    schedules: Schedules, servers: Mapping[str, ServerRead], outages: Mapping[str, Sequence[Outage]], robots: Iterable[RobotRead]
) -> Placed:
    """Return the servers of the schedules. outages: of every server that was ever ready, and of every one with a journal.

    A server has the placement of the last schedule that names it. Without a journal it has that of another server with its model.
    """
    found: dict[str, ServerCase] = {}
    gaps = _moved(schedules)
    last = {placement.server for placement in schedules[-1][1].placements}
    sure = _confidences(robots)
    for name, placement in placements_of(schedules).items():
        source = _source(placement, servers, schedules)
        gaps += _gap(name, source, name in servers, name in outages, name in last)
        if source is None or name not in outages or not (source.batches or name in last):
            continue
        out = [piece for one in outages[name] for piece in _within(one, named_s(name, schedules))]
        found[name] = replace(source.case(placement, out), confidences=sure.get(name, ()))
    return Placed(servers=found, gaps=tuple(gaps))


def placements_of(schedules: Schedules) -> dict[str, Placement]:
    """Return the placement of each server in the last schedule that names it."""
    return {placement.server: placement for _, schedule in schedules for placement in schedule.placements}


def named_s(server: str, schedules: Schedules) -> list[tuple[float, float]]:
    """Return the intervals in which a schedule names a server; the first one begins at 0, the last one ends at inf."""
    found: list[tuple[float, float]] = []
    changes_s = (0.0, *(at_s for at_s, _ in schedules[1:]), math.inf)
    for (from_s, until_s), (_, schedule) in zip(pairwise(changes_s), schedules, strict=True):
        if server not in {placement.server for placement in schedule.placements}:
            continue
        goes_on = bool(found) and found[-1][1] == from_s
        found.append((found.pop()[0] if goes_on else from_s, until_s))
    return found


def _within(outage: Outage, periods_s: Iterable[tuple[float, float]]) -> list[Outage]:
    """Return the parts of an outage in intervals with a placement; a server without one has nothing to do, and may be silent."""
    pieces = [Outage(max(outage.from_s, from_s), min(outage.until_s, until_s)) for from_s, until_s in periods_s]
    return [piece for piece in pieces if piece.from_s < piece.until_s]


def _source(placement: Placement, servers: Mapping[str, ServerRead], schedules: Schedules) -> ServerRead | None:
    own = servers.get(placement.server)
    every = placements_of(schedules).values()
    like = (servers[p.server] for p in every if p.model == placement.model and p.server in servers)
    return own or max(like, key=lambda one: len(one.batches), default=None)


def _gap(name: str, source: ServerRead | None, own: bool, there: bool, last: bool) -> list[str]:
    if not there:
        return [f"{name} was planned, and nothing in the recording says that it ever was ready: it is not there"]
    if source is None:
        return [f"{name} has no journal in the recording, nor has another one with its model: it is not there"]
    if not (source.batches or last):
        return [f"{name} ran no batch before the schedule left it out: it is not there"]
    return [] if own else [f"{name} has no journal in the recording: another one with its model stands in for it"]


def _moved(schedules: Schedules) -> list[str]:
    models: defaultdict[str, set[str]] = defaultdict(set)
    for placement in (placement for _, schedule in schedules for placement in schedule.placements):
        models[placement.server].add(placement.model)
    moved = sorted(server for server, of in models.items() if len(of) > 1)
    return [f"{server} changed its model: it has the last one from the beginning" for server in moved]


def _confidences(robots: Iterable[RobotRead]) -> dict[str, tuple[tuple[float, ...], ...]]:
    """Return the confidences of each server's chunks."""
    found: defaultdict[str, list[tuple[float, ...]]] = defaultdict(list)
    for robot in robots:
        for server, sure in robot.confidences.items():
            found[server] += sure
    return {server: tuple(sure) for server, sure in found.items()}

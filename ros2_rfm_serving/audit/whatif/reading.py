"""Conversion of a recording into a case, with the recording's own figures."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ros2_rfm_serving.audit.bag import Bag
from ros2_rfm_serving.audit.replay import DAMAGED
from ros2_rfm_serving.audit.whatif.case import Case, Outage
from ros2_rfm_serving.audit.whatif.chains import chains_of
from ros2_rfm_serving.audit.whatif.figures import Figures, figures
from ros2_rfm_serving.audit.whatif.placed import placed, placements_of
from ros2_rfm_serving.audit.whatif.robots import Asked, Key, RobotRead, robots_of
from ros2_rfm_serving.audit.whatif.servers import ServerRead, outages_of, servers_of
from ros2_rfm_serving.errors import RfmError
from ros2_rfm_serving.types import SYSTEM1, Schedule, ServerState

ROBOT_STATUS, SERVER_STATUS = "rfm_serving/msg/RobotStatus", "rfm_serving/msg/ServerStatus"
SETTLES_S = 2.0
"""Time after the first chunk that figures exclude."""
RECORD = "record with `rfm record` or `rfm up --record` while they run, as the first who does: it takes a beginning"


@dataclass(frozen=True, kw_only=True)
class Recording:
    case: Case
    figures: Figures
    """Figures of the recording itself."""


def recording(bag: Bag) -> Recording:
    """Return the case in a recording. Raises: `RfmError` when it lacks inputs of a replay, or has malformed records."""
    try:
        return _recording(bag)
    except DAMAGED as error:
        what = f"{type(error).__name__}: {error}"[:200]
        raise RfmError(
            f"{bag.path}: its audit log cannot be read ({what}); `rfm audit verify` says where it was changed"
        ) from error


def _recording(bag: Bag) -> Recording:
    chains = chains_of(bag.pages())
    begins_s = chains[0].begins_s if chains else 0.0
    held, ready = _statuses(bag, begins_s)
    robots, servers = robots_of(chains, held), servers_of(chains)
    if not (any(robot.ticks for robot in robots.values()) and servers):
        missing = "server" if robots else "robot"
        raise RfmError(f"{bag.path}: no {missing}'s journal is in it; {RECORD}")
    seconds = max(robot.ticks[-1].at_s for robot in robots.values() if robot.ticks)
    schedules = _schedules(list(robots.values()))
    outages = _outages({*servers, *placements_of(schedules)}, servers, ready, robots.values(), seconds)
    there = placed(schedules, servers, outages, robots.values())
    _refuse_unheard(bag, robots.values(), there.servers)
    case = Case(
        seconds=seconds,
        warm_up_s=_settled_s(robots.values(), seconds),
        robots={name: robot.case(_arrived(servers, outages)) for name, robot in robots.items()},
        servers=there.servers,
        schedules=tuple(schedules),
        gaps=(*there.gaps, *_unknown(servers)),
    )
    logs = [robot.log for robot in robots.values()]
    batches = [(batch.at_s, batch.rows) for server in servers.values() for batch in server.batches]
    return Recording(case=case, figures=figures(logs, case.slos_s, batches, case.warm_up_s, case.seconds))


def _statuses(bag: Bag, begins_s: float) -> tuple[dict[str, list[float]], dict[str, list[tuple[float, bool]]]]:
    """Return, by robot, times without an action to execute; and by server, times of its statuses and whether it was ready."""
    held: defaultdict[str, list[float]] = defaultdict(list)
    ready: defaultdict[str, list[tuple[float, bool]]] = defaultdict(list)
    counts: dict[str, int] = {}
    for message in bag.messages(ROBOT_STATUS, SERVER_STATUS):
        said, at_s = bag.read(message), message.time_ns / 1e9 - begins_s
        name = said.header.frame_id
        if message.type == SERVER_STATUS:
            ready[name].append((at_s, said.state == ServerState.READY))
            continue
        held[name] += [at_s] * max(0, said.held_ticks - counts.get(name, said.held_ticks))
        counts[name] = said.held_ticks
    return held, ready


def _signs(server: str, robots: Iterable[RobotRead]) -> list[tuple[float, bool]]:
    """Return the times of replies as evidence of readiness, because the recorder may discover a server later than its robots."""
    trips = [(robot.asked[key], trip_s) for robot in robots for key, (trip_s, _) in robot.trips.items()]
    return [(asked.at_s + trip_s, True) for asked, trip_s in trips if asked.server == server]


def _outages(
    names: Iterable[str],
    journals: Collection[str],
    ready: Mapping[str, Sequence[tuple[float, bool]]],
    robots: Iterable[RobotRead],
    seconds: float,
) -> dict[str, list[Outage]]:
    """Return the outages of servers with a journal, and of those that were ever ready."""
    signs = {name: sorted([*ready.get(name, ()), *_signs(name, robots)]) for name in names}
    known = {name: of for name, of in signs.items() if name in journals or any(is_ready for _, is_ready in of)}
    return {name: outages_of(of, seconds) for name, of in known.items()}


def _schedules(robots: Sequence[RobotRead]) -> list[tuple[float, Schedule]]:
    """Return the schedules with the times of their first reception. Raises: `RfmError` without a schedule."""
    heard: dict[tuple[int, int], tuple[float, Schedule]] = {}
    for at_s, schedule in (found for robot in robots for found in robot.schedules):
        key = (schedule.scheduler, schedule.epoch)
        heard[key] = min(heard.get(key, (at_s, schedule)), (at_s, schedule), key=lambda one: one[0])
    if not heard:
        raise RfmError("no robot heard a schedule while this was recorded; record once the factory is at work")
    return sorted(heard.values(), key=lambda one: one[0])


def _refuse_unheard(bag: Bag, robots: Iterable[RobotRead], servers: Collection[str]) -> None:
    """Check that servers with chunks have a journal, or share their model with one that has. Raises: `RfmError` otherwise."""
    answered = {robot.asked[key].server for robot in robots for key in robot.trips if key[1] == SYSTEM1}
    if lacking := sorted(answered.difference(servers)):
        problem = f"no journal of {', '.join(lacking)} is in it, nor of another server with its model, and robots had chunks of it"
        raise RfmError(f"{bag.path}: {problem}; {RECORD}")


def _unknown(servers: Mapping[str, ServerRead]) -> list[str]:
    return [
        *(
            f"{name} sent {read.overflowed} batches to the tier that it overflows to: that is not replayed, its own GPU gets them"
            for name, read in servers.items()
            if read.overflowed
        ),
        *(
            f"{name} got other parameters at work: it has the first ones throughout"
            for name, read in servers.items()
            if read.reconfigured
        ),
    ]


def _arrived(servers: Mapping[str, ServerRead], outages: Mapping[str, Sequence[Outage]]) -> Any:
    """Return a check whether a request without a reply is no evidence of a loss on the network."""

    def arrived(key: Key, asked: Asked) -> bool:
        server = servers.get(asked.server)
        out = any(from_s - 1.0 <= asked.at_s <= until_s for from_s, until_s in outages.get(asked.server, ()))
        return server is None or out or key in server.arrived or not server.arrived

    return arrived


def _settled_s(robots: Any, seconds: float) -> float:
    firsts_s = [robot.log.chunks[0] for robot in robots if robot.log.chunks]
    return min(min(firsts_s, default=0.0) + SETTLES_S, seconds / 2)

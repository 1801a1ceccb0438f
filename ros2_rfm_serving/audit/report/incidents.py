"""Incidents and operator commands of a shift: each with its time, the affected process, and the stated reason."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from ros2_rfm_serving.audit.chain import OPERATOR_COMMAND, Page
from ros2_rfm_serving.audit.findings import Finding, Kind
from ros2_rfm_serving.audit.log import ROBOT, AuditLog, Entry, mapping
from ros2_rfm_serving.audit.report.tracks import RobotTrack, State, Track, Tracks
from ros2_rfm_serving.audit.verify import verify

Pages = Callable[[], Iterable[Page]]

SILENT_S = 3.0
"""Time without a message after which a process counts as lost; robots and servers publish twice a second."""
BURST_S = 5.0
"""Largest distance in time of refusals of one robot or server that form one incident."""
WRONG = ("DEGRADED", "STALLED", "RECONNECTING", "DEAD")
SERVER_WRONG = ("FAILED", "HUNG", "DRAINING")


@dataclass(frozen=True, kw_only=True)
class Incident:
    at_s: float
    """ROS time; NaN if unknown."""
    kind: str
    """One of held, stopped, failover, refused, server, person, recorder and audit log."""
    who: str
    """Robot, server or writer."""
    what: str
    why: str = ""
    until_s: float = math.nan
    """End; NaN for a moment, or if it lasted until the end."""
    robot: str = ""
    """Robot whose explanation applies; empty without one."""
    server: str = ""
    """Affected server."""


def incidents(tracks: Tracks, log: AuditLog, pages: Pages, ends_s: float) -> list[Incident]:
    """Return the incidents of all kinds, by time."""
    found: list[Incident] = []
    for robot in tracks.robots.values():
        found += [*_of_states(robot, _states(robot, log)), *_failovers(robot), *_refusals(robot, robot.name)]
    for server in tracks.servers.values():
        found += [*_of_server(server, ends_s), *_refusals(server, "")]
    found += [*_words(log), *_recorders(log), *_flaws(pages)]
    return sorted(found, key=lambda one: (math.isnan(one.at_s), one.at_s))


def _states(robot: RobotTrack, log: AuditLog) -> list[State]:
    """Return the states from the audit log if it has them, which are exact and have their reasons, or else from the statuses."""
    changes = log.of(ROBOT + robot.name, "transition")
    return [_state(one) for one in changes] if changes else robot.states


def _state(change: Entry) -> State:
    to = mapping(change.body.get("to"))
    return State(
        change.stamp_s,
        str(to.get("state", "")),
        str(to.get("phase", "")).upper(),
        bool(to.get("paused")),
        str(change.body.get("reason", "")),
    )


def _of_states(robot: RobotTrack, states: list[State]) -> Iterator[Incident]:
    """Yield each interval with one and the same problem."""
    since: State | None = None
    for state in states:
        kind = _wrong(state)
        if since is not None and kind != _wrong(since):
            yield _stretch(robot.name, since, state.at_s)
            since = None
        if kind[0] and since is None:
            since = state
    if since is not None:
        yield _stretch(robot.name, since, math.nan)


def _wrong(state: State) -> tuple[str, str]:
    """Return kind and description of a problem; empty without one."""
    if state.paused:
        return "person", "paused"
    if state.phase in ("STOPPED", "WAITING"):
        return "stopped", "stopped by a fallback" if state.phase == "STOPPED" else "waits for a person"
    if state.state in WRONG and state.phase in ("EXECUTING", ""):
        return "held", state.state
    return "", ""


def _stretch(robot: str, since: State, until_s: float) -> Incident:
    kind, what = _wrong(since)
    return Incident(at_s=since.at_s, until_s=until_s, kind=kind, who=robot, what=what, why=since.reason, robot=robot)


def _failovers(robot: RobotTrack) -> Iterator[Incident]:
    server = ""
    for state in robot.states:
        if server and state.server and state.server != server:
            what = f"from {server} to {state.server}"
            yield Incident(at_s=state.at_s, kind="failover", who=robot.name, what=what, robot=robot.name, server=server)
        server = state.server or server


def _refusals(track: Track, robot: str) -> Iterator[Incident]:
    told = sorted((at_s, reason, more) for reason, times in track.refused.items() for at_s, more in times)
    for burst in _bursts(told):
        begin_s, end_s, counts = burst[0][0], burst[-1][0], Counter[str]()
        for _, reason, more in burst:
            counts[reason] += more
        until_s = end_s if end_s > begin_s else math.nan
        what = ", ".join(f"{count} x {reason}" for reason, count in counts.most_common())
        yield Incident(at_s=begin_s, until_s=until_s, kind="refused", who=track.name, what=what, robot=robot)


def _bursts(told: list[tuple[float, str, int]]) -> list[list[tuple[float, str, int]]]:
    found: list[list[tuple[float, str, int]]] = []
    for one in told:
        if found and one[0] - found[-1][-1][0] <= BURST_S:
            found[-1].append(one)
        else:
            found.append([one])
    return found


def _of_server(server: Track, ends_s: float) -> Iterator[Incident]:
    for number, state in enumerate(server.states):
        if state.state in SERVER_WRONG:
            until_s = server.states[number + 1].at_s if number + 1 < len(server.states) else math.nan
            yield _at_server(server.name, state.at_s, until_s, state.state, state.reason)
    for before_s, after_s in silences(server, ends_s):
        until_s = after_s if after_s < ends_s else math.nan
        yield _at_server(server.name, before_s, until_s, "lost: it said nothing any more", "")


def silences(track: Track, ends_s: float) -> list[tuple[float, float]]:
    """Return the intervals from a message to the next one, or to the end of the recording, that are too long."""
    pairs = zip(track.seen_s, [*track.seen_s[1:], ends_s], strict=True)
    return [(before_s, after_s) for before_s, after_s in pairs if after_s - before_s > SILENT_S]


def _at_server(server: str, at_s: float, until_s: float, what: str, why: str) -> Incident:
    return Incident(at_s=at_s, until_s=until_s, kind="server", who=server, what=what, why=why, server=server)


def _words(log: AuditLog) -> Iterator[Incident]:
    for entry in log.between(-math.inf, math.inf, OPERATOR_COMMAND):
        robot = entry.writer.removeprefix(ROBOT) if entry.writer.startswith(ROBOT) else ""
        what = f"{entry.body.get('operator') or 'an operator'}: {entry.body.get('command', '')}"
        answer = f"{'done' if entry.body.get('done') else 'refused'}: {entry.body.get('answer') or ''}".rstrip(": ")
        yield Incident(at_s=entry.stamp_s, kind="person", who=robot or entry.writer, what=what, why=answer, robot=robot)


def _recorders(log: AuditLog) -> Iterator[Incident]:
    for writer in log.by_writer:
        for entry in log.of(writer, "lost", "disk", "damaged", "removed"):
            body = entry.body
            about = body.get("topic") or body.get("writer") or body.get("file") or ""
            what = {"lost": f"{body.get('count')} messages or records of {about} lost", "removed": f"{about} removed"}
            why = str(body.get("why") or body.get("problem") or "")
            if entry.kind != "disk" or why:
                yield Incident(
                    at_s=entry.stamp_s, kind="recorder", who=writer, what=what.get(entry.kind, f"{entry.kind} {about}"), why=why
                )


def _flaws(pages: Pages) -> Iterator[Incident]:
    for flaw in verify(pages).flaws:
        what = f"record {flaw.number} of chain {flaw.run:016x}: {flaw.problem}"
        yield Incident(at_s=math.nan, kind="audit log", who=flaw.writer, what=what)


def altered(findings: Iterable[Finding]) -> list[Incident]:
    """Return the changes to messages and files after the recording: one incident per topic or file and kind, from the first to the
    last affected message."""
    groups: defaultdict[tuple[str, str, Kind], list[Finding]] = defaultdict(list)
    for one in findings:
        groups[one.topic, one.file, one.kind].append(one)
    return [_incident_of(topic or file, kind, found) for (topic, file, kind), found in groups.items()]


def _incident_of(who: str, kind: Kind, found: list[Finding]) -> Incident:
    times = sorted(one.time_ns / 1e9 for one in found if one.time_ns)
    what = f"{len(found)} messages {kind.value}" if len(found) > 1 else f"{'message ' if times else ''}{kind.value}"
    until_s = times[-1] if len(times) > 1 else math.nan
    return Incident(
        at_s=times[0] if times else math.nan, until_s=until_s, kind="audit log", who=who, what=what, why=found[0].problem
    )

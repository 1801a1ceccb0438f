"""Audit log of a recording for queries: by time, by writer, and by request.

Clocks of writers are aligned by the ROS time that they record now and then (`stamp`), for display only. Records that belong
together are found by the key of a request, never by time.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from ros2_rfm_serving.audit.chain import Page, check_format, records
from ros2_rfm_serving.audit.runs import Run, RunLog
from ros2_rfm_serving.errors import RfmError

ROBOT, SERVER, SCHEDULER = "robot/", "server/", "scheduler"
FREQUENT = frozenset({"tick", "event", "request", "batch", "reply", "snapshot"})
"""Kinds with thousands of records, which are kept only within the windows of a query."""
MILESTONES = frozenset(
    {
        "TaskStarted",
        "TaskFinished",
        "TaskCanceled",
        "PauseRequested",
        "ResumeRequested",
        "AbortRequested",
        "ServerLost",
        "SessionOpened",
        "ConfigurationChanged",
    }
)
"""Events of a robot that matter long after they happened; they are kept, as transitions are."""
DROPPED = frozenset({"t", "kind", "hash", "state"})
"""Keys of a record that an entry has as fields, or that fill the memory, such as the state of a core."""
Windows = Iterable[tuple[float, float]]
"""Begin and end of each window in ROS time, s."""


class Key(NamedTuple):
    """Key of a request, and of everything that it caused."""

    robot: str
    component: str
    session_epoch: int
    episode: int
    sequence: int


class Entry(NamedTuple):
    """One record."""

    writer: str
    run: int
    stamp_s: float
    """ROS time by the clock of its writer; NaN if unknown."""
    t_s: float
    """Time on the writer's monotonic clock."""
    kind: str
    body: Mapping[str, Any]


class AuditLog:
    """Entries of every writer in the order in which it wrote them."""

    def __init__(self, pages: Iterable[Page], windows: Windows | None = None) -> None:
        """Read the pages. windows: bounds of the entries of frequent kinds; None keeps all. `damaged` names invalid pages.

        Raises: `RfmError` for a recording of another format.
        """
        self.by_writer: dict[str, list[Entry]] = defaultdict(list)
        self.damaged: list[str] = []
        self._windows = None if windows is None else _joined(windows)
        self._followed: dict[tuple[str, int], tuple[str, str, str]] = {}
        runs = RunLog()
        for entry in _entries(pages, self.damaged):
            runs.add(entry.writer, entry.run, entry.stamp_s, entry.t_s, entry.kind, entry.body)
            if self._is_wanted(entry):
                self.by_writer[entry.writer].append(entry)
        self.runs: Mapping[str, list[Run]] = runs.by_writer()
        """Chains of each writer by time, whatever the windows."""
        for entries in self.by_writer.values():
            entries.sort(key=lambda one: (math.isnan(one.stamp_s), one.stamp_s))  # stable: keeps a chain's order
        self._of: dict[tuple[str, ...], list[Entry]] = {}
        self._about: dict[tuple[str, str], dict[Key, Entry]] = {}
        self.requests, self.replies = _asked(self), _answered(self)

    def _is_wanted(self, entry: Entry) -> bool:
        if self._windows is None or entry.kind not in FREQUENT or event_name(entry) in MILESTONES:
            return True
        if event_name(entry) == "ScheduleReceived" and self._is_another_schedule(entry):
            return True
        at = bisect_right(self._windows, (entry.stamp_s, math.inf)) - 1
        return at >= 0 and entry.stamp_s <= self._windows[at][1]

    def _is_another_schedule(self, received: Entry) -> bool:
        """Return whether a received schedule, or the robot's verdict on it, differs from the one before. A schedule is repeated
        every two seconds: the first copy is kept, and so is the first with another verdict, such as a refused one that is now
        followed."""
        schedule, writer = mapping(event_of(received).get("schedule")), (received.writer, received.run)
        named = str(schedule.get("scheduler")), str(schedule.get("epoch")), str(received.body.get("result"))
        known, self._followed[writer] = self._followed.get(writer), named
        return named != known

    def process_of(self, entry: Entry) -> int:
        """Return the number of the process that wrote an entry, among those of its writer; 0 if unknown."""
        return next((run.process for run in self.runs.get(entry.writer, ()) if run.run == entry.run), 0)

    @property
    def ends_s(self) -> float:
        """Return the ROS time of the last record of any writer; -inf without records."""
        return max((run.ends_s for runs in self.runs.values() for run in runs), default=-math.inf)

    @property
    def robots(self) -> list[str]:
        return sorted(name.removeprefix(ROBOT) for name in self.by_writer if name.startswith(ROBOT))

    def of(self, writer: str, *kinds: str) -> list[Entry]:
        """Return the entries of a writer, of these kinds or of all kinds."""
        key = (writer, *kinds)
        if key not in self._of:
            self._of[key] = [entry for entry in self.by_writer.get(writer, []) if not kinds or entry.kind in kinds]
        return self._of[key]

    def within(self, writer: str, since_s: float, until_s: float, *kinds: str) -> list[Entry]:
        """Return the entries of a writer between two times, both inclusive."""
        found = self.of(writer, *kinds)
        return found[bisect_left(found, since_s, key=_stamp) : bisect_right(found, until_s, key=_stamp)]

    def last(self, writer: str, until_s: float, *kinds: str) -> Entry | None:
        """Return the last entry up to a time, inclusive; None if there is none."""
        found = self.of(writer, *kinds)
        at = bisect_right(found, until_s, key=_stamp)
        return found[at - 1] if at else None

    def between(self, since_s: float, until_s: float, *kinds: str) -> list[Entry]:
        """Return the entries of all writers between two times, both inclusive, by time."""
        found = (entry for writer in list(self.by_writer) for entry in self.within(writer, since_s, until_s, *kinds))
        return sorted(found, key=_stamp)

    def about(self, writer: str, kind: str, key: Key) -> Entry | None:
        """Return the first entry of a kind that concerns a request; None if there is none."""
        if (writer, kind) not in self._about:
            index = self._about[writer, kind] = {}
            for entry in self.of(writer, kind):
                for one in keys_in(entry):
                    index.setdefault(one, entry)
        return self._about[writer, kind].get(key)


def _stamp(entry: Entry) -> float:
    """Return the time of an entry for bisection; entries without a time come last."""
    return math.inf if math.isnan(entry.stamp_s) else entry.stamp_s


def _joined(windows: Windows) -> list[tuple[float, float]]:
    """Return the windows by time, with overlapping ones merged."""
    found: list[tuple[float, float]] = []
    for since_s, until_s in sorted(windows):
        if found and since_s <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], until_s)
        else:
            found.append((since_s, until_s))
    return found


def keys_in(entry: Entry) -> tuple[Key, ...]:
    """Return the keys of the requests that a server's record concerns."""
    if entry.kind == "batch":
        return tuple(key_of(one) for one in several(mapping(entry.body.get("result")).get("requests")))
    found = entry.body.get("request") or event_of(entry).get("request")
    return (key_of(mapping(found).get("id") or found),) if isinstance(found, Mapping) else ()


def refusal_of(entry: Entry) -> tuple[str, str] | None:
    """Return the counter and the reason of a refused request, by a server's record of it; None if it was not refused."""
    event = event_of(entry)
    if event_name(entry) == "RequestRejected":
        return str(event.get("counter")), str(event.get("problem"))
    raised = entry.body.get("raised")
    return None if raised is None else (str(entry.body.get("counter") or ""), str(raised))


def event_of(entry: Entry) -> Mapping[str, Any]:
    """Return the event in an entry, as it was recorded; empty if it has none."""
    return mapping(entry.body.get("event"))


def event_name(entry: Entry) -> str:
    """Return the name of the event in an entry; empty if it has none."""
    return str(event_of(entry).get("~", ""))


def key_of(found: Any, robot: str = "") -> Key:
    """Return the key of any part of a record that names a request. `robot`: default name. Missing names are empty, numbers -1."""
    told = mapping(found)
    numbers = (_number(told.get(name)) for name in ("session_epoch", "episode", "sequence"))
    return Key(str(told.get("robot") or robot), str(told.get("component") or "system1"), *numbers)


def _number(found: Any) -> int:
    return found if isinstance(found, int) else -1


def mapping(found: Any) -> Mapping[str, Any]:
    """Return a mapping, or an empty one in place of any other value."""
    return found if isinstance(found, Mapping) else {}


def several(found: Any) -> list[Any]:
    """Return a list, or an empty one in place of any other value."""
    return found if isinstance(found, list) else []


def real(found: Any) -> float:
    """Return a number of a record; NaN in place of any other value."""
    if isinstance(found, Mapping) and found.get("~") == "float":
        found = found.get("is")
    try:
        return float(found)
    except (TypeError, ValueError):
        return math.nan


def _entries(pages: Iterable[Page], damaged: list[str]) -> Iterator[Entry]:
    """Read one page at a time, because a long recording does not fit into memory. Raises: `RfmError` for another format."""
    clocks: dict[tuple[str, int], _Clock] = {}
    for page in pages:
        clock = clocks.setdefault((page.writer, page.run), _Clock(page.writer, page.run))
        try:
            found = list(records(page))
        except RfmError as error:
            damaged.append(str(error))
            continue
        for record in found:
            check_format(page.writer, record)
            yield from clock.stamped(record)
    for clock in clocks.values():
        yield from clock.rest()


class _Clock:
    """Clock offset of one chain. A recorded ROS time holds until the next one, and also for all records before the first one."""

    def __init__(self, writer: str, run: int) -> None:
        self._writer, self._run = writer, run
        self._offset_s = math.nan
        self._early: list[dict[str, Any]] = []

    def stamped(self, record: dict[str, Any]) -> Iterator[Entry]:
        if "stamp" in record:
            self._offset_s = real(record["stamp"]) - real(record.get("t"))
        if math.isnan(self._offset_s):
            self._early.append(record)
            return
        yield from self.rest()
        yield self._entry(record)

    def rest(self) -> Iterator[Entry]:
        early, self._early = self._early, []
        return map(self._entry, early)

    def _entry(self, record: dict[str, Any]) -> Entry:
        t_s = real(record.get("t"))
        body = {name: value for name, value in record.items() if name not in DROPPED}
        return Entry(self._writer, self._run, t_s + self._offset_s, t_s, str(record.get("kind", "")), body)


def _asked(log: AuditLog) -> dict[Key, tuple[Entry, Mapping[str, Any]]]:
    """Return, for each request, the control period that sent it and the recorded request."""
    return {
        key_of(request, robot): (entry, mapping(request))
        for robot in log.robots
        for entry in log.of(ROBOT + robot, "tick")
        for request in several(entry.body.get("requests"))
    }


def _answered(log: AuditLog) -> dict[Key, Entry]:
    """Return, for each request, the entry of its first reply, which is the one that counts."""
    found: dict[Key, Entry] = {}
    for robot in log.robots:
        for entry in log.of(ROBOT + robot, "event"):
            if event_name(entry) == "ReplyReceived":
                found.setdefault(key_of(reply_of(entry).get("id"), robot), entry)
    return found


def reply_of(entry: Entry) -> Mapping[str, Any]:
    """Return the reply that a robot received, as it was recorded."""
    return mapping(event_of(entry).get("reply"))

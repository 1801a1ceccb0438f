"""Events of a factory and their reasons, derived from successive observations of its board."""

from __future__ import annotations

import itertools
import math
from collections import deque
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ros2_rfm_serving.monitoring.activity import STOPPED, WAITING, shown_state
from ros2_rfm_serving.monitoring.board import Board, RobotRow, ServerRow
from ros2_rfm_serving.monitoring.explanations import explanation
from ros2_rfm_serving.types import Route
from ros2_rfm_serving.types.schedule_follower import SILENT_AFTER_S

KEPT = 400
"""Number of events that are kept for pages opened later."""
REFUSED_PERIOD_S = 10.0
"""Period in which refusals of one process for one reason give one event."""
SETTLES_S = 10.0
"""Time after the start in which a process that is received for the first time counts as present before."""
MAX_CHARACTERS = 300
"""Maximum length of texts from the graph in one event."""
HELD_PERIODS = 5
"""Minimum number of held control periods, over at least two successive statuses, from which a robot counts as held."""
MAX_MOVES = 6
"""Maximum number of routes in an event of a new schedule."""
CAUSES = ("lost", "state", "stopped", "held", "refused", "task", "schedule", "order")
GOOD, NEWS, WARNING, ERROR = "good", "news", "warning", "error"
LEVELS = {"STREAMING": GOOD, "STALLED": ERROR, "DEAD": ERROR, "ready": GOOD, "failed": ERROR, "hung": ERROR}
"""Levels of states; any other state is a warning."""


class Event(NamedTuple):
    number: int
    """Number, counted from 1."""
    time_s: float
    """Unix time for display; it enters no computation."""
    level: str
    kind: str
    """Kind of `name`: robot, server, schedule or person."""
    name: str
    what: str
    why: str
    cause: str
    """Category for filters, one of `CAUSES`."""
    help: str
    """Key of `explanation`; empty: there is nothing to explain."""


@dataclass
class _Seen:
    """State of a robot or a server at the last observation."""

    seen_s: float = -math.inf
    stale: bool = True
    heard: bool = False
    words: tuple[Any, ...] = ()
    counted: int = 0
    """Held periods of a robot, replies of a server."""
    held_at: int = 0
    """Held periods when it began to hold, if `holds`."""
    holds: bool = False
    told_holding: bool = False
    failovers: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    told_s: dict[str, float] = field(default_factory=dict)
    """Reason -> time of the last event about its refusals."""


class EventLine:
    """Log of events, newest last. Initial states are no events."""

    def __init__(self) -> None:
        self._events: deque[Event] = deque(maxlen=KEPT)
        self._numbers = itertools.count(1)
        self._robots: dict[str, _Seen] = {}
        self._servers: dict[str, _Seen] = {}
        self._schedule = (0, 0)
        self._routes: dict[tuple[str, str], Route] = {}
        self._scheduler_silent = self._disputed = False
        self._unproven = _Seen()
        self._began_s, self._settles = math.inf, True
        self._time_s = 0.0

    def since(self, number: int) -> list[Event]:
        """Return the events after the one with this number."""
        return [event for event in self._events if event.number > number]

    @property
    def last(self) -> int:
        return self._events[-1].number if self._events else 0

    def add(self, level: str, kind: str, name: str, what: str, why: str = "", *, cause: str = "order", help: str = "") -> None:
        """Append an event. cause: one of `CAUSES`. help: a key of `explanation`."""
        number, about, said = next(self._numbers), name[:MAX_CHARACTERS], why[:MAX_CHARACTERS]
        self._events.append(Event(number, self._time_s, level, kind, about, what, said, cause, help))

    def look(self, board: Board, now_s: float, time_s: float) -> None:
        """Append the events since the last observation. now_s: board's clock. time_s: Unix time."""
        self._time_s, self._began_s = time_s, min(self._began_s, now_s)
        self._settles = now_s - self._began_s < SETTLES_S
        self._look_at_schedule(board, now_s)
        self._look_at_proofs(board, now_s)
        for name, robot in board.robots.items():
            self._look_at_robot(name, robot, now_s, left=board.has_left(name, now_s))
        for name, server in board.servers.items():
            self._look_at_server(name, server, now_s)
        for seen, there in ((self._robots, board.robots), (self._servers, board.servers)):
            for name in [name for name in seen if name not in there]:
                del seen[name]

    # --- schedule ---

    def _look_at_schedule(self, board: Board, now_s: float) -> None:
        silent = board.schedule_seen_s > -math.inf and now_s - board.schedule_seen_s > SILENT_AFTER_S
        if silent and not self._scheduler_silent:
            why = f"no schedule for {SILENT_AFTER_S:g} s; robots and servers go on with the last one"
            self.add(ERROR, "schedule", "", "scheduler lost", why, cause="schedule", help="scheduler")
        elif self._scheduler_silent and not silent:
            self.add(GOOD, "schedule", "", "scheduler back", cause="schedule")
        self._scheduler_silent = silent
        disputed = now_s - board.disputed_s <= SILENT_AFTER_S
        if disputed and not self._disputed:
            why = "another one publishes schedules here, too; the page shows that of the first: `rfm why` names both"
            self.add(ERROR, "schedule", "", "two schedulers", why, cause="schedule", help="scheduler")
        elif self._disputed and not disputed:
            self.add(GOOD, "schedule", "", "one scheduler again", cause="schedule")
        self._disputed = disputed
        schedule = (board.scheduler, board.placed_epoch)
        if schedule == self._schedule:
            return
        routes = {(route.robot, route.component): route for route in board.routes}
        if any(self._schedule):
            successor = "by another scheduler; " if schedule[0] != self._schedule[0] else ""
            why = successor + _changes(self._routes, routes)
            self.add(NEWS, "schedule", f"schedule {schedule[1]}", "replanned", why, cause="schedule")
        self._schedule, self._routes = schedule, routes

    def _look_at_proofs(self, board: Board, now_s: float) -> None:
        """Append events about senders that are not part of the factory."""
        for name in _more(board.unproven, self._unproven, now_s):
            kind = "robot" if name in board.robots else "server" if name in board.servers else "schedule"
            why = f"{board.unproven[name]} in all are not by its certificate, or of another process"
            about = name if kind != "schedule" else ""
            self.add(ERROR, kind, about, "unproven messages, not shown", why, cause="refused", help="unproven")
        self._unproven.refused = board.unproven

    # --- robots ---

    def _look_at_robot(self, name: str, row: RobotRow, now_s: float, *, left: bool) -> None:
        seen, stale = self._robots.setdefault(name, _Seen()), row.is_stale(now_s)
        why = f"silent for {now_s - row.seen_s:.0f} s"
        if self._presence("robot", name, seen, stale, why, left=left) or stale:
            return self._remember_robot(seen, row)
        if row.seen_s == seen.seen_s:
            return None
        told = self.last
        if self._robot_words(row) != seen.words:
            self._robot_changed(name, row, seen.words)
        if len(row.failovers) > seen.failovers:
            newest = row.failovers[-1]
            why = f"{newest.lost} was lost; streams from {newest.server}"
            self.add(WARNING, "robot", name, "turned to its standby", why, cause="lost")
        self._held(name, row, seen, already=self.last > told)
        self._refused("robot", name, row.refused, seen, now_s)
        return self._remember_robot(seen, row)

    @staticmethod
    def _robot_words(row: RobotRow) -> tuple[Any, ...]:
        return row.state, row.paused, row.phase if row.phase in (WAITING, STOPPED) else "", row.task

    def _remember_robot(self, seen: _Seen, row: RobotRow) -> None:
        seen.words, seen.counted, seen.failovers = self._robot_words(row), row.held_ticks, len(row.failovers)
        seen.refused, seen.seen_s = row.refused, row.seen_s

    def _robot_changed(self, name: str, row: RobotRow, before: tuple[Any, ...]) -> None:
        state, paused, phase, _ = before
        if row.state != state:
            word, level = shown_state(row.state, row.phase).lower(), LEVELS.get(row.state, WARNING)
            self.add(level, "robot", name, word, row.reason, cause="state", help="" if level == GOOD else word)
        if row.paused != paused:
            self.add(NEWS, "robot", name, "paused" if row.paused else "resumed", cause="stopped")
        if row.phase != phase and row.phase == WAITING:
            self.add(ERROR, "robot", name, "waits for a person", row.stop_reason, cause="stopped", help=WAITING)
        elif row.phase != phase and row.phase == STOPPED:
            self.add(WARNING, "robot", name, "stopped", row.stop_reason, cause="stopped", help=STOPPED)

    def _held(self, name: str, row: RobotRow, seen: _Seen, *, already: bool) -> None:
        """Append the beginning or end of a hold. A period or two at the beginning of an episode are normal.
        already: this observation has reported its reason already."""
        more = row.held_ticks > seen.counted
        if more and not seen.holds:
            seen.held_at = seen.counted
        elif more and not seen.told_holding and row.held_ticks - seen.held_at >= HELD_PERIODS:
            seen.told_holding = True
            if not already:
                why = row.stop_reason or row.reason or "no action that may be executed"
                self.add(WARNING, "robot", name, "held", why, cause="held", help="held")
        elif not more and seen.told_holding:
            seen.told_holding = False
            why = f"after {row.held_ticks - seen.held_at} held control periods"
            self.add(GOOD, "robot", name, "moves again", why, cause="held")
        seen.holds = more

    # --- servers ---

    def _look_at_server(self, name: str, row: ServerRow, now_s: float) -> None:
        seen, stale = self._servers.setdefault(name, _Seen()), row.is_stale(now_s)
        why = "its liveliness ended" if row.lost else f"silent for {now_s - row.seen_s:.0f} s"
        if not self._presence("server", name, seen, stale, why) and not stale:
            if row.served < seen.counted:
                self.add(WARNING, "server", name, "restarted", "it counts its replies anew", cause="lost")
            if seen.words and seen.words != (row.state,):
                self.add(LEVELS.get(row.state, WARNING), "server", name, row.state, row.detail, cause="state")
            self._refused("server", name, row.refused, seen, now_s)
        seen.words, seen.counted, seen.refused = (row.state,), row.served, row.refused

    # --- robots and servers ---

    def _presence(self, kind: str, name: str, seen: _Seen, stale: bool, why: str, *, left: bool = False) -> bool:
        """Append the arrival or loss of a process and return whether there was one. left: it is no longer expected."""
        if stale == seen.stale:
            return False
        if left:
            self.add(NEWS, kind, name, "left", "no schedule has a route of it", cause="lost")
        elif stale:
            self.add(ERROR, kind, name, "lost", why, cause="lost", help="lost")
        elif seen.heard:
            self.add(GOOD, kind, name, "back", cause="lost")
        elif not self._settles:
            self.add(NEWS, kind, name, "heard for the first time", cause="lost")
        seen.stale, seen.heard = stale, True
        return True

    def _refused(self, kind: str, name: str, refused: dict[str, int], seen: _Seen, now_s: float) -> None:
        for reason in _more(refused, seen, now_s):
            why = f"{explanation(reason).meaning} ({reason}, {refused[reason]} in all)"
            self.add(WARNING, kind, name, "refused", why, cause="refused", help=reason)


def _more(counts: dict[str, int], seen: _Seen, now_s: float) -> list[str]:
    """Return the reasons whose counts have grown since the last observation, each once in `REFUSED_PERIOD_S`."""
    if counts == seen.refused:
        return []
    for reason in seen.told_s.keys() - counts.keys():
        del seen.told_s[reason]
    more = [
        reason
        for reason, count in counts.items()
        if count > seen.refused.get(reason, 0) and now_s - seen.told_s.get(reason, -math.inf) > REFUSED_PERIOD_S
    ]
    seen.told_s.update(dict.fromkeys(more, now_s))
    return more


def _changes(before: dict[tuple[str, str], Route], after: dict[tuple[str, str], Route]) -> str:
    """Return the changes between two schedules as text."""
    robots = [{robot for robot, _ in routes} for routes in (before, after)]
    parts = [
        f"{word} {_few(sorted(names))}"
        for word, names in (("without", robots[0] - robots[1]), ("with", robots[1] - robots[0]))
        if names
    ]
    moved = [
        f"{robot} {component}: {before[robot, component].server} to {route.server}"
        for (robot, component), route in sorted(after.items())
        if (robot, component) in before and before[robot, component].server != route.server
    ]
    if moved:
        parts.append(_few(moved))
    elif not parts:
        parts.append("nobody moves")
    return "; ".join(parts)


def _few(names: list[str]) -> str:
    more = len(names) - MAX_MOVES
    return ", ".join(names[:MAX_MOVES]) + (f" and {more} more" if more > 0 else "")

"""Check of the guarantees in docs/safety.md in a recording, by the records of robots, without any decision core.

`replay.py` checks whether a core would decide the same again; this module checks whether its decisions were permitted. It judges
only the contents of a chain: requests, executions or tasks that began before it, or before a gap in it, are unknown.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ros2_rfm_serving.audit.log import ROBOT, AuditLog, Entry, Key, event_name, event_of, key_of, mapping, real, several
from ros2_rfm_serving.audit.robots.records import EXECUTES
from ros2_rfm_serving.robot.motion.failsafe import ALLOWED
from ros2_rfm_serving.types import SAFETY, RobotState, TaskOutcome, TaskPhase

ROUNDING = 1e-3
"""Tolerance of recorded numbers."""
STILL = frozenset({TaskPhase.IDLE.name, TaskPhase.RESETTING.name, TaskPhase.STOPPED.name, TaskPhase.WAITING.name})
LEAVES_REQUESTS = frozenset(
    {
        "ServerStatusReceived",
        "ServerLoadingReceived",
        "ServerLivenessReceived",
        "StopRequested",
        "TrajectoryStopRequested",
        "CountsAdded",
    }
)
"""Events that leave the requests in flight as they are."""
AGE, SESSION, CHUNK, RESET, LIMITS, STANDING, TABLE, RAISED, FLIGHT, PASSED = RULES = (
    "no action older than max_action_age_s",
    "no reply counts that was not asked for",
    "every action is of a chunk that was taken",
    "no command while a reset moves the robot",
    "no command beyond its limits",
    "stopped, waiting, paused, without a task: no action",
    "fail-safe states change only as their table says",
    "a control period never raises",
    "one request in flight per component",
    "supervised safety: no action unless its last word is a pass",
)


class Broken(NamedTuple):
    rule: str
    robot: str
    stamp_s: float
    """ROS time."""
    what: str


class Kept(NamedTuple):
    """Result of the check. `judged`: number of checks by rule."""

    judged: dict[str, int]
    broken: tuple[Broken, ...]


def kept(log: AuditLog) -> Kept:
    judged, broken = dict.fromkeys(RULES, 0), list[Broken]()
    for robot in log.robots:
        for entries in chains(log.by_writer[ROBOT + robot]):
            watch, number = _Watch(robot, judged, broken), 0
            for entry, following in zip(entries, [*entries[1:], None], strict=True):
                if (found := _number(entry)) != number:
                    watch.forget()
                watch.see(entry, following)
                number = found + 1
    return Kept(judged, tuple(broken))


def chains(entries: Iterable[Entry]) -> list[list[Entry]]:
    """Return the chains of one writer, each in the order of writing, because ROS time may have been set."""
    runs: dict[int, list[Entry]] = {}
    for entry in entries:
        runs.setdefault(entry.run, []).append(entry)
    return [sorted(run, key=_number) for run in runs.values()]


def _number(entry: Entry) -> int:
    return int(entry.body.get("n", 0))


class _Watch:
    """Check of one chain."""

    def __init__(self, robot: str, judged: dict[str, int], broken: list[Broken]) -> None:
        self._robot, self._judged, self._broken = robot, judged, broken
        self._max_age_s = math.inf
        self._lower: Sequence[float] = ()
        self._upper: Sequence[float] = ()
        self._timeout_s = 0.0
        """Timeout of a request; 0 with others in flight (pipelines), or if it may end without a record (a pass of safety
        too old)."""
        self._slos_s: dict[str, float] = {}
        """Component -> shortest SLO in the schedules so far; inf without one."""
        self._safe_words: Sequence[str] | None = None
        """Verdicts that permit actions; None if safety is not supervised."""
        self.forget()

    def forget(self) -> None:
        """Reset the state that depends on earlier records, because some records are missing."""
        self._asked: set[Key] = set()
        self._sessions: set[tuple[str, int]] = set()
        """Component and epoch of the sessions that began within this chain, so that everything about them is known."""
        self._taken: set[Key] = set()
        self._flying: dict[str, tuple[Key, float]] = {}
        """Component -> last request and the time when it was sent; -inf after an event that may have ended it."""
        self._word: str | None = None
        """Last verdict of the safety component in this attempt; None if unknown."""
        self._resets = False
        self._state: Mapping[str, Any] = {}

    def see(self, entry: Entry, following: Entry | None) -> None:
        if entry.kind == "begin":
            self._configure(mapping(entry.body.get("config")))
        elif entry.kind == "tick":
            self._ask(RAISED, entry, "raised" not in entry.body, str(entry.body.get("raised")))
            self._tick(entry, following)
        elif entry.kind == "event":
            self._event(entry)
        elif entry.kind == "transition":
            self._change(entry)

    def _configure(self, config: Mapping[str, Any]) -> None:
        limits = mapping(config.get("limits"))
        self._max_age_s = real(config.get("max_action_age_s", math.inf))
        self._lower, self._upper = ([real(value) for value in several(limits.get(side))] for side in ("lower", "upper"))
        policy, link = mapping(config.get("policy")), mapping(config.get("link"))
        fallbacks = mapping(policy.get("fallbacks"))
        is_told = SAFETY not in fallbacks and config.get("pipelining") is None
        self._timeout_s = real(link.get("request_timeout_s", 0.0)) if is_told else 0.0
        self._safe_words = several(mapping(policy.get("safe_words")).get("items")) if SAFETY in fallbacks else None

    def _event(self, entry: Entry) -> None:
        name, event = event_name(entry), event_of(entry)
        if name == "ConfigurationChanged":
            self._configure(mapping(event.get("config")))
        elif name == "SessionOpened":
            self._sessions.add((str(event.get("component")), mapping(event.get("grant")).get("session_epoch", -1)))
        elif name in ("ResetStarted", "ResetFinished"):
            self._resets = name == "ResetStarted"
        elif name == "TaskCanceled" and mapping(event.get("outcome")).get("member") == TaskOutcome.SHUTDOWN.name:
            self._resets = False  # a deactivated robot does not wait for the end of the reset
        elif name in ("TaskStarted", "PauseRequested"):
            self._word = ""
        elif name == "ScheduleReceived":
            self._follow(several(mapping(event.get("schedule")).get("routes")))
        elif name == "ReplyReceived" and entry.body.get("result") is True:
            self._reply(entry, mapping(event.get("reply")))
        if name not in LEAVES_REQUESTS:
            self._land()

    def _follow(self, routes: Iterable[Any]) -> None:
        for route in routes:
            if mapping(route).get("robot") == self._robot:
                component, slo_s = str(route.get("component")), real(route.get("slo_s")) or math.inf
                self._slos_s[component] = min(slo_s, self._slos_s.get(component, math.inf))

    def _reply(self, entry: Entry, reply: Mapping[str, Any]) -> None:
        """Check an accepted reply."""
        key = key_of(reply.get("id"), self._robot)
        self._taken.add(key)
        if self._knows(key):
            self._ask(SESSION, entry, key in self._asked, f"{key}")
        if key.component == SAFETY:
            self._word = str(reply.get("verdict")).strip().lower()

    def _tick(self, entry: Entry, following: Entry | None) -> None:
        why, command = mapping(entry.body.get("why")), entry.body.get("command")
        if any(entry.t_s - at_s >= self._patience_s(component) for component, (_, at_s) in self._flying.items()):
            self._land()
        for request in several(entry.body.get("requests")):
            self._sent(entry, key_of(request, self._robot))
        if self._resets:
            self._ask(RESET, entry, command is None, "a command went out")
        if command is not None and (self._lower or self._upper):
            self._ask(LIMITS, entry, self._is_within(mapping(command).get("rows")), f"{mapping(command).get('rows')}")
        if why.get("source") not in EXECUTES:
            return
        age_s = real(why.get("staleness_s"))
        self._ask(AGE, entry, age_s <= self._max_age_s + ROUNDING, f"{age_s:.3f} s of {self._max_age_s:g}")
        key = key_of(why.get("chunk"), self._robot)
        if self._knows(key):
            self._ask(CHUNK, entry, key in self._taken, f"{key}")
        after = following.body.get("to") if following is not None and following.kind == "transition" else self._state
        if self._safe_words is not None and self._word is not None:
            self._ask(PASSED, entry, self._word in self._safe_words, self._word or "no word yet")
        stands = [_stands(self._state), _stands(mapping(after))]  # the effect of a period is written after it
        self._ask(STANDING, entry, not all(stands), f"{stands[0]}")

    def _patience_s(self, component: str) -> float:
        """Return the time in s after which a request, and by a fallback those of other components, may be given up."""
        return min(self._timeout_s, self._slos_s.get(component, 0.0)) - ROUNDING

    def _land(self) -> None:
        self._flying = {component: (key, -math.inf) for component, (key, _) in self._flying.items()}

    def _sent(self, entry: Entry, key: Key) -> None:
        self._asked.add(key)
        before, at_s = self._flying.get(key.component, (key, -math.inf))
        if self._timeout_s and key.component in self._slos_s and before != key and before._replace(sequence=key.sequence) == key:
            self._ask(FLIGHT, entry, at_s == -math.inf, f"{key} {entry.t_s - at_s:.3f} s after the one before")
        self._flying[key.component] = key, entry.t_s

    def _knows(self, key: Key) -> bool:
        return (key.component, key.session_epoch) in self._sessions

    def _is_within(self, rows: Any) -> bool:
        values = [real(value) for value in several(rows)]
        lower = self._lower or [-math.inf] * len(values)
        upper = self._upper or [math.inf] * len(values)
        return all(low - ROUNDING <= v <= high + ROUNDING for v, low, high in zip(values, lower, upper, strict=False))

    def _change(self, entry: Entry) -> None:
        self._land()
        before, after = _states(entry.body.get("from")), _states(entry.body.get("to"))
        if before is not None and after is not None and before is not after:
            self._ask(TABLE, entry, after in ALLOWED[before], f"{before.name} to {after.name}")
        self._state = mapping(entry.body.get("to"))

    def _ask(self, rule: str, entry: Entry, holds: bool, what: str) -> None:
        self._judged[rule] += 1
        if not holds:
            self._broken.append(Broken(rule, self._robot, entry.stamp_s, what))


def _states(told: Any) -> RobotState | None:
    return RobotState.__members__.get(str(mapping(told).get("state")))


def _stands(told: Mapping[str, Any]) -> str:
    """Return why no action may be executed; empty if one may, or the state is unknown."""
    if told.get("paused") is True:
        return "paused"
    phase = str(told.get("phase"))
    return phase.lower() if phase in STILL else ""

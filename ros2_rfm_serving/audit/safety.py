"""What docs/safety.md guarantees of every robot, asked of a recording: by what robots wrote, without any brain.

`replay.py` says whether a brain would decide the same again; this says whether what it decided may be. Only what a chain shows is
judged: what was asked, executed or begun before it is not known.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ros2_rfm_serving.audit.log import ROBOT, AuditLog, Entry, Key, key_of, mapping, real, several
from ros2_rfm_serving.robot.motion.failsafe import ALLOWED
from ros2_rfm_serving.types import RobotState, TaskPhase

EXECUTES = frozenset({"row", "part"})
"""Of a period's `why.by`: an action of a chunk, or a part of the way to one."""
ROUNDING = 1e-3
"""Of recorded numbers."""
STILL = frozenset({TaskPhase.IDLE.name, TaskPhase.RESETTING.name, TaskPhase.STOPPED.name, TaskPhase.WAITING.name})
AGE, SESSION, CHUNK, RESET, LIMITS, STANDING, TABLE, RAISED = RULES = (
    "no action older than max_action_age_s",
    "no reply counts that was not asked for",
    "every action is of a chunk that was taken",
    "no command while a reset moves the robot",
    "no command beyond its limits",
    "stopped, waiting, paused, without a task: no action",
    "fail-safe states change only as their table says",
    "a control period never raises",
)


class Broken(NamedTuple):
    rule: str
    robot: str
    stamp_s: float
    """ROS time."""
    what: str


class Kept(NamedTuple):
    """`judged`: how often each rule could be asked."""

    judged: dict[str, int]
    broken: tuple[Broken, ...]


def kept(log: AuditLog) -> Kept:
    judged, broken = dict.fromkeys(RULES, 0), list[Broken]()
    for robot in log.robots:
        for entries in chains(log.by_writer[ROBOT + robot]):
            watch = _Watch(robot, judged, broken)
            for entry, following in zip(entries, [*entries[1:], None], strict=True):
                watch.see(entry, following)
    return Kept(judged, tuple(broken))


def chains(entries: Iterable[Entry]) -> list[list[Entry]]:
    """Of one writer, each as it was written: by ROS time, which may have been set, they stand otherwise."""
    runs: dict[int, list[Entry]] = {}
    for entry in entries:
        runs.setdefault(entry.run, []).append(entry)
    return [sorted(run, key=lambda entry: int(entry.body.get("n", 0))) for run in runs.values()]


class _Watch:
    """Of one chain."""

    def __init__(self, robot: str, judged: dict[str, int], broken: list[Broken]) -> None:
        self._robot, self._judged, self._broken = robot, judged, broken
        self._max_age_s = math.inf
        self._lower: Sequence[float] = ()
        self._upper: Sequence[float] = ()
        self._asked: set[Key] = set()
        self._sessions: set[tuple[str, int]] = set()
        """(component, epoch) that began within this chain: all that belongs to one is known."""
        self._taken: set[Key] = set()
        self._resets = False
        self._state: Mapping[str, Any] = {}

    def see(self, entry: Entry, following: Entry | None) -> None:
        if entry.kind == "begin":
            self._configure(mapping(mapping(entry.body.get("made_of")).get("config")))
        elif entry.kind == "tick":
            self._ask(RAISED, entry, "raised" not in entry.body, str(entry.body.get("raised")))
            self._tick(entry, following)
        elif entry.kind == "call":
            self._call(entry)
        elif entry.kind == "transition":
            self._change(entry)

    def _configure(self, config: Mapping[str, Any]) -> None:
        limits = mapping(config.get("limits"))
        self._max_age_s = real(config.get("max_action_age_s", math.inf))
        self._lower, self._upper = ([real(value) for value in several(limits.get(side))] for side in ("lower", "upper"))

    def _call(self, entry: Entry) -> None:
        do, args = str(entry.body.get("do")), mapping(entry.body.get("args"))
        if do == "reconfigure":
            self._configure(mapping(args.get("config")))
        elif do == "session_opened":
            self._sessions.add((str(args.get("component")), mapping(args.get("grant")).get("session_epoch", -1)))
        elif do in ("reset_begins", "reset_done"):
            self._resets = do == "reset_begins"
        elif do == "reply" and entry.body.get("result") is True:
            key = key_of(mapping(args.get("reply")).get("id"), self._robot)
            self._taken.add(key)
            if self._knows(key):
                self._ask(SESSION, entry, key in self._asked, f"{key}")

    def _tick(self, entry: Entry, following: Entry | None) -> None:
        why, command = mapping(entry.body.get("why")), entry.body.get("command")
        self._asked |= {key_of(request, self._robot) for request in several(entry.body.get("requests"))}
        if self._resets:
            self._ask(RESET, entry, command is None, "a command went out")
        if command is not None and (self._lower or self._upper):
            self._ask(LIMITS, entry, self._is_within(mapping(command).get("rows")), f"{mapping(command).get('rows')}")
        if why.get("by") not in EXECUTES:
            return
        age_s = real(why.get("staleness_s"))
        self._ask(AGE, entry, age_s <= self._max_age_s + ROUNDING, f"{age_s:.3f} s of {self._max_age_s:g}")
        key = key_of(why.get("chunk"), self._robot)
        if self._knows(key):
            self._ask(CHUNK, entry, key in self._taken, f"{key}")
        after = following.body.get("to") if following is not None and following.kind == "transition" else self._state
        stands = [_stands(self._state), _stands(mapping(after))]  # what a period changes is written after it
        self._ask(STANDING, entry, not all(stands), f"{stands[0]}")

    def _knows(self, key: Key) -> bool:
        return (key.component, key.session_epoch) in self._sessions

    def _is_within(self, rows: Any) -> bool:
        values = [real(value) for value in several(rows)]
        lower = self._lower or [-math.inf] * len(values)
        upper = self._upper or [math.inf] * len(values)
        return all(low - ROUNDING <= v <= high + ROUNDING for v, low, high in zip(values, lower, upper, strict=False))

    def _change(self, entry: Entry) -> None:
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
    """Why no action may be executed; empty: one may, or it is not known."""
    if told.get("paused") is True:
        return "paused"
    phase = str(told.get("phase"))
    return phase.lower() if phase in STILL else ""

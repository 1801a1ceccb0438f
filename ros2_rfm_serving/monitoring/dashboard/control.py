"""Who may do what through the page: by a token, confirmed, and with a word for the audit log about every attempt."""

from __future__ import annotations

import json
import re
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from ros2_rfm_serving.types import MAX_INSTRUCTION_CHARACTERS

ON_ROBOTS, ON_SERVERS = ("pause", "resume", "abort", "cancel", "release", "task"), ("drain", "activate")
ACTIONS = (*ON_ROBOTS, *ON_SERVERS, "admit")
NAME = re.compile(r"[A-Za-z]\w{0,99}", re.ASCII)
MAX_BODY_BYTES = 16384
MAX_BUDGET_S = 1e6
MAX_FAILURES, FAILURES_WITHIN_S = 5, 60.0
MAX_ADDRESSES = 1024
"""Whose failures are remembered."""
MAX_NOTED, NOTED_WITHIN_S = 10, 60.0
"""Of attempts by nobody in particular, in the audit log; the others are counted there."""


class Note(Protocol):
    """Takes a word for the audit log: of what kind it is, and what is to be said."""

    def __call__(self, kind: str, **body: object) -> None: ...


class Answer(NamedTuple):
    done: bool
    message: str
    """What follows, or why not."""
    end: Future[Answer] | None = None
    """Of a task that has begun: how it ends."""


class WantedTask(NamedTuple):
    """A task that a person gives a robot."""

    instruction: str = ""
    """Empty: the task's own prompt."""
    budget_s: float = 0.0
    """0: the robot's default."""
    reset: bool = False
    """Robot and workpiece are brought to the start first."""


NO_TASK = WantedTask()


class Holders(Protocol):
    """Knows whose token it is; empty: nobody's."""

    def holder(self, given: str) -> str: ...


class Orders(Protocol):
    """What an order reaches."""

    def order(self, action: str, target: str, task: str, wanted: WantedTask = NO_TASK) -> Future[Answer]: ...


@dataclass(frozen=True)
class Order:
    action: str
    target: str
    """A robot or a server."""
    task: str = ""
    """Of `admit`: for which a robot is admitted."""
    wanted: WantedTask = NO_TASK
    """Of `task`."""


def read_order(body: bytes) -> Order:
    """Raises: `ValueError` that says what is wrong with it."""
    try:
        told: Any = json.loads(body)
    except (ValueError, RecursionError):
        raise ValueError("the body is no JSON") from None
    if not isinstance(told, dict):
        raise ValueError('write {"action": ..., "target": ..., "confirmed": true}')
    action, target, task = (told.get(key, "") for key in ("action", "target", "task"))
    if not isinstance(action, str) or action not in ACTIONS:
        raise ValueError(f"action: one of {', '.join(ACTIONS)}")
    if not isinstance(target, str) or not NAME.fullmatch(target):
        raise ValueError("target: the name of a robot or server: letters, digits and underscores, a letter first")
    if not isinstance(task, str) or (action == "admit" and not NAME.fullmatch(task)):
        raise ValueError("task: a task class of the descriptor")
    if told.get("confirmed") is not True:
        raise ValueError("confirmed: true, once a person has confirmed it")
    return Order(action, target, task, _wanted(told) if action == "task" else NO_TASK)


def _wanted(told: dict[str, Any]) -> WantedTask:
    """Raises: `ValueError`."""
    instruction, budget_s, reset = told.get("instruction", ""), told.get("budget_s", 0), told.get("reset", False)
    if not isinstance(instruction, str) or len(instruction) > MAX_INSTRUCTION_CHARACTERS:
        raise ValueError(f"instruction: a text of at most {MAX_INSTRUCTION_CHARACTERS} characters")
    if isinstance(budget_s, bool) or not isinstance(budget_s, int | float) or not 0 <= budget_s <= MAX_BUDGET_S:
        raise ValueError(f"budget_s: seconds, at most {MAX_BUDGET_S:g}; 0: the robot's default")
    if not isinstance(reset, bool):
        raise ValueError("reset: true or false")
    return WantedTask(instruction, float(budget_s), reset)


class Failures:
    """Wrong tokens by address: after a few, that address waits."""

    def __init__(self) -> None:
        self._failed_s: dict[str, list[float]] = {}

    def wait_s(self, address: str, now_s: float) -> float:
        """Until it may try again; 0: now."""
        recent = [at_s for at_s in self._failed_s.get(address, ()) if now_s - at_s < FAILURES_WITHIN_S]
        return FAILURES_WITHIN_S - (now_s - recent[0]) if len(recent) >= MAX_FAILURES else 0.0

    def add(self, address: str, now_s: float) -> None:
        recent = [at_s for at_s in self._failed_s.pop(address, ()) if now_s - at_s < FAILURES_WITHIN_S]
        self._failed_s[address] = [*recent, now_s]
        while len(self._failed_s) > MAX_ADDRESSES:
            del self._failed_s[next(iter(self._failed_s))]


class Strangers:
    """Attempts of people who are not known, which anybody may make, as often as they like: the first few of each minute are noted
    one by one, the others by their number."""

    def __init__(self) -> None:
        self._noted_s: deque[float] = deque(maxlen=MAX_NOTED)
        self._unsaid = 0

    def is_noted(self, now_s: float) -> bool:
        """Of one more attempt."""
        if self._is_full(now_s):
            self._unsaid += 1
            return False
        self._noted_s.append(now_s)
        return True

    def unsaid(self, now_s: float) -> int:
        """To be noted now; 0: nothing is."""
        if self._is_full(now_s):
            return 0
        unsaid, self._unsaid = self._unsaid, 0
        return unsaid

    def _is_full(self, now_s: float) -> bool:
        return len(self._noted_s) == MAX_NOTED and now_s - self._noted_s[0] < NOTED_WITHIN_S

"""Authorisation of commands through the page: by a token, with confirmation, and with an audit log entry for every attempt."""

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
"""Maximum number of addresses whose failures are remembered."""
MAX_NOTED, NOTED_WITHIN_S = 10, 60.0
"""Maximum unauthenticated attempts in the audit log per period, s; further ones are only counted."""


class Note(Protocol):
    """Writer of audit log entries of a kind."""

    def __call__(self, kind: str, **body: object) -> None: ...


class Answer(NamedTuple):
    done: bool
    message: str
    """Consequence, or reason of a failure."""
    end: Future[Answer] | None = None
    """Result of a task that has begun, once it ends."""


class WantedTask(NamedTuple):
    """Task that an operator gives a robot."""

    instruction: str = ""
    """Instruction; empty: the task's own prompt."""
    budget_s: float = 0.0
    """Time limit; 0: the robot's default."""
    reset: bool = False
    """Bring robot and workpiece to the start first."""


NO_TASK = WantedTask()


class Holders(Protocol):
    """Directory of tokens: returns a token's holder; empty: it is unknown."""

    def holder(self, given: str) -> str: ...


class Orders(Protocol):
    """Executor of commands."""

    def order(self, action: str, target: str, task: str, wanted: WantedTask = NO_TASK) -> Future[Answer]: ...


@dataclass(frozen=True)
class Order:
    action: str
    target: str
    """Name of a robot or a server."""
    task: str = ""
    """Task for which `admit` admits a robot."""
    wanted: WantedTask = NO_TASK
    """Task of the command `task`."""


def read_order(body: bytes) -> Order:
    """Return a command from the body of a request. Raises: `ValueError` with the problem if it is invalid."""
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
    """Return the task of a command. Raises: `ValueError` if it is invalid."""
    instruction, budget_s, reset = told.get("instruction", ""), told.get("budget_s", 0), told.get("reset", False)
    if not isinstance(instruction, str) or len(instruction) > MAX_INSTRUCTION_CHARACTERS:
        raise ValueError(f"instruction: a text of at most {MAX_INSTRUCTION_CHARACTERS} characters")
    if isinstance(budget_s, bool) or not isinstance(budget_s, int | float) or not 0 <= budget_s <= MAX_BUDGET_S:
        raise ValueError(f"budget_s: seconds, at most {MAX_BUDGET_S:g}; 0: the robot's default")
    if not isinstance(reset, bool):
        raise ValueError("reset: true or false")
    return WantedTask(instruction, float(budget_s), reset)


class Failures:
    """Wrong tokens by address; an address with several of them has to wait."""

    def __init__(self) -> None:
        self._failed_s: dict[str, list[float]] = {}

    def wait_s(self, address: str, now_s: float) -> float:
        """Return the time until the address may try again; 0: now."""
        recent = [at_s for at_s in self._failed_s.get(address, ()) if now_s - at_s < FAILURES_WITHIN_S]
        return FAILURES_WITHIN_S - (now_s - recent[0]) if len(recent) >= MAX_FAILURES else 0.0

    def add(self, address: str, now_s: float) -> None:
        recent = [at_s for at_s in self._failed_s.pop(address, ()) if now_s - at_s < FAILURES_WITHIN_S]
        self._failed_s[address] = [*recent, now_s]
        while len(self._failed_s) > MAX_ADDRESSES:
            del self._failed_s[next(iter(self._failed_s))]


class Strangers:
    """Limit of audit log entries for unauthenticated attempts, which any client may make: the first few of each minute are noted
    one by one, the others by their number."""

    def __init__(self) -> None:
        self._noted_s: deque[float] = deque(maxlen=MAX_NOTED)
        self._unsaid = 0

    def is_noted(self, now_s: float) -> bool:
        """Return whether another attempt is noted; otherwise count it."""
        if self._is_full(now_s):
            self._unsaid += 1
            return False
        self._noted_s.append(now_s)
        return True

    def unsaid(self, now_s: float) -> int:
        """Return the number of counted attempts to be noted now, and restart the count; 0: none are due."""
        if self._is_full(now_s):
            return 0
        unsaid, self._unsaid = self._unsaid, 0
        return unsaid

    def _is_full(self, now_s: float) -> bool:
        return len(self._noted_s) == MAX_NOTED and now_s - self._noted_s[0] < NOTED_WITHIN_S

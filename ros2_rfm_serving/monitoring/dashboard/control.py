"""Who may do what through the page: by a token, confirmed, and with a word for the audit log about every attempt."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import secrets
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from ros2_rfm_serving.errors import ConfigurationError

ON_ROBOTS, ON_SERVERS = ("pause", "resume", "abort", "release"), ("drain", "activate")
ACTIONS = (*ON_ROBOTS, *ON_SERVERS, "admit")
NAME = re.compile(r"[A-Za-z]\w{0,99}", re.ASCII)
MIN_TOKEN_CHARACTERS, MAX_TOKEN_CHARACTERS = 16, 512
MAX_BODY_BYTES = 4096
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


class Orders(Protocol):
    """What an order reaches."""

    def order(self, action: str, target: str, task: str) -> Future[Answer]: ...


@dataclass(frozen=True)
class Order:
    action: str
    target: str
    """A robot or a server."""
    task: str = ""
    """Of `admit`: for which a robot is admitted."""


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
    return Order(action, target, task)


class Tokens:
    """By name: whoever has one may act."""

    def __init__(self, named: Mapping[str, str]) -> None:
        self._named = [(name, _digest(token)) for name, token in named.items()]

    def holder(self, given: str) -> str:
        """Whose token it is; empty: nobody's. It takes as long whatever is given."""
        digest, found = _digest(given[:MAX_TOKEN_CHARACTERS]), ""
        for name, known in self._named:
            found = name if hmac.compare_digest(digest, known) else found
        return found


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


def new_token() -> str:
    return secrets.token_urlsafe(24)


def read_tokens(file: Path) -> dict[str, str]:
    """A line for each: a name and a token; # begins a comment. Raises: `ConfigurationError`."""
    try:
        mode, text = file.stat().st_mode, file.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise _unusable(file, f"cannot be read: {error}", "name a text file") from None
    if mode & 0o077:
        raise _unusable(file, "others on this machine may read it", f"chmod 600 {file}")
    lines = [line.split() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    for number, line in enumerate(lines, 1):
        if len(line) != 2 or not MIN_TOKEN_CHARACTERS <= len(line[1]) <= MAX_TOKEN_CHARACTERS:
            fix = f"write `name token`, the token of {MIN_TOKEN_CHARACTERS} to {MAX_TOKEN_CHARACTERS} characters"
            raise _unusable(file, f"its token {number} is not usable", fix)
    if not lines or len({line[0] for line in lines}) < len(lines):
        raise _unusable(file, "it has no tokens, or two of one name", "write a line `name token` for each person")
    return {line[0]: line[1] for line in lines}


def _unusable(file: Path, problem: str, fix: str) -> ConfigurationError:
    return ConfigurationError(problem, file=str(file), key="--token-file", fix=fix)


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

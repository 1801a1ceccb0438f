"""Waiting for what comes true sooner or later, on a machine that may be busy."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

TURN_S = 1.0
"""That a look and a pause may count for: while the whole machine stood still nothing could come true."""
WATCHED_TURN_S = 0.1


def eventually(
    true: Callable[[], Any],
    seconds: float = 60.0,
    pause: Callable[[], object] | None = None,
    turn_s: float = TURN_S,
) -> Any:
    """pause: between two looks, such as a turn of an executor; none: a moment's sleep."""
    left_s, looked_s = seconds, time.monotonic()
    while left_s > 0.0:
        if found := true():
            return found
        (pause or _nap)()
        before_s, looked_s = looked_s, time.monotonic()
        left_s -= min(looked_s - before_s, turn_s)
    return true()


def _nap() -> None:
    time.sleep(0.01)


def watch(seconds: float, pause: Callable[[], object]) -> None:
    """By turns of `pause`: after a standstill what came meanwhile has its turns too."""
    eventually(lambda: False, seconds, pause, WATCHED_TURN_S)

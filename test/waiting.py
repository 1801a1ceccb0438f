"""Waiting for what comes true sooner or later, on a machine that may be busy."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

TURN_S = 1.0
"""That a look and a pause may count for: while the whole machine stood still nothing could come true."""


def eventually(true: Callable[[], Any], seconds: float = 20.0) -> Any:
    left_s, looked_s = seconds, time.monotonic()
    while left_s > 0.0:
        if found := true():
            return found
        time.sleep(0.01)
        before_s, looked_s = looked_s, time.monotonic()
        left_s -= min(looked_s - before_s, TURN_S)
    return true()

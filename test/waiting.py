"""Waiting for what comes true sooner or later, on a machine that may be busy."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def eventually(true: Callable[[], Any], seconds: float = 20.0) -> Any:
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        if found := true():
            return found
        time.sleep(0.01)
    return true()

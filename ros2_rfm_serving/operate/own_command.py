"""`rfm` itself, in a process of its own, for a page: whatever it meets costs the page nothing but that process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType

LIMIT_S = 60.0
CODE_OF_TIME = 124
NOTHING: Mapping[str, str] = MappingProxyType({})


def run_rfm(arguments: Sequence[str], defaults: Mapping[str, str] = NOTHING) -> subprocess.CompletedProcess[str]:
    """Return its exit code and its output without colours; `CODE_OF_TIME` where it was ended after `LIMIT_S`.

    defaults: variables that it has where this process' environment does not name them.
    """
    command = [sys.executable, "-W", "ignore", "-m", "ros2_rfm_serving.cli", *arguments]
    environment = {**defaults, **os.environ, "NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "200"}
    try:
        return subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, CODE_OF_TIME, "", f"it took longer than {LIMIT_S:g} s and was ended")

"""`rfm` in a process of its own, for a dashboard page, which no failure of it affects."""

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
    """Run `rfm` and return its exit code and its output without colours; `CODE_OF_TIME` where it was ended after `LIMIT_S`.
    defaults: environment variables for names that this process' environment does not have."""
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

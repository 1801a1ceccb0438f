"""`rfm check` in a process of its own, for a page: whatever a file holds costs the page nothing but that process."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from ros2_rfm_serving.monitoring.dashboard.checking import CheckResult, WantedCheck

LIMIT_S = 60.0
MAX_LINES, MAX_CHARACTERS = 400, 2000
UNKNOWN_OPTION = "No such option: --live"


def check_file(wanted: WantedCheck) -> CheckResult:
    """Return what `rfm check` says about a file that is named or pasted."""
    if not wanted.texts:
        return _run(wanted, None)
    with tempfile.TemporaryDirectory(prefix="rfm_check_") as folder:
        for name, text in wanted.texts.items():
            file = Path(folder) / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        return _run(wanted, Path(folder))


def _run(wanted: WantedCheck, folder: Path | None) -> CheckResult:
    """folder: of the pasted files, which is never the current one: Python would import modules from it; None: `file` is a path."""
    live = ["--live"] if wanted.live else []
    arguments = ["check", str(folder / wanted.file) if folder else wanted.file, *live]
    command = shlex.join(["rfm", "check", wanted.file, *live])
    environment = {**os.environ, "NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "200"}
    try:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-m", "ros2_rfm_serving.cli", *arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return CheckResult(valid=False, lines=[f"the check took longer than {LIMIT_S:g} s and was ended"], command=command)
    if wanted.live and UNKNOWN_OPTION in done.stderr:
        told = _run(wanted._replace(live=False), folder)
        return told._replace(lines=[*told.lines, "warning: this version cannot compare a file with the running graph"])
    said = f"{done.stdout}\n{done.stderr}".replace(f"{folder}{os.sep}", "") if folder else f"{done.stdout}\n{done.stderr}"
    lines = [line.rstrip()[:MAX_CHARACTERS] for line in said.splitlines() if line.strip()]
    return CheckResult(valid=done.returncode == 0, lines=lines[:MAX_LINES], command=command)

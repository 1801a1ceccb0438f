"""`rfm check` for files that are pasted into a dashboard page, or named there."""

from __future__ import annotations

import os
import shlex
import tempfile
from pathlib import Path

from ros2_rfm_serving.monitoring.dashboard.checking import CheckResult, WantedCheck
from ros2_rfm_serving.operate.own_command import run_rfm

MAX_LINES, MAX_CHARACTERS = 400, 2000
UNKNOWN_OPTION = "No such option: --live"


def check_file(wanted: WantedCheck) -> CheckResult:
    """Return the result of `rfm check` for a file that is named or pasted."""
    if not wanted.texts:
        return _run(wanted, None)
    with tempfile.TemporaryDirectory(prefix="rfm_check_") as folder:
        try:
            for name, text in wanted.texts.items():
                file = Path(folder) / name
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text, encoding="utf-8")
        except (OSError, UnicodeError) as error:  # for example a name that is a folder of another one, or half a character
            return CheckResult(valid=False, lines=[f"{name} cannot be written: {error}"], command="")
        return _run(wanted, Path(folder))


def _run(wanted: WantedCheck, folder: Path | None) -> CheckResult:
    """Run the check. folder: temporary folder of the pasted files, which is never the current one, because Python would import
    modules from it; None: `file` is a path."""
    live = ["--live"] if wanted.live else []
    arguments = ["check", str(folder / wanted.file) if folder else wanted.file, *live]
    command = shlex.join(["rfm", "check", wanted.file, *live])
    done = run_rfm(arguments)
    if wanted.live and UNKNOWN_OPTION in done.stderr:
        told = _run(wanted._replace(live=False), folder)
        return told._replace(lines=[*told.lines, "warning: this version cannot compare a file with the running graph"])
    said = f"{done.stdout}\n{done.stderr}".replace(f"{folder}{os.sep}", "") if folder else f"{done.stdout}\n{done.stderr}"
    lines = [line.rstrip()[:MAX_CHARACTERS] for line in said.splitlines() if line.strip()]
    return CheckResult(valid=done.returncode == 0, lines=lines[:MAX_LINES], command=command)

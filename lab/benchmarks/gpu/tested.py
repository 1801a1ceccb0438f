"""Tests marked `gpu` of one file, run by pytest; each becomes a row."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from xml.etree import ElementTree

from lab.benchmarks.gpu.child import Skip, Task

FOLDER = Path("test/gpu")
"""Folder of the repository, which no installation contains."""
CPU_REQUESTS, REQUESTS = 400, 2_000
"""Requests of the memory test."""
NONE_RAN = 5
"""Exit code of pytest when it has found no test."""


def run(task: Task, name: str) -> None:
    """Run the tests. Raises: `Skip` where tests are missing or skipped; `SystemExit` when a test fails."""
    file = FOLDER / f"test_{name}.py"
    if not file.is_file():
        raise Skip(f"{file} is not there: tests run in the repository's folder")
    if find_spec("pytest") is None:
        raise Skip("pytest is not installed here: pip install pytest pytest-timeout")
    report = task.out / "logs" / f"{task.name}.xml"
    report.unlink(missing_ok=True)
    requests = REQUESTS if task.machine.on_gpu else CPU_REQUESTS
    chosen = ["-m", "gpu", "--device", task.machine.device, "--requests", str(requests), f"--junitxml={report}"]
    command = [sys.executable, "-m", "pytest", "-q", "-rs", f"--confcutdir={FOLDER}", "-p", "no:cacheprovider", str(file), *chosen]
    code = subprocess.run(command, check=False).returncode
    passed, skipped = _kept(task, name, report)
    if code not in (0, NONE_RAN):
        raise SystemExit(code)
    why = "; ".join(dict.fromkeys(skipped))
    if skipped or not passed:  # not done: it is tried again where the missing part may be present
        raise Skip(f"{passed} passed, {len(skipped)} skipped: {why}" if skipped else "there was no test")
    print(f"{passed} passed")


def _kept(task: Task, name: str, report: Path) -> tuple[int, list[str]]:
    """Record the outcomes, and return the number of passed tests and the reasons of skipped ones."""
    rows, passed, skipped = task.rows("tests"), 0, list[str]()
    rows.rows = [row for row in rows.rows if row["file"] != name]
    for case in ElementTree.parse(report).iter("testcase"):
        outcome, said = _outcome(case)
        passed += outcome == "passed"
        skipped += [said] if outcome == "skipped" else []
        rows.add(file=name, test=case.get("name", ""), outcome=outcome, seconds=float(case.get("time", 0)), said=said)
    return passed, skipped


def _outcome(case: ElementTree.Element) -> tuple[str, str]:
    for kind, outcome in (("failure", "failed"), ("error", "failed"), ("skipped", "skipped")):
        found = case.find(kind)
        if found is not None:
            return outcome, found.get("message", "").partition("\n")[0]
    return "passed", ""

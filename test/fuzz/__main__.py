"""Fuzzes everything that reads what others wrote: scripts/fuzz [SECONDS] [TARGET ...]

The time is divided among the targets. What was found new lies in build/fuzz/<target>/corpus and is where the next run begins;
inputs that crash, hang or take too much memory in build/fuzz/<target>/findings. Exit code 1 if there is one.
"""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from test.fuzz.targets import NAMES, target

REPOSITORY = Path(__file__).resolve().parents[2]
WORK, KEPT = REPOSITORY / "build" / "fuzz", REPOSITORY / "test" / "fuzz" / "corpus"
DEFAULT_SECONDS = 60
LIMITS = {"timeout": 10, "rss_limit_mb": 1500, "max_len": 1 << 14}
"""Of one input: seconds, memory of the process, bytes. libFuzzer's names."""

SLICE_S = 30
"""Of a process: atheris keeps whatever arrays it saw compared, and would come to its limit of memory by itself."""
LOG_BYTES = 8000
"""Of the end of a target's log, which are looked at."""


class Outcome(NamedTuple):
    executions: int
    features: int
    peak_mb: int
    crashed: bool


def fuzz(name: str, seconds: int) -> Outcome:
    """In slices of time; the next one begins with what was found before."""
    total = Outcome(0, 0, 0, False)
    for begin_s in range(0, seconds, SLICE_S):
        part = _slice(name, min(SLICE_S, seconds - begin_s))
        crashed = total.crashed or part.crashed
        total = Outcome(total.executions + part.executions, part.features, max(total.peak_mb, part.peak_mb), crashed)
    return total


def _slice(name: str, seconds: int) -> Outcome:
    corpus, findings = WORK / name / "corpus", WORK / name / "findings"
    for folder in (corpus, findings, KEPT / name):
        folder.mkdir(parents=True, exist_ok=True)
    for i, seed in enumerate(target(name).seeds()):
        (corpus / f"seed_{i}").write_bytes(seed)
    options = [f"-{option}={value}" for option, value in LIMITS.items()]
    options += [f"-max_total_time={seconds}", f"-artifact_prefix={findings}/", "-print_final_stats=1"]
    command = [sys.executable, "-m", "test.fuzz.harness", name, *options, str(corpus), str(KEPT / name)]
    with (WORK / name / "log").open("w+b") as log:
        crashed = subprocess.run(command, cwd=REPOSITORY, stdout=log, stderr=log, check=False).returncode != 0
        log.seek(max(0, log.tell() - LOG_BYTES))
        said = log.read().decode(errors="replace")
    if crashed:
        print(said)
    executions, peak_mb = _last(r"number_of_executed_units:\s*(\d+)", said), _last(r"peak_rss_mb:\s*(\d+)", said)
    return Outcome(executions, _last(r"\bft: (\d+)", said), peak_mb, crashed)


def _last(pattern: str, text: str) -> int:
    """0: not said."""
    return int((re.findall(pattern, text) or ["0"])[-1])


def main() -> int:
    if find_spec("atheris") is None:
        print("atheris is not installed: pip install 'atheris>=3', or make fuzz")
        return 2
    numbers = [int(word) for word in sys.argv[1:] if word.isdecimal()]
    names = [word for word in sys.argv[1:] if not word.isdecimal()] or list(NAMES)
    seconds = max(1, (numbers or [DEFAULT_SECONDS])[0] // len(names))
    print(f"{'target':12}{'executions':>12}{'features':>10}{'peak MB':>9}", flush=True)
    crashed = False
    for name in names:
        outcome = fuzz(name, seconds)
        crashed |= outcome.crashed
        found = f"  look into {WORK / name}" if outcome.crashed else ""
        print(f"{name:12}{outcome.executions:12}{outcome.features:10}{outcome.peak_mb:9}{found}", flush=True)
    return int(crashed)


if __name__ == "__main__":
    sys.exit(main())

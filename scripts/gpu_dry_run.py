"""The borrowed machine of docs/gpu.md, rebuilt here: python scripts/gpu_dry_run.py FOLDER [--minutes 8] [--commands 4]

An environment with exactly the packages of such a machine, a clean clone of this checkout, the wheels, and no network where this
user may do without. `rfm bench gpu --device cpu` is killed at a random moment. Each further command goes on in a folder of its own
from the file of results, until every piece but `plan` and `rosa`, which need OR-Tools, is done. Nothing saved may be lost.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PINNED = ("torch==2.11.0", "torchvision==0.26.0", "transformers==5.17.0", "tokenizers==0.23.2", "pytest")
"""triton 3.6 comes with that PyTorch."""
NEAREST = ("torch", "torchvision", "transformers", "pytest")
NOT_THERE = ("pydantic", "pydantic-core", "annotated-types", "typing-inspection")
"""Packages that something of `PINNED` brings, and the machine lacks"""
AT_HOME = ("plan", "rosa")
NEED_MORE = ("tests-vllm",)
"""Skipped without vLLM"""
Row = tuple[str, ...]


def environment(folder: Path) -> Path:
    """Return the interpreter of an environment with exactly the packages of the machine; made once."""
    python = folder / "bin" / "python3"
    if not (folder / ".made").exists():
        base = os.environ.get("PYTHON312") or shutil.which("python3.12") or sys.executable
        subprocess.run([base, "-m", "venv", "--clear", str(folder)], check=True)
        pip = [str(python), "-m", "pip", "-q", "--disable-pip-version-check"]
        if subprocess.run([*pip, "install", *PINNED], check=False).returncode:
            print(f"{', '.join(PINNED)} cannot be had for {base}: the nearest that can")
            subprocess.run([*pip, "install", *NEAREST], check=True)
        subprocess.run([*pip, "uninstall", "-y", *NOT_THERE], check=False)
        (folder / ".made").touch()
    return python


def without_network() -> list[str]:
    """Return what a command is begun with so that it has no network; empty where Linux does not let this user do that."""
    program = ["unshare", "--net"]
    able = shutil.which("unshare") and subprocess.run([*program, "true"], check=False, capture_output=True).returncode == 0
    return program if able else []


def saved(file: Path) -> tuple[dict[str, set[Row]], dict[str, str]]:
    """Return the rows of each file of results, and what became of each piece."""
    rows: dict[str, set[Row]] = {}
    states: dict[str, str] = {}
    with tarfile.open(file) as archive:
        for member in archive.getmembers():
            content = archive.extractfile(member)
            text = content.read().decode() if content else ""
            if member.name.endswith(".csv"):
                lines = [line for line in text.splitlines() if not line.startswith("#")]
                columns, *found = csv.reader(io.StringIO("\n".join(lines)))
                rows[member.name] = {tuple(f"{key}={value}" for key, value in zip(columns, row) if value) for row in found}  # noqa: B905
            elif member.name.startswith("state/"):
                outcome = json.loads(text)
                states[outcome["piece"]] = outcome["state"]
    return rows, states


def lost(before: dict[str, set[Row]], after: dict[str, set[Row]]) -> list[str]:
    """Return what was saved before and is not any more. Rows of tests that have not all passed are written anew."""
    return [f"{name}: {row}" for name, rows in before.items() if name != "tests.csv" for row in rows - after.get(name, set())]


def command(given: argparse.Namespace, turn: int, source: Path | None) -> list[str]:
    there = [str(given.python), "-m", "ros2_rfm_serving.cli", "bench", "gpu", "--device", "cpu", "--minutes", str(given.minutes)]
    there += ["--out", str(given.folder / f"results_{turn}"), "--bundle", str(given.folder / "gpu.tar.gz")]
    return [*without_network(), *there, *(["--from", str(source)] if source else [])]


def run(given: argparse.Namespace, turn: int, source: Path | None, kill_after_s: float) -> int:
    """Return the exit status of a command. kill_after_s: 0 for one that may end."""
    site = {**os.environ, "PYTHONPATH": str(given.folder / "site"), "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(command(given, turn, source), cwd=given.folder / "there", env=site, start_new_session=True)
    try:
        return process.wait(timeout=kill_after_s or None)
    except subprocess.TimeoutExpired:
        print(f"killed after {kill_after_s:.0f} s")
        process.send_signal(signal.SIGKILL)
        return process.wait()


def prepare(given: argparse.Namespace) -> None:
    """Make the machine: environment, clean clone, wheels."""
    given.folder.mkdir(parents=True, exist_ok=True)
    given.python = given.python or environment(given.folder / "environment")
    for name in ("there", "site", *(path.name for path in given.folder.glob("results_*"))):
        shutil.rmtree(given.folder / name, ignore_errors=True)
    for file in given.folder.glob("*.tar.gz"):
        file.unlink()
    subprocess.run(["git", "clone", "-q", str(ROOT), str(given.folder / "there")], check=True)
    there = given.folder / "there"
    fetching = {**os.environ, "PYTHON": sys.executable}
    subprocess.run([there / "scripts" / "gpu_wheels", "wheels"], cwd=there, env=fetching, check=True)
    install = [str(given.python), "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--target", str(given.folder / "site")]
    subprocess.run([*install, *map(str, (there / "wheels").glob("*.whl"))], check=True)


def undone(states: dict[str, str], listed: Sequence[str]) -> list[str]:
    """Return the pieces that are not done and should be, in words."""
    wanted = {name: "skipped" if name in (*AT_HOME, *NEED_MORE) else "done" for name in listed}
    return [f"{name}: {states.get(name, 'not begun')}" for name, state in wanted.items() if states.get(name) not in {state, "done"}]


def pieces(given: argparse.Namespace) -> list[str]:
    program = "from lab.benchmarks.gpu.pieces import pieces; print(*(piece.name for piece in pieces('toy')))"
    site = {**os.environ, "PYTHONPATH": str(given.folder / "site")}
    found = subprocess.run(
        [str(given.python), "-c", program], cwd=given.folder / "there", env=site, check=True, capture_output=True, text=True
    )
    return found.stdout.split()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=lambda text: Path(text).resolve())
    parser.add_argument("--minutes", type=float, default=8.0, help="of each command")
    parser.add_argument("--commands", type=int, default=4, help="at the most, the one that is killed among them")
    parser.add_argument("--python", type=Path, help="an interpreter that has the packages already")
    given = parser.parse_args()
    prepare(given)
    kept, source, missing = dict[str, set[Row]](), None, ["nothing"]
    for turn in range(given.commands):
        kill_after_s = random.uniform(0.1, 0.5) * 60.0 * given.minutes if turn == 0 else 0.0
        began_s = time.monotonic()
        code = run(given, turn, source, kill_after_s)
        rows, states = saved(given.folder / "gpu.tar.gz")
        problems = lost(kept, rows)
        missing = undone(states, pieces(given))
        size_kb = (given.folder / "gpu.tar.gz").stat().st_size / 1024
        took = f"{time.monotonic() - began_s:.0f} s, {size_kb:.0f} KiB"
        print(f"command {turn + 1}: exit status {code}, {took}; not done: {', '.join(missing) or '-'}", flush=True)
        if problems or (code not in {0, -signal.SIGKILL, 137}):
            print("\n".join(problems) or f"error: exit status {code}", file=sys.stderr)
            return 1
        if not missing:
            break
        kept, source = rows, given.folder / f"saved_{turn}.tar.gz"
        shutil.copy(given.folder / "gpu.tar.gz", source)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())

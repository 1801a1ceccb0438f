"""Runs the tests against each mutant, in a copy of the checkout: make mutants. Exit code 1 when one survives.

python -m test.mutants            # all
python -m test.mutants epoch      # those with this word in their names
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from test.mutants.mutants import MUTANTS, Mutant

REPOSITORY = Path(__file__).resolve().parents[2]
COPIED, LINKED = (
    ("ros2_rfm_serving", "test", "pyproject.toml", "setup.cfg"),
    ("config", "models", "docs", "launch", "msg", "srv", "action"),
)
LIMIT_S = 900.0


def main() -> int:
    chosen = [mutant for mutant in MUTANTS if all(word in mutant.name for word in sys.argv[1:])]
    if not chosen:
        print(f"{__doc__}\nThere are: {', '.join(mutant.name for mutant in MUTANTS)}")
        return 1
    with tempfile.TemporaryDirectory(prefix="rfm_mutants_") as folder:
        copy = copied(Path(folder))
        unspoilt = tested(dict.fromkeys(test for mutant in chosen for test in mutant.tests), copy)
        if unspoilt != "SURVIVED":
            print(f"without any mutant: {unspoilt}")
            return 1
        verdicts = [judge(mutant, copy) for mutant in chosen]
    survivors = verdicts.count("SURVIVED")
    unclear = len(verdicts) - survivors - verdicts.count("killed")
    print(f"{verdicts.count('killed')} killed, {survivors} survived, {unclear} unclear")
    return 0 if verdicts and not survivors and not unclear else 1


def copied(folder: Path) -> Path:
    for name in COPIED:
        source = REPOSITORY / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, folder / name)
    for name in LINKED:
        (folder / name).symlink_to(REPOSITORY / name)
    return folder


def judge(mutant: Mutant, copy: Path) -> str:
    """`killed`, `SURVIVED`, or why neither can be said."""
    file = copy / "ros2_rfm_serving" / mutant.file
    source = file.read_text(encoding="utf-8")
    began_s = time.monotonic()
    if source.count(mutant.old) == 1:
        file.write_text(source.replace(mutant.old, mutant.new), encoding="utf-8")
        verdict = tested(mutant.tests, copy)
        file.write_text(source, encoding="utf-8")
    else:
        verdict = f"{mutant.file} holds its text {source.count(mutant.old)} times"
    print(f"{verdict:9} {time.monotonic() - began_s:5.0f} s  {mutant.name}", flush=True)
    return verdict


def tested(tests: Iterable[str], copy: Path) -> str:
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "2", "-p", "no:cacheprovider", "--no-header", *tests]
    try:
        environment = {**os.environ, "RFM_UNSHRUNK": "1"}
        done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return f"no end after {LIMIT_S:.0f} s"
    if done.returncode == 0:
        return "SURVIVED"
    # A test that fails, or the invariants that the code itself asserts; anything else did not test.
    return "killed" if re.search(r"^(=+ )?\d+ failed", done.stdout, re.MULTILINE) else f"pytest: {done.stdout[-300:]}"


if __name__ == "__main__":
    sys.exit(main())

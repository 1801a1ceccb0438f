"""python -m test.recorded_faults [SECONDS]: record a factory whose servers, scheduler, robots and recorder are killed and whose
disk is full at times; verify, replay and explain the recordings, and compare them with what was true. Exit code 1: they differ."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from test.recorded_faults.account import Account
from test.recorded_faults.checks import Checks
from test.recorded_faults.factory import FaultyFactory
from test.shift.checks import Seen

REPOSITORY = Path(__file__).resolve().parents[2]
THIS = f"{sys.executable} -W ignore -m ros2_rfm_serving.cli"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m test.recorded_faults", description=__doc__)
    parser.add_argument("seconds", nargs="?", type=float, default=600.0, help="default: 600")
    parser.add_argument("--folder", type=Path, help="kept; default: a temporary one, removed when all is well")
    parser.add_argument("--checks", action="store_true", help="record nothing: ask the recordings in --folder again")
    parser.add_argument("--rfm", default=THIS, help="the command; default: this checkout's")
    parser.add_argument("--domain", type=int, default=0)
    told = parser.parse_args()
    folder, rfm = told.folder or Path(tempfile.mkdtemp(prefix="rfm_recorded_")) / "factory", told.rfm.split()
    factory = FaultyFactory(rfm, folder, told.seconds, told.domain)
    if not told.checks:
        record(factory, folder)
    seen = list(Checks(rfm, factory.bags, Account.read(folder)).all())
    show(seen, folder)
    good = all(one.good for one in seen)
    if good and not told.folder:
        shutil.rmtree(folder.parent)
    return 0 if good else 1


def record(factory: FaultyFactory, folder: Path) -> None:
    with factory.watched():
        soaked = factory.run(REPOSITORY / "test" / "soak" / "still_arms.yaml", lambda text: print(text, flush=True))
    ahead_s = time.time() - time.monotonic()
    problems = [f"{one.fault.kind} {one.fault.whom}: {one.problem}" for one in soaked.happened if one.problem]
    if problems or soaked.exit_code:
        raise RuntimeError(f"rfm up ended with {soaked.exit_code}; {'; '.join(problems)}\n{soaked.said}")
    faults = [(one.fault.kind, one.fault.whom, one.began_s + ahead_s, one.ended_s + ahead_s) for one in soaked.happened]
    account = {"began_s": soaked.began_s + ahead_s, "ended_s": soaked.ended_s + ahead_s, "faults": faults, "lives": factory.lives}
    (folder / "account.json").write_text(json.dumps(account), encoding="utf-8")


def show(seen: list[Seen], folder: Path) -> None:
    table = Table(title=f"recordings under faults, {folder}", title_justify="left")
    for heading in ("asked", "seen", ""):
        table.add_column(heading)
    for one in seen:
        table.add_row(one.what, one.figures, "as it must be" if one.good else "[red]NOT as it must be")
    Console(width=200).print(table)


if __name__ == "__main__":
    sys.exit(main())

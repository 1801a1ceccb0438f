"""python -m test.shift [SECONDS]: a shift, and all that is asked of its recording; exit code 1: some of it is not as it must be."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from test.shift.checks import Checks, Seen
from test.shift.incidents import Moment, Shift

REPOSITORY = Path(__file__).resolve().parents[2]
THIS = f"{sys.executable} -W ignore -m ros2_rfm_serving.cli"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m test.shift", description=__doc__)
    parser.add_argument("seconds", nargs="?", type=float, default=600.0, help="default: 600")
    parser.add_argument("--folder", type=Path, help="kept; default: a temporary one, removed when all is well")
    parser.add_argument("--checks", action="store_true", help="no new shift: ask the one in --folder again")
    parser.add_argument("--rfm", default=THIS, help="the command; default: this checkout's")
    parser.add_argument("--lerobot", type=Path, metavar="PYTHON", help="of an environment with LeRobot; default: no export")
    parser.add_argument("--domain", type=int, default=0)
    told = parser.parse_args()
    folder = told.folder or Path(tempfile.mkdtemp(prefix="rfm_shift_")) / "shift"
    rfm = told.rfm.split()
    if not told.checks:
        moments = Shift(rfm, folder, told.seconds, told.domain).run(REPOSITORY / "config" / "factory_quickstart.yaml")
        (folder / "moments.json").write_text(json.dumps(moments), encoding="utf-8")
    seen = _asked(rfm, folder, told.lerobot)
    good = all(one.good for one in seen)
    if good and not told.folder:
        shutil.rmtree(folder.parent)
    else:
        print(folder)
    return 0 if good else 1


def _asked(rfm: list[str], folder: Path, lerobot: Path | None) -> list[Seen]:
    moments = [Moment(*moment) for moment in json.loads((folder / "moments.json").read_text(encoding="utf-8"))]
    checks = Checks(rfm, folder / "bag")
    seen = list(checks.all(moments))
    if lerobot:
        seen.append(checks.exported(lerobot, REPOSITORY))
    table = Table(title=f"a shift, {folder}", title_justify="left")
    for heading in ("asked", "seen", ""):
        table.add_column(heading)
    for one in seen:
        table.add_row(one.what, one.figures, "as it must be" if one.good else "[red]NOT as it must be")
    Console(width=180).print(table)
    return seen


if __name__ == "__main__":
    sys.exit(main())

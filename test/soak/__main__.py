"""python -m test.soak [SECONDS] [--seed N]: a factory under faults, and all that is asked of it afterwards; exit code 1: some of it
is not as it must be. The seed is printed: the same one draws the same faults."""

from __future__ import annotations

import argparse
import json
import secrets
import shutil
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from test.soak.checks import Checks, happened_at
from test.soak.faults import Fault
from test.soak.sampling import Life
from test.soak.soak import CONFIG, Happened, Soak, Soaked

THIS = f"{sys.executable} -W ignore -m ros2_rfm_serving.cli"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m test.soak", description=__doc__)
    parser.add_argument("seconds", nargs="?", type=float, default=3600.0, help="default: 3600")
    parser.add_argument("--seed", type=int, default=-1, help="of the faults; default: another one every time")
    parser.add_argument("--factory", type=Path, default=CONFIG / "factory_standby.yaml")
    parser.add_argument("--folder", type=Path, help="kept; default: a temporary one, removed when all is well")
    parser.add_argument("--checks", action="store_true", help="no new soak: ask the one in --folder again")
    parser.add_argument("--rfm", default=THIS, help="the command; default: this checkout's")
    parser.add_argument("--domain", type=int, default=0)
    told = parser.parse_args()
    folder, rfm = told.folder or Path(tempfile.mkdtemp(prefix="rfm_soak_")) / "soak", told.rfm.split()
    if not told.checks:
        seed = told.seed if told.seed >= 0 else secrets.randbelow(1 << 31)
        print(f"seed {seed}, {told.seconds:g} s, {folder}", flush=True)
        soaked = Soak(rfm, folder, told.seconds, seed, told.domain).run(told.factory, lambda text: print(text, flush=True))
        (folder / "soaked.json").write_text(json.dumps(soaked), encoding="utf-8")
    soaked = _read(folder / "soaked.json")
    print("\n".join(happened_at(soaked.happened, soaked.began_s)))
    seen = []
    table = Table(title=f"a soak, {folder}", title_justify="left")
    for heading in ("asked", "seen", ""):
        table.add_column(heading)
    for one in Checks(rfm, folder / "bag", soaked).all():
        seen.append(one)
        table.add_row(one.what, one.figures, "as it must be" if one.good else "[red]NOT as it must be")
    Console(width=180).print(table)
    good = all(one.good for one in seen)
    if good and not told.folder:
        shutil.rmtree(folder.parent)
    return 0 if good else 1


def _read(file: Path) -> Soaked:
    told = json.loads(file.read_text(encoding="utf-8"))
    began_s, ended_s, happened, lives, exit_code, said, cuts_s, models = told
    made = [Happened(Fault(*fault), *rest) for fault, *rest in happened]
    return Soaked(began_s, ended_s, made, [Life(*life) for life in lives], exit_code, said, cuts_s, models)


if __name__ == "__main__":
    sys.exit(main())

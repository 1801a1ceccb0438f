"""The command."""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import subprocess
import sys
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from scripts.rename import gate, mutants, names, texts, typed
from scripts.rename.plan import Plan, shadows
from scripts.rename.table import GLOBALS, KINDS, Entry, Table, TableError, read
from scripts.rename.wrap import wrap

FOLDERS = ("ros2_rfm_serving", "lab", "test", "scripts", "examples", "launch")
UNCHECKED = ("launch",)
"""Folders that mypy is not given: their name is that of a library that they import."""
OWN = Path("scripts/rename")
RECORDED_ROOMS = ("types", "server", "dispatch", "profiles", "factory", "engines")
"""Rooms of `audit/servers/objects.py`; of `engines`, `engines.base` alone."""
FORMATTED = ("ros2_rfm_serving", "lab", "test", "examples", "launch")


def main() -> int:
    arguments = _arguments()
    try:
        table = read(arguments.table)
    except TableError as error:
        print(error, file=sys.stderr)
        return 2
    if arguments.counts or arguments.recorded:
        _print_entries(table, recorded=arguments.recorded)
        return 0
    if arguments.room:
        table = Table([entry for entry in table.entries if entry.room in arguments.room])
    gc.disable()  # millions of nodes, none of them garbage
    root = Path()
    files = python_files(root)
    package = names.Package({module: names.read(path, module) for module, path in files.items()})
    types = typed.load(root, {m: p for m, p in files.items() if p.parts[0] not in UNCHECKED}, arguments.cache)
    if arguments.series:
        for source in package.sources.values():  # once, and not in the process of each room
            assert source.nodes and source.words is not None
        return _series(table, arguments.series, lambda part: _run(part, package, types, files, root, is_dry=False))
    return _run(table, package, types, files, root, is_dry=arguments.dry_run)


def _run(table: Table, package: names.Package, types: typed.Types, files: dict[str, Path], root: Path, *, is_dry: bool) -> int:
    plan = Plan(package, types, without_applied(table, package, types))
    plan.run()
    plan.problems += shadows(plan)
    others = texts.planned(plan, root, frozenset(files.values()))
    _print_plan(plan, others)
    found = gate.check(plan)
    if plan.problems or found:
        print("\nNOT APPLIED:", *plan.problems, *found, sep="\n  ")
        return 1
    return 0 if is_dry else _apply(plan, others, root)


def _series(table: Table, series: list[str], run: Callable[[Table], int]) -> int:
    """Apply rooms one after the other, one commit each, all from one build of the types: each time, all rooms so far are applied
    to the tree of the beginning, in a process of its own, for a plan changes the trees of the sources."""
    base = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    rooms: list[str] = []
    for step in series:
        rooms += step.split("+")
        subprocess.run(["git", "read-tree", "-u", "--reset", base], check=True)
        sys.stdout.flush()
        part = Table([entry for entry in table.entries if entry.room in rooms])
        if not (child := os.fork()):
            os._exit(_quietly(run, part, step))
        if os.waitpid(child, 0)[1]:
            print(f"{step} was not applied: see build/rename/{step}.txt")
            return 1
        subject = f"rename: room {step}" if "+" not in step else f"rename: rooms {step.replace('+', ', ')}"
        subprocess.run(["git", "add", "-A"], check=True)
        subprocess.run(["git", "commit", "--quiet", "-m", f"{subject}, by the table"], check=True)
        print(f"{subject}: done", flush=True)
    return 0


def _quietly(run: Callable[[Table], int], part: Table, step: str) -> int:
    """Run with the report in a file of `build/rename/`."""
    with Path(f"build/rename/{step}.txt").open("w", encoding="utf-8") as report, contextlib.redirect_stdout(report):
        try:
            return run(part)
        except BaseException:
            traceback.print_exc(file=report)
            return 2


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m scripts.rename", description=__doc__)
    parser.add_argument("--table", type=Path, default=Path("scripts/renames.tsv"))
    parser.add_argument("--room", action="append", default=[], help="only entries of this folder of the package; may be repeated")
    parser.add_argument("--series", nargs="+", help="apply these rooms in order, one commit each; a+b: in one")
    parser.add_argument("--dry-run", action="store_true", help="report, and change nothing")
    parser.add_argument("--counts", action="store_true", help="print how many entries each room has")
    parser.add_argument("--recorded", action="store_true", help="print the entries whose names recordings hold")
    parser.add_argument("--cache", type=Path, default=Path("build/rename"), help="where the types of the last build are kept")
    return parser.parse_args()


def python_files(root: Path) -> dict[str, Path]:
    """Return module -> file, of all folders with Python in them."""
    found: dict[str, Path] = {}
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*.py")):
            relative = path.relative_to(root)
            if not relative.is_relative_to(OWN):
                parts = relative.with_suffix("").parts
                found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = relative
    return found


def without_applied(table: Table, package: names.Package, types: typed.Types) -> Table:
    """Leave out entries whose new name stands and whose old one does not: a run before this one applied them."""
    parts = {entry.old: entry.new for entry in table.entries if entry.kind in ("module", *GLOBALS)}

    def exists(entry: Entry, parent: str, last: str) -> bool:
        if entry.kind == "module":
            return package.is_module(f"{parent}.{last}")
        if parent in types.classes:
            return types.owner(parent, last) == parent
        if package.is_module(parent):
            return package.exported(parent, last) is not None
        return bool(package.kinds_of(parent, last))

    def is_applied(entry: Entry) -> bool:
        if entry.kind in ("text", "key") or exists(entry, entry.parent, entry.last):
            return False
        names_before = entry.parent.split(".")
        after = [parts.get(".".join(names_before[: number + 1]), one) for number, one in enumerate(names_before)]
        return exists(entry, ".".join(after), entry.new)

    return Table([entry for entry in table.entries if not is_applied(entry)])


def _print_entries(table: Table, *, recorded: bool) -> None:
    chosen = [entry for entry in table.entries if not recorded or is_recorded(entry)]
    if recorded:
        print(*(f"{entry.kind}\t{entry.old}\t{entry.new}" for entry in chosen), sep="\n")
        return
    for room in Table(chosen).rooms():
        counts = Counter(entry.kind for entry in chosen if entry.room == room)
        touched = sum(is_recorded(entry) for entry in chosen if entry.room == room)
        kinds = ", ".join(f"{counts[kind]} {kind}" for kind in KINDS if counts[kind])
        print(f"{room}: {sum(counts.values())} ({kinds}); {touched} in recordings of format 1")


def is_recorded(entry: Entry) -> bool:
    """Return whether servers' recordings (format 1) name it: modules, classes, functions and attributes of these rooms."""
    if entry.kind in ("parameter", "local", "constant", "key", "text") or entry.room not in RECORDED_ROOMS:
        return False
    return entry.room != "engines" or entry.old.startswith("ros2_rfm_serving.engines.base")


def _print_plan(plan: Plan, others: list[texts.TextPlan]) -> None:
    edits = sum(len(file.edits) for file in plan.files.values())
    touched = sum(bool(file.edits) for file in plan.files.values())
    print(f"{len(plan.table.entries)} entries; {edits} places in {touched} Python files; {len(others)} other files")
    print(f"\nRenamed by the name alone, for the type is not known ({len(plan.guessed)}):", *plan.guessed, sep="\n  ")
    print(f"\nTo check ({len(plan.to_check)}):", *plan.to_check, sep="\n  ")


def _apply(plan: Plan, others: list[texts.TextPlan], root: Path) -> int:
    touched = gate.write(plan)
    for other in others:
        other.path.write_text(other.text, encoding="utf-8")
    moves = texts.move_modules(plan, root)
    if mutants.follow(plan, root) and mutants.MUTANTS not in touched:
        touched.append(mutants.MUTANTS)
    paths = [str(moves(path)) for path in touched if path.parts[0] in FORMATTED]
    before = {path: Path(path).read_bytes() for path in paths}
    if paths:
        subprocess.run([sys.executable, "-m", "ruff", "check", "--select", "I", "--fix", "--quiet", *paths], check=False)
        subprocess.run([sys.executable, "-m", "ruff", "format", "--quiet", *paths], check=True)
    for path in paths:
        wrap(Path(path))
    changed = [path for path in paths if not gate.differ_in_imports_alone(before[path], Path(path).read_bytes())]
    print("\nFormatting changed more than the order of imports:" if changed else "\nApplied.", *changed)
    print("Next: make lint, the tests of the room, and the places to check above.")
    return 1 if changed else 0

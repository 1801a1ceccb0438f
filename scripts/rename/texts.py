"""Files that are not Python: full dotted names and paths of the package in them, and the moves of modules."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from scripts.rename.plan import Plan
from scripts.rename.table import moved

SUFFIXES = frozenset(
    (".md", ".rst", ".toml", ".cfg", ".yaml", ".yml", ".txt", ".cmake", ".sh", ".json", ".ini", ".xml", ".svg", ".tsv", "")
)
PROSE = frozenset((".md", ".rst"))
MESSAGES = ("msg/", "srv/", "action/")
LEFT_OUT = ("findings/", "CHANGELOG", "scripts/renames.tsv", "test/bags/", "models/")
"""History, and recordings, which are not made anew."""


@dataclass(frozen=True)
class TextPlan:
    """A file with its text afterwards."""

    path: Path
    text: str


def planned(plan: Plan, root: Path, python: frozenset[Path]) -> list[TextPlan]:
    """Return the changed files, and report the places that may name something that is renamed."""
    listed = subprocess.run(["git", "ls-files"], cwd=root, capture_output=True, text=True, check=False).stdout.splitlines()
    found = []
    doubtful = _doubtful(plan)
    for path in map(Path, listed):
        if path in python or path.suffix not in SUFFIXES or str(path).startswith(LEFT_OUT) or not path.is_file():
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        new = plan.rewritten(text)
        if path.suffix in PROSE and not str(path).startswith(MESSAGES):
            new = plan.in_prose(new)
        for old, replaced in plan.texts.get(path.as_posix(), []):
            if old not in new:
                plan.to_check.append(f"{path}: {old!r} is not in it")
            new = new.replace(old, replaced)
        if new != text:
            found.append(TextPlan(path, new))
        if doubtful:
            for number, line in enumerate(new.splitlines(), 1):
                if hit := doubtful.search(line):
                    plan.to_check.append(f"{path}:{number}: {line.strip()[:160]}  [{hit[0]}]")
    return found


def _doubtful(plan: Plan) -> re.Pattern[str] | None:
    """Match what looks like one of the old names: files of modules, classes, and names of several words."""
    patterns = []
    for entry in plan.table.entries:
        name = re.escape(entry.last)
        if entry.kind == "module":
            folder = re.escape(entry.parent.rpartition(".")[2])
            patterns.append(rf"\b{folder}[/.]{name}\b|`{name}(?:\.py)?`")
        elif entry.kind == "class" and len(re.findall(r"[A-Z]", entry.last)) > 1:
            patterns.append(rf"\b{name}\b")
        elif entry.kind not in ("text", "local"):
            patterns.append(rf"`(?:\w+\.)*{name}(?:\(\))?`")
    return re.compile("|".join(dict.fromkeys(patterns))) if patterns else None


def move_modules(plan: Plan, root: Path) -> Callable[[Path], Path]:
    """`git mv` each renamed module and package, the deepest first; returns where a file lies now."""
    for old in sorted(plan.modules, key=lambda name: -name.count(".")):
        folder = root / Path(*old.split("."))
        source = folder if folder.is_dir() else folder.with_suffix(".py")
        target = source.with_name(plan.modules[old] + source.suffix)
        subprocess.run(["git", "mv", str(source), str(target)], check=True)

    def now(path: Path) -> Path:
        parts = path.with_suffix("").parts
        return Path(*moved(".".join(parts), plan.modules).split(".")).with_suffix(path.suffix)

    return now

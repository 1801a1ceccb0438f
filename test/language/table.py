"""The table of counts that may only fall, `counts.yaml`: how it is read, compared and written."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import yaml

from test.language.measures import Found, Measures, in_package

FILE = Path(__file__).with_name("counts.yaml")
UPDATE = "python -m test.language --update"
HEADER = f"""# Counts of docs/glossary.md per room, which may only fall. Written by `{UPDATE}`; `--anew` after rooms were renamed.
"""
COUNTED = {
    "banned": "names with a banned word (docs/glossary.md)",
    "fragments": "docstrings that begin with a fragment",
    "neighbours": "modules for one neighbour",
    "modules": "modules",
}
LINES_STEP = 1000
Table = dict[str, Any]


def table_of(found: Measures) -> Table:
    """Return the table that the source would have. Lines are those of the package, rounded up to thousands."""
    rooms = {
        room: {kind: count for kind in COUNTED if (count := counts(found, kind).get(room, 0))} for room in sorted(found.modules)
    }
    lines = -(-in_package(found.lines) // LINES_STEP) * LINES_STEP
    return {"lines": lines, "rooms": rooms, "twice": sorted(found.twice)}


def counts(found: Measures, kind: str) -> dict[str, int]:
    """Return the counts of a kind, by room."""
    if kind == "modules":
        return found.modules
    return Counter(each.room for each in places(found, kind))


def places(found: Measures, kind: str) -> list[Found]:
    """Return what was found of a kind; none of modules."""
    return {"banned": found.banned, "fragments": found.fragments, "neighbours": found.neighbours}.get(kind, [])


def read(file: Path = FILE) -> Table:
    table: Table = yaml.safe_load(file.read_text(encoding="utf-8"))
    return table


def write(table: Table, file: Path = FILE) -> None:
    lines = [f"lines: {table['lines']}", "rooms:"]
    lines += [f"  {room}: {_flow(kinds)}" for room, kinds in table["rooms"].items()]
    lines += ["twice:  # class names that stand more than once in the package", *(f"  - {name}" for name in table["twice"])]
    file.write_text(HEADER + "\n".join(lines) + "\n", encoding="utf-8")


def rises(kept: Table, found: Measures) -> list[str]:
    """Return what is more than the table allows, with the places to change."""
    now, problems = table_of(found), []
    if now["lines"] > kept["lines"]:
        problems.append(f"the package has {in_package(found.lines)} lines, and {kept['lines']} is the most")
    for room, kinds in now["rooms"].items():
        for kind, count in kinds.items():
            allowed = kept["rooms"].get(room, {}).get(kind, 0)
            if count > allowed:
                where = [each.place for each in places(found, kind) if each.room == room]
                problems.append("\n  ".join([f"{room}: {count} {COUNTED[kind]}, and {allowed} is the most:", *where]))
    for name in sorted(set(now["twice"]) - set(kept["twice"])):
        problems.append(f"the class name {name} stands more than once: {', '.join(found.twice[name])}")
    return problems


def is_stale(kept: Table, found: Measures) -> bool:
    """Return whether the table differs from the source: something has fallen, and the table has to follow."""
    return kept != table_of(found)


def _flow(kinds: dict[str, int]) -> str:
    return "{" + ", ".join(f"{kind}: {count}" for kind, count in kinds.items()) + "}"

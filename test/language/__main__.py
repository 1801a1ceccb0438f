"""`python -m test.language`: sizes, names and docstrings beside their targets; `--update` lowers `counts.yaml`."""

from __future__ import annotations

import argparse
import sys

from test.language import table
from test.language.measures import Measures, in_package, measure

BY_HAND = {
    "files to open to change how p99 is predicted": ("14, 41 more to read", "<= 8"),
    "files to open to add a dispatch policy": ("6", "2"),
    "files from camera callback to chunk in the queue": ("about 50", "<= 25"),
    "`rfm plan`, climbs back up on the way of its file argument": ("7", "<= 2"),
}
"""Walked by a person, last at commit 67c8790f: measure -> value and target."""


def rows(found: Measures) -> list[tuple[str, str, str]]:
    """Return measure, today's value and target of each row."""
    fragments = sum(not each.room.startswith("lab/") for each in found.fragments)
    banned = sum(not each.room.startswith("lab/") for each in found.banned)
    modules, lines = in_package(found.modules), in_package(found.lines)
    lab = (sum(found.modules.values()) - modules, sum(found.lines.values()) - lines)
    worst = sorted(found.twice, key=lambda name: (-len(found.twice[name]), name))[:3]
    named = ", ".join(f"`{name}` {len(found.twice[name])}" for name in worst)
    single = f"{len(found.neighbours)} ({found.neighbour_lines / 1000:.1f} k lines)"
    return [
        (
            "docstrings of functions and classes that start with a fragment",
            f"{fragments / found.num_docstrings:.0%} of {found.num_docstrings}",
            "< 5 %",
        ),
        ("class names that stand twice or more", f"{len(found.twice)} ({named})", "< 20"),
        ("modules imported by exactly one other, in their own folder", single, "< 40"),
        ("modules / lines in the installed package", f"{modules} / {lines / 1000:.1f} k", "about 400 / under 75 k"),
        ("floors inside `scheduler/`", f"{found.scheduler_floors}", "<= 8"),
        *((name, f"{value} (by hand, at 67c8790f)", target) for name, (value, target) in BY_HAND.items()),
        ("names with a banned word of docs/glossary.md", f"{banned}", "0, but for names that users see"),
        ("modules / lines of the lab, never installed", f"{lab[0]} / {lab[1] / 1000:.1f} k", "-"),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m test.language", description=__doc__)
    parser.add_argument("--update", action="store_true", help="lower the counts of counts.yaml to those of the source")
    parser.add_argument("--anew", action="store_true", help="write counts.yaml anew, also where a count has risen")
    parser.add_argument("--list", choices=[kind for kind in table.COUNTED if kind != "modules"], help="print every place of a kind")
    parser.add_argument("--room", default="", help="with --list: of this room alone")
    asked = parser.parse_args()
    found = measure()
    if asked.list:
        print("\n".join(each.place for each in table.places(found, asked.list) if asked.room in ("", each.room)))
        return 0
    if asked.update or asked.anew:
        problems = [] if asked.anew else table.rises(table.read(), found)
        if problems:
            print("\n".join(problems), file=sys.stderr)
            return 1
        table.write(table.table_of(found))
        return 0
    lines = [("measure", "today", "target"), ("---", "---", "---"), *rows(found)]
    print("\n".join(f"| {' | '.join(line)} |" for line in lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())

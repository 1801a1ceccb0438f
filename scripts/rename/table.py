"""The table of renames: one tab-separated line per name, `kind old new note`.

Kinds: `module`, `class`, `function`, `constant`, `method`, `attribute`, `parameter`; `local`, a variable of a function, after the
full name of the function (of one in a comprehension or lambda: after `function.<comprehension>` or `function.<lambda>`); `key`, a
name in the snapshot of a class, which is a keyword of its `kept(...)` (of a constant: `module.CONSTANT.key`); and `text`, which
replaces literal text in one file (`old` is `path|text`). `old` is the full dotted name, `new` the last part alone. Lines that begin
with `#` are comments.
"""

from __future__ import annotations

import keyword
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

PACKAGE = "ros2_rfm_serving"
KINDS = ("module", "class", "function", "constant", "method", "attribute", "parameter", "local", "key", "text")
MEMBERS = ("method", "attribute")
GLOBALS = ("class", "function", "constant")


class TableError(Exception):
    """The table, or what it asks for, cannot be applied."""


@dataclass(frozen=True)
class Entry:
    """One line of the table."""

    kind: str
    old: str
    new: str
    note: str
    line: int

    @property
    def room(self) -> str:
        """Return the folder of the package that the name belongs to, or its top-level module."""
        if self.kind == "text":
            return self.note.split(":")[0].strip()
        return self.old.split(".")[1]

    @property
    def parent(self) -> str:
        return self.old.rpartition(".")[0]

    @property
    def last(self) -> str:
        return self.old.rpartition(".")[2]


@dataclass
class Table:
    """What is applied in one run."""

    entries: list[Entry] = field(default_factory=list)

    @property
    def modules(self) -> dict[str, str]:
        """Old dotted name -> new last part."""
        return {entry.old: entry.new for entry in self.entries if entry.kind == "module"}

    def of(self, kinds: Iterable[str]) -> Iterator[Entry]:
        wanted = frozenset(kinds)
        return (entry for entry in self.entries if entry.kind in wanted)

    def rooms(self) -> list[str]:
        return list(dict.fromkeys(entry.room for entry in self.entries))


def read(path: Path) -> Table:
    """Read a table. Raises: `TableError`, which names the line."""
    entries: list[Entry] = []
    seen: dict[tuple[str, str], int] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        parts = [part.strip() for part in line.split("\t")]
        if parts[0] == "kind":
            continue
        if len(parts) not in (3, 4) or parts[0] not in KINDS:
            raise TableError(f"{path}:{number}: expected kind, old, new and note, separated by tabs; kinds: {', '.join(KINDS)}")
        kind, old, new = parts[:3]
        if kind != "text" and (not new.isidentifier() or keyword.iskeyword(new) or not old.startswith(f"{PACKAGE}.")):
            raise TableError(f"{path}:{number}: {new!r} is no name, or {old!r} is no full name below {PACKAGE}")
        if (kind, old) in seen:
            raise TableError(f"{path}:{number}: {old} stands in line {seen[kind, old]}, too")
        seen[kind, old] = number
        entries.append(Entry(kind, old, new, parts[3] if len(parts) == 4 else "", number))
    return Table(entries)


def moved(dotted: str, modules: Mapping[str, str]) -> str:
    """Return a module's dotted name after the renames of modules and packages."""
    parts = dotted.split(".")
    for length in range(len(parts), 0, -1):
        if new := modules.get(".".join(dotted.split(".")[:length])):
            parts[length - 1] = new
    return ".".join(parts)

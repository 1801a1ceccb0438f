"""Mutants: pieces of source in `test/mutants/mutants.py` follow the files that they are pieces of."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from scripts.rename import places
from scripts.rename.plan import FilePlan, Plan
from scripts.rename.table import PACKAGE, moved

MUTANTS = Path("test/mutants/mutants.py")
NAME = re.compile(rb"\.?\b[A-Za-z_]\w*")


def follow(plan: Plan, root: Path) -> bool:
    """Rewrite the mutants of changed files; returns whether there are any."""
    path = root / MUTANTS
    if not path.exists():
        return False
    data = path.read_bytes()
    tree = ast.parse(data)
    where, parts, end = places.located(tree, data), [], 0
    for start, stop, new in sorted(_edits(plan, tree, data, where)):
        parts += [data[end:start], new]
        end = stop
    path.write_bytes(b"".join([*parts, data[end:]]))
    return bool(parts)


def _edits(plan: Plan, tree: ast.AST, data: bytes, where: Mapping[int, tuple[int, int]]) -> Iterator[tuple[int, int, bytes]]:
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.func.id != "Mutant":
            continue
        given = {one.arg: one.value for one in call.keywords if isinstance(one.value, ast.Constant)}
        module = f"{PACKAGE}.{str(given['file'].value).removesuffix('.py').replace('/', '.')}"
        file = plan.files.get(module)
        if file is None:
            continue
        start, stop = where[id(given["file"])]
        after = moved(module, plan.modules).removeprefix(f"{PACKAGE}.").replace(".", "/")
        yield start, stop, f'"{after}.py"'.encode()
        old, new = given["old"], given["new"]
        piece, of_piece, of_file = _names(file, str(old.value))
        start, stop = where[id(old)]
        is_literal = data[start + 1 : stop - 1] == str(old.value).encode()
        yield (
            start,
            stop,
            data[start : start + 1] + piece + data[stop - 1 : stop] if is_literal else _renamed(data[start:stop], of_piece),
        )
        start, stop = where[id(new)]
        yield start, stop, _renamed(data[start:stop], {**of_file, **of_piece})


def _renamed(text: bytes, names: Mapping[bytes, bytes]) -> bytes:
    return NAME.sub(lambda found: names.get(found[0], found[0]), text)


def _names(file: FilePlan, old: str) -> tuple[bytes, dict[bytes, bytes], dict[bytes, bytes]]:
    """Return a piece of a file afterwards, and old name -> new name, in the piece and of those that the file renames in one way.

    A name after a dot has the dot, for an attribute and a variable of the same name are two.
    """
    data, piece = file.source.data, old.encode()
    start = data.find(piece)
    inside: dict[bytes, bytes] = {name: name for name in NAME.findall(piece)}
    everywhere: dict[bytes, set[bytes]] = {}
    parts, place = [], start
    for edit in sorted(file.edits.values()):
        dot = b"." if data[edit.start - 1 : edit.start] == b"." else b""
        name, new = dot + data[edit.start : edit.end], dot + edit.new.encode()
        everywhere.setdefault(name, set()).add(new)
        if start >= 0 and start <= edit.start and edit.end <= start + len(piece):
            inside[name] = new
            parts += [data[place : edit.start], edit.new.encode()]
            place = edit.end
    after = b"".join([*parts, data[place : start + len(piece)]]) if start >= 0 else piece
    return after, inside, {name: news.pop() for name, news in everywhere.items() if len(news) == 1}

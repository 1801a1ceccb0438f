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
NAME = re.compile(rb"(?<![\w.])[A-Za-z_]\w*|(?<=\.)[A-Za-z_]\w*")


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
        of_piece, of_file = _names(file, str(given["old"].value).encode())
        for name, known in (("old", of_piece), ("new", {**of_file, **of_piece})):
            start, stop = where[id(given[name])]
            yield start, stop, NAME.sub(lambda found, known=known: known.get(found[0], found[0]), data[start:stop])  # type: ignore[misc]


def _names(file: FilePlan, piece: bytes) -> tuple[dict[bytes, bytes], dict[bytes, bytes]]:
    """Return old name -> new name in a piece of a file, and those of the whole file that are renamed in one way."""
    data = file.source.data
    start = data.find(piece)
    inside: dict[bytes, bytes] = {name: name for name in NAME.findall(piece)}
    everywhere: dict[bytes, set[bytes]] = {}
    for edit in file.edits.values():
        old = data[edit.start : edit.end]
        everywhere.setdefault(old, set()).add(edit.new.encode())
        if start >= 0 and start <= edit.start and edit.end <= start + len(piece):
            inside[old] = edit.new.encode()
    return inside, {old: news.pop() for old, news in everywhere.items() if len(news) == 1}

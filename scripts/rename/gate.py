"""The proof that a file differs in names alone."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from scripts.rename.names import Source
from scripts.rename.places import prose
from scripts.rename.plan import FilePlan, Plan


def edited(file: FilePlan) -> bytes:
    """Return the file after its edits. Raises: `ValueError` where two of them overlap."""
    data, parts, place = file.source.data, [], 0
    for edit in sorted(file.edits.values()):
        if edit.start < place:
            raise ValueError(f"two edits overlap at byte {edit.start}")
        parts += [data[place : edit.start], edit.new.encode()]
        place = edit.end
    return b"".join([*parts, data[place:]])


def check(plan: Plan) -> list[str]:
    """Return what is wrong with the planned edits; the trees of the plan are changed by it."""
    return [problem for file in plan.files.values() if file.edits or file.changes for problem in _check(file)]


def _check(file: FilePlan) -> Iterator[str]:
    path = file.source.path
    try:
        data = edited(file)
        after = Source(path, file.source.module, data, ast.parse(data, str(path)), file.source.is_package)
    except (ValueError, SyntaxError) as error:
        yield f"{path}: {error}"
        return
    yield from _bindings(file, after)
    for change in file.changes:
        change()
    expected, found = _dump(file.source.tree), _dump(after.tree)
    if expected != found:
        at = next(
            (n for n, (one, other) in enumerate(zip(expected, found, strict=False)) if one != other),
            min(map(len, (expected, found))),
        )
        yield f"{path}: differs in more than names: {expected[max(0, at - 80) : at + 60]!r} / {found[max(0, at - 80) : at + 60]!r}"


def _bindings(file: FilePlan, after: Source) -> Iterator[str]:
    """Compare the scope that each name is bound in, before and after: nothing is hidden, and nothing is caught."""
    if len(file.source.uses) != len(after.uses):
        yield f"{file.source.path}: {len(file.source.uses)} names became {len(after.uses)}"
        return
    for old, new in zip(file.source.uses, after.uses, strict=True):
        before = old.bound_in.number if old.bound_in else -1
        now = new.bound_in.number if new.bound_in else -1
        wanted = file.renamed.get((before, old.name), old.name)
        if (now, new.name) != (before, wanted):
            place = f"{file.source.path}:{getattr(old.node, 'lineno', 0)}"
            yield f"{place}: {old.name} -> {new.name} is bound elsewhere, or {wanted} was meant"
    for scope, other in zip(file.source.inner.values(), after.inner.values(), strict=True):
        names = [file.renamed.get((scope.number, name), name) for name in scope.bindings]
        if len(set(names)) != len(names) or set(names) != set(other.bindings):
            clash = sorted({name for name in names if names.count(name) > 1} or set(names) ^ set(other.bindings))
            yield f"{file.source.path}: {scope.full}: {', '.join(clash)} stands twice, or was lost"


def _dump(tree: ast.Module) -> str:
    for node in prose(ast.walk(tree)):
        node.value = ""
    return ast.dump(tree)


def write(plan: Plan) -> list[Path]:
    """Write all files that have edits; returns their paths."""
    found = [file for file in plan.files.values() if file.edits]
    for file in found:
        file.source.path.write_bytes(edited(file))
    return [file.source.path for file in found]


def differ_in_imports_alone(before: bytes, after: bytes) -> bool:
    """Return whether two files are the same but for the order of their imports, as `ruff` sorts them."""
    return _without_imports(before) == _without_imports(after)


def _without_imports(data: bytes) -> tuple[str, list[str]]:
    tree = ast.parse(data)
    imports: list[str] = []
    for node in ast.walk(tree):
        for field in ("body", "orelse", "finalbody"):
            body = getattr(node, field, None)
            if isinstance(body, list):
                for one in body:
                    if isinstance(one, ast.ImportFrom):
                        imports += [f"{one.level} {one.module} {alias.name} {alias.asname}" for alias in one.names]
                    elif isinstance(one, ast.Import):
                        imports += [f"{alias.name} {alias.asname}" for alias in one.names]
                setattr(node, field, [one for one in body if not isinstance(one, (ast.Import, ast.ImportFrom))])
    return _dump(tree), sorted(imports)

"""Modules of other packages that an executable imports when it starts, found by reading the source, without importing anything."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from ros2_rfm_serving.checkout import is_in_lab

PACKAGE = Path(__file__).resolve().parents[2]
"""Folder of ros2_rfm_serving."""
VERBS = "VERBS"
"""Name of a module's table of verbs -> "module:name", each imported on use.
Those of the lab are not followed, because only a checkout has them."""


def nodes() -> list[str]:
    """Return the executables that are nodes: ros2_rfm_serving.ros.<name>."""
    return sorted(file.stem for file in (PACKAGE / "ros").glob("*_node.py"))


def imports_of(module: str, *, when_used: bool = False) -> set[str]:
    """Return the names of foreign modules that importing a module of this package, such as `ros2_rfm_serving.ros.robot_node`,
    imports, however indirectly. when_used: include those that its own functions import."""
    seen: set[str] = set()
    waiting, others = [module], set()
    file = _file(module)
    if when_used and file is not None:
        statements = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, (ast.Import, ast.ImportFrom))]
        others = {name for name in _imported(statements) if _is_foreign(name)}
    while waiting:
        name = waiting.pop()
        file = _file(name)
        if name in seen or file is None:
            continue
        seen.add(name)
        waiting += [name.rpartition(".")[0]] if "." in name else []
        for imported in _imported_by(file):
            if imported.partition(".")[0] == PACKAGE.name:
                waiting.append(imported)
            elif _is_foreign(imported):
                others.add(imported)
    return others


@cache
def _imported_by(file: Path) -> tuple[str, ...]:
    """Return the modules that a file imports at import; cached, because executables have most of their modules in common."""
    return tuple(_imported(ast.parse(file.read_text()).body))


def _is_foreign(module: str) -> bool:
    return module.partition(".")[0] not in {PACKAGE.name, *sys.stdlib_module_names}


def _imported(body: Iterable[ast.stmt]) -> Iterator[str]:
    """Yield the modules that are imported at import, except in bodies of functions, for type checkers, or with a handled
    failure."""
    for statement in body:
        if isinstance(statement, ast.Import):
            yield from (alias.name for alias in statement.names)
        elif isinstance(statement, ast.ImportFrom) and statement.module:
            yield statement.module
            if statement.module.partition(".")[0] == PACKAGE.name:
                yield from (f"{statement.module}.{alias.name}" for alias in statement.names)  # a module, or a name in one
        elif isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == VERBS:
            modules = (place.partition(":")[0] for place in ast.literal_eval(statement.value).values())
            yield from (module for module in modules if not is_in_lab(module))
        elif isinstance(statement, ast.ClassDef) or (isinstance(statement, ast.If) and not _is_for_type_checkers(statement)):
            yield from _imported([*statement.body, *getattr(statement, "orelse", [])])
        elif isinstance(statement, ast.With) or (isinstance(statement, ast.Try) and not _may_fail(statement)):
            yield from _imported(statement.body)


def _file(module: str) -> Path | None:
    path = PACKAGE.parent.joinpath(*module.split("."))
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)


def _is_for_type_checkers(statement: ast.If) -> bool:
    return "TYPE_CHECKING" in ast.unparse(statement.test)


def _may_fail(statement: ast.Try) -> bool:
    caught = " ".join(ast.unparse(handler.type) for handler in statement.handlers if handler.type)
    return "ImportError" in caught or "ModuleNotFoundError" in caught

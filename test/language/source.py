"""The source of the package and of the lab, parsed: names, docstrings, classes and imports of each module."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE, LAB = "ros2_rfm_serving", "lab"
TOP = "top level"
"""Room of the modules that stand directly in the package or in the lab."""
WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True, kw_only=True)
class Module:
    """One source file."""

    name: str
    """Dotted name, as `ros2_rfm_serving.robot.core`."""
    file: Path
    """Path from the root of the repository."""
    num_lines: int
    nodes: list[ast.AST]
    """All nodes of the syntax tree."""

    @property
    def is_package(self) -> bool:
        return self.file.name == "__init__.py"

    @property
    def in_lab(self) -> bool:
        return self.file.parts[0] == LAB

    @property
    def room(self) -> str:
        """Folder directly below the package, as `robot`; that of the lab as `lab/benchmarks`."""
        below = self.file.parts[1:]
        room = below[0] if len(below) > 1 else TOP
        return f"{LAB}/{room}" if self.in_lab else room

    @property
    def place(self) -> str:
        return str(self.file)


def read_modules(root: Path = ROOT) -> list[Module]:
    """Return every module of the package and of the lab, sorted by path."""
    files = [file for folder in (PACKAGE, LAB) for file in sorted((root / folder).rglob("*.py"))]
    return [_module(file, root) for file in files]


def _module(file: Path, root: Path) -> Module:
    text, path = file.read_text(encoding="utf-8"), file.relative_to(root)
    name = ".".join(path.with_suffix("").parts).removesuffix(".__init__")
    return Module(name=name, file=path, num_lines=len(text.splitlines()), nodes=list(ast.walk(ast.parse(text))))


def definitions(module: Module) -> Iterator[Definition]:
    """Yield the functions, methods and classes of a module."""
    return (node for node in module.nodes if isinstance(node, Definition))


def names(module: Module) -> Iterator[tuple[str, int]]:
    """Yield the names that a module gives, each once, with the line: of itself, of definitions, arguments and variables."""
    found: dict[str, int] = {} if module.is_package else {module.file.stem: 1}
    for node in module.nodes:
        if isinstance(node, Definition):
            found.setdefault(node.name, node.lineno)
        elif isinstance(node, ast.arg):
            found.setdefault(node.arg, node.lineno)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.setdefault(node.id, node.lineno)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.setdefault(node.attr, node.lineno)
    return iter(found.items())


def words_of(name: str) -> list[str]:
    """Return the words of an identifier in small letters: `RobotStatusSample` and `robot_word` have two."""
    return [word.lower() for word in WORD.findall(name)]


def imports(modules: list[Module]) -> dict[str, set[str]]:
    """Return the modules that each module imports by an absolute name, anywhere in its source."""
    known = {module.name for module in modules}
    found: dict[str, set[str]] = {}
    for module in modules:
        asked = set[str]()
        for node in module.nodes:
            if isinstance(node, ast.Import):
                asked |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                inner = {alias.name: f"{node.module}.{alias.name}" for alias in node.names}
                asked |= {name if name in known else node.module for name in inner.values()}
        found[module.name] = (asked & known) - {module.name}
    return found

"""What mypy cannot see: rclpy's classes are not typed, so that a subclass may read any attribute of its own."""

from __future__ import annotations

import ast
from pathlib import Path

INHERITED = {"__dict__"}


def own(tree: ast.AST) -> set[str]:
    """What a class, or all classes of a module, define or assign."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
            found.add(node.attr)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
    return found


def imported(tree: ast.Module) -> set[str]:
    """From modules of this package."""
    froms = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    return {name.name for node in froms if (node.module or "").startswith("ros2_rfm_serving") for name in node.names}


def test_every_private_attribute_that_a_class_reads_is_somewhere_assigned(repository: Path) -> None:
    unknown = []
    for file in [file for folder in ("ros2_rfm_serving", "lab") for file in (repository / folder).rglob("*.py")]:
        tree = ast.parse(file.read_text())
        bases = {node.name: own(node) for node in tree.body if isinstance(node, ast.ClassDef)}
        for cls in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
            generic = [base.value for base in cls.bases if isinstance(base, ast.Subscript)]  # of ours, not of typing
            inherits = [base.id for base in cls.bases if isinstance(base, ast.Name)]
            inherits += [base.id for base in generic if isinstance(base, ast.Name) and base.id in imported(tree)]
            if any(base not in bases and base not in ("Node", "LifecycleNode") for base in inherits):
                continue  # of another module of ours, which mypy sees
            known = own(cls).union(*(bases.get(base, set()) for base in inherits), INHERITED)
            for node in ast.walk(cls):
                is_own = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"
                if is_own and isinstance(node.ctx, ast.Load) and node.attr.startswith("_") and node.attr not in known:
                    unknown.append(f"{file.name}: {cls.name}.{node.attr}")
    assert not unknown, unknown

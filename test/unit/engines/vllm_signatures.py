"""What vLLM's source says of the names in our stub of it: bases, fields, arguments. Reads source, imports nothing.

python -m test.unit.engines.vllm_signatures SITE_PACKAGES > test/unit/engines/vllm_0_33_0.json
"""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path
from typing import Any

STUB = Path(__file__).parent / "vllm_stub"


def signatures(root: Path, like: Path = STUB) -> dict[str, Any]:
    """By file, then class or function; only those that the stub has. Missing ones are None."""
    found = {}
    for file in sorted(like.rglob("*.py")):
        name = str(file.relative_to(like))
        if wanted := _of(file):
            real = _of(root / name) if (root / name).is_file() else {}
            found[name] = {symbol: _common(real.get(symbol), said) for symbol, said in wanted.items()}
    return found


def _common(real: Any, stub: Any) -> Any:
    if real is None or "members" not in stub:
        return real
    return {**real, "members": {name: real["members"].get(name) for name in stub["members"]}}


def _of(file: Path) -> dict[str, Any]:
    tree = ast.parse(file.read_text())
    found: dict[str, Any] = {}
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            found[node.name] = {"bases": [ast.unparse(base).partition("[")[0] for base in node.bases], "members": _members(node)}
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found[node.name] = _function(node)
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Name):
            found[ast.unparse(node.targets[0])] = {"is": node.value.id}
    return found


def _members(of: ast.ClassDef) -> dict[str, Any]:
    """But for private ones and `stub_...`, by which tests look into the stub; what `__init__` sets is a field, too."""
    found: dict[str, Any] = {}
    for node in of.body:
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            found |= dict.fromkeys(_set_by(node), "field")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found[node.name] = _function(node)
        elif isinstance(node, ast.AnnAssign):
            found[ast.unparse(node.target)] = "field"
        elif isinstance(node, ast.Assign):
            found[ast.unparse(node.targets[0])] = "field"
    return {name: said for name, said in found.items() if not name.startswith(("_", "stub_"))}


def _set_by(init: ast.FunctionDef) -> list[str]:
    stored = (node for node in ast.walk(init) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store))
    return [node.attr for node in stored if isinstance(node.value, ast.Name) and node.value.id == "self"]


def _function(node: ast.FunctionDef | ast.AsyncFunctionDef) -> dict[str, Any]:
    arguments, optional = node.args, {}
    positional = [*arguments.posonlyargs, *arguments.args]
    for i, argument in enumerate(positional):
        optional[argument.arg] = i >= len(positional) - len(arguments.defaults)
    keyword = {a.arg: d is not None for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)}
    kinds = {ast.unparse(d) for d in node.decorator_list}
    return {
        "async": isinstance(node, ast.AsyncFunctionDef),
        "yields": any(isinstance(inner, ast.Yield) for inner in ast.walk(node)),
        "property": bool(kinds & {"property", "cached_property"}),
        "positional": optional,
        "keyword": keyword,
        "further": arguments.kwarg is not None,
    }


if __name__ == "__main__":
    print(json.dumps(signatures(Path(sys.argv[1])), indent=1))

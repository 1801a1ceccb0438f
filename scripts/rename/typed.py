"""What mypy knows: the class of each expression whose attribute is read, all classes with their members, and who overrides whom.

One build checks all files, bodies of functions without annotations too. What is needed of it is kept as plain data under a digest
of the sources, for a build takes minutes.
"""

from __future__ import annotations

import hashlib
import io
import pickle
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mypy import build, nodes, types
from mypy.config_parser import parse_config_file
from mypy.errors import CompileError
from mypy.fscache import FileSystemCache
from mypy.modulefinder import BuildSource
from mypy.options import Options
from mypy.subtypes import is_subtype
from mypy.typevars import fill_typevars_with_any

Span = tuple[int, int, int, int]
"""Line, column, last line and last column, as in `ast`; columns in bytes."""
FORMAT = b"1"
"""Of what is kept; another one makes the types anew."""
ANY = "Any"
MODULE = "module "
TYPE = "type "
FUNCTION = "def "
PLAIN = (nodes.IntExpr, nodes.StrExpr, nodes.FloatExpr, nodes.LambdaExpr, nodes.ListExpr, nodes.TupleExpr, nodes.DictExpr)
NOTHING: dict[type, str] = {types.NoneType: "None", types.UninhabitedType: "Never"}
"""Types without attributes."""
LEFT_OUT = frozenset(
    ("node", "info", "type", "unanalyzed_type", "original_def", "original_first_arg", "var", "fullname", "def_or_infer")
)
"""Attributes of mypy's nodes that lead out of the tree."""


@dataclass(frozen=True)
class Class:
    """One class of the project or outside it."""

    full: str
    bases: tuple[str, ...]
    """Itself first, then all that it inherits from, in the order of look-up."""
    members: frozenset[str]
    is_protocol: bool = False
    has_untyped_base: bool = False
    init: str = ""
    """`written`: its constructor stands in the source; `generated`: its keywords are the names of fields; empty: inherited."""


@dataclass
class Types:
    """What is kept of a build."""

    expressions: dict[str, dict[Span, list[tuple[str, str, tuple[str, ...]]]]] = field(default_factory=dict)
    """Module -> span -> mypy's kind of node, its name, and classes of the value: `ANY`; after `TYPE` the class itself; after
    `MODULE` and `FUNCTION` a full name."""
    classes: dict[str, Class] = field(default_factory=dict)
    implementers: dict[str, list[str]] = field(default_factory=dict)
    """Protocol -> classes that are no subclasses and have all that it asks for."""
    errors: list[str] = field(default_factory=list)

    def owner(self, full: str, member: str) -> str:
        """Return the class that a member of a class is found in; empty: none, or it may be any."""
        for base in self.bases(full):
            if (known := self.classes.get(base)) and member in known.members:
                return base
        return ""

    def bases(self, full: str) -> tuple[str, ...]:
        known = self.classes.get(full)
        return known.bases if known else ()


def load(root: Path, files: Mapping[str, Path], cache: Path) -> Types:
    """Return the types of all files. cache: a folder where results of former builds lie."""
    digest = hashlib.sha256(FORMAT)
    for module, path in sorted(files.items()):
        digest.update(f"{module}\0{path}\0".encode() + path.read_bytes() + b"\0")
    kept = cache / f"{digest.hexdigest()[:24]}.pickle"
    if kept.exists():
        found: Types = pickle.loads(kept.read_bytes())
        return found
    cache.mkdir(parents=True, exist_ok=True)
    found = _built(root, files, cache)
    kept.write_bytes(pickle.dumps(found))
    return found


def _built(root: Path, files: Mapping[str, Path], cache: Path) -> Types:
    options = Options()
    if (config := root / "pyproject.toml").exists():
        parse_config_file(options, lambda: None, str(config), io.StringIO(), sys.stderr)
    options.packages = []
    options.native_parser = False  # whose positions are not those of `ast`
    options.cache_dir = str(cache / "mypy")
    options.export_types = options.preserve_asts = options.check_untyped_defs = True
    options.warn_unreachable = False
    options.namespace_packages = options.explicit_package_bases = True
    options.mypy_path = [str(root)]
    options.python_executable = sys.executable
    # Files whose text is given are read anew, with their types; libraries come from mypy's cache.
    sources = [BuildSource(str(path), module, path.read_text(encoding="utf-8")) for module, path in files.items()]
    try:
        result = build.build(sources, options, fscache=FileSystemCache())
    except CompileError as error:
        raise SystemExit("mypy cannot read the sources:\n" + "\n".join(error.messages[:20])) from error
    return _extracted(result, frozenset(files))


def _extracted(result: build.BuildResult, modules: frozenset[str]) -> Types:
    found = Types(errors=list(result.errors))
    infos: dict[str, nodes.TypeInfo] = {}
    for module in sorted(modules & result.files.keys()):
        spans: dict[Span, list[tuple[str, str, tuple[str, ...]]]] = defaultdict(list)
        for node in _walked(result.files[module]):
            if isinstance(node, nodes.ClassDef) and isinstance(node.info, nodes.TypeInfo):
                infos[node.info.fullname] = node.info
            elif isinstance(node, nodes.Expression) and not isinstance(node, PLAIN):
                _note(node, result.types, spans)
        found.expressions[module] = dict(spans)
    for info in list(infos.values()):
        for base in info.mro:
            infos.setdefault(base.fullname, base)
    found.classes = {full: _class(info) for full, info in infos.items()}
    found.implementers = dict(_implementers(infos, modules))
    return found


def _note(
    node: nodes.Expression,
    known: Mapping[nodes.Expression, types.Type],
    spans: dict[Span, list[tuple[str, str, tuple[str, ...]]]],
) -> None:
    name = node.name if isinstance(node, (nodes.NameExpr, nodes.MemberExpr)) else ""
    place = (node.line, node.column, node.end_line or 0, node.end_column or 0)
    if isinstance(node, nodes.SuperExpr):
        bases = [base.fullname for base in node.info.mro[1:]] if node.info else []
        spans[place].append(("SuperExpr", node.name, tuple(bases[:1])))
        return
    if isinstance(node, nodes.RefExpr) and isinstance(node.node, nodes.MypyFile):
        spans[place].append((type(node).__name__, name, (f"{MODULE}{node.node.fullname}",)))
    elif (value := known.get(node)) is not None:
        spans[place].append((type(node).__name__, name, tuple(dict.fromkeys(_classes_of(value)))))


def _classes_of(value: types.Type | None, depth: int = 0) -> Iterator[str]:
    """Yield the classes whose attributes a value has."""
    value = types.get_proper_type(value)
    if value is None or depth > 8:
        yield ANY
    elif isinstance(value, types.Instance):
        yield value.type.fullname
    elif isinstance(value, types.UnionType):
        for item in value.items:
            yield from _classes_of(item, depth + 1)
    elif isinstance(value, types.TypeType):
        yield from (f"{TYPE}{one.removeprefix(TYPE)}" for one in _classes_of(value.item, depth + 1))
    elif isinstance(value, types.FunctionLike):
        yield from _callable(value)
    elif isinstance(value, types.TupleType):
        yield value.partial_fallback.type.fullname
    elif isinstance(value, (types.LiteralType, types.TypedDictType)):
        yield value.fallback.type.fullname
    elif isinstance(value, types.TypeVarType):
        bounds: Iterable[types.Type] = value.values or [value.upper_bound]
        for bound in bounds:
            yield from _classes_of(bound, depth + 1)
    else:
        yield NOTHING.get(type(value), ANY)


def _callable(value: types.FunctionLike) -> Iterator[str]:
    if value.is_type_obj():
        yield f"{TYPE}{value.type_object().fullname}"
        return
    definition = value.items[0].definition
    full = getattr(definition, "fullname", "") if definition else ""
    yield f"{FUNCTION}{full}"


def _class(info: nodes.TypeInfo) -> Class:
    init = info.names.get("__init__") or info.names.get("__new__")
    return Class(
        info.fullname,
        tuple(base.fullname for base in info.mro),
        frozenset(info.names),
        info.is_protocol,
        info.fallback_to_any,
        "" if not init else "generated" if init.plugin_generated or info.is_named_tuple else "written",
    )


def _implementers(infos: Mapping[str, nodes.TypeInfo], modules: frozenset[str]) -> Iterator[tuple[str, list[str]]]:
    ours = [info for info in infos.values() if info.module_name in modules]
    for protocol in (info for info in ours if info.is_protocol):
        wanted = {name for base in protocol.mro if base.is_protocol for name in base.names if not name.startswith("__")}
        candidates = (
            info for info in ours if not info.is_protocol and protocol not in info.mro and all(info.get(name) for name in wanted)
        )
        bound = fill_typevars_with_any(protocol)
        yield (
            protocol.fullname,
            [info.fullname for info in candidates if wanted and is_subtype(fill_typevars_with_any(info), bound)],
        )


_CHILDREN: dict[type, tuple[str, ...]] = {}


def _walked(tree: nodes.MypyFile) -> Iterator[nodes.Node]:
    """Yield all nodes of a tree. mypy's own visitors are compiled and cannot be extended."""
    seen: set[int] = set()
    waiting: list[Any] = [tree.defs]
    while waiting:
        one = waiting.pop()
        if isinstance(one, (list, tuple)):
            waiting.extend(one)
        elif isinstance(one, dict):
            waiting.extend(one.values())
        elif isinstance(one, nodes.Node) and not isinstance(one, (nodes.TypeInfo, nodes.Var, nodes.MypyFile)):
            if id(one) in seen:
                continue
            seen.add(id(one))
            yield one
            waiting.extend(_children(one))
        elif type(one).__module__ == "mypy.patterns":
            waiting.extend(_children(one))


def _children(node: Any) -> Iterator[Any]:
    kind = type(node)
    if kind not in _CHILDREN:
        names = {name for base in kind.__mro__ for name, value in vars(base).items() if type(value).__name__ == "getset_descriptor"}
        _CHILDREN[kind] = tuple(sorted(names - LEFT_OUT))
    for name in _CHILDREN[kind]:
        value = getattr(node, name, None)
        if isinstance(value, (nodes.Node, list, tuple, dict)) or type(value).__module__ == "mypy.patterns":
            yield value

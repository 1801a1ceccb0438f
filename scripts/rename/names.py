"""Lexical names: which binding each name of a file belongs to, by Python's scopes, and what an import brings.

This needs no types. Attributes of objects, whose class has to be known, are the matter of `typed.py`.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
BUILTINS = frozenset(dir(builtins))


@dataclass(frozen=True)
class Binding:
    """What a name of one scope stands for."""

    kind: str
    """`def` (also of classes), `value`, `parameter`, `import`."""
    full: str
    """Its own full name; of an import: the dotted name of the module."""
    member: str = ""
    """Of `from module import member`."""
    has_alias: bool = False
    """Imported `as` another name."""
    is_class: bool = False


@dataclass(eq=False)
class Scope:
    """One scope of a file, with its bindings."""

    kind: str
    """`module`, `class` or `function` (lambdas and comprehensions too)."""
    full: str
    parent: Scope | None
    number: int
    bindings: dict[str, Binding] = field(default_factory=dict)
    passed_on: dict[str, str] = field(default_factory=dict)
    """Name -> `global` or `nonlocal`."""
    first_parameter: str = ""

    @property
    def owner(self) -> str:
        """Return the class whose method this is, directly or around it; empty: none."""
        scope: Scope | None = self
        while scope and scope.kind != "class":
            scope = scope.parent
        return scope.full if scope else ""

    def find(self, name: str) -> Scope | None:
        """Return the scope that binds a name used here; None: a builtin or unknown."""
        scope: Scope | None = self
        is_first = True
        while scope:
            passed_on = scope.passed_on.get(name)
            if passed_on == "global":
                return scope.root
            if not passed_on and name in scope.bindings and (is_first or scope.kind != "class"):
                return scope
            scope, is_first = scope.parent, False
        return None

    @property
    def root(self) -> Scope:
        scope = self
        while scope.parent:
            scope = scope.parent
        return scope


@dataclass(frozen=True)
class Use:
    """A place where a name stands: a Name node, a definition, an import, a parameter."""

    node: ast.AST
    name: str
    scope: Scope
    """In which it stands."""
    bound_in: Scope | None
    field: str
    """Attribute of the node that holds the name."""
    index: int = -1
    """Of names in a list, as in `global a, b`."""


@dataclass(eq=False)
class Source:
    """One Python file."""

    path: Path
    module: str
    data: bytes
    tree: ast.Module
    is_package: bool
    scope: Scope = field(init=False)
    uses: list[Use] = field(default_factory=list)
    scopes: dict[int, Scope] = field(default_factory=dict)
    """id of a node -> the scope in which it stands; of definitions too."""
    inner: dict[int, Scope] = field(default_factory=dict)
    """id of a module, class or function node -> the scope that it opens."""

    def __post_init__(self) -> None:
        _Resolver(self).run()

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return list(ast.walk(self.tree))

    @cached_property
    def words(self) -> frozenset[str]:
        """Return all words of the file: a name that is none of them does not stand in it."""
        return frozenset(re.findall(r"\w+", self.data.decode()))


def read(path: Path, module: str) -> Source:
    data = path.read_bytes()
    return Source(path, module, data, ast.parse(data, str(path)), path.name == "__init__.py")


def absolute(node: ast.ImportFrom, module: str, is_package: bool) -> str:
    """Return the dotted name of the module that an import names."""
    if not node.level:
        return node.module or ""
    parts = module.split(".")
    kept = parts[: len(parts) - node.level + is_package]
    return ".".join([*kept, *([node.module] if node.module else [])])


class _Resolver(ast.NodeVisitor):
    """Collects scopes and uses in one walk; bindings of a scope are collected before its statements are visited."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._module = source.module
        self._scope = source.scope = self._opened("module", source.module, None, source.tree)
        self._late: list[Callable[[], None]] = []

    def run(self) -> None:
        for statement in self._source.tree.body:
            _Binder(self._scope, self._source).visit(statement)
        self.generic_visit(self._source.tree)

    def _opened(self, kind: str, full: str, parent: Scope | None, node: ast.AST) -> Scope:
        scope = Scope(kind, full, parent, len(self._source.inner))
        self._source.inner[id(node)] = scope
        return scope

    def visit(self, node: ast.AST) -> None:
        self._source.scopes[id(node)] = self._scope
        super().visit(node)

    def _use(self, node: ast.AST, name: str, field: str, index: int = -1, scope: Scope | None = None) -> None:
        scope = scope or self._scope
        self._source.uses.append(Use(node, name, scope, scope.find(name), field, index))

    def visit_Name(self, node: ast.Name) -> None:
        scope = self._scope
        if isinstance(node.ctx, ast.Store):  # a walrus in a comprehension binds outside it
            while node.id not in scope.bindings and node.id not in scope.passed_on and scope.parent and scope.kind == "function":
                scope = scope.parent
        self._use(node, node.id, "id", scope=scope)

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._source.scopes[id(alias)] = self._scope
            if alias.asname:
                self._use(alias, alias.asname, "asname")

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        self.visit_Import(node)  # type: ignore[arg-type]
        for alias in node.names:
            if not alias.asname:
                self._use(alias, alias.name, "name")

    def visit_Global(self, node: ast.Global | ast.Nonlocal) -> None:
        for index, name in enumerate(node.names):
            self._use(node, name, "names", index)

    visit_Nonlocal = visit_Global

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        if node.name:
            self._use(node, node.name, "name")
        self.generic_visit(node)

    def visit_MatchAs(self, node: ast.MatchAs | ast.MatchStar) -> None:
        if node.name:
            self._use(node, node.name, "name")
        self.generic_visit(node)

    visit_MatchStar = visit_MatchAs

    def visit_MatchMapping(self, node: ast.MatchMapping) -> None:
        if node.rest:
            self._use(node, node.rest, "rest")
        self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._use(node, node.name, "name")
        for part in (*node.decorator_list, *node.bases, *node.keywords):
            self.visit(part)
        inside = self._scope.kind == "function"
        full = f"{self._module}.{node.name}@{node.lineno}" if inside else f"{self._scope.full}.{node.name}"
        self._within(self._opened("class", full, self._scope, node), node.body)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._use(node, node.name, "name")
        for part in node.decorator_list:
            self.visit(part)
        self._signature(node.args)
        if node.returns:
            self.visit(node.returns)
        scope = self._opened("function", f"{self._scope.full}.{node.name}", self._scope, node)
        self._parameters(scope, node.args)
        self._within(scope, node.body, node.args)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._signature(node.args)
        scope = self._opened("function", f"{self._scope.full}.<lambda>", self._scope, node)
        self._parameters(scope, node.args)
        self._within(scope, [node.body], node.args)

    def _signature(self, arguments: ast.arguments) -> None:
        """Defaults and annotations belong to the scope around the function."""
        for part in (*arguments.defaults, *arguments.kw_defaults, *(one.annotation for one in _arguments(arguments))):
            if part:
                self.visit(part)

    @staticmethod
    def _parameters(scope: Scope, arguments: ast.arguments) -> None:
        named = [*arguments.posonlyargs, *arguments.args]
        scope.first_parameter = named[0].arg if named else ""
        for one in _arguments(arguments):
            scope.bindings[one.arg] = Binding("parameter", f"{scope.full}.{one.arg}")

    def _within(self, scope: Scope, body: list[ast.stmt] | list[ast.expr], arguments: ast.arguments | None = None) -> None:
        before, self._scope = self._scope, scope
        for one in body:
            _Binder(scope, self._source).visit(one)
        for argument in _arguments(arguments) if arguments else ():
            self._source.scopes[id(argument)] = scope
            self._use(argument, argument.arg, "arg")
        for one in body:
            self.visit(one)
        self._scope = before

    def _comprehension(self, node: Comprehension) -> None:
        self.visit(node.generators[0].iter)
        scope = self._opened("function", f"{self._scope.full}.<comprehension>", self._scope, node)
        before, self._scope = self._scope, scope
        for generator in node.generators:
            _Binder(scope, self._source).visit(generator.target)
        for number, generator in enumerate(node.generators):
            self._source.scopes[id(generator)] = scope
            for part in (generator.target, *([generator.iter] if number else []), *generator.ifs):
                self.visit(part)
        for element in (node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,):
            self.visit(element)
        self._scope = before

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _comprehension


class _Binder(ast.NodeVisitor):
    """Collects what one statement binds in its scope, without going into the scopes inside it."""

    def __init__(self, scope: Scope, source: Source) -> None:
        self._scope, self._source = scope, source

    def _bind(self, name: str, kind: str = "value", *, is_class: bool = False) -> None:
        if name not in self._scope.passed_on:
            known = self._scope.bindings.get(name)
            if known is None or (known.kind == "value" and kind == "def"):
                self._scope.bindings[name] = Binding(kind, f"{self._scope.full}.{name}", is_class=is_class)

    def visit_Name(self, node: ast.Name) -> None:
        if not isinstance(node.ctx, ast.Load):
            self._bind(node.id)

    def visit_Global(self, node: ast.Global) -> None:
        for name in node.names:
            self._scope.passed_on[name] = "global"

    def visit_Nonlocal(self, node: ast.Nonlocal) -> None:
        for name in node.names:
            self._scope.passed_on[name] = "nonlocal"

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._bind(node.name, "def")
        for part in (*node.decorator_list, *node.args.defaults, *node.args.kw_defaults):
            if part:
                self.visit(part)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._bind(node.name, "def", is_class=True)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        pass

    def _comprehension(self, node: ast.AST) -> None:
        for part in ast.walk(node):  # a walrus inside binds here
            if isinstance(part, ast.NamedExpr) and self._scope.kind != "class":
                self._bind(part.target.id)

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _comprehension

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            name = alias.asname or alias.name.split(".")[0]
            full = alias.name if alias.asname else name
            self._scope.bindings.setdefault(name, Binding("import", full, has_alias=bool(alias.asname)))

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        module = absolute(node, self._source.module, self._source.is_package)
        for alias in node.names:
            binding = Binding("import", module, alias.name, bool(alias.asname))
            self._scope.bindings.setdefault(alias.asname or alias.name, binding)

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        if node.name:
            self._bind(node.name)
        self.generic_visit(node)

    def visit_MatchAs(self, node: ast.MatchAs | ast.MatchStar) -> None:
        if node.name:
            self._bind(node.name)
        self.generic_visit(node)

    visit_MatchStar = visit_MatchAs

    def visit_MatchMapping(self, node: ast.MatchMapping) -> None:
        if node.rest:
            self._bind(node.rest)
        self.generic_visit(node)


def _arguments(arguments: ast.arguments) -> Iterator[ast.arg]:
    yield from (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    yield from (one for one in (arguments.vararg, arguments.kwarg) if one)


@dataclass
class Package:
    """All files, by module."""

    sources: Mapping[str, Source]
    folders: frozenset[str] = field(init=False)
    """Modules, and all that they lie in."""

    def __post_init__(self) -> None:
        paths = (name.split(".") for name in self.sources)
        self.folders = frozenset(".".join(parts[:size]) for parts in paths for size in range(1, len(parts) + 1))

    @cached_property
    def functions(self) -> Mapping[str, list[Scope]]:
        """Return the scopes of functions by full name; several have one name, as the comprehensions of one function do."""
        found: dict[str, list[Scope]] = defaultdict(list)
        for source in self.sources.values():
            for scope in source.inner.values():
                if scope.kind == "function":
                    found[scope.full].append(scope)
        return found

    def kinds_of(self, function: str, name: str) -> frozenset[str]:
        """Return what a name is in a function: kinds of `Binding`; empty: the function does not bind it."""
        scopes = self.functions.get(function, ())
        return frozenset(scope.bindings[name].kind for scope in scopes if name in scope.bindings)

    def is_module(self, full: str) -> bool:
        return full in self.sources

    def exported(self, module: str, name: str) -> Binding | None:
        source = self.sources.get(module)
        return source.scope.bindings.get(name) if source else None

    def target(self, binding: Binding) -> str:
        """Return the full name of what a binding stands for in the end, through every import."""
        for _ in range(20):
            if binding.kind != "import":
                return binding.full
            if not binding.member:
                return binding.full
            further = self.exported(binding.full, binding.member)
            if further is None or further is binding:
                return f"{binding.full}.{binding.member}"
            binding = further
        return binding.full

    def full_of(self, node: ast.expr, scope: Scope) -> str:
        """Return the full name of what an expression of names and modules' attributes stands for; empty: not known."""
        if isinstance(node, ast.Name):
            found = scope.find(node.id)
            return self.target(found.bindings[node.id]) if found and node.id in found.bindings else ""
        if isinstance(node, ast.Attribute):
            around = self.full_of(node.value, scope)
            return self.member_of_module(around, node.attr) if around else ""
        return ""

    def member_of_module(self, module: str, name: str) -> str:
        """Return the full name of `module.name`; empty where `module` is no module (or class) that is known to hold it."""
        binding = self.exported(module, name)
        if binding:
            return self.target(binding)
        return f"{module}.{name}" if f"{module}.{name}" in self.folders else ""

"""The edits of Python files: every place where a renamed thing is named, and the places that could not be decided."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from scripts.rename import places, typed
from scripts.rename.names import BUILTINS, Binding, Package, Scope, Source, Use, absolute
from scripts.rename.table import GLOBALS, MEMBERS, PACKAGE, Entry, Table, TableError, moved
from scripts.rename.typed import ANY, FUNCTION, MODULE, NOTHING, TYPE, Types

BY_STRING = frozenset({"getattr", "setattr", "hasattr", "delattr", "__setattr__", "__getattribute__", "object"})
"""Last names of functions whose second argument names an attribute of the first; `object` is that of `mock.patch`."""
SERIALISING = frozenset({"dataclasses.asdict", "dataclasses.astuple", "dataclasses.fields", "vars"})
SERIALISING_METHODS = frozenset({"_asdict", "model_dump", "model_dump_json", "model_validate"})
"""What turns names of attributes into data: JSON, ROS parameters, keys of a descriptor."""
KEPT_TABLES = frozenset({f"{PACKAGE}.types.state.kept", f"{PACKAGE}.types.state.keep"})
"""What makes the table of a class's snapshot: strings name its attributes, keywords are names in the snapshot."""
PYDANTIC = "pydantic.main.BaseModel"
REPLACING = frozenset({"dataclasses.replace", "copy.replace"})
DOTTED = re.compile(rf"(?<![\w./]){PACKAGE}(?:\.[A-Za-z_]\w*)+(?::[A-Za-z_][\w.]*)?")
PATH = re.compile(rf"(?<!\w){PACKAGE}(?:/\w+)+(?:\.py)?\b")
CLASS = re.compile(r"(?<![\w./-])(?:[A-Z][a-z0-9]+){2,}\b(?:\.[a-z_]\w*)*(?![/-])")
"""A class in prose, by its capitals, with members of it."""
PARTIAL = re.compile(r"(?<![\w/.:-])(\w+(?:/\w+)+)(\.py)?\b(?![\w-])")
"""A path below the package, as prose has it."""
FILE = re.compile(r"(?<![\w/.-])(\w+)\.py\b(?!/)")
QUOTED = re.compile(r"(?<!`)`([A-Za-z_][\w.]*)(?:\(\))?`(?!`)")
NODES = {
    ast.Name: "NameExpr",
    ast.Attribute: "MemberExpr",
    ast.Call: "CallExpr",
    ast.Subscript: "IndexExpr",
    ast.Await: "AwaitExpr",
}


@dataclass(frozen=True, order=True)
class Edit:
    """Bytes of a file that are replaced."""

    start: int
    end: int
    new: str


@dataclass
class FilePlan:
    """What becomes of one file."""

    source: Source
    edits: dict[tuple[int, int], Edit] = field(default_factory=dict)
    changes: list[Callable[[], None]] = field(default_factory=list)
    """Do the same to the tree, for the comparison afterwards."""
    renamed: dict[tuple[int, str], str] = field(default_factory=dict)
    """Number of a scope and old name -> new name, for the comparison of bindings."""


class Members:
    """Attributes and methods, each with all that overrides it or is overridden, and its new name."""

    def __init__(self, types: Types, ours: Iterable[str]) -> None:
        self.types = types
        self._ours = frozenset(ours)
        self._root: dict[tuple[str, str], tuple[str, str]] = {}
        self._groups: dict[tuple[str, str], list[tuple[str, str]]] = defaultdict(list)
        self.new: dict[tuple[str, str], str] = {}
        self.entries: dict[tuple[str, str], Entry] = {}
        self._join_all()

    def is_ours(self, full: str) -> bool:
        return any(full.startswith(f"{module}.") for module in _prefixes(full) if module in self._ours)

    def _find(self, one: tuple[str, str]) -> tuple[str, str]:
        while (up := self._root.setdefault(one, one)) != one:
            self._root[one] = self._root[up]
            one = self._root[one]
        return one

    def _join(self, one: tuple[str, str], other: tuple[str, str]) -> None:
        self._root[self._find(one)] = self._find(other)

    def _join_all(self) -> None:
        for full, known in self.types.classes.items():
            if not self.is_ours(full):
                continue
            first: dict[str, str] = {}
            for base in known.bases:
                if not (found := self.types.classes.get(base)):
                    continue
                for name in found.members:
                    if name.isidentifier() and not name.startswith("__"):
                        self._join((base, name), (first.setdefault(name, base), name))
        for protocol, others in self.types.implementers.items():
            names = {name for base in self.types.bases(protocol) for name in self.types.classes[base].members if self.is_ours(base)}
            for other in others:
                for name in names:
                    if name.isidentifier() and not name.startswith("__") and (owner := self.types.owner(other, name)):
                        self._join((owner, name), (self.types.owner(protocol, name), name))
        for one in list(self._root):
            self._groups[self._find(one)].append(one)

    def group(self, full: str, name: str) -> list[tuple[str, str]]:
        return self._groups.get(self._find((full, name)), [(full, name)])

    def add(self, entry: Entry) -> None:
        """Rename a member. Raises: `TableError` where it is not there, is inherited from outside, or the new name is taken."""
        full, name = entry.parent, entry.last
        if self.types.owner(full, name) != full:
            where = self.types.owner(full, name)
            raise TableError(f"line {entry.line}: {full} has no {name} of its own{f'; it is of {where}' if where else ''}")
        for owner, _ in (group := self.group(full, name)):
            if not self.is_ours(owner):
                raise TableError(f"line {entry.line}: {entry.old} overrides {owner}.{name}, which is not ours")
            if (known := self.new.get((owner, name))) not in (None, entry.new):
                raise TableError(f"line {entry.line}: {owner}.{name} becomes {known} by line {self.entries[owner, name].line}")
        for one in group:
            self.new[one] = entry.new
            self.entries[one] = entry

    def collisions(self) -> Iterator[str]:
        """Yield what stands in the way: a class that has both the old name and the new one."""
        by_name: dict[str, set[str]] = defaultdict(set)
        for owner, name in self.new:
            by_name[name].add(owner)
        for full in self.types.classes:
            for base in self.types.bases(full):
                for name in self.types.classes[base].members & by_name.keys() if base in self.types.classes else ():
                    if base not in by_name[name] or self.types.owner(full, name) != base:
                        continue
                    new = self.new[base, name]
                    there = self.types.owner(full, new)
                    if there and (there, new) not in self.new and not new.startswith("__"):
                        yield f"line {self.entries[base, name].line}: {base}.{name} -> {new}: {full} has {new} already (of {there})"

    def find(self, full: str, name: str) -> str | None:
        """Return the new name of an attribute of a class; None: it stays."""
        owner = self.types.owner(full, name)
        return self.new.get((owner, name)) if owner else None


def _prefixes(full: str) -> Iterator[str]:
    parts = full.split(".")
    return (".".join(parts[:length]) for length in range(len(parts), 0, -1))


class Plan:
    """All edits of one run."""

    def __init__(self, package: Package, types: Types, table: Table) -> None:
        self.package, self.types, self.table = package, types, table
        self.modules = table.modules
        self.members = Members(types, package.sources)
        self.globals: dict[str, str] = {}
        self.parameters: dict[tuple[str, str], str] = {}
        self.locals: dict[tuple[str, str], str] = {}
        """Full name of a function and name of its variable -> new name."""
        self.files: dict[str, FilePlan] = {}
        self.to_check: list[str] = []
        self.guessed: list[str] = []
        self.problems: list[str] = []
        self.serialised: dict[str, list[str]] = defaultdict(list)
        """Class -> places where the names of its attributes become data."""
        self.keys: dict[tuple[str, str], str] = {(entry.parent, entry.last): entry.new for entry in table.of(("key",))}
        """Class (or constant) and name in its snapshot -> new name."""
        self.found_keys: set[tuple[str, str]] = set()
        self._read_table()
        self.owners = {owner for owner, _ in self.members.new}
        self.member_names = {name for _, name in self.members.new}
        self.parameter_names = {name for _, name in self.parameters}
        self.old_names = {entry.last for entry in table.entries if entry.kind not in ("text", "key")}
        self.named_in_strings = {entry.last for entry in table.entries if entry.kind not in ("text", "parameter", "local")}
        self._by_last: dict[str, list[str]] = defaultdict(list)
        """Last name -> modules and packages below the package."""
        for one in package.folders:
            if one.startswith(f"{PACKAGE}."):
                self._by_last[one.rpartition(".")[2]].append(one)
        self._elsewhere: dict[str, list[str]] = defaultdict(list)
        for one in package.sources:
            if not one.startswith(f"{PACKAGE}."):
                self._elsewhere[one.rpartition(".")[2]].append(one)
        classes = [full for full in types.classes if self.members.is_ours(full) and full.startswith(f"{PACKAGE}.")]
        times = Counter(full.rpartition(".")[2] for full in types.classes if self.members.is_ours(full))
        self.unique_classes = {
            name: full for full in classes if CLASS.fullmatch(name := full.rpartition(".")[2]) and times[name] == 1
        }
        self._definers: dict[str, set[tuple[str, str]]] = defaultdict(set)
        for full, known in types.classes.items():
            for name in known.members & self.member_names:
                self._definers[name].add((full, name))
        self.texts: dict[str, list[tuple[str, str]]] = defaultdict(list)
        for entry in table.of(("text",)):
            path, _, text = entry.old.partition("|")
            self.texts[path].append((text, entry.new))

    def _read_table(self) -> None:
        for entry in self.table.entries:
            try:
                self._add(entry)
            except TableError as error:
                self.problems.append(str(error))
        self.problems += self.members.collisions()

    def _add(self, entry: Entry) -> None:
        if entry.kind == "module":
            if not self.package.is_module(entry.old):
                raise TableError(f"line {entry.line}: no module {entry.old}")
            if self.package.is_module(f"{entry.parent}.{entry.new}"):
                raise TableError(f"line {entry.line}: there is a module {entry.parent}.{entry.new}")
        elif entry.kind in MEMBERS:
            self.members.add(entry)
        elif entry.kind in GLOBALS:
            binding = self.package.exported(entry.parent, entry.last)
            if entry.kind == "class" and entry.parent in self.types.classes:  # a class inside a class
                self.members.add(entry)
            elif not binding or binding.kind == "import":
                raise TableError(f"line {entry.line}: {entry.parent} defines no {entry.last}")
            self.globals[entry.old] = entry.new
        elif entry.kind == "parameter":
            self._add_parameter(entry)
        elif entry.kind == "local":
            self._add_local(entry)

    def _add_parameter(self, entry: Entry) -> None:
        around, _, last = entry.parent.rpartition(".")
        functions = [entry.parent]
        if around in self.types.classes and not last.startswith("__"):
            functions = [f"{owner}.{name}" for owner, name in self.members.group(around, last)]
        found = False
        for function in functions:
            if "parameter" in self.package.kinds_of(function, entry.last):
                self.parameters[function, entry.last] = entry.new
                found = True
        if not found:
            raise TableError(f"line {entry.line}: {entry.parent} has no parameter {entry.last}")

    def _add_local(self, entry: Entry) -> None:
        if not self.package.kinds_of(entry.parent, entry.last) & {"value", "def"}:
            raise TableError(f"line {entry.line}: {entry.parent} has no variable {entry.last} of its own")
        self.locals[entry.parent, entry.last] = entry.new

    def run(self) -> None:
        names = frozenset({entry.last for entry in self.table.entries if entry.kind != "text"})
        for _, source in sorted(self.package.sources.items()):
            if source.words & names or source.path.as_posix() in self.texts:
                _FilePlanner(self, source).run()
        for entry in self.table.of(("key",)):
            if (entry.parent, entry.last) not in self.found_keys:
                self.problems.append(f"line {entry.line}: the snapshot of {entry.parent} has no keyword {entry.last}")
        for (owner, name), entry in self.members.entries.items():
            if PYDANTIC in self.types.bases(owner) and not name.startswith("_") and entry.kind == "attribute":
                self.problems.append(f"line {entry.line}: {owner}.{name} is a field of a pydantic model: a key that users write")
            elif entry.kind == "attribute" and (places := self.serialised.get(owner)):
                self.to_check.append(
                    f"{places[0]}: {owner}.{name} -> {entry.new}  [its class is made data there, {len(places)} places]"
                )

    def new_of(self, scope: Scope, name: str) -> str:
        """Return what a name that this scope binds is called afterwards."""
        binding = scope.bindings.get(name)
        if binding is None:
            return name
        if binding.kind == "import":
            return name if binding.has_alias else self._imported(binding, name)
        if scope.kind == "class":
            return self.members.new.get((scope.full, name), name)
        if binding.kind == "parameter":
            return self.parameters.get((scope.full, name), name)
        if scope.kind == "function":
            return self.locals.get((scope.full, name), name)
        return self.globals.get(binding.full, name)

    def _imported(self, binding: Binding, name: str) -> str:
        if not binding.member:
            return name
        return self.exported_as(binding.full, binding.member)

    def exported_as(self, module: str, name: str) -> str:
        """Return what a name of a module is called afterwards."""
        source = self.package.sources.get(module)
        if source and name in source.scope.bindings:
            return self.new_of(source.scope, name)
        return self.modules.get(f"{module}.{name}", name)

    def rewritten(self, text: str) -> str:
        """Return a text with the full dotted names and paths of the package as they are afterwards."""
        return PATH.sub(lambda found: self._path(found[0]), DOTTED.sub(lambda found: self._dotted(found[0]), text))

    def by_class(self, dotted: str) -> str:
        """Return `Class` or `Class.member` with new names, where the name of a class has several capitals and stands once."""
        first, *rest = dotted.split(".")
        full = self.unique_classes.get(first)
        if full is None:
            return dotted
        names, around = [self.globals.get(full, first)], full
        for name in rest:
            names.append(self.members.find(around, name) or name)
            around = f"{around}.{name}"
        return ".".join(names)

    def in_prose(self, text: str, around: str = "") -> str:
        """Return a text that is no code with new names of classes and files. around: the package that it stands in."""
        text = CLASS.sub(lambda found: self.by_class(found[0]), text)
        text = PARTIAL.sub(lambda found: self.partial_path(found[1]) + (found[2] or ""), text)
        return FILE.sub(lambda found: self.file_name(found[1], around) + ".py", text)

    def partial_path(self, path: str) -> str:
        """Return the end of a path of a module with new names, where only one module has that end."""
        dotted = path.replace("/", ".")
        found = [one for one in self._by_last[dotted.rpartition(".")[2]] if one.endswith(f".{dotted}")]
        if len(found) != 1:
            return path
        return "/".join(moved(found[0], self.modules).split(".")[-len(dotted.split(".")) :])

    def file_name(self, name: str, around: str) -> str:
        """Return the new name of a file: of the one in the same package, or where all of this name are renamed alike."""
        if (beside := f"{around}.{name}") in self.package.sources:
            return moved(beside, self.modules).rpartition(".")[2]
        alike = [one for one in self._by_last[name] if one in self.package.sources]
        news = {moved(one, self.modules).rpartition(".")[2] for one in [*alike, *self._elsewhere[name]]}
        return news.pop() if len(news) == 1 else name

    def _path(self, path: str) -> str:
        suffix = ".py" if path.endswith(".py") else ""
        return moved(path.removesuffix(suffix).replace("/", "."), self.modules).replace(".", "/") + suffix

    def _dotted(self, text: str) -> str:
        module_text, colon, rest = text.partition(":")
        parts = module_text.split(".")
        length = next((size for size in range(len(parts), 0, -1) if self.package.is_module(".".join(parts[:size]))), 0)
        if not length:
            return text
        module = ".".join(parts[:length])
        names = self._names(module, [*parts[length:], *(rest.split(".") if rest else [])])
        after = [moved(module, self.modules), *names[: len(parts) - length]]
        return ".".join(after) + colon + ".".join(names[len(parts) - length :])

    def _names(self, module: str, names: list[str]) -> list[str]:
        """Return the new names of a path of names inside a module."""
        if not names:
            return []
        new = [self.exported_as(module, names[0])]
        around = self.package.member_of_module(module, names[0])
        for name in names[1:]:
            new.append(self.members.find(around, name) or name)
            around = f"{around}.{name}"
        return new


class _FilePlanner:
    """Finds the edits of one file."""

    def __init__(self, plan: Plan, source: Source) -> None:
        self._plan, self._source = plan, source
        self._file = plan.files[source.module] = FilePlan(source)
        self._places = places.located(source.tree, source.data)
        self._typed = plan.types.expressions.get(source.module, {})
        self._lines = source.data.decode().splitlines()
        self._handled = dict(self._handlers())
        """Number of a lambda's scope -> class of its parameter `event`, in a table of events with their handlers."""
        self._constants: dict[int, str] = {}
        """id of a call -> name that its result is given."""

    def run(self) -> None:
        for use in self._source.uses:
            self._use(use)
        for node in self._source.nodes:
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and isinstance(node.targets[0], ast.Name):
                self._constants[id(node.value)] = node.targets[0].id
            if isinstance(node, ast.Attribute):
                self._attribute(node)
            elif isinstance(node, ast.Call):
                self._call(node)
            elif isinstance(node, (ast.Import, ast.ImportFrom)):
                self._import(node)
            elif isinstance(node, ast.MatchClass):
                self._pattern(node)
            elif isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
                self._listed(node)
        self._strings()
        self._texts()

    def _handlers(self) -> Iterator[tuple[int, str]]:
        for node in self._source.nodes:
            if isinstance(node, ast.Dict):
                for key, value in zip(node.keys, node.values, strict=True):
                    if key is None or not isinstance(value, ast.Lambda):
                        continue
                    scope = self._source.inner[id(value)]
                    full = self._plan.package.full_of(key, self._source.scopes[id(key)])
                    if full and "event" in scope.bindings:
                        yield scope.number, full

    def _edit(self, start: int, old: str, new: str) -> None:
        found = self._source.data[start : start + len(old.encode())].decode(errors="replace")
        if found != old:
            line = self._source.data.count(b"\n", 0, start) + 1
            self._plan.problems.append(f"{self._source.path}:{line}: expected {old!r}, found {found!r}: rename it by hand")
            return
        end = start + len(old.encode())
        if any(one <= start and end <= other and (one, other) != (start, end) for one, other in self._file.edits):
            return  # a text of the table has it
        self._file.edits[start, end] = Edit(start, end, new)

    def _change(self, node: ast.AST, name: str, new: str, index: int = -1) -> None:
        def change() -> None:
            if index >= 0:
                getattr(node, name)[index] = new
            else:
                setattr(node, name, new)

        self._file.changes.append(change)

    def _report(self, node: ast.AST, why: str) -> None:
        line = getattr(node, "lineno", 1)
        text = self._lines[line - 1].strip() if line <= len(self._lines) else ""
        self._plan.to_check.append(f"{self._source.path}:{line}: {text}  [{why}]")

    def _use(self, use: Use) -> None:
        if not use.bound_in:
            return
        new = self._plan.new_of(use.bound_in, use.name)
        if new == use.name:
            return
        self._file.renamed[use.bound_in.number, use.name] = new
        if isinstance(use.node, ast.alias):
            return  # `_import` does it
        self._change(use.node, use.field, new, use.index)
        start = self._start(use)
        if start < 0:
            self._report(use.node, "the name could not be located")
        else:
            self._edit(start, use.name, new)

    def _start(self, use: Use) -> int:
        start, end = self._places[id(use.node)]
        if isinstance(use.node, (ast.Name, ast.arg)):
            return start
        before = r"\b(?:def|class)\s+" if isinstance(use.node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) else r"\b"
        found = re.compile((before + rf"({re.escape(use.name)})\b").encode()).search(self._source.data, start, end)
        return found.start(1) if found else -1

    def _types(self, node: ast.expr) -> tuple[str, ...]:
        """Return the classes of an expression by mypy; empty: it was not checked."""
        place = (node.lineno, node.col_offset, node.end_lineno or 0, node.end_col_offset or 0)
        found = self._typed.get(place, [])
        name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
        kind = NODES.get(type(node), "")
        for wanted in (lambda one: one[0] == kind and one[1] == name, lambda one: not kind):
            for one in filter(wanted, found):
                return one[2]
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super":
            scope = self._source.scopes[id(node)]
            return self._plan.types.bases(scope.owner)[1:2]
        if isinstance(node, ast.Name):
            scope = self._source.scopes[id(node)]
            function = scope
            while function.parent and function.kind == "function" and function.parent.kind != "class":
                function = function.parent
            if scope.owner and node.id == function.first_parameter and node.id in ("self", "cls"):
                return (scope.owner,)
        return ()

    def _attribute(self, node: ast.Attribute) -> None:
        new, is_known = self._new_attribute(node.value, node.attr, node)
        if new == node.attr:
            return
        if not is_known:
            return
        self._change(node, "attr", new)
        self._edit(self._places[id(node)][1] - len(node.attr.encode()), node.attr, new)

    def _new_attribute(self, value: ast.expr, name: str, node: ast.AST) -> tuple[str, bool]:
        """Return the new name of an attribute, and whether its owner is known."""
        plan = self._plan
        scope = self._source.scopes.get(id(value), self._source.scope)
        full = plan.package.full_of(value, scope)
        if full and (plan.package.is_module(full) or f"{full}.{name}" in plan.modules):
            return plan.exported_as(full, name), True
        if name not in plan.member_names:
            return name, True
        if full in plan.types.classes:
            return plan.members.find(full, name) or name, True
        if isinstance(value, ast.Name) and value.id == "event" and (event := self._handled.get(scope.number)):
            return plan.members.find(event, name) or name, True
        if full and not plan.members.is_ours(full) and not any(full.startswith(f"{one}.") for one in ("builtins",)):
            return name, True  # a module or class of others
        found = tuple(one.removeprefix(TYPE) for one in self._types(value) if one.removeprefix(TYPE) not in NOTHING.values())
        if found and not any(one == ANY for one in found):
            return self._by_types(found, name, node)
        return self._unknown(name, node, found)

    def _narrowed(self, full: str, name: str) -> str:
        """Return the class that has a member, where mypy narrowed an object to several classes at once."""
        if "<subclass of" not in full:
            return full
        return next((one for one in re.findall(r'"([\w.]+)"', full) if self._plan.types.owner(one, name)), full)

    def _by_types(self, found: tuple[str, ...], name: str, node: ast.AST) -> tuple[str, bool]:
        plan = self._plan
        news = set()
        for one in map(self._narrowed, found, [name] * len(found)):
            if one.startswith(MODULE):
                news.add(plan.exported_as(one.removeprefix(MODULE), name))
            elif one.startswith(FUNCTION):
                news.add(name)
            else:
                if not plan.types.owner(one, name):
                    known = plan.types.classes.get(one)
                    if known and known.has_untyped_base:
                        return self._unknown(name, node, found)
                news.add(plan.members.find(one, name) or name)
        if len(news) > 1:
            line = getattr(node, "lineno", 0)
            plan.problems.append(
                f"{self._source.path}:{line}: `.{name}` is of {' or '.join(found)}, which are not renamed alike: {sorted(news)}"
            )
            return name, True
        return (news.pop() if news else name), True

    def _unknown(self, name: str, node: ast.AST, found: tuple[str, ...]) -> tuple[str, bool]:
        """Rename an attribute of something without a type where every class that has one of this name renames it alike."""
        plan = self._plan
        definers = plan._definers[name]
        news = {plan.members.new.get(one) for one in definers}
        is_distinct = name.startswith("_") or "_" in name.strip("_")
        if len(news) == 1 and (new := news.pop()) and is_distinct:
            line = getattr(node, "lineno", 1)
            plan.guessed.append(
                f"{self._source.path}:{line}: {self._lines[line - 1].strip()}  [{name} -> {new}, by the name alone]"
            )
            return new, True
        self._report(node, f"`{name}` of something whose type is {' | '.join(found) if found else 'unknown'}")
        return name, False

    def _call(self, node: ast.Call) -> None:
        last = node.func.id if isinstance(node.func, ast.Name) else node.func.attr if isinstance(node.func, ast.Attribute) else ""
        self._note_serialised(node, last)
        if last in BY_STRING and len(node.args) >= 2:
            arguments = node.args[-3:] if last == "__setattr__" else node.args
            self._by_string(arguments[0], arguments[1])
        if last == "check_names" and isinstance(node.args[0], ast.Constant):
            self._class_name(node.args[0])
        if last in ("kept", "keep") and self._plan.package.full_of(node.func, self._source.scopes[id(node)]) in KEPT_TABLES:
            self._kept(node, last)
            return
        for keyword in node.keywords:
            if keyword.arg:
                self._keyword(node, keyword, keyword.arg)

    def _class_name(self, node: ast.Constant) -> None:
        """A string that begins with the name of a class of its file, as the errors of snapshots have it."""
        name, scope = str(node.value).split(".")[0], self._source.scope
        bound = scope.bindings.get(name)
        new = self._plan.new_of(scope, name) if bound else name
        if new != name:
            self._change(node, "value", new + str(node.value)[len(name) :])
            self._edit(self._places[id(node)][0] + 1, name, new)

    def _kept(self, node: ast.Call, last: str) -> None:
        """The table of a snapshot: strings follow the attributes that they name, keywords follow the table's entries `key`."""
        plan, scope = self._plan, self._source.scopes[id(node)]
        owner = scope.owner
        if last == "keep":
            owner = plan.package.full_of(node.args[0], scope)
        strings = [one for argument in node.args for one in ast.walk(argument) if isinstance(one, ast.Constant)]
        for string in [*strings, *(keyword.value for keyword in node.keywords if keyword.arg)]:
            name = string.value if isinstance(string, ast.Constant) else None
            if isinstance(name, str) and owner and (new := plan.members.find(owner, name)):
                self._change(string, "value", new)
                self._edit(self._places[id(string)][0] + 1, name, new)
        keyed = owner or f"{scope.full}.{self._constants.get(id(node), '')}"
        for keyword in node.keywords:
            if keyword.arg and (new := plan.keys.get((keyed, keyword.arg))):
                plan.found_keys.add((keyed, keyword.arg))
                self._change(keyword, "arg", new)
                self._edit(self._places[id(keyword)][0], keyword.arg, new)

    def _note_serialised(self, node: ast.Call, last: str) -> None:
        full = self._plan.package.full_of(node.func, self._source.scopes[id(node)]) or last
        value: ast.expr | None = None
        if full in SERIALISING and node.args:
            value = node.args[0]
        elif last in SERIALISING_METHODS and isinstance(node.func, ast.Attribute):
            value = node.func.value
        for one in self._types(value) if value is not None else ():
            self._plan.serialised[one.removeprefix(TYPE)].append(f"{self._source.path}:{node.lineno}")

    def _by_string(self, value: ast.expr, name: ast.expr) -> None:
        """`getattr` and its like: a name in quotes is renamed by the type of the object, one that is computed is reported."""
        if not isinstance(name, ast.Constant):
            classes = {base for one in self._types(value) for base in self._plan.types.bases(one.removeprefix(TYPE))}
            if classes & self._plan.owners:
                self._report(value, "an attribute by a computed name, of a class some of whose names change")
            return
        if not isinstance(name, ast.Constant) or not isinstance(name.value, str) or name.value not in self._plan.old_names:
            return
        new, is_known = self._new_attribute(value, name.value, name)
        if new != name.value and is_known:
            start, end = self._places[id(name)]
            quoted = self._source.data[start:end].decode()
            if quoted[1:-1] != name.value:
                self._report(name, "a string that names an attribute")
                return
            self._edit(start + 1, name.value, new)
            self._change(name, "value", new)

    def _keyword(self, node: ast.Call, keyword: ast.keyword, name: str) -> None:
        plan = self._plan
        if name not in plan.parameter_names and name not in plan.member_names:
            return
        news = {self._new_keyword(one, name) for one in self._callees(node)}
        if not news or (None in news and len(news) == 1):
            if self._could_be(node):
                self._report(keyword, f"keyword `{name}` of something that is not known")
            return
        if len(news) > 1:
            self._report(keyword, f"keyword `{name}` of several things that are not renamed alike")
            return
        new = news.pop()
        if new and new != name:
            self._change(keyword, "arg", new)
            self._edit(self._places[id(keyword)][0], name, new)

    def _could_be(self, node: ast.Call) -> bool:
        """Return whether what is called may be ours."""
        full = self._plan.package.full_of(node.func, self._source.scopes[id(node)])
        return not full or self._plan.members.is_ours(full)

    def _callees(self, node: ast.Call) -> Iterator[str]:
        """Yield what a call's keywords belong to: a function after `FUNCTION`, a class after `TYPE`, its fields after `replace`."""
        scope = self._source.scopes[id(node)]
        full = self._plan.package.full_of(node.func, scope)
        if full in REPLACING and node.args:
            yield from (f"replace {one.removeprefix(TYPE)}" for one in self._types(node.args[0]))
        elif full == "functools.partial" and node.args:
            yield from self._callee(node.args[0], scope)
        elif isinstance(node.func, ast.Attribute) and node.func.attr == "_replace":
            yield from (f"replace {one.removeprefix(TYPE)}" for one in self._types(node.func.value))
        else:
            yield from self._callee(node.func, scope)

    def _callee(self, function: ast.expr, scope: Scope) -> Iterator[str]:
        types = self._plan.types
        full = self._plan.package.full_of(function, scope)
        if full in types.classes:
            yield f"{TYPE}{full}"
            return
        if full and self._plan.members.is_ours(full):
            binding = self._plan.package.exported(full.rpartition(".")[0], full.rpartition(".")[2])
            if isinstance(function, ast.Name):
                bound = scope.find(function.id)
                binding = bound.bindings.get(function.id) if bound else None
            if binding and binding.kind in ("def", "import"):  # `cls` and other values have a type
                yield f"{FUNCTION}{full}"
                return
        if isinstance(function, ast.Attribute):
            owners = [
                types.owner(one.removeprefix(TYPE), function.attr)
                for one in self._types(function.value)
                if one not in (ANY, *NOTHING.values())
            ]
            if owners and all(owners):
                yield from (f"{FUNCTION}{owner}.{function.attr}" for owner in owners)
                return
        for one in self._types(function):
            yield one if one.startswith((TYPE, FUNCTION)) else f"{FUNCTION}{types.owner(one, '__call__')}.__call__"

    def _new_keyword(self, callee: str, name: str) -> str | None:
        """Return a keyword's new name, or itself; None: what is called is not known."""
        plan = self._plan
        if callee.startswith("replace "):
            full = callee.removeprefix("replace ")
            return None if full == ANY else plan.members.find(full, name) or name
        if callee.startswith(TYPE):
            return self._constructed(callee.removeprefix(TYPE), name)
        full = callee.removeprefix(FUNCTION)
        if not full or full.startswith("."):
            return None
        return plan.parameters.get((full, name), name)

    def _constructed(self, full: str, name: str) -> str:
        plan = self._plan
        for base in plan.types.bases(full):
            known = plan.types.classes[base]
            if known.init == "written":
                for function in ("__init__", "__new__"):
                    if new := plan.parameters.get((f"{base}.{function}", name)):
                        return new
                return name
            if known.init == "generated":
                break
        return plan.members.find(full, name) or name

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        plan, data = self._plan, self._source.data
        if isinstance(node, ast.ImportFrom):
            module = absolute(node, self._source.module, self._source.is_package)
            for alias in node.names:
                new = plan.exported_as(module, alias.name)
                if new != alias.name:
                    self._change(alias, "name", new)
                    self._edit(self._places[id(alias)][0], alias.name, new)
            if node.module and (after := moved(module, plan.modules)) != module:
                if node.level:
                    after = ".".join(after.split(".")[-len(node.module.split(".")) :])
                found = re.compile(rb"from\s+\.*").match(data, self._places[id(node)][0])
                self._change(node, "module", after)
                self._edit(found.end() if found else 0, node.module, after)
            return
        for alias in node.names:
            if (after := moved(alias.name, plan.modules)) != alias.name:
                self._change(alias, "name", after)
                self._edit(self._places[id(alias)][0], alias.name, after)

    def _pattern(self, node: ast.MatchClass) -> None:
        full = self._plan.package.full_of(node.cls, self._source.scopes[id(node)])
        for index, name in enumerate(node.kwd_attrs):
            new = self._plan.members.find(full, name)
            if new:
                start, end = self._places[id(node)]
                found = re.compile(rf"\b{name}\s*=".encode()).search(self._source.data, start, end)
                self._change(node, "kwd_attrs", new, index)
                self._edit(found.start() if found else 0, name, new)

    def _listed(self, node: ast.Assign | ast.AnnAssign | ast.AugAssign) -> None:
        """`__all__`, `__slots__` and `__match_args__`."""
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        name = targets[0].id if isinstance(targets[0], ast.Name) else ""
        if name not in ("__all__", "__slots__", "__match_args__") or node.value is None:
            return
        scope = self._source.scopes[id(node)]
        for item in ast.walk(node.value):
            if not isinstance(item, ast.Constant) or not isinstance(item.value, str):
                continue
            new = self._plan.new_of(scope, item.value) if name == "__all__" else self._plan.members.find(scope.full, item.value)
            if new and new != item.value:
                self._change(item, "value", new)
                self._edit(self._places[id(item)][0] + 1, item.value, new)

    def _strings(self) -> None:
        """Strings that are code: full names and paths inside them, and reports of those that are a renamed name."""
        plan = self._plan
        prose = {id(node) for node in places.prose(self._source.nodes)}
        texts = plan.texts.get(self._source.path.as_posix(), [])
        for node in self._source.nodes:
            if not isinstance(node, ast.Constant) or not isinstance(node.value, str) or id(node) in prose:
                continue
            new = plan.rewritten(node.value)
            for old, replaced in texts:
                is_whole = old[:1] in "\"'"
                new = new.replace(old, replaced) if not is_whole else replaced[1:-1] if new == old[1:-1] else new
            if new != node.value:
                self._change(node, "value", new)
            elif self._is_name(node.value):
                start = self._places.get(id(node), (0, 0))[0]
                if not any(begin == start + 1 for begin, _ in self._file.edits):
                    self._report(node, f"the string {node.value!r} is a name that is changed")

    def _is_name(self, text: str) -> bool:
        """Return whether a string consists of names of which one is changed, as `getattr` and tables of modules have them."""
        if not re.fullmatch(r"[A-Za-z_][\w.]*(?::[\w.]+)?", text):
            return False
        return bool(set(re.split(r"[.:]", text)) & self._plan.named_in_strings)

    def _texts(self) -> None:
        """Full names and paths in every string and comment, and names in backquotes in docstrings and comments."""
        data = self._source.data
        starts = places.line_starts(data)
        prose = {self._places[id(node)][0] for node in places.prose(self._source.nodes)}
        for token in tokenize.tokenize(io.BytesIO(data).readline):
            if token.type not in (tokenize.STRING, tokenize.COMMENT):
                continue
            line = data[starts[token.start[0] - 1] :].split(b"\n", 1)[0].decode()
            start = starts[token.start[0] - 1] + len(line[: token.start[1]].encode())
            self._token(token.string, start, token.start[0], is_prose=token.type == tokenize.COMMENT or start in prose)

    def _token(self, text: str, start: int, line: int, *, is_prose: bool) -> None:
        plan = self._plan
        for pattern in (DOTTED, PATH):
            for found in pattern.finditer(text):
                new = plan.rewritten(found[0])
                if new != found[0]:
                    self._edit(start + len(text[: found.start()].encode()), found[0], new)
        for old, new in plan.texts.get(self._source.path.as_posix(), []):
            for found in re.finditer(re.escape(old), text):
                self._edit(start + len(text[: found.start()].encode()), old, new)
        if is_prose:
            self._prose(text, start, line)

    def _prose(self, text: str, start: int, line: int) -> None:
        """Files and names in backquotes of a docstring or comment."""
        plan = self._plan
        package = self._source.module if self._source.is_package else self._source.module.rpartition(".")[0]
        for pattern in (PARTIAL, FILE):
            for found in pattern.finditer(text):
                new = plan.in_prose(found[0], package)
                if new != found[0]:
                    self._edit(start + len(text[: found.start()].encode()), found[0], new)
        for found in QUOTED.finditer(text):
            if not set(found[1].split(".")) & plan.old_names:
                continue
            scope = places.scope_at(self._source, line)
            new = self._reference(found[1], scope)
            if new != found[1]:
                self._edit(start + len(text[: found.start(1)].encode()), found[1], new)
            elif not found[1].endswith(".py"):
                at = line + text.count("\n", 0, found.start())
                words = self._lines[at - 1].strip()
                plan.to_check.append(f"{self._source.path}:{at}: {words}  [`{found[1]}` in prose]")

    def _reference(self, dotted: str, scope: Scope) -> str:
        """Return a reference in backquotes with new names, by the scope that it stands in."""
        plan = self._plan
        first, *rest = dotted.split(".")
        bound = scope.find(first)
        if bound and bound.kind == "function" and bound is scope:
            return ".".join([plan.new_of(bound, first), *rest])
        if scope.owner and (new := plan.members.find(scope.owner, first)):
            return ".".join([new, *rest])
        if bound:
            names = [plan.new_of(bound, first)]
            around = plan.package.target(bound.bindings[first]) if first in bound.bindings else ""
            if plan.package.is_module(around):
                return ".".join([*names, *plan._names(around, rest)])
            for name in rest:
                names.append(plan.members.find(around, name) or name)
                around = f"{around}.{name}"
            return ".".join(names)
        return plan.by_class(dotted)


def shadows(plan: Plan) -> Iterator[str]:
    """Yield renamed names that hide a builtin which the same file uses."""
    for file in plan.files.values():
        used = {use.name for use in file.source.uses if use.bound_in is None}
        for (_, old), new in file.renamed.items():
            if new in BUILTINS and new in used:
                yield f"{file.source.path}: {old} -> {new} hides the builtin that is used there"


def kept_names(plan: Plan) -> Mapping[str, int]:
    """Return how many edits each file has."""
    return {module: len(file.edits) for module, file in plan.files.items() if file.edits}


__all__ = ["Edit", "FilePlan", "Members", "Plan", "kept_names", "shadows", "typed"]

"""What is counted in the source.

- A **banned word** is one of the first column of the last table of docs/glossary.md. Counted are names that have it, once per
  module: of modules, classes, functions, arguments, variables and attributes.
- A docstring of a function or class is a **fragment** when its first word is one that begins no sentence and no noun phrase
  (`FRAGMENT_STARTS`: prepositions, conjunctions, relative and indefinite pronouns), or when it lists nothing but errors. The
  rule is simple on purpose: it has few false alarms, and it misses fragments that begin otherwise.
- A **class name that stands twice** is that of two classes of the package, private ones included.
- A **module for one neighbour** is imported by exactly one module of the package, in the same folder, that is not its
  `__init__`.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from test.language.source import LAB, PACKAGE, ROOT, Module, definitions, imports, names, read_modules, words_of

GLOSSARY = Path("docs") / "glossary.md"
BANNED_HEADING = "## Words that no name has"
_STARTS = """
about above across after against along although among anybody anything around as at because before behind below beneath beside
besides between beyond but by despite down during either else elsewhere empty everybody everything except few for from how if in
inside instead into its least less like many more most near neither nobody nor nothing none of off on once onto or others
otherwise out over past per raises same several since so some somebody something such than that their them these they those
though through to together toward under unless until up upon what whatever when whenever where wherever whether which whichever
while who whoever whole whom whose why with within without
"""
FRAGMENT_STARTS = frozenset(_STARTS.split())
FIRST_WORD = re.compile(r"[`\"'(\[]*([A-Za-z]+)")
SCHEDULER = f"{PACKAGE}.scheduler"


@dataclass(frozen=True, kw_only=True)
class Found:
    """One place to change."""

    room: str
    place: str
    """File, line and what stands there."""


@dataclass(frozen=True, kw_only=True)
class Measures:
    """What was counted in the whole source."""

    banned: list[Found]
    fragments: list[Found]
    neighbours: list[Found]
    modules: dict[str, int]
    """Room -> files."""
    lines: dict[str, int]
    """Room -> lines."""
    num_docstrings: int
    """Docstrings of functions and classes of the package."""
    twice: dict[str, list[str]] = field(default_factory=dict)
    """Class name -> files of the package that define it."""
    neighbour_lines: int = 0
    """Lines of the modules for one neighbour."""
    scheduler_floors: int = 0
    """Modules of the longest chain of imports inside `scheduler/`."""


def banned_words(glossary: Path = ROOT / GLOSSARY) -> dict[str, str]:
    """Return each banned word with its replacement, from the glossary. Raises: `ValueError` when it has no such table."""
    _, heading, table = glossary.read_text(encoding="utf-8").partition(BANNED_HEADING)
    rows = re.findall(r"^\| (`.+?) \| (.+?) \|", table, flags=re.MULTILINE)
    if not heading or not rows:
        raise ValueError(f"{glossary} has no table below {BANNED_HEADING!r}")
    return {word: use for words, use in rows for word in re.findall(r"`(\w+)`", words)}


def is_fragment(docstring: str) -> bool:
    """Return whether a docstring begins with a fragment, by its first word."""
    first = FIRST_WORD.match(docstring)
    return bool(first) and first[1].lower() in FRAGMENT_STARTS


@cache
def measure(root: Path = ROOT) -> Measures:
    """Count everything."""
    modules = read_modules(root)
    package = [module for module in modules if not module.in_lab]
    graph = imports(package)
    neighbours = _neighbours(package, graph)
    counted, lines = defaultdict[str, int](int), defaultdict[str, int](int)
    for module in modules:
        counted[module.room] += 1
        lines[module.room] += module.num_lines
    return Measures(
        banned=list(_banned(modules, banned_words(root / GLOSSARY))),
        fragments=list(_fragments(modules)),
        neighbours=[Found(room=module.room, place=f"{module.place}: imported by {user} alone") for module, user in neighbours],
        modules=dict(counted),
        lines=dict(lines),
        num_docstrings=sum(bool(ast.get_docstring(node)) for module in package for node in definitions(module)),
        twice=_twice(package),
        neighbour_lines=sum(module.num_lines for module, _ in neighbours),
        scheduler_floors=longest_chain({name: used for name, used in graph.items() if name.startswith(SCHEDULER)}),
    )


def in_package(counts: dict[str, int]) -> int:
    """Return the sum over the rooms of the package."""
    return sum(count for room, count in counts.items() if not room.startswith(f"{LAB}/"))


def longest_chain(graph: dict[str, set[str]]) -> int:
    """Return the number of modules of the longest chain of imports. graph: module -> modules that it imports, without cycles."""

    @cache
    def depth(name: str) -> int:
        return 1 + max((depth(used) for used in graph[name] if used in graph), default=0)

    return max((depth(name) for name in graph), default=0)


def _banned(modules: list[Module], banned: dict[str, str]) -> Iterator[Found]:
    for module in modules:
        for name, line in names(module):
            for word in [word for word in words_of(name) if word in banned][:1]:
                yield Found(room=module.room, place=f"{module.place}:{line}: `{name}` has {word!r}: {banned[word]}")


def _fragments(modules: list[Module]) -> Iterator[Found]:
    for module in modules:
        for node in definitions(module):
            docstring = ast.get_docstring(node)
            if docstring and is_fragment(docstring):
                first = docstring.splitlines()[0][:80]
                yield Found(room=module.room, place=f"{module.place}:{node.lineno}: {node.name}: {first!r} is a fragment")


def _twice(package: list[Module]) -> dict[str, list[str]]:
    found = defaultdict[str, list[str]](list)
    for module in package:
        for node in definitions(module):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(f"{module.place}:{node.lineno}")
    return {name: places for name, places in sorted(found.items()) if len(places) > 1}


def _neighbours(package: list[Module], graph: dict[str, set[str]]) -> list[tuple[Module, str]]:
    known, users = {module.name: module for module in package}, defaultdict[str, list[str]](list)
    for name, used in graph.items():
        for other in used:
            users[other].append(name)
    found = []
    for name, [*by] in sorted(users.items()):
        user = known[by[0]]
        if len(by) == 1 and not known[name].is_package and not user.is_package and user.file.parent == known[name].file.parent:
            found.append((known[name], by[0]))
    return found

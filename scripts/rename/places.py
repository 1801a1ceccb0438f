"""Where the parts of a tree stand in a file, in bytes; also inside f-strings, whose positions `ast` gives wrongly before 3.12."""

from __future__ import annotations

import ast
import io
import tokenize
from collections import defaultdict
from collections.abc import Iterable, Iterator

from scripts.rename.names import Scope, Source

OPENING, CLOSING = "([{", ")]}"


def line_starts(data: bytes) -> list[int]:
    starts = [0]
    for line in data.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    return starts


def located(tree: ast.AST, data: bytes, base: int = 0) -> dict[int, tuple[int, int]]:
    """Return id of a node -> its first byte and the one after its last; (0, 0) where it was not found."""
    found: dict[int, tuple[int, int]] = defaultdict(lambda: (0, 0))
    starts = line_starts(data)

    def visit(node: ast.AST) -> None:
        if hasattr(node, "lineno"):
            begin = starts[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]
            end = starts[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]
            found[id(node)] = (base + begin, base + end)
            if isinstance(node, ast.JoinedStr):
                _inside(node, data[begin:end], base + begin, found)
                return
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(tree)
    return found


def _inside(node: ast.JoinedStr, data: bytes, base: int, found: dict[int, tuple[int, int]]) -> None:
    """Locate the expressions of an f-string by parsing each of them again."""
    values = list(_formatted(node))
    fields = list(_fields(data))
    if len(values) != len(fields):
        return
    for value, (begin, end) in zip(values, fields, strict=True):
        text = b"(" + data[begin:end] + b")"
        again = ast.parse(text, mode="eval").body
        places = located(again, text, base + begin - 1)
        for one, other in zip(ast.walk(value.value), ast.walk(again), strict=True):
            if id(other) in places:
                found[id(one)] = places[id(other)]


def _formatted(node: ast.JoinedStr) -> Iterator[ast.FormattedValue]:
    for part in node.values:
        if isinstance(part, ast.FormattedValue):
            yield part
            if isinstance(part.format_spec, ast.JoinedStr):
                yield from _formatted(part.format_spec)


def _fields(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield first and last byte of each replacement field's expression; those of its format follow it."""
    starts = line_starts(data)
    wrapped = b"(" + data + b"\n)"
    for token in tokenize.tokenize(io.BytesIO(wrapped).readline):
        if token.type != tokenize.STRING:
            continue
        quote = min(place for place in (token.string.find('"'), token.string.find("'")) if place >= 0)
        if "f" not in token.string[:quote].lower():
            continue
        row, column = token.start
        line = wrapped.splitlines()[row - 1].decode()
        begin = starts[row - 1] + len(line[:column].encode()) - (row == 1)
        size = 3 if token.string[quote : quote + 3] in ('"""', "'''") else 1
        yield from _scan(token.string.encode(), quote + size, len(token.string.encode()) - size, begin)


def _scan(text: bytes, start: int, stop: int, base: int) -> Iterator[tuple[int, int]]:
    place = start
    while place < stop:
        if text[place : place + 2] in (b"{{", b"}}"):
            place += 2
        elif text[place : place + 1] == b"{":
            end = _end_of_expression(text, place + 1, stop)
            yield base + place + 1, base + end
            place = end
            while text[place : place + 1] not in (b":", b"}"):
                place += 1  # `!r` and `=`
            if text[place : place + 1] == b":":
                close = _end_of_format(text, place + 1, stop)
                yield from _scan(text, place + 1, close, base)
                place = close
            place += 1
        else:
            place += 1


def _end_of_expression(text: bytes, place: int, stop: int) -> int:
    depth, quote = 0, ""
    while place < stop:
        one = chr(text[place])
        if quote:
            quote = "" if one == quote else quote
        elif one in "\"'":
            quote = one
        elif one in OPENING:
            depth += 1
        elif one in CLOSING and depth:
            depth -= 1
        elif not depth and (
            one in ":}" or (one == "!" and text[place + 1 : place + 2] != b"=") or _is_self_documenting(text, place)
        ):
            return place
        place += 1
    return place


def _is_self_documenting(text: bytes, place: int) -> bool:
    around = text[place - 1 : place + 2]
    return text[place : place + 1] == b"=" and around[2:3] in b"}!:" and around[0:1] not in b"=!<>"


def _end_of_format(text: bytes, place: int, stop: int) -> int:
    depth = 0
    while place < stop:
        one = text[place : place + 1]
        if one == b"{":
            depth += 1
        elif one == b"}":
            if not depth:
                return place
            depth -= 1
        place += 1
    return place


def prose(nodes: Iterable[ast.AST]) -> Iterator[ast.Constant]:
    """Yield docstrings, also those of attributes. nodes: those of a tree."""
    for node in nodes:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value


def scope_at(source: Source, line: int) -> Scope:
    """Return the innermost class or function around a line."""
    best, size = source.scope, 1 << 60
    for node in ast.walk(source.tree):
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and node.lineno <= line <= (
            node.end_lineno or 0
        ):
            length = (node.end_lineno or 0) - node.lineno
            if length < size:
                best, size = source.inner[id(node)], length
    return best

"""Lines of docstrings and comments that new names made too long: their last words move to the next line."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

from scripts.rename.places import prose

MAX_LENGTH = 132
LIST_ITEM = re.compile(r"\s*(?:[-*|>]|\d+\.)\s")


def wrap(path: Path) -> bool:
    """Wrap the prose of a Python file that is too wide; returns whether something changed."""
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    for number in range(len(lines) * 2):
        if number < len(lines) and len(lines[number]) > MAX_LENGTH:
            kind = dict(_kinds("\n".join(lines) + "\n")).get(number + 1)
            if kind:
                _move_end(lines, number, is_comment=kind == "comment")
    new = "\n".join(lines) + "\n"
    if new != text:
        path.write_text(new, encoding="utf-8")
    return new != text


def _kinds(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of docstrings and those that are comments alone."""
    for node in prose(ast.walk(ast.parse(text))):
        yield from ((number, "docstring") for number in range(node.lineno, (node.end_lineno or 0) + 1))
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and token.line.lstrip().startswith("#"):
            yield token.start[0], "comment"


def _move_end(lines: list[str], number: int, *, is_comment: bool) -> None:
    line = lines[number]
    indent = line[: len(line) - len(line.lstrip())]
    place = line.rfind(" ", 0, MAX_LENGTH + 1)
    if line[place:].strip() in ('"""', '."""'):
        place = line.rfind(" ", 0, place)
    if place <= len(indent) + 2:
        return
    rest, lines[number] = line[place + 1 :], line[:place].rstrip()
    following = lines[number + 1] if number + 1 < len(lines) else ""
    lead = f"{indent}# " if is_comment else indent
    joins = following.startswith(lead) and following[len(lead) :].strip(' "') and not LIST_ITEM.match(following[len(lead) :])
    if joins and not line.endswith('"""') and not following[len(lead) :].startswith((" ", "#", '"""')):
        lines[number + 1] = f"{lead}{rest} {following[len(lead) :]}"
    else:
        lines.insert(number + 1, f"{lead}{rest}")

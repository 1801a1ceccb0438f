"""What others wrote, shown as they wrote it: brackets are no markup, and control characters do not reach the terminal."""

from __future__ import annotations

from typing import Any

from rich.table import Table
from rich.text import Text


def plain(words: str) -> Text:
    return Text("".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in words))


class PlainTable(Table):
    """Its cells and its title are words of others, or of a user's files."""

    def __init__(self, *columns: str, title: str = "", **more: Any) -> None:
        super().__init__(*columns, title=plain(title) if title else None, **more)

    def add_row(self, *cells: str | Text, style: str = "") -> None:  # type: ignore[override]
        super().add_row(*(plain(cell) if isinstance(cell, str) else cell for cell in cells), style=style or None)

"""What others wrote, shown as they wrote it: brackets are no markup, and control characters do not reach the terminal."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text


def plain(words: str) -> Text:
    return Text("".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in words))


class PlainTable(Table):
    """Its cells and its title come from the graph."""

    def add_row(self, *cells: str) -> None:  # type: ignore[override]
        super().add_row(*map(plain, cells))

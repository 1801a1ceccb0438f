"""Literal display of foreign texts: brackets are no markup, and control characters do not reach the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text


def plain(words: str) -> Text:
    return Text("".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in words))


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: `1 robot`, `2 robots`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


class PlainTable(Table):
    """Table whose cells and title may come from other processes or from a user's files."""

    def __init__(self, *columns: str, title: str = "", **more: Any) -> None:
        super().__init__(*columns, title=plain(title) if title else None, **more)

    def add_row(self, *cells: str | Text, style: str = "") -> None:  # type: ignore[override]
        super().add_row(*(plain(cell) if isinstance(cell, str) else cell for cell in cells), style=style or None)


class FittingTable:
    """Table that drops columns on a narrow terminal and names them, instead of truncating every word."""

    def __init__(self, *columns: str, wraps: str, dispensable: Sequence[str], title: str = "") -> None:
        """Create an empty table. wraps: the column whose cells may take several lines. dispensable: columns in the order of
        omission."""
        self._columns, self._wraps, self._dispensable, self._title = columns, wraps, dispensable, title
        self._rows: list[tuple[str, ...]] = []

    def add_row(self, *cells: str) -> None:
        self._rows.append(cells)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        left_out = list(self._dispensable)
        while left_out and self._width(left_out[:-1]) <= options.max_width:
            left_out.pop()
        yield self._without(left_out)

    def _width(self, left_out: Sequence[str]) -> int:
        """Return the minimum width in characters, including borders."""
        widths = [self._column_width(i) for i, column in enumerate(self._columns) if column not in left_out]
        return 1 + sum(width + 3 for width in widths)

    def _column_width(self, i: int) -> int:
        cells = [self._columns[i], *(row[i] for row in self._rows)]
        words = [word for cell in cells for word in cell.split()] if self._columns[i] == self._wraps else cells
        return max(map(cell_len, words))

    def _without(self, left_out: Sequence[str]) -> PlainTable:
        kept = [i for i, column in enumerate(self._columns) if column not in left_out]
        caption = plain(f"a wider terminal shows {', '.join(left_out)}") if left_out else None
        table = PlainTable(title=self._title, title_justify="left", caption=caption, caption_justify="left")
        for i in kept:
            table.add_column(self._columns[i], no_wrap=self._columns[i] != self._wraps)
        for row in self._rows:
            table.add_row(*(row[i] for i in kept))
        return table

"""Profiles as CSV: leading `#` lines of comment, a header with the ten columns and perhaps `arrivals`, one row per point."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Iterator
from pathlib import Path

from ros2_rfm_serving.errors import ProfileError
from ros2_rfm_serving.profiles.table import ARRIVALS, COLUMNS, Profile, ProfileRow

HEADER = (*COLUMNS, "arrivals")
MAX_DIGITS = 9
"""Maximum number of digits of a batch size."""
_NUMBERS = COLUMNS[4:]


def load_profiles(folder: Path) -> Profile:
    """Return the profile of all `*.csv` files of a folder. Raises: `ProfileError` naming file and line."""
    files = sorted(folder.glob("*.csv"))
    if not files:
        raise ProfileError(f"{folder}: holds no latency profiles (*.csv); measure some with `rfm profile`")
    return _profile(placed for file in files for placed in _numbered_rows(_read(file), str(file)))


def parse_profiles(text: str, file: str = "<text>") -> Profile:
    return _profile(_numbered_rows(text, file))


def read_rows(file: Path) -> list[ProfileRow]:
    """Return the rows of one file, in its order."""
    placed = list(_numbered_rows(_read(file), str(file)))
    return list(_without_duplicates(placed))


def format_rows(rows: Iterable[ProfileRow], comment: str = "") -> str:
    """Return the text of a profile file; the inverse of `read_rows`."""
    text = io.StringIO()
    text.writelines(f"# {line}\n" for line in comment.splitlines())
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(HEADER)
    writer.writerows([getattr(row, column) for column in HEADER] for row in rows)
    return text.getvalue()


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ProfileError(f"{file}: is not UTF-8 text") from error
    except OSError as error:
        raise ProfileError(f"{file}: cannot be read: {error.strerror}") from error


def _profile(numbered_rows: Iterable[tuple[str, ProfileRow]]) -> Profile:
    return Profile.of(_without_duplicates(numbered_rows))


def _without_duplicates(numbered_rows: Iterable[tuple[str, ProfileRow]]) -> Iterator[ProfileRow]:
    seen: dict[tuple[object, ...], str] = {}
    for where, row in numbered_rows:
        point = (row.key, row.rate_hz, row.arrivals)
        if point in seen:
            raise ProfileError(f"{where}: repeats the point of {seen[point]} ({row.model}, {row.rate_hz:g} Hz); remove one of them")
        seen[point] = where
        yield row


def _numbered_rows(text: str, file: str) -> Iterator[tuple[str, ProfileRow]]:
    """Yield the rows, each with its `file:line`."""
    lines = text.splitlines(keepends=True)
    first = next((number for number, line in enumerate(lines) if not line.startswith("#")), len(lines))
    if first == len(lines) or not lines[first].strip():
        raise ProfileError(f"{file}:{first + 1}: is empty; its first line must be {','.join(HEADER)}")
    reader = csv.DictReader(lines[first:], strict=True)
    try:
        columns = tuple(reader.fieldnames or ())
        if columns not in (COLUMNS, HEADER):
            raise ProfileError(f"{file}:{first + 1}: columns are {','.join(columns)}; they must be {','.join(HEADER)}")
        for cells in reader:
            where = f"{file}:{first + reader.line_num}"
            yield where, _row(cells, where)
    except csv.Error as error:
        raise ProfileError(f"{file}:{first + reader.reader.line_num}: is not CSV: {error}") from error


def _row(cells: dict[str | None, str | None], where: str) -> ProfileRow:
    if None in cells:
        raise ProfileError(f"{where}: has more cells than the header has columns")
    numbers = {name: _number(cells[name], name, where) for name in _NUMBERS}
    model, gpu_type, batching = (_required(cells[name], name, where) for name in ("model", "gpu_type", "batching"))
    size = _batch_size(cells["batch_size"], where)
    if batching not in ("fixed", "continuous"):
        raise ProfileError(f"{where}: batching is {batching!r}; it must be fixed or continuous")
    if batching == "continuous" and size != 1:
        raise ProfileError(f"{where}: batch_size is {size}; with continuous batching it must be 1")
    arrivals = cells.get("arrivals", "periodic")
    if arrivals not in ARRIVALS:
        raise ProfileError(f"{where}: arrivals is {arrivals!r}; it must be one of {', '.join(ARRIVALS)}")
    return ProfileRow(model, gpu_type, batching, size, **numbers, arrivals=arrivals)


def _required(cell: str | None, name: str, where: str) -> str:
    if not cell:
        raise ProfileError(f"{where}: {name} is missing")
    return cell


def _batch_size(cell: str | None, where: str) -> int:
    if cell is None or not cell.isdecimal() or len(cell) > MAX_DIGITS or not (size := int(cell)):
        raise ProfileError(f"{where}: batch_size is {cell!r}; it must be a whole number from 1")
    return size


def _number(cell: str | None, name: str, where: str) -> float:
    try:
        number = float(cell) if cell is not None else None
    except ValueError:
        number = None
    if number is None:
        raise ProfileError(f"{where}: {name} is {cell!r}; it must be a number")
    if not math.isfinite(number) or number <= 0:
        raise ProfileError(f"{where}: {name} is {cell}; it must be finite and positive")
    return number

"""File of results, complete at every instant: each row names its machine, and is not measured again."""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping
from io import StringIO
from pathlib import Path

from lab.benchmarks.gpu.machine import Machine, identity_of
from ros2_rfm_serving.errors import ConfigurationError

Value = str | int | float | bool


class Rows:
    """Rows of one piece."""

    def __init__(self, file: Path, machine: Machine) -> None:
        """Read the rows. Raises: `ConfigurationError` for a file that differs from its written form."""
        self.file, self._machine, self._identity = file, machine.columns(), machine.identity
        self.rows: list[dict[str, str]] = _read(file) if file.exists() else []

    def has(self, **key: Value) -> bool:
        wanted = _texts(key).items()
        return any(wanted <= row.items() and identity_of(row) == self._identity for row in self.rows)

    def add(self, **values: Value) -> None:
        """Append a row. Raises: `OSError`; then the file is unchanged."""
        self.rows.append({**self._machine, **_texts(values)})
        replace(self.file, as_csv(self.rows))


def _read(file: Path) -> list[dict[str, str]]:
    """Read rows; a torn file is refused, because completed pieces are not measured again and their rows would be lost."""
    try:
        text = file.read_text(encoding="utf-8")
        rows = list(csv.DictReader(StringIO(text, newline=""), strict=True))
        if as_csv(rows) == text:
            return rows
    except (UnicodeDecodeError, ValueError, csv.Error):
        pass
    states = file.parent / "state" / f"{file.stem}*.json"
    fix = f"rm {file} {states}, and what they say is measured again"
    raise ConfigurationError("is torn: not what was written", file=str(file), fix=fix)


def as_csv(rows: list[dict[str, str]]) -> str:
    text = StringIO()
    columns = list(dict.fromkeys(column for row in rows for column in row))
    writer = csv.DictWriter(text, columns, lineterminator="\n", restval="")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def replace(file: Path, content: str | bytes) -> None:
    """Write a file at once, or not at all. Raises: `OSError`."""
    partial = file.with_name(file.name + ".partial")
    with partial.open("wb") as whole:
        whole.write(content.encode() if isinstance(content, str) else content)
        whole.flush()
        os.fsync(whole.fileno())  # otherwise the name may exist without its bytes after a loss of power
    partial.replace(file)


def _texts(values: Mapping[str, Value]) -> dict[str, str]:
    return {key: f"{value:.5g}" if isinstance(value, float) else str(value) for key, value in values.items()}

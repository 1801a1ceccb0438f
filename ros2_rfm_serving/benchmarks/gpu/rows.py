"""A file of results, whole at every instant: each row says where it was measured, and is not measured again."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from io import StringIO
from pathlib import Path

from ros2_rfm_serving.benchmarks.gpu.machine import Machine

Value = str | int | float | bool


class Rows:
    """Of one piece."""

    def __init__(self, file: Path, machine: Machine) -> None:
        self.file, self._machine = file, machine.columns()
        self.rows: list[dict[str, str]] = []
        if file.exists():
            with file.open(encoding="utf-8", newline="") as text:
                self.rows = list(csv.DictReader(text))

    def has(self, **key: Value) -> bool:
        wanted = {**self._machine, **_texts(key)}
        return any(wanted.items() <= row.items() for row in self.rows)

    def add(self, **values: Value) -> None:
        """Raises: `OSError`; then the file is as it was."""
        self.rows.append({**self._machine, **_texts(values)})
        replace(self.file, as_csv(self.rows))


def as_csv(rows: list[dict[str, str]]) -> str:
    text = StringIO()
    columns = list(dict.fromkeys(column for row in rows for column in row))
    writer = csv.DictWriter(text, columns, lineterminator="\n", restval="")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def replace(file: Path, text: str) -> None:
    """At once, or not at all. Raises: `OSError`."""
    partial = file.with_name(file.name + ".partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(file)


def _texts(values: Mapping[str, Value]) -> dict[str, str]:
    return {key: f"{value:.5g}" if isinstance(value, float) else str(value) for key, value in values.items()}

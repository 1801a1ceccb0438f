"""Output files of a reproduction."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from io import StringIO
from pathlib import Path
from typing import Any

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.operate.inputs import write_text


def make_folder(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        fix = "choose another folder"
        raise ConfigurationError(f"cannot be made: {error.strerror}", file=str(out), key="--out", fix=fix) from error


def write_rows(file: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    text, writer = StringIO(), None
    for row in rows:
        if writer is None:
            writer = csv.DictWriter(text, list(row), lineterminator="\n")
            writer.writeheader()
        writer.writerow({key: f"{value:.6g}" if isinstance(value, float) else value for key, value in row.items()})
    write_text(file, text.getvalue())

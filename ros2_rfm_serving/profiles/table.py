"""Tables of measured latency: arrival at the server to reply, queueing included, per model, GPU, batching, batch size and rate."""

from __future__ import annotations

import csv
import io
import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path

from ros2_rfm_serving.errors import ProfileError


@dataclass(frozen=True)
class ProfileRow:
    """One measured point. Rates in requests/s, latencies in ms."""

    model: str
    gpu_type: str
    batching: str
    batch_size: int
    rate_hz: float
    mean_ms: float
    p50_ms: float
    p90_ms: float
    p95_ms: float
    p99_ms: float


COLUMNS = tuple(f.name for f in fields(ProfileRow))
_STATISTICS = {"mean": "mean_ms", "p50": "p50_ms", "p90": "p90_ms", "p95": "p95_ms", "p99": "p99_ms"}


@dataclass(frozen=True)
class Profile:
    """All that was measured, indexed."""

    curves: dict[tuple[str, str, str, int], tuple[ProfileRow, ...]]
    """(model, gpu_type, batching, batch_size) -> rows by rising rate"""

    def batch_sizes(self, model: str, gpu_type: str) -> list[tuple[str, int]]:
        """(batching, batch size) measured for a model, smallest first.

        Raises: `ProfileError` when nothing was measured for it on that GPU.
        """
        found = sorted((batching, size) for m, g, batching, size in self.curves if (m, g) == (model, gpu_type))
        if not found:
            known = sorted({f"{m} on {g}" for m, g, _, _ in self.curves})
            raise ProfileError(f"no latency profile of {model!r} on {gpu_type!r}; there are: {', '.join(known) or 'none'}")
        return sorted(found, key=lambda item: item[1])

    def max_rate_hz(self, model: str, gpu_type: str, batching: str, batch_size: int) -> float:
        """Highest rate that was measured."""
        return self._curve(model, gpu_type, batching, batch_size)[-1].rate_hz

    def latency_s(self, model: str, gpu_type: str, batching: str, batch_size: int, rate_hz: float, statistic: str = "p99") -> float:
        """Interpolated latency at an aggregate request rate; below the first measured rate, that rate's.

        Raises: `ProfileError` beyond the measured range.
        """
        curve = self._curve(model, gpu_type, batching, batch_size)
        column = _STATISTICS[statistic]
        if not 0 <= rate_hz <= curve[-1].rate_hz * (1 + 1e-9):
            raise ProfileError(
                f"{model!r} on {gpu_type!r} was measured up to {curve[-1].rate_hz:g} requests/s at batch {batch_size}, "
                f"not at {rate_hz:g}"
            )
        at = bisect_left([row.rate_hz for row in curve], rate_hz)
        high = curve[min(at, len(curve) - 1)]
        low = curve[max(at - 1, 0)]
        span = high.rate_hz - low.rate_hz
        share = (rate_hz - low.rate_hz) / span if span > 0 else 0.0
        return float(getattr(low, column) + max(share, 0.0) * (getattr(high, column) - getattr(low, column))) / 1e3

    def _curve(self, model: str, gpu_type: str, batching: str, batch_size: int) -> tuple[ProfileRow, ...]:
        try:
            return self.curves[model, gpu_type, batching, batch_size]
        except KeyError:
            raise ProfileError(f"no latency profile of {model!r} on {gpu_type!r} at {batching} batch {batch_size}") from None


def load_profiles(folder: Path) -> Profile:
    """All `*.csv` of a folder."""
    files = sorted(folder.glob("*.csv"))
    return _profile(row for file in files for row in _rows(file.read_text(encoding="utf-8"), str(file)))


def parse_profiles(text: str, file: str = "<text>") -> Profile:
    return _profile(_rows(text, file))


def _profile(rows: Iterable[ProfileRow]) -> Profile:
    curves = defaultdict(list)
    for row in rows:
        curves[row.model, row.gpu_type, row.batching, row.batch_size].append(row)
    return Profile({key: tuple(sorted(curve, key=lambda r: r.rate_hz)) for key, curve in curves.items()})


def _rows(text: str, file: str) -> Iterable[ProfileRow]:
    reader = csv.DictReader(io.StringIO(text))
    if tuple(reader.fieldnames or ()) != COLUMNS:
        raise ProfileError(f"{file}:1: columns are {','.join(reader.fieldnames or ())}; they must be {','.join(COLUMNS)}")
    for cells in reader:
        yield _row(cells, f"{file}:{reader.line_num}")


def _row(cells: dict[str, str], where: str) -> ProfileRow:
    if cells["batching"] not in ("fixed", "continuous"):
        raise ProfileError(f"{where}: batching is {cells['batching']!r}; it must be fixed or continuous")
    numbers = {}
    for name in COLUMNS[3:]:
        try:
            numbers[name] = float(cells[name])
        except (TypeError, ValueError):
            raise ProfileError(f"{where}: {name} is {cells[name]!r}; it must be a number") from None
        if not math.isfinite(numbers[name]) or numbers[name] <= 0:
            raise ProfileError(f"{where}: {name} is {cells[name]}; it must be finite and positive")
    return ProfileRow(cells["model"], cells["gpu_type"], cells["batching"], int(numbers.pop("batch_size")), **numbers)

"""`profiles/files.py` and the queries of `profiles/table.py`: measured latencies as CSV."""

from __future__ import annotations

import math

from ros2_rfm_serving.errors import ProfileError
from ros2_rfm_serving.profiles import files, load_profiles, read_rows
from test.fuzz.targets.files import CONFIG, explained, written

MAX_SEED_LINES = 12


def seeds() -> list[bytes]:
    heads = [file.read_text(encoding="utf-8").splitlines(keepends=True)[:MAX_SEED_LINES] for file in CONFIG.glob("profiles/*.csv")]
    return ["".join(head).encode() for head in sorted(heads)]


def check(data: bytes) -> None:
    file = written(data, "profile.csv")
    try:
        profile = load_profiles(file.parent)
        rows = read_rows(file)
    except ProfileError as error:
        explained(error)
        return
    assert read_rows(written(files.format_rows(rows, comment="again").encode(), "profile.csv")) == rows
    for curve in profile.measured():
        highest_hz = profile.max_rate_hz(*curve)
        low_s, high_s = (profile.latency_s(*curve, rate_hz) for rate_hz in (0.0, highest_hz))
        assert 0 < low_s <= high_s <= profile.latency_s(*curve, highest_hz, percentile=99) < math.inf
        assert 0 <= profile.capacity_hz(*curve, high_s) <= highest_hz

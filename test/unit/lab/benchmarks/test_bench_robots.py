"""`rfm bench robots`: a figure is that of a robot that speaks now."""

from __future__ import annotations

import io
import math

from rich.console import Console

from lab.benchmarks.robots.report import Usage, _figures, _finite, _table
from lab.benchmarks.robots.told import STALE_PERIODS, Told

WORDS = {
    "state": "STREAMING",
    "action_rate_hz": "20",
    "chunk_rate_hz": "2.5",
    "tick_late_p50_ms": "1",
    "tick_late_p99_ms": "9",
}
USAGE = Usage(rss_mb=100.0, cpu_s=1.0, threads=9)


def test_words_go_stale() -> None:
    told = Told(period_s=1.0)
    told.take("r1", WORDS, 10.0)
    told.take("r2", WORDS, 12.0)
    assert len(told.fresh(12.0)) == 2
    assert len(told.fresh(10.1 + STALE_PERIODS)) == 1
    assert not told.fresh(100.0)


def test_robots_that_are_silent_lend_no_figure() -> None:
    slow = {**WORDS, "action_rate_hz": "4", "state": "DEGRADED"}
    row = _figures(3, [WORDS, slow], USAGE, 0.5)
    assert (row.streaming, row.stale, row.actions_hz, row.worst_actions_hz) == (1, 1, 12.0, 4.0)
    silent = _figures(3, [], USAGE, 0.5)
    assert silent.stale == 3 and math.isnan(silent.actions_hz) and _finite(silent)["actions_hz"] is None
    console = Console(width=300, record=True, file=io.StringIO())
    console.print(_table([silent]))
    assert console.export_text().count("stale") >= 5

"""Claims of vla.cpp App. G, compared with the measurements here."""

from __future__ import annotations

from lab.reproductions.claims import Claim, Rule, measured
from lab.reproductions.vlacpp.points import STEPS, Mode, Replanned

WHOLE = STEPS[-1]
"""Steps of a whole chunk, executed without another observation."""
PLATEAU = STEPS[:-1]


def claims_of(results: Replanned) -> list[Claim]:
    least, most = Rule.AT_LEAST, Rule.AT_MOST
    rows = [
        ("12", "control rate at the whole chunk over that at S = 1, of linear", "x", least, 109.4 / 2.8 / 50, _linear),
        ("12", "latency of a call at the whole chunk over that at S = 1", "x", most, 457.0 / 358.4, _flat),
        ("12", "gap between 95 % intervals of success, all settings but the whole chunk", "points", most, 0.0, _apart),
        ("12", "success that the whole chunk loses against the best setting", "points", least, 60.0, _collapse),
        ("12", "the same, of a disturbed arm", "points", least, 60.0, lambda results: _collapse(results, disturbed=True)),
    ]
    return measured(rows, results)


def _linear(results: Replanned) -> float:
    return results.control_hz(Mode.WAITS, WHOLE) / results.control_hz(Mode.WAITS, 1) / WHOLE


def _flat(results: Replanned) -> float:
    return results.call_s(Mode.WAITS, WHOLE)[0] / results.call_s(Mode.WAITS, 1)[0]


def _apart(results: Replanned) -> float:
    """Return the gap between the highest lower and the lowest upper end; 0: all intervals overlap."""
    intervals = [results.of(Mode.WAITS, steps).interval for steps in PLATEAU]
    return 100 * max(0.0, max(low for low, _ in intervals) - min(high for _, high in intervals))


def _collapse(results: Replanned, *, disturbed: bool = False) -> float:
    best = max(results.of(Mode.WAITS, steps, disturbed=disturbed).success for steps in PLATEAU)
    return 100 * (best - results.of(Mode.WAITS, WHOLE, disturbed=disturbed).success)

"""Equations that the laws have to satisfy: every figure of ROSA §4 that is a function of them.

Figs. 8 and 11 need whole plans, and Fig. 14's batch size is a choice: `rfm reproduce rosa` checks them, they are not fitted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from lab.reproductions.claims import Claim, Rule, measured
from lab.reproductions.rosa.laws import (
    ACT_S,
    CALLS,
    SLICES,
    SLO_S,
    SURELY,
    Laws,
    capped_median_s,
    closed_loop_hz,
    planned_hz,
    tail_s,
    uncapped,
)

LARGER = 0.9
"""Bound that is low enough that no scatter of two derived curves (some 5 % each) makes the larger batches the better ones."""
Of = Callable[[Laws], float]
Row = tuple[str, str, str, Rule, float, Of]


def _open_goodput(laws: Laws, servers: dict[int, int], size: int, call_s: float = 0.0) -> float:
    """Return the goodput within the SLO. servers: robots per server -> number of such servers."""
    each = [(count, uncapped(laws, robots, size, call_s)) for robots, count in servers.items()]
    return sum(count * found.rate_hz * found.within for count, found in each)


def _equal_median_ms(laws: Laws) -> float:
    return 1e3 * uncapped(laws, 16, 1, laws.call_s(42.0, 2)).median_s


def _weighted_median_ms(laws: Laws) -> float:
    return 1e3 * uncapped(laws, 16, 1, laws.call_s(21.0, 3)).median_s


def _equal8(laws: Laws) -> float:
    return _open_goodput(laws, {4: 2}, 1, laws.call_s(29.5, 2))


def _alone(laws: Laws) -> float:
    return 2.0 / (ACT_S + laws.batch_s(1) + CALLS * laws.call_s(7.4, 2))


def _capped(robots: int, servers: int, calls: bool, laws: Laws) -> float:
    return robots * planned_hz(laws, robots, servers, calls=calls)


def _over(robots: int, servers: int, laws: Laws) -> float:
    """Return the rate with ROSA's five System 1 servers over that of the equal partition."""
    return planned_hz(laws, robots, 5) / planned_hz(laws, robots, servers)


def _p3_over(laws: Laws) -> float:
    return _capped(32, 6, False, laws) / _open_goodput(laws, {8: 2}, 1)


def _open64(laws: Laws) -> float:
    return 4 * uncapped(laws, 16, 2, laws.call_s(145.5)).rate_hz


def _open64_within(laws: Laws) -> float:
    return 100 * (uncapped(laws, 16, 2, laws.call_s(145.5)).within + laws.crowd)


def closed_crowd(laws: Laws) -> float:
    """Return the share within the SLO by the closed queue alone."""
    return _open64_within(replace(laws, crowd=0.0)) / 100


def _open64_goodput(laws: Laws) -> float:
    return _open64(laws) * _open64_within(laws) / 100


def _sixteen(laws: Laws) -> float:
    return 16 * laws.batch_s(1) / laws.batch_s(16)


def _pressed(laws: Laws) -> float:
    """Return the best batch size's rate over that of batches of 1, with the fleet's curves, for 16 robots with 50 ms of action."""
    rates = {size: closed_loop_hz(laws.curve(size, "fleet"), 16, 0.05, lambda _: 0.0) for size in (1, 2, 4, 8, 16)}
    return max(rates.values()) / rates[1]


def _sliced_ms(laws: Laws) -> float:
    law = laws.checking
    return 1e3 * SLICES * law.mean_s(1) * (1.0 - SURELY * law.jitter)


def larger(laws: Laws) -> float:
    """Return the capacity of batches of 4 over batches of 2: 64 robots use batches of 2, of which 17 % are in time uncapped; nearly
    all batches of 4 would be."""
    four_hz, two_hz = (laws.curve(size).capacity_hz(SLO_S, "p99") for size in (4, 2))
    return four_hz / two_hz


NEAR, AT_MOST, AT_LEAST = Rule.NEAR, Rule.AT_MOST, Rule.AT_LEAST

FITTED: tuple[Row, ...] = (
    ("6", "P4, 8 robots: ROSA", "actions/s", NEAR, 23.9, partial(_capped, 8, 5, True)),
    ("6", "P4, 8 robots: equal partition", "actions/s", NEAR, 29.5, _equal8),
    ("6", "P4, 32 robots: ROSA", "actions/s", NEAR, 89.4, partial(_capped, 32, 5, True)),
    ("6", "P4, 64 robots: ROSA", "actions/s", NEAR, 78.8, partial(_capped, 64, 4, True)),
    ("6", "P2, 32 robots: ROSA", "actions/s", NEAR, 106.9, partial(_capped, 32, 7, False)),
    ("6", "P2, 32 robots: equal partition", "actions/s", NEAR, 87.1, lambda laws: _open_goodput(laws, {8: 4}, 1)),
    ("6", "P3, 32 robots: ROSA", "actions/s", NEAR, 106.9, partial(_capped, 32, 6, False)),
    ("6", "P3: ROSA at 32 over the equal partition", "x", NEAR, 2.44, _p3_over),
    ("7", "P4, 2 robots: one GPU per model", "actions/s", NEAR, 7.4, _alone),
    ("9", "32 robots: ROSA, System 1 median", "ms", NEAR, 83.8, lambda laws: 1e3 * capped_median_s(laws, 32, 5)),
    ("9", "32 robots: equal, System 1 median", "ms", NEAR, 534.5, _equal_median_ms),
    ("9", "16 robots: weighted, System 1 median", "ms", NEAR, 520.8, _weighted_median_ms),
    (
        "10",
        "32 robots: ROSA uncapped",
        "actions/s",
        NEAR,
        107.3,
        lambda laws: _open_goodput(laws, {7: 2, 6: 3}, 2, laws.call_s(107.3)),
    ),
    ("10", "64 robots: ROSA uncapped, raw", "actions/s", NEAR, 145.5, _open64),
    ("10", "64 robots: ROSA uncapped", "actions/s", NEAR, 24.8, _open64_goodput),
    ("10", "64 robots: uncapped, within SLO", "%", NEAR, 17.0, _open64_within),
    ("10", "64 robots: capped over uncapped", "x", NEAR, 3.18, lambda laws: _capped(64, 4, True, laws) / _open64_goodput(laws)),
    ("12", "16 robots: over the best static", "x", NEAR, 1.26, partial(_over, 16, 2)),
    ("12", "32 robots: over the best static", "x", NEAR, 2.20, partial(_over, 32, 2)),
    ("13", "batches of 16 over batches of 1", "x", NEAR, 3.5, _sixteen),
    ("13", "batches of 4, as pi0.5's (SGLang)", "ms", NEAR, 91.9, lambda laws: 1e3 * laws.batch_s(4)),
    ("14", "16 robots, 50 ms: speedup", "x", NEAR, 2.46, _pressed),
)
"""Figures that are fitted by least deviation."""

BOUNDS: tuple[Row, ...] = (
    ("tables", "64 Hz of safety on one server: p99", "ms", AT_MOST, 500, lambda laws: 1e3 * tail_s(laws.checking, 64.0)),
    ("tables", "128 Hz of it: p99", "ms", AT_LEAST, 500, lambda laws: 1e3 * tail_s(laws.checking, 128.0)),
    ("7", "safety on a quarter of a GPU, the fastest of 1000", "ms", AT_LEAST, 500, _sliced_ms),
    ("10", "batches of 4 over batches of 2, within the SLO", "x", AT_MOST, LARGER, larger),
    ("tables", "32 Hz of the monitor on one server: p99", "ms", AT_MOST, 2000, lambda laws: 1e3 * tail_s(laws.reasoning, 32.0)),
)
"""Bounds: safety's hold with the greatest margin, that of batches beside the figures, and the monitor's by far."""


def bindings_of(laws: Laws) -> list[Claim]:
    return measured((*FITTED, *BOUNDS), laws)

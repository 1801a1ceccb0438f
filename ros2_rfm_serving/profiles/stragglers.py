"""Latency curves of servers some of whose services take longer than others (`stragglers` of the descriptor).

Their percentiles are those of a mixture of three parts: requests that meet no slow service, requests whose own service is slow, and
requests that arrive during a slow one, which wait for half of its excess.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np

from ros2_rfm_serving.profiles.table import MEASURED, Array, Curve, CurveKey, Profile

MIN_RELATIVE_STEP = 1e-9
"""Relative distance that is added between measured percentiles, which may be equal: those of a mixture are interpolated between
them."""


@dataclass(frozen=True)
class _Part:
    """Part of the mixture, as a share of all requests."""

    share: float
    times: float = 1.0
    added_s: float = 0.0


def with_stragglers(profile: Profile, share: float, factor: float, gpu_types: Collection[str] | None = None) -> Profile:
    """Return the profile with stragglers.

    share: of all services. factor: their service time as a multiple of others'. gpu_types: types with stragglers; None: all.
    """

    def change(key: CurveKey, curve: Curve) -> Curve:
        _, gpu_type, batching, batch_size = key
        if gpu_types is not None and gpu_type not in gpu_types:
            return curve
        return _slowed(curve, share, factor, batch_size if batching == "fixed" else 0)

    return profile.changed(change)


def _slowed(curve: Curve, share: float, factor: float, batch_size: int) -> Curve:
    """Return a curve with stragglers. batch_size: 0: requests share the server, so that none waits for another."""
    pace = 1.0 + share * (factor - 1.0)
    columns: dict[str, list[float]] = {name: [] for name in curve.latencies_s}
    for i, rate_hz in enumerate(curve.rates_hz):
        longer_s = (factor - 1.0) * batch_size / curve.rates_hz[-1]
        behind = min(rate_hz / curve.rates_hz[-1] * share * factor / pace, 1.0 - share) if batch_size else 0.0
        own = _Part(share, added_s=longer_s) if batch_size else _Part(share, times=factor)
        parts = (_Part(1.0 - share - behind), own, _Part(behind, added_s=longer_s / 2))
        quantiles_s = _mixed(np.array([curve.latencies_s[f"p{p:g}"][i] for p in MEASURED]), parts)
        columns["mean"].append(sum(part.share * (part.times * curve.latencies_s["mean"][i] + part.added_s) for part in parts))
        for p, latency_s in zip(MEASURED, quantiles_s, strict=True):
            columns[f"p{p:g}"].append(float(latency_s))
    rising = {name: tuple(map(float, np.maximum.accumulate(column))) for name, column in columns.items()}
    return replace(curve, rates_hz=tuple(rate_hz / pace for rate_hz in curve.rates_hz), latencies_s=rising)


def _mixed(latencies_s: Array, parts: tuple[_Part, ...]) -> Array:
    """Return the percentiles of the mixture. latencies_s: at `MEASURED`; nothing is known below the first or above the last."""
    shares = np.array([*MEASURED, 100.0]) / 100.0
    steps = 1.0 + MIN_RELATIVE_STEP * np.arange(len(shares))
    measured_s = np.append(latencies_s, latencies_s[-1]) * steps
    points_s = np.sort(np.concatenate([part.times * measured_s + part.added_s for part in parts]))
    below = sum(part.share * np.interp((points_s - part.added_s) / part.times, measured_s, shares, left=0.0) for part in parts)
    found: Array = np.interp(shares[:-1], below, points_s)
    return found

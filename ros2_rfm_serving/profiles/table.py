"""Latency from arrival at the server to reply, queueing included, per model, GPU, batching, batch size and rate.

Between measured rates latency is interpolated linearly; below the first it is the first row's, and beyond the last it is refused.
Between measured percentiles it is interpolated where that is conservative.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import accumulate, pairwise
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from ros2_rfm_serving.errors import ProfileError

Array = npt.NDArray[np.float64]
CurveKey = tuple[str, str, str, int]
"""(model, gpu_type, batching, batch_size)"""

ARRIVALS = ("fleet", "poisson", "periodic")
"""Arrival processes, the one nearest to a factory first."""


@dataclass(frozen=True)
class ProfileRow:
    """One measured point. Rates are in requests/s, latencies in ms."""

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
    arrivals: str = "periodic"

    @property
    def key(self) -> CurveKey:
        return self.model, self.gpu_type, self.batching, self.batch_size


COLUMNS = tuple(f.name for f in fields(ProfileRow))[:-1]
"""Columns of every profile; the column `arrivals` may follow."""
_STATISTICS = {"mean": "mean_ms", "p50": "p50_ms", "p90": "p90_ms", "p95": "p95_ms", "p99": "p99_ms"}
MEASURED = (50.0, 90.0, 95.0, 99.0)
TAIL = 90.0
"""Percentile from which on latencies of fixed batches have a tail; those of continuous batching have one from the median on."""


@dataclass(frozen=True)
class Curve:
    """Latency over rate, cleaned: it rises with the rate and with the percentile."""

    rates_hz: tuple[float, ...]
    latencies_s: dict[str, tuple[float, ...]]
    """`mean`, `p50`, `p90`, `p95`, `p99` -> one value per rate"""
    tail_from: float = TAIL
    """Percentile from which on the density of latencies only falls, unless the measurement shows otherwise."""

    @staticmethod
    def of(rows: Iterable[ProfileRow]) -> Curve:
        """Return the curve without the noise of measurement: no latency falls with a rising rate.

        It is the running maximum, not the least-squares fit (pool adjacent violators): a schedule that keeps an SLO by this curve
        never relies on a latency below one that was measured at the same or a lower rate.
        """
        ordered = sorted(rows, key=lambda row: row.rate_hz)
        rising = {name: list(accumulate((getattr(r, c) / 1e3 for r in ordered), max)) for name, c in _STATISTICS.items()}
        for lower, higher in (("p50", "p90"), ("p90", "p95"), ("p95", "p99"), ("mean", "p99")):
            rising[higher] = [max(pair) for pair in zip(rising[lower], rising[higher], strict=True)]
        tail_from = TAIL if ordered[0].batching == "fixed" else MEASURED[0]
        return Curve(tuple(r.rate_hz for r in ordered), {name: tuple(column) for name, column in rising.items()}, tail_from)

    def column(self, statistic: str) -> tuple[float, ...]:
        """Return one value per rate: `mean`, or a percentile (`p91`), which may be between two that were measured."""
        return self.latencies_s[statistic] if statistic in self.latencies_s else self._between(float(statistic[1:]))

    def _between(self, percentile: float) -> tuple[float, ...]:
        """Return a percentile between two measured ones: on the straight line where the tail thins out, elsewhere the higher one.

        No latency of such a tail is above the line. A tail thins out where the measured latencies rise at least as steeply further
        out (or, for the last two percentiles, at most as steeply further in).
        """
        high = bisect_left(MEASURED, percentile)
        low_s, high_s = (self.latencies_s[f"p{p:g}"] for p in MEASURED[high - 1 : high + 1])
        if MEASURED[high - 1] < self.tail_from:
            return high_s
        inner = min(high - 1, len(MEASURED) - 3)
        columns = [self.latencies_s[f"p{p:g}"] for p in MEASURED[inner : inner + 3]]
        (a, b), (c, d) = pairwise(MEASURED[inner : inner + 3])
        share = (percentile - MEASURED[high - 1]) / (MEASURED[high] - MEASURED[high - 1])
        thins = [(y1 - y0) / (b - a) <= (y2 - y1) / (d - c) for y0, y1, y2 in zip(*columns, strict=True)]
        return tuple(accumulate((y0 + share * (y1 - y0) if t else y1 for y0, y1, t in zip(low_s, high_s, thins, strict=True)), max))

    def latency_s(self, rate_hz: float, statistic: str) -> float:
        column = self.column(statistic)
        high = min(bisect_left(self.rates_hz, rate_hz), len(column) - 1)
        if high == 0 or rate_hz >= self.rates_hz[high]:
            return column[high]
        low = high - 1
        share = (rate_hz - self.rates_hz[low]) / (self.rates_hz[high] - self.rates_hz[low])
        return column[low] + share * (column[high] - column[low])

    def paced(self, pace: float) -> Curve:
        """Return the curve of a server that takes `pace` times longer for everything."""
        slower = {name: tuple(pace * y for y in column) for name, column in self.latencies_s.items()}
        return replace(self, rates_hz=tuple(rate / pace for rate in self.rates_hz), latencies_s=slower)

    def farther(self, away_s: float) -> Curve:
        """Return the curve of a server whose answers all arrive `away_s` later."""
        later = {name: tuple(y + away_s for y in column) for name, column in self.latencies_s.items()}
        return replace(self, latencies_s=later)

    def capacity_hz(self, limit_s: float, statistic: str) -> float:
        """Return the highest rate whose latency is within the limit, the inverse of `latency_s`; 0 when there is none."""
        column = self.column(statistic)
        high = bisect_right(column, limit_s)
        if high == 0:
            return 0.0
        if high == len(column):
            return self.rates_hz[-1]
        low = high - 1
        share = (limit_s - column[low]) / (column[high] - column[low])
        return self.rates_hz[low] + share * (self.rates_hz[high] - self.rates_hz[low])


def column_of(percentile: float) -> str:
    """Return the name for `Curve.column`; below the median it is the median's. Raises: `ProfileError` beyond the 99th."""
    if percentile > MEASURED[-1]:
        raise ProfileError(f"profiles hold percentiles up to 99, not {percentile:g}; lower the percentile of the SLO")
    return f"p{max(percentile, MEASURED[0]):g}"


class Profile:
    """All measured curves. Where there are several arrival processes, a query uses the first in the order of preference.

    That order is `fleet`, `poisson`, `periodic`; `under()` gives a view with another preference.
    """

    def __init__(self, curves: dict[CurveKey, dict[str, Curve]], preference: Sequence[str] = ARRIVALS) -> None:
        self._all, self._preference = curves, preference
        self._chosen = {key: next(of[name] for name in preference if name in of) for key, of in curves.items()}

    @staticmethod
    def of(rows: Iterable[ProfileRow]) -> Profile:
        groups: dict[CurveKey, dict[str, list[ProfileRow]]] = defaultdict(lambda: defaultdict(list))
        for row in rows:
            groups[row.key][row.arrivals].append(row)
        return Profile({key: {name: Curve.of(group) for name, group in of.items()} for key, of in groups.items()})

    def under(self, arrivals: str) -> Profile:
        """Return the same measurements, those under this arrival process preferred."""
        if arrivals not in ARRIVALS:
            raise ProfileError(f"arrivals are {arrivals!r}; they must be one of {', '.join(ARRIVALS)}")
        return Profile(self._all, (arrivals, *(other for other in ARRIVALS if other != arrivals)))

    def batched(self, continuous: Collection[str]) -> Profile:
        """Return the same measurements, with one kind of batching per model and GPU type where there are two: continuous on these
        GPU types, fixed on others."""
        ways: dict[tuple[str, str], set[str]] = defaultdict(set)
        for model, gpu_type, batching, _ in self._all:
            ways[model, gpu_type].add(batching)
        other = {where: "fixed" if where[1] in continuous else "continuous" for where, found in ways.items() if len(found) > 1}
        return Profile({key: of for key, of in self._all.items() if other.get(key[:2]) != key[2]}, self._preference)

    def rescaled(self, paces: Mapping[tuple[str, str], float]) -> Profile:
        """Return the profile with other service times. paces: (model, GPU type) -> service time as a multiple of the measured
        one."""
        rescaled = {
            key: {arrivals: curve.paced(paces[key[:2]]) for arrivals, curve in of.items()} if key[:2] in paces else of
            for key, of in self._all.items()
        }
        return Profile(rescaled, self._preference) if paces else self

    def paced(self, paces: Mapping[tuple[str, str], float], away_s: Mapping[str, float] = MappingProxyType({})) -> Profile:
        """Return the profile with additional GPU types. paces: (measured type, name of the new one) -> its times as a multiple.

        A server that takes k times longer has the latencies of a k times higher rate, k times longer. away_s: name -> latency that
        its network adds to each request.
        """
        more = {
            (model, name, batching, size): {
                arrivals: curve.paced(pace).farther(away_s.get(name, 0.0)) for arrivals, curve in of.items()
            }
            for (model, gpu_type, batching, size), of in self._all.items()
            for (measured, name), pace in paces.items()
            if gpu_type == measured
        }
        return Profile({**self._all, **more}, self._preference) if more else self

    def changed(self, change: Callable[[CurveKey, Curve], Curve]) -> Profile:
        """Return the profile with other curves."""
        found = {key: {arrivals: change(key, curve) for arrivals, curve in of.items()} for key, of in self._all.items()}
        return Profile(found, self._preference)

    def measured(self) -> list[CurveKey]:
        """Return the keys of all measured curves, sorted."""
        return sorted(self._chosen)

    def models_on(self, gpu_type: str) -> list[str]:
        return sorted({model for model, gpu, _, _ in self._chosen if gpu == gpu_type})

    def batch_sizes(self, model: str, gpu_type: str) -> list[tuple[str, int]]:
        """Return (batching, batch size) measured for a model, smallest first.

        Raises: `ProfileError` when nothing was measured for it on that GPU.
        """
        found = sorted((batching, size) for m, g, batching, size in self._chosen if (m, g) == (model, gpu_type))
        if not found:
            known = sorted({f"{m} on {g}" for m, g, _, _ in self._chosen})
            raise ProfileError(f"no latency profile of {model!r} on {gpu_type!r}; there are: {', '.join(known) or 'none'}")
        return sorted(found, key=lambda item: item[1])

    def max_rate_hz(self, model: str, gpu_type: str, batching: str, batch_size: int) -> float:
        """Return the highest rate that was measured."""
        return self._curve(model, gpu_type, batching, batch_size).rates_hz[-1]

    def latency_s(
        self,
        model: str,
        gpu_type: str,
        batching: str,
        batch_size: int,
        rate_hz: float,
        statistic: str = "p99",
        *,
        percentile: float | None = None,
    ) -> float:
        """Return the latency at an aggregate request rate: a `statistic` (mean, p50, p90, p95, p99), or a `percentile` from 0 to
        99.

        Raises: `ProfileError` beyond the measured range.
        """
        curve = self._curve(model, gpu_type, batching, batch_size)
        highest_hz = curve.rates_hz[-1]
        if not 0 <= rate_hz <= highest_hz * (1 + 1e-9):
            raise ProfileError(
                f"{model!r} on {gpu_type!r} was measured up to {highest_hz:g} requests/s at {batching} batch {batch_size}, "
                f"not at {rate_hz:g}"
            )
        return curve.latency_s(rate_hz, statistic if percentile is None else column_of(percentile))

    def capacity_hz(
        self, model: str, gpu_type: str, batching: str, batch_size: int, limit_s: float, percentile: float = 99.0
    ) -> float:
        """Return the highest measured rate at which this percentile of the latency is within `limit_s`; 0 when there is none."""
        if math.isnan(limit_s):
            raise ProfileError(f"the latency limit of {model!r} is not a number")
        return self._curve(model, gpu_type, batching, batch_size).capacity_hz(limit_s, column_of(percentile))

    def service_s(self, model: str, gpu_type: str, batching: str) -> dict[int, float]:
        """Return batch size -> seconds of a full batch, since the highest measured rate is that of full batches; empty: not
        measured.

        With continuous batching it is the time of one request alone.
        """
        found = {size: curve for (m, g, b, size), curve in self._chosen.items() if (m, g, b) == (model, gpu_type, batching)}
        if batching == "continuous":
            return {size: curve.latencies_s["p50"][0] for size, curve in found.items()}
        return {size: size / found[size].rates_hz[-1] for size in sorted(found)}

    def batches_s(self, model: str, gpu_type: str, batching: str, batch_size: int) -> tuple[float, ...]:
        """Return the seconds of batches of 1, 2, ... `batch_size` requests, interpolated linearly between measured sizes; empty:
        not measured."""
        measured = self.service_s(model, gpu_type, batching)
        if not measured:
            return ()
        rows = np.arange(1, min(batch_size, max(measured)) + 1)
        return tuple(float(s) for s in np.interp(rows, list(measured), list(measured.values())))

    def curve_arrays(self, model: str, gpu_type: str, batching: str, batch_size: int) -> tuple[Array, Array, dict[str, Array]]:
        """Return (rates in Hz, mean latencies in s, {"mean", "p50" ... "p99": latencies in s}), for callers that need many
        rates."""
        curve = self._curve(model, gpu_type, batching, batch_size)
        columns = {name: np.array(column) for name, column in curve.latencies_s.items()}
        return np.array(curve.rates_hz), columns["mean"], columns

    def column(
        self, model: str, gpu_type: str, batching: str, batch_size: int, statistic: str
    ) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return (rates in Hz, latencies in s). statistic: as in `Curve.column`."""
        curve = self._curve(model, gpu_type, batching, batch_size)
        return curve.rates_hz, curve.column(statistic)

    def _curve(self, model: str, gpu_type: str, batching: str, batch_size: int) -> Curve:
        try:
            return self._chosen[model, gpu_type, batching, batch_size]
        except KeyError:
            raise ProfileError(f"no latency profile of {model!r} on {gpu_type!r} at {batching} batch {batch_size}") from None

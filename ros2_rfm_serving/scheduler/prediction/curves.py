"""Latency curves of the profile for solvers: fast queries by configuration and load."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, Generic, TypeVar

import numpy as np

from ros2_rfm_serving.factory.cluster import StragglerConfig
from ros2_rfm_serving.profiles import ContinuousService, Profile, SteppedService, column_of, with_stragglers
from ros2_rfm_serving.scheduler.slo import Slo

ROUNDING = 1e-6
"""Share of the highest measured load that counts as rounding."""
BISECTIONS = 40
EVENLY = 0.05
"""Largest relative deviation from a line up to which continuous batching counts as shared evenly."""
NORMAL_P90, NORMAL_P99 = 1.2816, 2.326
"""Standard deviations by which these percentiles of a normal distribution exceed its mean."""
ALIKE = 0.15
"""Relative difference between the highest throughput of a law and the measured one, up to which both describe the same server."""
TYPICAL = 60.0
"""Percentile from which on services that scatter take longer than the mean one."""
PADDED = 0.1
"""Relative difference between full and other batches, up to which they count as equally long."""

REMEMBERED = 8192
"""Number of search results that are cached. When there are more, all are dropped: a search seldom returns to old ones."""

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")

STATE = ("profile", "stragglers", "configs", "_measured", "_steps", "_away_s", "_continuous")


@dataclass(frozen=True)
class ServerConfiguration:
    """Configuration of a server."""

    model: str
    gpu_type: str
    batching: str
    batch_size: int
    slices: int = 1
    """Number of models that share its GPU in equal time slices: latencies are longer and capacities lower by this factor."""

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        """Return the hash, computed once: a search looks up the same few configurations millions of times."""
        return hash((self.model, self.gpu_type, self.batching, self.batch_size, self.slices))

    @cached_property
    def place(self) -> str:
        """Return the text that configurations are sorted by."""
        return str(self)

    def __getstate__(self) -> dict[str, Any]:
        """Return only the fields, because hashes of text differ in another process."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


@dataclass(frozen=True)
class LatencyLine:
    """Function of the load in requests/s: piecewise linear, constant below the first point, non-decreasing, and infinite beyond the
    last one, because unmeasured loads are not extrapolated. Where a law of the measurements is known, it supplies the first point,
    for no load."""

    x: tuple[float, ...]
    y: tuple[float, ...]

    def at(self, load_hz: float) -> float:
        x, y = self.x, self.y
        if load_hz <= x[0]:
            return y[0]
        if load_hz >= x[-1]:
            return y[-1] if load_hz <= x[-1] * (1 + ROUNDING) else math.inf
        i = bisect_right(x, load_hz)
        x0, y0 = x[i - 1], y[i - 1]
        return y0 + (y[i] - y0) * (load_hz - x0) / (x[i] - x0)

    def highest_hz(self, limit_s: float) -> float:
        """Return the highest load within a limit; 0: there is none."""
        i = bisect_right(self.y, limit_s)
        if not 0 < i < len(self.y):
            return self.x[-1] if i else 0.0
        return self.x[i - 1] + (self.x[i] - self.x[i - 1]) * (limit_s - self.y[i - 1]) / (self.y[i] - self.y[i - 1])

    def slope_at(self, load_hz: float) -> float:
        """Return the slope to the right of `load_hz`."""
        if load_hz < self.x[0]:
            return 0.0
        i = min(bisect_right(self.x, load_hz), len(self.x) - 1)
        return (self.y[i] - self.y[i - 1]) / (self.x[i] - self.x[i - 1]) if i else 0.0


class Remembered(Generic[Key, Value]):
    """Bounded cache of results that the searches of one planning call need repeatedly.

    Threads may share it: two of them may then compute the same result.
    """

    def __init__(self, most: int = REMEMBERED) -> None:
        self._most = most
        self._values: dict[Key, Value] = {}

    def get(self, key: Key) -> Value | None:
        """Return the result for `key`, or None if it is unknown."""
        return self._values.get(key)

    def add(self, key: Key, value: Value) -> Value:
        """Keep a result, and return it."""
        if len(self._values) >= self._most:
            self._values = {}
        self._values[key] = value
        return value


class Curves:
    """Curves of the profile for the models and GPU types of one problem, with cached queries."""

    def __init__(
        self,
        profile: Profile,
        models: Iterable[str],
        gpu_types: Iterable[str],
        fits: Iterable[tuple[str, str]],
        steps: Mapping[tuple[str, str], SteppedService] = MappingProxyType({}),
        away_s: Mapping[str, float] = MappingProxyType({}),
        continuous: Collection[str] = (),
        stragglers: Mapping[str, StragglerConfig] = MappingProxyType({}),
    ) -> None:
        """Prepare the curves. fits: (model, GPU type) pairs that may be used. steps: law of their solver steps, where it is known.
        away_s: GPU type -> part of its latencies due to a host that is not the nearest. continuous: GPU types whose servers batch
        continuously, even if their models were only measured otherwise. stragglers: slow services per GPU type."""
        self._measured = profile
        self.profile = _straggling(profile, stragglers)
        self.stragglers, self._away_s, self._continuous = dict(stragglers), dict(away_s), frozenset(continuous)
        usable = set(fits)
        known = {(m, g) for m, g, _, _ in profile.measured()}
        self.configs: dict[tuple[str, str], list[ServerConfiguration]] = {}
        for model in models:
            for gpu_type in gpu_types:
                if (model, gpu_type) in known & usable:
                    sizes = profile.batch_sizes(model, gpu_type)
                    self.configs[model, gpu_type] = [
                        ServerConfiguration(model, gpu_type, batching, size) for batching, size in sizes
                    ]
        self._steps = dict(steps)
        self._forget()

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for another process, without the caches, which may grow while it is written."""
        return {name: self.__dict__[name] for name in STATE}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()

    def _forget(self) -> None:
        self._stepped: dict[ServerConfiguration, SteppedService | None] = {}
        self._laws: dict[ServerConfiguration, ContinuousService | None] = {}
        self._lines: dict[tuple[ServerConfiguration, str, bool], LatencyLine] = {}
        self._capacities: dict[tuple[ServerConfiguration, Slo], float] = {}
        self.rates_found: Remembered[Hashable, tuple[tuple[float, ...] | None, float]] = Remembered()
        """(rates or None, work) of searches with these curves (`rates.py`)."""
        self.equilibria: Remembered[Hashable, Any] = Remembered()
        """Cached equilibria, each an `Equilibrium` (`equilibrium.py`)."""
        self.packings_found: Remembered[Hashable, tuple[tuple[int, ...] | None, float]] = Remembered()
        """(servers of each configuration or None, work) of ROSA's integer programs (`policies/rosa.py`)."""

    def within(self, gpu_types: Collection[str]) -> Curves:
        """Return the same curves, with the caches, for a factory that only has servers of these GPU types."""
        if all(gpu_type in gpu_types for _, gpu_type in self.configs):
            return self
        found = object.__new__(Curves)
        found.__dict__.update(self.__dict__)
        found.configs = {key: configs for key, configs in self.configs.items() if key[1] in gpu_types}
        return found

    def of(self, model: str) -> list[ServerConfiguration]:
        """Return every configuration that serves a model."""
        return [config for (m, _), configs in self.configs.items() if m == model for config in configs]

    @property
    def all(self) -> list[ServerConfiguration]:
        return [config for configs in self.configs.values() for config in configs]

    def mean(self, config: ServerConfiguration) -> LatencyLine:
        """Return the mean latency in s."""
        return self._line(config, "mean")

    def quantile(self, config: ServerConfiguration, percentile: float) -> LatencyLine:
        """Return the latency in s at a percentile."""
        return self._line(config, column_of(percentile))

    def away_s(self, config: ServerConfiguration) -> float:
        """Return the part of every latency that is due to the distance of the host."""
        return self._away_s.get(config.gpu_type, 0.0)

    def max_rate_hz(self, config: ServerConfiguration) -> float:
        return self.mean(config).x[-1]

    def pads_batches(self, config: ServerConfiguration) -> bool:
        """Return whether batches take as long as one request alone, full or not, as CUDA graphs of one size do."""
        full_s = self._full_s(config)
        return config.batching == "fixed" and math.isclose(self.typical_s(config, 50.0), full_s, rel_tol=PADDED)

    def typical_s(self, config: ServerConfiguration, percentile: float) -> float:
        """Return the server's latency at hardly any load, without stragglers."""
        return self._line(config, column_of(percentile), measured=True).y[0] - self.away_s(config)

    def stepped_law(self, config: ServerConfiguration) -> SteppedService | None:
        """Return the law of an action model with stepwise batching, if it matches the measurements."""
        if config not in self._stepped:
            self._stepped[config] = self._stepped_law(config)
        return self._stepped[config]

    def _stepped_law(self, config: ServerConfiguration) -> SteppedService | None:
        law = self._steps.get((config.model, config.gpu_type)) if config.batching == "continuous" else None
        if law is None:
            return None
        law = law.slower(config.slices) if config.slices > 1 else law
        late = self.stragglers.get(config.gpu_type)
        pace = late.pace if late else 1.0
        if not math.isclose(law.capacity_hz(), pace * self.max_rate_hz(config), rel_tol=ALIKE):
            return None
        return law.slower(pace) if late else law

    def knows(self, config: ServerConfiguration) -> bool:
        """Return whether such a server was measured."""
        return replace(config, slices=1) in self.configs.get((config.model, config.gpu_type), ())

    def knows_queue(self, config: ServerConfiguration) -> bool:
        """Return whether the robots' own queue at such a server can be simulated, where only actions wait for it."""
        return self.pads_batches(config) or self.stepped_law(config) is not None

    def frame_rows(self, config: ServerConfiguration) -> float:
        """Return the rows that pipelined sessions may keep there together (`server/engine_queues.py`): 0 in batches that begin and
        end together, otherwise one less than the engine has; inf: unknown."""
        law = self.stepped_law(config)
        together = config.batching == "fixed" and config.gpu_type not in self._continuous
        return 0 if together else law.max_rows - 1 if law else math.inf

    def batch_s(self, config: ServerConfiguration) -> float:
        """Return the duration of equally long batches (`pads_batches`), without network and stragglers."""
        return min(self._full_s(config), self.typical_s(config, 50.0))

    def _full_s(self, config: ServerConfiguration) -> float:
        return config.batch_size / self._line(config, "mean", measured=True).x[-1]

    def queued_hz(self, config: ServerConfiguration, slo: Slo) -> float:
        """Return the highest load at which the own queue of some robots may keep an SLO, where it can be simulated (`knows_queue`):
        the highest measured one, if one request alone is within the SLO."""
        law = self.stepped_law(config)
        alone_s = self.away_s(config) + (law.mean_s(1) if law else self.batch_s(config))
        if slo.frames_s and not self.frame_rows(config):
            return 0.0
        kept = slo.percentile < TYPICAL or slo.frames_s + alone_s <= slo.kept_s
        return self.max_rate_hz(config) if kept else self.sought_hz(config, slo)

    def shared_law(self, config: ServerConfiguration) -> ContinuousService | None:
        """Return the law of requests that share a server evenly: latency is linear in their number (Little's law, rate x latency).
        None: the law is another one that the curve does not show, or there are stragglers."""
        if config.batching != "continuous" or config.gpu_type in self.stragglers:
            return None
        if config not in self._laws:
            self._laws[config] = self._shared_law(config)
        return self._laws[config]

    def _shared_law(self, config: ServerConfiguration) -> ContinuousService | None:
        lines, away_s = [self._measured_line(config, column) for column in ("mean", "p99", "p50")], self.away_s(config)
        mean_s, tail, half = (np.array(line.y) - away_s for line in lines)
        if len(mean_s) < 3:
            return None
        company = np.array(lines[0].x) * mean_s
        each_s, alone_s = (float(x) for x in np.polyfit(company, mean_s, 1, w=1 / mean_s))
        off = np.abs((alone_s + each_s * company) / mean_s - 1.0)
        if not 0.0 < each_s < alone_s or off.max() > EVENLY:
            return None
        scatter = float((tail / half).min()) - 1.0
        return ContinuousService(base_s=alone_s - each_s, per_request_s=each_s, jitter=scatter / NORMAL_P99)

    def capacity_hz(self, config: ServerConfiguration, slo: Slo) -> float:
        """Return the highest load that meets an SLO; 0: there is none."""
        key = (config, slo)
        if key not in self._capacities:
            taken = not slo.frames_s or self.frame_rows(config) > 0
            capacity_hz = self._far_capacity_hz if slo.travel_s else self._near_capacity_hz
            self._capacities[key] = capacity_hz(config, slo) if taken else 0.0
        return self._capacities[key]

    def sought_hz(self, config: ServerConfiguration, slo: Slo) -> float:
        """Return the highest load for the search of plans. Where no load meets an SLO by the curve, but the robots' own queue may,
        it is that of rows that arrive together; the queue decides."""
        if (load_hz := self.capacity_hz(config, slo)) or not (law := self.stepped_law(config)):
            return load_hz
        batches, away_s = [(n, law.mean_s(n)) for n in law.sizes], self.away_s(config)
        kept = [n / s for n, s in batches if slo.response_s(away_s + s * (1 + NORMAL_P99 * law.jitter), away_s + s) <= slo.kept_s]
        return min(max(kept, default=0.0), self.max_rate_hz(config))

    def alone_s(self, config: ServerConfiguration, percentile: float) -> tuple[float, float]:
        """Return the latency at a percentile at hardly any load, and its mean."""
        if law := self.stepped_law(config):
            away_s = self.away_s(config)
            return away_s + law.mean_s(1) * (1 + NORMAL_P99 * law.jitter), away_s + law.mean_s(1)
        return self.quantile(config, percentile).y[0], self.mean(config).y[0]

    def share_s(self, config: ServerConfiguration, slo: Slo) -> float:
        """Return the part of an SLO that network and margin leave for such a server; 0 or less: there is none."""
        if not slo.travel_s or math.isinf(slo.promised_s):
            return slo.kept_s
        load_hz = self.capacity_hz(config, slo)
        if not load_hz:
            return slo.kept_s - slo.far_s
        latency_s = self.quantile(config, slo.percentile).at(load_hz)
        return slo.kept_s + slo.frames_s - (slo.response_s(latency_s, self.mean(config).at(load_hz)) - latency_s)

    def _near_capacity_hz(self, config: ServerConfiguration, slo: Slo) -> float:
        return self.quantile(config, slo.percentile).highest_hz(slo.kept_s - slo.frames_s)

    def _far_capacity_hz(self, config: ServerConfiguration, slo: Slo) -> float:
        mean, tail = self.mean(config), self.quantile(config, slo.percentile)

        def keeps(load_hz: float) -> bool:
            return slo.response_s(tail.at(load_hz), mean.at(load_hz)) <= slo.kept_s

        low_hz, high_hz = mean.x[0], mean.x[-1]
        if not keeps(low_hz):
            return 0.0
        if keeps(high_hz):
            return high_hz
        for _ in range(BISECTIONS):
            middle_hz = (low_hz + high_hz) / 2
            low_hz, high_hz = (middle_hz, high_hz) if keeps(middle_hz) else (low_hz, middle_hz)
        return low_hz

    def _line(self, config: ServerConfiguration, column: str, *, measured: bool = False) -> LatencyLine:
        """Return a line of the profile. measured: without stragglers."""
        if (config, column, measured) not in self._lines:
            line = self._measured_line(config, column, measured=measured)
            law = None if measured else self.shared_law(config)
            self._lines[config, column, measured] = self._from_no_load(config, line, law) if law else line
        return self._lines[config, column, measured]

    def _measured_line(self, config: ServerConfiguration, column: str, *, measured: bool = False) -> LatencyLine:
        profile = self._measured if measured else self.profile
        curve = (config.model, config.gpu_type, config.batching, config.batch_size)
        rates_hz, found_s = profile.column(*curve, column)
        k, away_s = config.slices, self.away_s(config)
        latencies_s = tuple(away_s + k * (y - away_s) if away_s else k * y for y in found_s)
        return LatencyLine(tuple(rate_hz / k for rate_hz in rates_hz), latencies_s)

    def _from_no_load(self, config: ServerConfiguration, line: LatencyLine, law: ContinuousService) -> LatencyLine:
        """Extend a line from the lowest measured load to no load, by the law's reduction of the mean."""
        mean, away_s = self._measured_line(config, "mean"), self.away_s(config)
        first_s = mean.y[0] - away_s
        alone_s = max(first_s - law.per_request_s * mean.x[0] * first_s, law.mean_s(1))
        return LatencyLine((0.0, *line.x), (away_s + (line.y[0] - away_s) * min(alone_s / first_s, 1.0), *line.y))


def _straggling(profile: Profile, stragglers: Mapping[str, StragglerConfig]) -> Profile:
    for some in {(some.share, some.factor): some for some in stragglers.values()}.values():
        profile = with_stragglers(profile, some.share, some.factor, {gpu for gpu, its in stragglers.items() if its == some})
    return profile

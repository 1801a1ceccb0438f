"""Estimates of the real service times of servers, relative to the profile that the plan was made with.

A server reports its number of replies and the engine time for them, without queueing. A batch of fixed size takes its time in the
profile, whatever queue is in front of it: the quotient is the server's *pace*. Replies of half-filled and full batches are not
distinguished: some engines pad batches, others do not. Requests that share an engine take longer the more they are: there the pace
is that of the latency curve that passes through the measured (rate, latency).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from ros2_rfm_serving.factory.cluster import StragglerConfig
from ros2_rfm_serving.profiles import Profile
from ros2_rfm_serving.profiles.table import Array
from ros2_rfm_serving.scheduler.estimates import LEAST_PACE, MOST_PACE
from ros2_rfm_serving.scheduler.estimation.batch_means import LEAST_LOTS, BatchMeans, ConfidenceInterval
from ros2_rfm_serving.scheduler.estimation.hysteresis import Hysteresis
from ros2_rfm_serving.scheduler.estimation.status_samples import ServerStatusSample
from ros2_rfm_serving.scheduler.estimation.tail_estimator import ServiceBaseline
from ros2_rfm_serving.types import Placement

LOT_S = 1.0
"""Least duration of a lot (the replies between two reports) that is evaluated."""
LONGEST_LOT_S = 10.0
"""Longest gap between two reports; after a longer one the estimate of a server restarts."""
TOLERANCES = {"fixed": 0.05, "continuous": 0.2}
"""Relative differences by kind of batching that do not justify another plan. The curve of requests that share an engine depends on
their arrivals, which a profile only approximates."""
FRESH_S = 5.0
"""Time after which an idle server no longer delays the evaluation of others."""
FAR = 10.0
"""Ratio to the profile beyond which a lot is not believed, unless a few too long ones follow each other. A lot with more concurrent
requests than this multiple of the server's capacity is never believed."""
IDLE_S = 600.0
"""Time after which a slower server that plans leave unused is assumed to have its normal pace again, doubled after each relapse:
only use can show its pace."""
BISECTIONS = 30
NORMAL_P90 = 1.2816
"""Standard deviations from the mean to this percentile of a normal distribution."""


class ServiceSample(NamedTuple):
    """Work of a server between two of its reports."""

    replies: int
    seconds: float
    inference_s: float
    """Mean engine time per reply; the queue wait is a mean, too."""
    queue_wait_s: float
    mean_batch_size: float

    @property
    def at_once(self) -> float:
        """Return the mean number of concurrent requests (Little's law); those of the first moment began before."""
        return self.replies * self.inference_s / (self.seconds + self.inference_s)


@dataclass(slots=True)
class _Measured:
    placement: Placement
    batches_s: tuple[float, ...]
    """Batch durations by the profile for 1, 2, ... rows."""
    scatter: float
    """Relative standard deviation of the duration of one batch."""
    paces: BatchMeans
    word: ServerStatusSample | None = None
    word_s: float = 0.0
    latency_s: float = math.nan
    """Mean of the newest lot, arrival to reply."""
    latency_p99_s: float = math.nan
    lot_s: float = -math.inf
    """Time of the newest lot."""
    asked_s: float = -math.inf
    """Time when a plan last had routes to it."""
    used: float = 1.0
    """Pace that plans use."""
    hold: Hysteresis = field(default_factory=Hysteresis)
    beyond: int = 0
    """Consecutive lots that were too long to be believed."""
    late: float = 1.0
    """Factor by which stragglers beyond the declared ones raise its mean service time; it is not part of the pace."""

    @property
    def tolerance(self) -> float:
        return TOLERANCES[self.placement.batching] * self.used

    def takes(self, pace: float, now_s: float) -> bool:
        """Use a pace for plans from now on, unless it has to wait; return whether it is another one."""
        if pace == self.used or (pace < self.used and self.hold.lasts(now_s)):
            return False
        self.hold.worsens(now_s) if pace > self.used else self.hold.eases()
        self.used = pace
        return True

    def is_forgiven(self, now_s: float) -> bool:
        """Return whether an unused server is assumed to be normal again, because nothing more will be measured."""
        since_s = self.hold.since_s if self.hold.since_s <= now_s else -math.inf
        return self.used > 1.0 and now_s - max(self.lot_s, self.asked_s, since_s) >= IDLE_S * self.hold.times

    def is_changing(self, now_s: float) -> bool:
        """Return whether it works and its measurements do not give a pace yet."""
        return 0 < len(self.paces) < LEAST_LOTS and 0.0 <= now_s - self.lot_s < FRESH_S


class ServicePace(NamedTuple):
    """Pace of one server, for display."""

    model: str
    interval: ConfidenceInterval
    used: float


class ServiceDriftEstimator:
    """Pace estimates of the servers of a schedule."""

    def __init__(self, profile: Profile, stragglers: StragglerConfig | None = None) -> None:
        """profile: as measured, with one kind of batching per model and GPU type (`Profile.batched`). stragglers: as declared; a
        pace is relative to the mean service time, which includes them."""
        self._declared = stragglers.pace if stragglers else 1.0
        self._profile = profile.rescaled({(m, g): self._declared for m, g, _, _ in profile.measured()}) if stragglers else profile
        self._evenly = self._profile.under("periodic")
        """Profile under periodic arrivals, which have the shortest waits."""
        self._measured = frozenset(profile.measured())
        self._servers: dict[str, _Measured] = {}
        self._asked: frozenset[str] = frozenset()
        self.implausible = 0
        """Implausible lots."""

    def place(self, placements: Mapping[str, Placement], asked: frozenset[str] = frozenset()) -> list[str]:
        """Follow a schedule. Measurements of a server count as long as it hosts the same model; the pace of its hardware lasts
        until another is measured. Servers with another model are returned. asked: servers with routes."""
        anew, self._asked = [], asked
        for name, placement in placements.items():
            known = self._servers.get(name)
            if _kind(placement) not in self._measured or (known and _kind(known.placement) == _kind(placement)):
                continue
            batches_s = self._profile.batches_s(*_kind(placement))
            measured = _Measured(placement, batches_s, self._scatter(placement), BatchMeans())
            if known:
                measured.used, measured.late, measured.hold = known.used, known.late, known.hold
                measured.lot_s, measured.asked_s = known.lot_s, known.asked_s
            self._servers[name] = measured
            anew.append(name)
        return anew

    def straggle(self, stragglers: Mapping[str, StragglerConfig]) -> None:
        """Account for stragglers beyond the declared ones, which plans use from now on."""
        for name, server in self._servers.items():
            late = stragglers[name].pace / self._declared if name in stragglers else 1.0
            if late != server.late:
                server.late = late
                server.paces.forget()

    def usual(self) -> dict[str, ServiceBaseline]:
        """Return the service times without stragglers, for servers whose batches begin and end together."""
        fixed = {n: s for n, s in self._servers.items() if s.placement.batching == "fixed" and s.batches_s}
        times = {name: max(server.used, 1.0) / self._declared for name, server in fixed.items()}
        return {n: ServiceBaseline(times[n] * max(s.batches_s), s.scatter, times[n] * min(s.batches_s)) for n, s in fixed.items()}

    def hear(self, word: ServerStatusSample, now_s: float) -> ServiceSample | None:
        """Return the work since the last lot; None: nothing that counts, or too little for a lot."""
        server = self._servers.get(word.server)
        if server is None or word.model != server.placement.model:
            return None
        before, passed_s = server.word, now_s - server.word_s
        if before is not None and 0.0 <= passed_s < LOT_S and word.replies >= before.replies:
            return None
        server.word, server.word_s = word, now_s
        server.latency_p99_s = word.latency_p99_s
        lot = _lot(before, word, passed_s) if before else None
        if lot is None or (word.batch_size != server.placement.batch_size and server.placement.batching == "fixed"):
            return None
        server.latency_s = lot.inference_s + lot.queue_wait_s
        pace = self._pace(server, lot) / server.late
        if lot.at_once > FAR * max(server.placement.batch_size, server.placement.max_sessions):
            self.implausible += 1
            return None
        server.beyond = server.beyond + 1 if pace > FAR else 0
        if not 1 / FAR <= pace <= FAR:
            self.implausible += 1
            if server.beyond < LEAST_LOTS // 2:
                return None
        server.paces.add(lot.replies, min(pace, FAR))
        server.lot_s = now_s
        return lot

    def latencies_s(self, server: str) -> tuple[float, float]:
        """Return the recent (mean, p99) from arrival to reply; NaN: not known."""
        found = self._servers.get(server)
        return (found.latency_s, found.latency_p99_s) if found else (math.nan, math.nan)

    def look(self, now_s: float) -> bool:
        """Adopt paces that surely differ from those in use, and return whether there are any.

        While the change of one server of a model is not known yet, the others of that model wait, because their change may be the
        same.
        """
        changing = {_model(s.placement) for s in self._servers.values() if s.is_changing(now_s)}
        changed = False
        for name, server in self._servers.items():
            # This corrects times after the clock was set back.
            server.lot_s, server.asked_s = min(server.lot_s, now_s), min(server.asked_s, now_s)
            if name in self._asked:
                server.asked_s = now_s
            elif server.is_forgiven(now_s):
                server.paces.forget()
                changed |= server.takes(1.0, now_s)
            interval = server.paces.interval()
            if interval and interval.replaces(server.used, server.tolerance) and _model(server.placement) not in changing:
                pace = _bounded(interval.mean) if abs(interval.mean - 1.0) > server.tolerance / 2 else 1.0
                changed |= server.takes(pace, now_s)
        return changed

    def paces(self) -> tuple[dict[str, float], dict[tuple[str, str], float]]:
        """Return the paces of servers, and of models on a GPU type: a factor common to two or more servers is the model's."""
        alike: dict[tuple[str, str], list[float]] = {}
        for server in self._servers.values():
            if server.paces.interval():
                alike.setdefault(_model(server.placement), []).append(server.used)
        models = {model: round(common, 2) for model, used in alike.items() if (common := _common(used)) != 1.0}
        own = {name: s.used / models.get(_model(s.placement), 1.0) for name, s in self._servers.items()}
        return {name: round(p, 2) for name, p in own.items() if abs(p - 1.0) > self._servers[name].tolerance / 2}, models

    def told(self) -> dict[str, ServicePace]:
        """Return server -> pace, for servers with enough measurements."""
        known = {name: server.paces.interval() for name, server in self._servers.items()}
        return {n: ServicePace(self._servers[n].placement.model, i, self._servers[n].used) for n, i in known.items() if i}

    def _scatter(self, placement: Placement) -> float:
        """Return the scatter of batch durations, from quantiles at the lowest load, where hardly any requests meet."""
        model, gpu_type, batching, _ = _kind(placement)
        sizes = [size for way, size in self._profile.batch_sizes(model, gpu_type) if way == batching]
        columns = [self._profile.curve_arrays(model, gpu_type, batching, size)[2] for size in sizes]
        return max(0.0, min((float(column["p90"][0] / column["p50"][0]) - 1.0 for column in columns), default=0.0)) / NORMAL_P90

    def _pace(self, server: _Measured, lot: ServiceSample) -> float:
        if server.placement.batching == "fixed" and server.batches_s:
            full_s = server.batches_s[-1]
            rows = min(max(math.floor(lot.mean_batch_size), 1), len(server.batches_s))
            own_s = min(server.batches_s[rows - 1], full_s)
            return max(lot.inference_s / full_s, min(lot.inference_s / own_s, 1.0))
        return self._curve_pace(server, lot)

    def _curve_pace(self, server: _Measured, lot: ServiceSample) -> float:
        """Return s with s L(s rate) = latency: everything takes s times longer. Robots keep their phases: those that send together
        wait longer than others at their rate, those that never do not at all, and neither depends on the server's speed."""
        kind, latency_s = _kind(server.placement), lot.inference_s + lot.queue_wait_s
        rates, means, _ = self._profile.curve_arrays(*kind)
        pace = _stretched(rates, means, lot.replies / lot.seconds, latency_s)
        if pace < 1.0:
            rates, means, _ = self._evenly.curve_arrays(*kind)
            return min(max(pace, _stretched(rates, means, lot.replies / lot.seconds, latency_s)), 1.0)
        crowded = latency_s / float(np.interp(lot.mean_batch_size - 1.0, rates * means, means))
        return max(min(pace, crowded), 1.0) if lot.mean_batch_size > 1.0 else pace


def _stretched(rates: Array, means: Array, rate_hz: float, latency_s: float) -> float:
    """Return the factor by which everything takes longer than by a latency curve."""
    low, high = 1 / FAR, FAR
    for _ in range(BISECTIONS):
        middle = math.sqrt(low * high)
        if middle * float(np.interp(middle * rate_hz, rates, means, right=math.inf)) < latency_s:
            low = middle
        else:
            high = middle
    return high


def _kind(placement: Placement) -> tuple[str, str, str, int]:
    return placement.model, placement.gpu_type, placement.batching, placement.batch_size


def _model(placement: Placement) -> tuple[str, str]:
    return placement.model, placement.gpu_type


def _lot(before: ServerStatusSample, word: ServerStatusSample, passed_s: float) -> ServiceSample | None:
    """Return the work between two reports. None: the server restarted, or nothing ran."""
    replies = word.replies - before.replies
    inference_s, wait_s = word.inference_s - before.inference_s, word.queue_wait_s - before.queue_wait_s
    if replies <= 0 or inference_s <= 0.0 or wait_s < 0.0 or not 0.0 < passed_s <= LONGEST_LOT_S:
        return None
    return ServiceSample(replies, passed_s, inference_s / replies, wait_s / replies, word.mean_batch_size)


def _common(paces: list[float]) -> float:
    """Return the median of several paces that are all on one side of the profile. 1: they have no common factor."""
    return statistics.median(paces) if len(paces) > 1 and (min(paces) > 1.0 or max(paces) < 1.0) else 1.0


def _bounded(pace: float) -> float:
    return min(max(pace, LEAST_PACE), MOST_PACE)

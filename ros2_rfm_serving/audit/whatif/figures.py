"""Figures for the comparison of a recording with its replays, with the same definition for both."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields

import numpy as np

from ros2_rfm_serving.types import SYSTEM1


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Figures of all robots together."""

    chunks_hz: float
    """Chunks that robots accepted, per second."""
    actions_hz: float
    staleness_p50_s: float
    """Age of the observation behind an action at its execution; NaN, here and below, without a value."""
    staleness_p99_s: float
    round_trip_p50_s: float
    """Time from a System 1 request to its chunk."""
    round_trip_p99_s: float
    held_share: float
    """Share of control periods without an action among those in which a task was executed."""
    slo_attainment: float
    """Share of the requests with an SLO that were answered within it."""
    mean_batch: float
    """Mean number of rows."""
    episodes: float
    """Number of episodes that began."""

    def items(self) -> Iterable[tuple[str, float]]:
        return asdict(self).items()


NAMES = tuple(f.name for f in fields(Figures))


@dataclass
class Log:
    """Events of one robot."""

    name: str
    sent: dict[str, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))
    """Component -> time of each request, and delay until its reply; inf without one."""
    executed: list[tuple[float, float]] = field(default_factory=list)
    """Time and staleness of each executed action."""
    held: list[float] = field(default_factory=list)
    chunks: list[float] = field(default_factory=list)
    episodes: list[float] = field(default_factory=list)

    def asked(self, component: str, now_s: float) -> None:
        self.sent[component].append((now_s, math.inf))

    def answered(self, component: str, now_s: float) -> None:
        """Record a reply to the component's newest request."""
        if not self.sent[component]:
            return
        at_s, _ = self.sent[component][-1]
        self.sent[component][-1] = (at_s, now_s - at_s)
        if component == SYSTEM1:
            self.chunks.append(now_s)


def figures(
    logs: Sequence[Log],
    slos_s: Mapping[tuple[str, str], float],
    batches: Sequence[tuple[float, int]],
    from_s: float,
    until_s: float,
) -> Figures:
    """Return the figures between two times. batches: time and number of rows."""

    def within(times_s: Iterable[float]) -> int:
        return sum(from_s <= at_s < until_s for at_s in times_s)

    seconds = until_s - from_s
    ages_s = [age_s for log in logs for at_s, age_s in log.executed if from_s <= at_s < until_s]
    held = sum(within(log.held) for log in logs)
    rows = [rows for at_s, rows in batches if from_s <= at_s < until_s]
    p50_s, p99_s = _quantiles(ages_s)
    trip_p50_s, trip_p99_s = _quantiles([w for _, _, w in _sent(logs, from_s, until_s, SYSTEM1) if w < math.inf])
    return Figures(
        chunks_hz=sum(within(log.chunks) for log in logs) / seconds,
        actions_hz=len(ages_s) / seconds,
        staleness_p50_s=p50_s,
        staleness_p99_s=p99_s,
        round_trip_p50_s=trip_p50_s,
        round_trip_p99_s=trip_p99_s,
        held_share=held / (held + len(ages_s)) if held or ages_s else math.nan,
        slo_attainment=_attainment(logs, slos_s, from_s, until_s),
        mean_batch=float(np.mean(rows)) if rows else math.nan,
        episodes=sum(within(log.episodes) for log in logs),
    )


def _sent(logs: Sequence[Log], from_s: float, until_s: float, *components: str) -> Iterable[tuple[tuple[str, str], float, float]]:
    for log in logs:
        for component in components or tuple(log.sent):
            for at_s, waited_s in log.sent.get(component, ()):
                if from_s <= at_s < until_s:
                    yield (log.name, component), at_s, waited_s


def _attainment(logs: Sequence[Log], slos_s: Mapping[tuple[str, str], float], from_s: float, until_s: float) -> float:
    """Return the share of requests within their SLO; a request without a reply whose SLO has not yet passed is excluded."""
    met = []
    for key, at_s, waited_s in _sent(logs, from_s, until_s):
        slo_s = slos_s.get(key, math.inf)
        if slo_s < math.inf and (waited_s < math.inf or at_s + slo_s <= until_s):
            met.append(waited_s <= slo_s)
    return sum(met) / len(met) if met else math.nan


def _quantiles(values: Sequence[float]) -> tuple[float, float]:
    if not values:
        return math.nan, math.nan
    p50, p99 = np.quantile(values, (0.5, 0.99))
    return float(p50), float(p99)

"""Which pipeline: AURAS' hierarchy over its configurations (§4.3.2), for whoever states a rate and a success. Pure.

The two degrees first, on a grid with a bound on L; then the skew alpha of those that are fast enough and fail too often; then
`fetch_offset` of the one that was found. What cannot win is not run in worlds: who is too slow stays too slow when skewed, and
nobody slower than one that meets both is chosen.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from statistics import median
from typing import Protocol

from ros2_rfm_serving.types import Pipelining

ALPHAS = (0.5, 1.0)
ALIKE = 1.05
"""Rates that differ by less are measured as often the other way round: a staler configuration has to be faster than that."""
MOST_SKEWED = 3
"""Configurations of the grid whose skew is tried: those that failed least."""


@dataclass(frozen=True, kw_only=True)
class Goal:
    min_rate_hz: float
    """Answers of one robot."""
    min_success: float
    max_depth: int = 8
    """Bound on L: requests in flight at once."""


@dataclass(frozen=True, kw_only=True)
class Success:
    episodes: int
    successes: int

    @property
    def share(self) -> float:
        return self.successes / self.episodes


class Verdict(Enum):
    MEETS = "meets both"
    FAILS = "fails too often"
    SLOW = "too slow"
    BEATEN = "no faster than one that meets both"


@dataclass(frozen=True, kw_only=True)
class Tried:
    """One configuration."""

    pipelining: Pipelining
    rate_hz: float
    staleness_s: float
    """Age of the observation that the last steps saw, at the answer."""
    verdict: Verdict
    success: Success | None = None
    """None: it was not run."""


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Measured times of one mode of execution, from when its pipeline is full."""

    interval_s: float
    """Mean time between answers; of a pipeline, the frame."""
    interval_cv: float
    """Standard deviation of the time between answers over its mean."""
    latency_s: float
    """Job completion time: mean, from observation to answer."""
    perception_s: float
    """Mean, of one observation, beside what else the mode does."""
    first_s: float
    """From the first observation to the first answer."""
    cpu_share: float
    """CPU time of the process over the time that passed; 1: one core."""
    memory_mb: float
    """That it added to a process which has loaded the model and answered once."""
    answers: int
    speedups: tuple[float, ...] = ()
    """Throughput over that of SEQ, measured just before, by round."""

    @property
    def speedup(self) -> float:
        return median(self.speedups) if self.speedups else 1.0

    @property
    def rate_hz(self) -> float:
        return 1.0 / self.interval_s

    def scaled(self, factor: float) -> Timing:
        """Return the times of a machine that takes `factor` times as long."""
        times = {key: factor * getattr(self, key) for key in ("interval_s", "latency_s", "perception_s", "first_s")}
        return replace(self, **times)


class Bench(Protocol):
    """Where configurations are tried."""

    def rate_hz(self, pipelining: Pipelining) -> float: ...

    def success(self, pipelining: Pipelining, rate_hz: float) -> Success: ...


def pipeline_name(own: Pipelining) -> str:
    """Return the name that tables and messages use: `AURAS`, the stages, and the skew and offset where they are not 0."""
    skew = f" alpha {own.alpha:g}" if own.alpha else ""
    return f"AURAS {own.pp_perception}+{own.pp_generation}{skew}{f' offset {own.fetch_offset}' if own.fetch_offset else ''}"


def staleness_s(pipelining: Pipelining, rate_hz: float) -> float:
    """The last frame reads what was observed when it began, or as many frames earlier as perception takes beyond one."""
    return (pipelining.pp_perception - pipelining.fetch_offset) / rate_hz


def grid(max_depth: int) -> list[Pipelining]:
    """Both degrees, L at most `max_depth`."""
    degrees = range(1, max_depth)
    return [Pipelining(pp_perception=p, pp_generation=g) for p in degrees for g in degrees if p + g <= max_depth]


def tune(goal: Goal, bench: Bench, candidates: Sequence[Pipelining] | None = None) -> Iterator[Tried]:
    """Every configuration, as it is decided; `best_of` says which one it is. candidates: of the grid; by default all."""
    tried: list[Tried] = []
    for level in (_degrees, _skews, _offsets):
        configurations = level(goal, tried) if level is not _degrees or candidates is None else list(candidates)
        rates = {own: bench.rate_hz(own) for own in configurations}
        for own in sorted(rates, key=lambda own: -rates[own]):
            tried.append(_try(own, rates[own], goal, bench, tried))
            yield tried[-1]


def best_of(tried: Sequence[Tried]) -> Tried | None:
    """The fastest that meets both."""
    return max((own for own in tried if own.verdict is Verdict.MEETS), key=lambda own: own.rate_hz, default=None)


def frontier_of(tried: Sequence[Tried]) -> list[Tried]:
    """Than which nothing that was run is both faster and more successful; fastest first."""
    frontier: list[Tried] = []
    for own in sorted((t for t in tried if t.success), key=lambda t: (-t.rate_hz, -_share(t))):
        if not frontier or _share(own) > _share(frontier[-1]):
            frontier.append(own)
    return frontier


def _share(own: Tried) -> float:
    return own.success.share if own.success else 0.0


def _try(own: Pipelining, rate_hz: float, goal: Goal, bench: Bench, tried: Sequence[Tried]) -> Tried:
    best, stale_s = best_of(tried), staleness_s(own, rate_hz)
    beaten = best is not None and rate_hz <= best.rate_hz * (ALIKE if stale_s > best.staleness_s else 1.0)
    if rate_hz < goal.min_rate_hz or beaten:
        verdict = Verdict.SLOW if rate_hz < goal.min_rate_hz else Verdict.BEATEN
        return Tried(pipelining=own, rate_hz=rate_hz, staleness_s=stale_s, verdict=verdict)
    success = bench.success(own, rate_hz)
    verdict = Verdict.MEETS if success.share >= goal.min_success else Verdict.FAILS
    return Tried(pipelining=own, rate_hz=rate_hz, staleness_s=stale_s, verdict=verdict, success=success)


def _degrees(goal: Goal, tried: Sequence[Tried]) -> list[Pipelining]:
    return grid(goal.max_depth)


def _skews(goal: Goal, tried: Sequence[Tried]) -> list[Pipelining]:
    """Skew takes throughput and gives success: of use to those that are fast and fail."""
    failed = [own for own in tried if own.verdict is Verdict.FAILS and own.pipelining.pp_generation > 1]
    nearest = sorted(failed, key=lambda own: (-_share(own), -own.rate_hz))[:MOST_SKEWED]
    return [replace(own.pipelining, alpha=alpha) for own in nearest for alpha in ALPHAS]


def _offsets(goal: Goal, tried: Sequence[Tried]) -> list[Pipelining]:
    best = best_of(tried)
    return [replace(best.pipelining, fetch_offset=-1)] if best else []

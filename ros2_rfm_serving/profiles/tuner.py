"""Choice of a pipeline: AURAS' hierarchical search over its configurations (§4.3.2), given a rate and a success rate. Pure.

The search covers first the two degrees, on a grid with a bound on L; then the skew alpha of those that are fast enough but fail too
often; then `fetch_offset` of the best one. A configuration that cannot win is not run in worlds: one that is too slow remains too
slow when skewed, and none slower than one that meets both goals is chosen.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from statistics import median
from typing import Protocol

from ros2_rfm_serving.types import PipelineConfig

ALPHAS = (0.5, 1.0)
SAME_RATE_FACTOR = 1.05
"""Ratio below which two rates may be measured in either order: a staler configuration has to be faster by more."""
MAX_SKEWED = 3
"""Number of configurations of the grid whose skew is tried: those that failed least."""


@dataclass(frozen=True, kw_only=True)
class TuningGoal:
    min_rate_hz: float
    """Answers of one robot per second."""
    min_success: float
    max_depth: int = 8
    """Bound on L: requests in flight at once."""


@dataclass(frozen=True, kw_only=True)
class SuccessRate:
    episodes: int
    successes: int

    @property
    def share(self) -> float:
        return self.successes / self.episodes


class TuningVerdict(Enum):
    MEETS = "meets both"
    FAILS = "fails too often"
    SLOW = "too slow"
    BEATEN = "no faster than one that meets both"


@dataclass(frozen=True, kw_only=True)
class TuningResult:
    """One configuration with its measurements."""

    pipelining: PipelineConfig
    rate_hz: float
    staleness_s: float
    """Age, at the answer, of the observation that the last steps read."""
    verdict: TuningVerdict
    success: SuccessRate | None = None
    """Result of its episodes; None: it was not run."""


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Measured times of one mode of execution, from when its pipeline is full."""

    interval_s: float
    """Mean time between answers; for a pipeline, the frame."""
    interval_cv: float
    """Standard deviation of the time between answers over its mean."""
    latency_s: float
    """Job completion time: mean, from observation to answer."""
    perception_s: float
    """Mean time of the perception of one observation, beside the other work of the mode."""
    first_s: float
    """Time from the first observation to the first answer."""
    cpu_share: float
    """CPU time of the process over the elapsed time; 1: one core."""
    memory_mb: float
    """Memory in addition to that of a process which has loaded the model and answered once."""
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


class TuningBench(Protocol):
    """Test bench for configurations."""

    def rate_hz(self, pipelining: PipelineConfig) -> float: ...

    def success(self, pipelining: PipelineConfig, rate_hz: float) -> SuccessRate: ...


def pipeline_name(own: PipelineConfig) -> str:
    """Return the name that tables and messages use: `AURAS`, the stages, and the skew and offset where they are not 0."""
    skew = f" alpha {own.alpha:g}" if own.alpha else ""
    return f"AURAS {own.pp_perception}+{own.pp_generation}{skew}{f' offset {own.fetch_offset}' if own.fetch_offset else ''}"


def staleness_s(pipelining: PipelineConfig, rate_hz: float) -> float:
    """Return the age of the context in the last frame, in s: one frame, and as many more as perception takes beyond one."""
    return (pipelining.pp_perception - pipelining.fetch_offset) / rate_hz


def grid(max_depth: int) -> list[PipelineConfig]:
    """Return all pairs of both degrees with L at most `max_depth`."""
    degrees = range(1, max_depth)
    return [PipelineConfig(pp_perception=p, pp_generation=g) for p in degrees for g in degrees if p + g <= max_depth]


def tune(goal: TuningGoal, bench: TuningBench, candidates: Sequence[PipelineConfig] | None = None) -> Iterator[TuningResult]:
    """Yield every configuration as it is decided; `best_of` selects among them. candidates: of the grid; by default all."""
    tried: list[TuningResult] = []
    for level in (_degrees, _skews, _offsets):
        configurations = level(goal, tried) if level is not _degrees or candidates is None else list(candidates)
        rates = {own: bench.rate_hz(own) for own in configurations}
        for own in sorted(rates, key=lambda own: -rates[own]):
            tried.append(_try(own, rates[own], goal, bench, tried))
            yield tried[-1]


def best_of(tried: Sequence[TuningResult]) -> TuningResult | None:
    """Return the fastest configuration that meets both goals."""
    return max((own for own in tried if own.verdict is TuningVerdict.MEETS), key=lambda own: own.rate_hz, default=None)


def frontier_of(tried: Sequence[TuningResult]) -> list[TuningResult]:
    """Return the configurations than which no other is both faster and more successful, fastest first."""
    frontier: list[TuningResult] = []
    for own in sorted((t for t in tried if t.success), key=lambda t: (-t.rate_hz, -_share(t))):
        if not frontier or _share(own) > _share(frontier[-1]):
            frontier.append(own)
    return frontier


def _share(result: TuningResult) -> float:
    return result.success.share if result.success else 0.0


def _try(
    pipelining: PipelineConfig, rate_hz: float, goal: TuningGoal, bench: TuningBench, tried: Sequence[TuningResult]
) -> TuningResult:
    best, stale_s = best_of(tried), staleness_s(pipelining, rate_hz)
    beaten = best is not None and rate_hz <= best.rate_hz * (SAME_RATE_FACTOR if stale_s > best.staleness_s else 1.0)
    if rate_hz < goal.min_rate_hz or beaten:
        verdict = TuningVerdict.SLOW if rate_hz < goal.min_rate_hz else TuningVerdict.BEATEN
        return TuningResult(pipelining=pipelining, rate_hz=rate_hz, staleness_s=stale_s, verdict=verdict)
    success = bench.success(pipelining, rate_hz)
    verdict = TuningVerdict.MEETS if success.share >= goal.min_success else TuningVerdict.FAILS
    return TuningResult(pipelining=pipelining, rate_hz=rate_hz, staleness_s=stale_s, verdict=verdict, success=success)


def _degrees(goal: TuningGoal, tried: Sequence[TuningResult]) -> list[PipelineConfig]:
    return grid(goal.max_depth)


def _skews(goal: TuningGoal, tried: Sequence[TuningResult]) -> list[PipelineConfig]:
    """Return skews of configurations that are fast but fail: skew reduces throughput and raises success."""
    failed = [own for own in tried if own.verdict is TuningVerdict.FAILS and own.pipelining.pp_generation > 1]
    nearest = sorted(failed, key=lambda own: (-_share(own), -own.rate_hz))[:MAX_SKEWED]
    return [replace(own.pipelining, alpha=alpha) for own in nearest for alpha in ALPHAS]


def _offsets(goal: TuningGoal, tried: Sequence[TuningResult]) -> list[PipelineConfig]:
    best = best_of(tried)
    return [replace(best.pipelining, fetch_offset=-1)] if best else []

"""Claims of Kairos §5, compared with replays by workload, and promises of our policies on the same traces."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from lab.reproductions.claims import Claim, Rule, measured
from lab.reproductions.kairos.points import (
    BEYOND,
    BUCKET_COUNTS,
    FLEETS,
    LOADS,
    ORDER_SEEDS,
    SENSITIVE,
    TOP,
    WAN_MBPS,
    WAN_MS,
    Point,
    Run,
)
from lab.reproductions.kairos.recorded import Recorded
from lab.reproductions.kairos.sweep import MARGIN, Cell, better_static, pooled, value_of

STATISTICS: Mapping[str, str] = {"mean_s": "mean", "p25_s": "P25", "p95_s": "P95"}


@dataclass(frozen=True, kw_only=True)
class Results:
    """All results."""

    recorded: Mapping[str, Recorded]
    """Workload -> recordings."""
    runs: Mapping[Point, Run]

    def of(self, workload: str) -> Of:
        return Of(workload, self)


@dataclass(frozen=True)
class Of:
    """Results of one workload."""

    workload: str
    results: Results

    @property
    def recorded(self) -> Recorded:
        return self.results.recorded[self.workload]

    def cells(self, noise: float = 0.0) -> list[Cell]:
        """Return the cells of the sweep. Raises: `KeyError` when there are none."""
        cells = [cell for cell in self.recorded.cells if cell.noise == noise]
        if not cells:
            raise KeyError(noise)
        return cells

    def run(self, horizon: str, dispatch: str, load: float = TOP, **changes: object) -> Run:
        """Return a run. Raises: `KeyError` when it was not run."""
        point = Point(workload=self.workload, horizon=horizon, dispatch=dispatch, load=load)
        return self.results.runs[replace(point, **changes)]  # type: ignore[arg-type]

    def kairos(self, **changes: object) -> Run:
        """Return the run of Kairos at the highest rate, with changes."""
        return self.run("confidence", "wait_ratio", **changes)  # type: ignore[arg-type]

    def fleet(self, horizon: str, dispatch: str, robots: int) -> Run:
        return self.run(horizon, dispatch, 0.0, robots=robots)

    def gain(self, horizon: str, dispatch: str, load: float = TOP, statistic: str = "mean_s", over: str = "fifo") -> float:
        """Return how far the latency is below that of static horizons with `over`, in %."""
        return reduction(self.run(horizon, dispatch, load), self.run("static", over, load), statistic)


def reduction(ours: Run, theirs: Run, statistic: str = "mean_s") -> float:
    """Return the relative reduction in %."""
    return 100 * (1 - float(getattr(ours, statistic)) / float(getattr(theirs, statistic)))


Figure = Callable[[Of], float]
_Row = tuple[str, str, str, Rule, float, Figure]
LEAST, MOST = Rule.AT_LEAST, Rule.AT_MOST
SCHEDULERS = {"wait_ratio": "wait ratio", "balanced": "balanced (ours)"}


def _table2(dispatch: str) -> Iterator[_Row]:
    """Yield the claims of Table 2 for both parts and the scheduler alone; the paper's figures are the lowest of its workloads."""
    parts: tuple[tuple[str, tuple[str, str], tuple[float, float, float]], ...] = (
        (f"both, {SCHEDULERS[dispatch]}", ("confidence", dispatch), (31.8, 39.5, 22.2)),
        (f"the scheduler alone, {SCHEDULERS[dispatch]}", ("static", dispatch), (8.1, 21.1, 2.8)),
    )
    for name, ours, paper in parts:
        for (statistic, label), lowest in zip(STATISTICS.items(), paper, strict=True):
            yield "table2", f"{name}: {label}", "% less", LEAST, lowest, _gain(*ours, statistic)
    for (statistic, label), lowest in zip(STATISTICS.items(), (33.1, 41.9, 24.6), strict=True):
        text = f"both, {SCHEDULERS[dispatch]}, against least attained: {label}"
        yield "table2", text, "% less", LEAST, lowest, _gain("confidence", dispatch, statistic, "least_attained")


def _horizon_alone() -> Iterator[_Row]:
    for (statistic, label), lowest in zip(STATISTICS.items(), (16.8, 3.9, 18.9), strict=True):
        yield "table2", f"the horizon alone: {label}", "% less", LEAST, lowest, _gain("confidence", "fifo", statistic)


def _gain(horizon: str, dispatch: str, statistic: str = "mean_s", over: str = "fifo", load: float = TOP) -> Figure:
    return lambda of: of.gain(horizon, dispatch, load, statistic, over)


# --- figures of claims ---


def _longer(of: Of) -> float:
    """Return the mean executed horizon of the chosen thresholds over that of the static ones, with equal weights of tasks."""
    by_setting = {cell.setting: cell.horizon for cell in of.cells()}

    def mean(name: str) -> float:
        horizons = of.recorded.horizons[name]
        found = [by_setting[0.0, h.policy, value_of(h), task] for task, h in horizons.items()]
        return sum(found) / len(found)

    return mean("confidence") / mean("static")


def _beaten(policy: str, noise: float = 0.0) -> Figure:
    return lambda of: float(len(better_static(pooled(of.cells(noise)), policy)))


def _widens(dispatch: str) -> Figure:
    return lambda of: of.gain("confidence", dispatch) - of.gain("confidence", dispatch, LOADS[0])


def _past(dispatch: str) -> Figure:
    """Return the least gain at all rates from the peak on."""
    return lambda of: min(of.gain("confidence", dispatch, load) for load in (TOP, *BEYOND))


def _success(of: Of) -> float:
    return 100 * (of.run("confidence", "fifo").success - of.run("static", "fifo").success)


def _one(of: Of) -> float:
    return reduction(of.run("confidence_one", "balanced"), of.run("static_one", "fifo"))


def _deployed(alone: str, dispatch: str = "wait_ratio", load: float = TOP) -> Figure:
    return lambda of: reduction(
        of.run("confidence", dispatch, load, deployment="hybrid"), of.run("confidence", dispatch, load, deployment=alone)
    )


def _in_flight(of: Of) -> float:
    return reduction(of.kairos(deployment="hybrid"), of.kairos(deployment="hybrid", in_flight=1))


def _fleet(robots: int, dispatch: str) -> Figure:
    return lambda of: reduction(of.fleet("confidence", dispatch, robots), of.fleet("static", "fifo", robots))


def _buckets(of: Of) -> float:
    means = {buckets: of.kairos(buckets=buckets).mean_s for buckets in BUCKET_COUNTS}
    return 100 * means[10] / min(means.values())


def order_gains(of: Of, statistic: str) -> list[float]:
    """Return the gains of the longest execution first in a bucket over first come, first served there, per seed, in %."""
    return [reduction(of.kairos(seed=seed), of.kairos(within="fifo", seed=seed), statistic) for seed in ORDER_SEEDS]


def _order(of: Of) -> float:
    return fmean(order_gains(of, "p95_s"))


def _offloaded(of: Of) -> float:
    near, far = (of.kairos(deployment="hybrid", wan_ms=wan_ms).offloaded for wan_ms in (min(WAN_MS), max(WAN_MS)))
    return 100 * (near - far)


def _latency_over_bandwidth(of: Of) -> float:
    """Return the spread of the mean over the latencies, over its spread over the bandwidths from 50 Mbit/s on."""
    by_latency = [of.kairos(deployment="hybrid", wan_ms=wan_ms).mean_s for wan_ms in WAN_MS]
    by_bandwidth = [of.kairos(deployment="hybrid", wan_mbps=mbps).mean_s for mbps in WAN_MBPS if mbps >= 50.0]
    return (max(by_latency) - min(by_latency)) / max(max(by_bandwidth) - min(by_bandwidth), 1e-9)


def _refetched(statistic: str) -> Figure:
    """Return the effect of newer observations where the edge is just full and robots request eight actions ahead, in %."""
    return lambda of: reduction(
        of.run("confidence", "wait_ratio", 1.0, lead_steps=8, refetch=True),
        of.run("confidence", "wait_ratio", 1.0, lead_steps=8),
        statistic,
    )


# --- claims ---

PAPER: tuple[_Row, ...] = (
    ("11", "static horizons that beat every threshold", "", MOST, 0.0, _beaten("confidence")),
    ("11", "executed at equal success, confidence over static (paper: up to 2.67)", "x", LEAST, 1.0, _longer),
    ("12", "gap to FIFO widens from the lowest rate to the highest", "points", LEAST, 0.0, _widens("wait_ratio")),
    *_horizon_alone(),
    *_table2("wait_ratio"),
    ("13", "hybrid against the edge alone: mean", "% less", LEAST, 36.9, _deployed("edge")),
    ("13", "hybrid against the cloud alone: mean", "% less", LEAST, 51.9, _deployed("cloud")),
    ("14", "10 robots: mean", "% less", LEAST, 20.4, _fleet(FLEETS[0], "wait_ratio")),
    ("14", "50 robots: mean", "% less", LEAST, 33.9, _fleet(FLEETS[1], "wait_ratio")),
    ("14", "100 robots: mean", "% less", LEAST, 41.0, _fleet(FLEETS[2], "wait_ratio")),
)
SENSITIVITY: tuple[_Row, ...] = (
    ("15", "10 buckets over the best number: mean", "%", MOST, 105.0, _buckets),
    ("16", "longest execution first: P95 (paper: up to 17.9)", "% less", LEAST, 0.0, _order),
    ("17", "offloaded at 20 ms over 200 ms (paper: up to 20.5)", "points", LEAST, 0.0, _offloaded),
    ("17", "latency matters more than bandwidth", "x", LEAST, 1.0, _latency_over_bandwidth),
    ("refetch", "age of an observation when its batch begins", "% less", LEAST, 0.0, _refetched("age_ms")),
    ("refetch", "task latency: what it costs", "% less", LEAST, -1.0, _refetched("mean_s")),
)
PROMISED: tuple[_Row, ...] = (
    ("11", "static horizons that beat every threshold of curvature", "", MOST, 0.0, _beaten("curvature")),
    ("11", "executed with noise 0.3: static horizons that beat every threshold", "", MOST, 0.0, _beaten("confidence", 0.3)),
    ("12", "success, confidence minus static", "points", LEAST, -100 * MARGIN, _success),
    ("12", "gap to FIFO past the peak, balanced: least", "% less", LEAST, 30.0, _past("balanced")),
    ("12", "one t for all tasks, balanced, against one H: mean", "% less", LEAST, 30.0, _one),
    *_table2("balanced"),
    ("13", "two batches in flight against one: mean", "% less", LEAST, 0.0, _in_flight),
    ("13", "hybrid against the cloud alone, balanced: mean", "% less", LEAST, 51.9, _deployed("cloud", "balanced")),
    ("13", "past the peak: hybrid against the cloud alone: mean", "% less", LEAST, 0.0, _deployed("cloud", load=BEYOND[-1])),
    ("14", "100 robots, balanced: mean", "% less", LEAST, 41.0, _fleet(FLEETS[2], "balanced")),
)


def claims_of(results: Results) -> dict[str, list[Claim]]:
    """Return workload -> claims for which everything was run."""
    found = {}
    for name in results.recorded:
        rows = (*PAPER, *PROMISED, *(SENSITIVITY if name == SENSITIVE else ()))
        found[name] = measured(rows, results.of(name))
    return found


def count(claims: Mapping[str, Sequence[Claim]]) -> tuple[int, int]:
    """Return the number of claims that hold, and of all."""
    every = [claim for of in claims.values() for claim in of]
    return sum(claim.holds for claim in every), len(every)

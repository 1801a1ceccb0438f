"""What Kairos §5 claims, beside what its replay gives here; and what our policies promise on the same traces."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ros2_rfm_serving.reproductions.claims import Claim, Rule, measured
from ros2_rfm_serving.reproductions.kairos.points import BUCKET_COUNTS, FLEETS, HORIZONS, RATES, WAN_MBPS, WAN_MS, Point, Run
from ros2_rfm_serving.reproductions.kairos.sweep import Cell, margins, pooled

TIE = 102.5
"""%: two policies whose figures differ by less count as equal; draws of tasks scatter by more."""
STATISTICS: tuple[str, ...] = ("mean_s", "p25_s", "p95_s")


@dataclass(frozen=True, kw_only=True)
class Results:
    """All that was run."""

    runs: Mapping[Point, Run]
    cells: Sequence[Cell] = ()
    """Of the undisturbed sweep."""
    disturbed: Sequence[Cell] = ()
    """Of the one with noise on what is executed."""

    def run(self, point: Point) -> Run:
        """Raises: `KeyError` when it was not run."""
        return self.runs[point]

    def online(self, horizon: str, dispatch: str, rate_hz: float = max(RATES)) -> Run:
        return self.run(Point(horizon=horizon, dispatch=dispatch, rate_hz=rate_hz))

    def fleet(self, horizon: str, dispatch: str, robots: int) -> Run:
        return self.run(Point(horizon=horizon, dispatch=dispatch, robots=robots))

    def at_the_top(self, **changes: object) -> Run:
        """Kairos at the highest rate, changed."""
        point = Point(horizon="confidence", dispatch="wait_ratio", rate_hz=max(RATES))
        return self.run(replace(point, **changes))  # type: ignore[arg-type]


def reduction(ours: Run, theirs: Run, statistic: str = "mean_s") -> float:
    """%"""
    return 100 * (1 - float(getattr(ours, statistic)) / float(getattr(theirs, statistic)))


Figure = Callable[[Results], float]
_Row = tuple[str, str, str, Rule, float, Figure]
KAIROS, LEAST, MOST = ("confidence", "wait_ratio"), Rule.AT_LEAST, Rule.AT_MOST


def _table2() -> Iterator[_Row]:
    """The paper's figures are the lowest of its workloads: mean, P25, P95."""
    ablations: tuple[tuple[str, tuple[str, str], tuple[float, float, float]], ...] = (
        ("Kairos", KAIROS, (31.8, 39.5, 22.2)),
        ("without the dynamic horizon", ("static", "wait_ratio"), (8.1, 21.1, 2.8)),
        ("without the scheduler", ("confidence", "fifo"), (16.8, 3.9, 18.9)),
    )
    for name, ours, paper in ablations:
        for statistic, lowest in zip(STATISTICS, paper, strict=True):
            label = {"mean_s": "mean", "p25_s": "P25", "p95_s": "P95"}[statistic]
            yield "table2", f"{name} against FIFO: {label}", "% less", LEAST, lowest, _against(ours, "fifo", statistic)
    for statistic, lowest in zip(STATISTICS, (33.1, 41.9, 24.6), strict=True):
        label = {"mean_s": "mean", "p25_s": "P25", "p95_s": "P95"}[statistic]
        yield (
            "table2",
            f"Kairos against least attained: {label}",
            "% less",
            LEAST,
            lowest,
            _against(KAIROS, "least_attained", statistic),
        )


def _against(ours: tuple[str, str], dispatch: str, statistic: str) -> Figure:
    return lambda r: reduction(r.online(*ours), r.online("static", dispatch), statistic)


# --- figures of claims ---


def _margin(cells: Sequence[Cell], policy: str) -> float:
    if not cells:
        raise KeyError(policy)
    return 100 * min(margins(pooled(cells), policy).values())


def _longest(results: Results, policy: str) -> float:
    """Mean horizon of the policy over a static one's, where it succeeds no less often."""
    cells = pooled(results.cells)
    if not cells:
        raise KeyError(policy)
    static, own = ([c for c in cells if c.policy == name] for name in ("static", policy))
    return max(p.horizon / c.horizon for c in static for p in own if p.success >= c.success)


def gap(results: Results, rate_hz: float) -> float:
    """Mean latency of Kairos below that of FIFO with static horizons, %."""
    return reduction(results.online(*KAIROS, rate_hz), results.online("static", "fifo", rate_hz))


def _gap_of_one(results: Results) -> float:
    return reduction(results.online("confidence_one", "wait_ratio"), results.online("static_one", "fifo"))


def _success(results: Results) -> float:
    return 100 * (results.online(*KAIROS).success - results.online("static", "fifo").success)


def _hybrid(results: Results, alone: str) -> float:
    return reduction(results.at_the_top(deployment="hybrid"), results.at_the_top(deployment=alone))


def _fleet(results: Results, robots: int) -> float:
    return reduction(results.fleet(*KAIROS, robots), results.fleet("static", "fifo", robots))


def _buckets(results: Results) -> float:
    means = {buckets: results.at_the_top(buckets=buckets).mean_s for buckets in BUCKET_COUNTS}
    return 100 * means[10] / min(means.values())


def _order(results: Results) -> float:
    return reduction(results.at_the_top(), results.at_the_top(within="fifo"), "p95_s")


def _offloaded(results: Results) -> float:
    near, far = (results.at_the_top(deployment="hybrid", wan_ms=wan_ms).offloaded for wan_ms in (min(WAN_MS), max(WAN_MS)))
    return 100 * (near - far)


def _latency_over_bandwidth(results: Results) -> float:
    """Spread of the mean over the latencies, over its spread over the bandwidths from 50 Mbit/s on."""
    by_latency = [results.at_the_top(deployment="hybrid", wan_ms=wan_ms).mean_s for wan_ms in WAN_MS]
    by_bandwidth = [results.at_the_top(deployment="hybrid", wan_mbps=mbps).mean_s for mbps in WAN_MBPS if mbps >= 50.0]
    return (max(by_latency) - min(by_latency)) / max(max(by_bandwidth) - min(by_bandwidth), 1e-9)


def _pairs(results: Results) -> list[tuple[Run, Run]]:
    """`best` and `wait_ratio`, under every load with every horizon."""
    online = [(results.online(h, "best", rate), results.online(h, "wait_ratio", rate)) for h in HORIZONS for rate in RATES]
    return online + [(results.fleet(h, "best", n), results.fleet(h, "wait_ratio", n)) for h in HORIZONS for n in FLEETS]


def _best_over(results: Results, statistic: str) -> float:
    return max(100 - reduction(best, other, statistic) for best, other in _pairs(results))


def _attainment(results: Results) -> float:
    return 100 * min(best.attainment - other.attainment for best, other in _pairs(results))


# --- claims ---

PAPER: tuple[_Row, ...] = (
    ("11", "confidence: horizon at matched success, at most", "x", LEAST, 2.67, lambda r: _longest(r, "confidence")),
    ("12", "gap to FIFO widens: top over lowest rate", "points", LEAST, 0.0, lambda r: gap(r, max(RATES)) - gap(r, min(RATES))),
    *_table2(),
    ("13", "hybrid against the edge alone: mean", "% less", LEAST, 36.9, lambda r: _hybrid(r, "edge")),
    ("13", "hybrid against the cloud alone: mean", "% less", LEAST, 51.9, lambda r: _hybrid(r, "cloud")),
    ("14", "10 robots, Kairos against FIFO: mean", "% less", LEAST, 20.4, lambda r: _fleet(r, 10)),
    ("14", "50 robots, Kairos against FIFO: mean", "% less", LEAST, 33.9, lambda r: _fleet(r, 50)),
    ("14", "100 robots, Kairos against FIFO: mean", "% less", LEAST, 41.0, lambda r: _fleet(r, 100)),
    ("15", "10 buckets over the best number: mean", "%", MOST, 105.0, _buckets),
    ("16", "longest execution first: P95 (paper: up to 17.9)", "% less", LEAST, 0.0, _order),
    ("17", "offloaded at 20 ms over 200 ms (paper: up to 20.5)", "points", LEAST, 0.0, _offloaded),
    ("17", "latency matters more than bandwidth", "x", LEAST, 1.0, _latency_over_bandwidth),
)

PROMISED: tuple[_Row, ...] = (
    (
        "11",
        "confidence over static at its horizon: success, lowest",
        "points",
        LEAST,
        0.0,
        lambda r: _margin(r.cells, "confidence"),
    ),
    ("11", "curvature over static at its horizon: success, lowest", "points", LEAST, 0.0, lambda r: _margin(r.cells, "curvature")),
    ("11", "confidence, executed with noise 0.3: the same", "points", LEAST, 0.0, lambda r: _margin(r.disturbed, "confidence")),
    ("12", "wait_ratio + confidence against fifo + static: mean", "% less", LEAST, 30.0, lambda r: gap(r, max(RATES))),
    ("12", "the same, one H and one t for all tasks: mean", "% less", LEAST, 30.0, _gap_of_one),
    ("12", "success, confidence minus static", "points", LEAST, 0.0, _success),
    *(
        ("12, 14", f"best over wait_ratio, {name}: highest", "%", MOST, TIE, lambda r, s=statistic: _best_over(r, s))
        for statistic, name in zip(STATISTICS, ("mean", "P25", "P95"), strict=True)
    ),
    ("12, 14", "best minus wait_ratio, SLO attainment: lowest", "points", LEAST, -1.0, _attainment),
)


def claims_of(results: Results) -> list[Claim]:
    """Those for which everything was run."""
    return measured((*PAPER, *PROMISED), results)

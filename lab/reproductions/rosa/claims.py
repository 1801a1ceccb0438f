"""Claims of ROSA §4, compared with the simulated factory, and promises of `best` on the same sweeps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from statistics import median

from lab.reproductions.claims import Claim, Rule, measured
from lab.reproductions.rosa.runs import (
    DEDICATED,
    FLEETS,
    MIXED,
    SHARED,
    SINGLE,
    Batching,
    Point,
    Run,
    Sizing,
    allocation_text,
)
from ros2_rfm_serving.scheduler import POLICIES

TABLE3 = {8: "5:1:1:1", 16: "5:1:1:1", 32: "5:1:1:1", 64: "4:1:2:1"}
"""ROSA's allocation on P4 (Table 3)."""


@dataclass(frozen=True, kw_only=True)
class Results:
    """All results."""

    runs: Mapping[Point, Run] = field(default_factory=dict)
    sizings: tuple[Sizing, ...] = ()
    batchings: tuple[Batching, ...] = ()

    def run(self, workload: str, num_robots: int, policy: str, capped: bool | None = None, allocation: str = "") -> Run:
        """Return a run. Raises: `KeyError` when it was not run. capped: None is the policy's own way."""
        own = policy in ("rosa", "best") if capped is None else capped
        return self.runs[Point(workload=workload, num_robots=num_robots, policy=policy, capped=own, allocation=allocation)]

    def goodput(self, workload: str, num_robots: int, policy: str, capped: bool | None = None) -> float:
        return self.run(workload, num_robots, policy, capped).goodput

    def peak(self, workload: str, policies: Iterable[str]) -> float:
        """Return the highest goodput of the sweep over the numbers of robots."""
        return max(self.goodput(workload, n, policy) for n in FLEETS for policy in policies)

    def attainment(self, workload: str, num_robots: int, policy: str, capped: bool | None = None) -> float:
        """Return the SLO attainment of System 1 in %."""
        system1 = self.run(workload, num_robots, policy, capped).system1
        return 100 * system1.slo_attainment if system1 else 0.0

    def median_ms(self, num_robots: int, policy: str) -> float:
        """Return the median latency of System 1 on P4."""
        system1 = self.run("p4", num_robots, policy).system1
        return 1e3 * system1.p50_s if system1 else math.nan

    @property
    def num_allocations_of_table3(self) -> int:
        return sum(allocation_text(self.run("p4", n, "rosa").solution) == expected for n, expected in TABLE3.items())


Figure = Callable[[Results], float]
_Row = tuple[str, str, str, Rule, float, Figure]

PAPER: tuple[_Row, ...] = (
    ("6", "P4, 8 robots: ROSA", "actions/s", Rule.NEAR, 23.9, lambda r: r.goodput("p4", 8, "rosa")),
    ("6", "P4, 8 robots: equal partition", "actions/s", Rule.NEAR, 29.5, lambda r: r.goodput("p4", 8, "baseline3")),
    ("6", "P4, 32 robots: ROSA", "actions/s", Rule.NEAR, 89.4, lambda r: r.goodput("p4", 32, "rosa")),
    ("6", "P4, 64 robots: ROSA", "actions/s", Rule.NEAR, 78.8, lambda r: r.goodput("p4", 64, "rosa")),
    ("6", "P2, 32 robots: ROSA", "actions/s", Rule.NEAR, 106.9, lambda r: r.goodput("p2", 32, "rosa")),
    ("6", "P2, 32 robots: best shared baseline", "actions/s", Rule.NEAR, 87.1, lambda r: _shared(r, "p2", 32)),
    ("6", "P2, 32 robots: ROSA over it", "x", Rule.NEAR, 1.23, lambda r: r.goodput("p2", 32, "rosa") / _shared(r, "p2", 32)),
    ("6", "P3, 32 robots: ROSA", "actions/s", Rule.NEAR, 106.9, lambda r: r.goodput("p3", 32, "rosa")),
    ("6", "P3, 32 robots: shared baselines", "actions/s", Rule.AT_MOST, 0.0, lambda r: _shared(r, "p3", 32)),
    (
        "6",
        "P3: ROSA at 32 over the shared at their best",
        "x",
        Rule.NEAR,
        2.44,
        lambda r: r.goodput("p3", 32, "rosa") / r.peak("p3", SHARED),
    ),
    ("6", "P4, 32 robots: shared baselines", "actions/s", Rule.AT_MOST, 0.0, lambda r: _shared(r, "p4", 32)),
    ("7", "P4, 2 robots: one GPU per model", "actions/s", Rule.NEAR, 7.4, lambda r: r.peak("p4", ("baseline2",))),
    ("7", "P4: one GPU per robot", "actions/s", Rule.AT_MOST, 0.0, lambda r: r.peak("p4", ("baseline1",))),
    (
        "7",
        "P4: ROSA over the best dedicated",
        "x",
        Rule.AT_LEAST,
        12.06,
        lambda r: r.peak("p4", ("rosa",)) / r.peak("p4", DEDICATED),
    ),
    ("8", "Mix2: ROSA's peak over the shared", "x", Rule.NEAR, 2.21, lambda r: _peak_ratio(r, "mix2")),
    ("8", "Mix4: ROSA's peak over the shared", "x", Rule.NEAR, 2.30, lambda r: _peak_ratio(r, "mix4")),
    ("9", "32 robots: ROSA, System 1 median", "ms", Rule.NEAR, 83.8, lambda r: r.median_ms(32, "rosa")),
    ("9", "32 robots: ROSA, System 1 within SLO", "%", Rule.AT_LEAST, 99.96, lambda r: r.attainment("p4", 32, "rosa")),
    ("9", "64 robots: ROSA, System 1 within SLO", "%", Rule.AT_LEAST, 97.23, lambda r: r.attainment("p4", 64, "rosa")),
    ("9", "32 robots: equal, System 1 median", "ms", Rule.NEAR, 534.5, lambda r: r.median_ms(32, "baseline3")),
    ("9", "32 robots: equal, within SLO", "%", Rule.AT_MOST, 0.0, lambda r: r.attainment("p4", 32, "baseline3")),
    ("9", "16 robots: weighted, System 1 median", "ms", Rule.NEAR, 520.8, lambda r: r.median_ms(16, "baseline4")),
    ("9", "16 robots: weighted, within SLO", "%", Rule.AT_MOST, 0.0, lambda r: r.attainment("p4", 16, "baseline4")),
    ("10", "32 robots: ROSA uncapped", "actions/s", Rule.NEAR, 107.3, lambda r: r.goodput("p4", 32, "rosa", False)),
    ("10", "64 robots: ROSA uncapped, raw", "actions/s", Rule.NEAR, 145.5, lambda r: r.run("p4", 64, "rosa", False).raw),
    ("10", "64 robots: ROSA uncapped", "actions/s", Rule.NEAR, 24.8, lambda r: r.goodput("p4", 64, "rosa", False)),
    ("10", "64 robots: uncapped, within SLO", "%", Rule.NEAR, 17.0, lambda r: r.attainment("p4", 64, "rosa", False)),
    ("10", "64 robots: capped over uncapped", "x", Rule.NEAR, 3.18, lambda r: _capped_ratio(r, 64)),
    ("11", "equal: GPUs, at most", "x", Rule.NEAR, 5.5, lambda r: _most_gpus(r, "baseline3")),
    ("11", "weighted: GPUs, at most", "x", Rule.NEAR, 8.6, lambda r: _most_gpus(r, "baseline4")),
    ("12", "16 robots: over the best static", "x", Rule.NEAR, 1.26, lambda r: _allocation_ratio(r, 16)),
    ("12", "32 robots: over the best static", "x", Rule.NEAR, 2.20, lambda r: _allocation_ratio(r, 32)),
    (
        "12",
        "64 robots: weighted is infeasible",
        "actions/s",
        Rule.AT_MOST,
        0.0,
        lambda r: r.run("p4", 64, "rosa", allocation="baseline4").goodput,
    ),
    ("14", "16 robots, 50 ms: speedup", "x", Rule.NEAR, 2.46, lambda r: _batching(r, 16, 50.0).predicted_speedup),
    ("14", "16 robots, 50 ms: batch size", "", Rule.NEAR, 16, lambda r: _batching(r, 16, 50.0).batch_size),
    ("tables", "fleets with Table 3's allocation", "of 4", Rule.AT_LEAST, 4, lambda r: r.num_allocations_of_table3),
)

PROMISED: tuple[_Row, ...] = (
    (
        "policies",
        "rosa: lowest attainment at 32, P3 and P4",
        "%",
        Rule.AT_LEAST,
        99.0,
        lambda r: _lowest(r, "rosa", ("p3", "p4"), (32,)),
    ),
    (
        "policies",
        "rosa's peak over the best shared, P3",
        "x",
        Rule.AT_LEAST,
        2.4,
        lambda r: r.peak("p3", ("rosa",)) / r.peak("p3", SHARED),
    ),
    (
        "policies",
        "rosa's peak over the best shared, P4",
        "x",
        Rule.AT_LEAST,
        2.4,
        lambda r: r.peak("p4", ("rosa",)) / r.peak("p4", SHARED),
    ),
    (
        "policies",
        "rosa's peak over the best dedicated, P4",
        "x",
        Rule.AT_LEAST,
        12.0,
        lambda r: r.peak("p4", ("rosa",)) / r.peak("p4", DEDICATED),
    ),
    (
        "policies",
        "best's peak over the best shared, P4",
        "x",
        Rule.AT_LEAST,
        2.4,
        lambda r: r.peak("p4", ("best",)) / r.peak("p4", SHARED),
    ),
    ("policies", "best over any other, lowest", "%", Rule.AT_LEAST, 99.0, lambda r: 100 * min(_against_others(r).values())),
    ("policies", "best: lowest attainment", "%", Rule.AT_LEAST, 99.0, lambda r: _lowest(r, "best", (*SINGLE, *MIXED), FLEETS)),
    (
        "policies",
        "best: largest gap to its bound",
        "%",
        Rule.AT_MOST,
        5.0,
        lambda r: 100 * max(_solution_gaps(r)),
    ),
    ("policies", "best over rosa uncapped, 32 robots, P4", "%", Rule.AT_LEAST, 99.0, lambda r: _over_uncapped(r, "p4", 32)),
    ("policies", "rosa: goodput off its prediction", "%", Rule.AT_MOST, 10.0, lambda r: _goodput_off(r, "rosa")),
    ("policies", "best: goodput off its prediction", "%", Rule.AT_MOST, 10.0, lambda r: _goodput_off(r, "best")),
    ("policies", "rosa: p99 off its prediction", "%", Rule.AT_MOST, 10.0, lambda r: _p99_off(r, "rosa")),
    ("policies", "best: p99 off its prediction", "%", Rule.AT_MOST, 10.0, lambda r: _p99_off(r, "best")),
)


def claims_of(results: Results) -> list[Claim]:
    """Return the claims for which everything was run."""
    return measured((*PAPER, *PROMISED), results)


@dataclass(frozen=True, kw_only=True)
class Deviations:
    """Deviations of simulated from predicted figures, over the runs of a policy that were predicted to meet every SLO."""

    policy: str
    capped: bool
    goodput: tuple[float, ...]
    p99: tuple[float, ...]
    """Deviations of p99, one per server."""


def deviations_of(results: Results) -> Iterator[Deviations]:
    for policy in POLICIES:
        for capped in (True, False):
            runs = list(_feasible(results, policy, capped))
            if runs:
                yield Deviations(
                    policy=policy,
                    capped=capped,
                    goodput=tuple(run.goodput_deviation for run in runs),
                    p99=tuple(deviation for run in runs for deviation in run.p99_deviations),
                )


def worst_and_median(deviations: Iterable[float]) -> tuple[float, float]:
    """Return the largest and the median absolute value."""
    sizes = [abs(deviation) for deviation in deviations]
    return max(sizes), median(sizes)


# --- figures of claims ---


def _shared(results: Results, workload: str, num_robots: int) -> float:
    return max(results.goodput(workload, num_robots, policy) for policy in SHARED)


def _peak_ratio(results: Results, workload: str) -> float:
    return results.peak(workload, ("rosa",)) / results.peak(workload, SHARED)


def _capped_ratio(results: Results, num_robots: int) -> float:
    return results.goodput("p4", num_robots, "rosa") / results.goodput("p4", num_robots, "rosa", False)


def _most_gpus(results: Results, policy: str) -> float:
    ratios = [sizing.ratio for sizing in results.sizings if sizing.policy == policy]
    if not ratios:
        raise KeyError(policy)
    return max(ratios)


def _allocation_ratio(results: Results, num_robots: int) -> float:
    ours, *static = (results.run("p4", num_robots, "rosa", allocation=allocation).goodput for allocation in ("rosa", *SHARED))
    return ours / max(static)


def _batching(results: Results, num_robots: int, period_ms: float) -> Batching:
    return {(b.num_robots, b.period_ms): b for b in results.batchings}[num_robots, period_ms]


def _lowest(results: Results, policy: str, workloads: Iterable[str], fleets: Iterable[int]) -> float:
    """Return the lowest attainment of any component in %."""
    return 100 * min(results.run(w, n, policy).lowest_attainment[0] for n in fleets for w in workloads)


def _against_others(results: Results) -> dict[tuple[str, int], float]:
    """Return (workload, robots) -> goodput of `best` over the highest of all others."""
    others = [(policy, capped) for policy in POLICIES for capped in (True, False) if (policy, capped) != ("best", True)]
    return {
        (w, n): results.goodput(w, n, "best") / max(results.goodput(w, n, policy, capped) for policy, capped in others)
        for w in (*SINGLE, *MIXED)
        for n in FLEETS
    }


def _over_uncapped(results: Results, workload: str, num_robots: int) -> float:
    return 100 * results.goodput(workload, num_robots, "best") / results.goodput(workload, num_robots, "rosa", False)


def _solution_gaps(results: Results) -> list[float]:
    return [results.run(w, n, "best").solution.gap_by_curves for w in (*SINGLE, *MIXED) for n in FLEETS]


def _feasible(results: Results, policy: str, capped: bool) -> Iterator[Run]:
    for point, run in results.runs.items():
        if (point.policy, point.capped, point.allocation) == (policy, capped, "") and run.solution.feasible and run.report:
            yield run


def _goodput_off(results: Results, policy: str) -> float:
    runs = [results.run(w, n, policy) for w in (*SINGLE, *MIXED) for n in FLEETS]
    return 100 * worst_and_median(run.goodput_deviation for run in runs)[0]


def _p99_off(results: Results, policy: str) -> float:
    runs = [results.run(w, n, policy) for w in (*SINGLE, *MIXED) for n in FLEETS]
    return 100 * worst_and_median(deviation for run in runs for deviation in run.p99_deviations)[0]

"""Claims of AURAS §6, compared with the measurements here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from statistics import mean

from lab.benchmarks.pipelines.modes import DEC, SEQ, Mode, auras, par
from lab.reproductions.auras.measured import Framed, Measured
from lab.reproductions.auras.points import (
    ALPHAS,
    DEGREES,
    DIFFUSION40,
    DIFFUSION100,
    ITERATIONS,
    PARALLEL,
    POLICIES,
    SCALES,
    SKEWED,
    STALE_DEGREES,
    WORKERS,
    Point,
    Policy,
    best,
    scaled,
)
from lab.reproductions.claims import Claim, Rule, measured

DIFFUSIONS = (DIFFUSION40, DIFFUSION100)
_Row = tuple[str, str, str, Rule, float, Callable[[Measured], float]]
LEAST, MOST = Rule.AT_LEAST, Rule.AT_MOST


def claims_of(results: Measured) -> list[Claim]:
    return measured([*_success(), *_throughput(), *_autoregressive(), *_structure(), *_tuning()], results)


def _of(policy: Policy, mode: Mode, **also: object) -> Point:
    return Point(policy=policy, mode=mode, succeeds=True, **also)  # type: ignore[arg-type]


def _for(policy: Policy, figure: Callable[[Measured, Policy], float]) -> Callable[[Measured], float]:
    return lambda results: figure(results, policy)


def _speedup(results: Measured, policy: Policy) -> float:
    return results.speedup(_of(policy, best(policy)))


def success(results: Measured, policy: Policy, mode: Mode) -> float:
    """Return the success in %."""
    return 100 * results.success(_of(policy, mode)).share


def _success() -> Iterator[_Row]:
    def kept(results: Measured) -> float:
        return 100 * mean(success(results, p, best(p)) / success(results, p, SEQ) for p in POLICIES)

    def lost(results: Measured) -> float:
        return 100 * mean(1 - success(results, p, par(PARALLEL)) / success(results, p, SEQ) for p in POLICIES)

    def stale(results: Measured) -> float:
        first, last = (
            results.success(Point(policy=DIFFUSION40, mode=SEQ, stale=degree, succeeds=True)).share
            for degree in (STALE_DEGREES[0], STALE_DEGREES[-1])
        )
        return 100 * (first - last)

    def decoupled(results: Measured) -> float:
        return 100 * mean(success(results, p, DEC) / success(results, p, SEQ) for p in POLICIES)

    yield "5", "success lost from one request at a time to the deepest stale pipeline, diffusion", "points", LEAST, 20.0, stale
    yield "10", "AURAS' success over SEQ's, mean of the policies", "%", LEAST, 102.7, kept
    for policy in DIFFUSIONS:
        yield (
            "10",
            f"the same, {policy}: not below by more than 3 points",
            "points",
            LEAST,
            -3.0,
            _for(policy, lambda r, p: success(r, p, best(p)) - success(r, p, SEQ)),
        )
    yield "10", f"success that PAR loses with {PARALLEL} workers, mean of the policies", "%", LEAST, 80.22, lost
    yield "10", "DEC's success over SEQ's, mean of the policies", "%", LEAST, 95.0, decoupled


def _throughput() -> Iterator[_Row]:
    def speedup(results: Measured, mode: Callable[[Policy], Mode]) -> float:
        return mean(results.speedup(_of(p, mode(p))) for p in DIFFUSIONS)

    def over_parallel(results: Measured) -> float:
        return mean(results.timing(_of(p, best(p))).rate_hz / results.timing(_of(p, par(PARALLEL))).rate_hz for p in DIFFUSIONS)

    yield "10", "AURAS' throughput over SEQ's, diffusion", "x", LEAST, 2.28, lambda r: speedup(r, best)
    for policy in DIFFUSIONS:
        yield "10", f"the same, {policy} (promised)", "x", LEAST, 2.2, _for(policy, lambda r, p: r.speedup(_of(p, best(p))))
    for policy in (replace(own, traced=True) for own in DIFFUSIONS):
        yield "traced", f"AURAS' throughput over SEQ's, {policy} (promised)", "x", LEAST, 2.2, _for(policy, _speedup)
    yield (
        "10",
        "throughput that DEC loses against SEQ, diffusion",
        "%",
        LEAST,
        22.5,
        lambda r: 100 * (1 - speedup(r, lambda _: DEC)),
    )
    yield "10", "AURAS' throughput over PAR's, diffusion", "x", LEAST, 1.49, over_parallel
    for policy in DIFFUSIONS:
        yield (
            "10",
            f"variation of the interval between AURAS' outputs, {policy} (promised)",
            "% of the mean",
            MOST,
            10.0,
            _for(policy, lambda r, p: 100 * r.timing(_of(p, best(p))).interval_cv),
        )
    yield (
        "10",
        "variation of PAR's, diffusion",
        "% of the mean",
        LEAST,
        89.8,
        lambda r: 100 * mean(r.timing(_of(p, par(PARALLEL))).interval_cv for p in DIFFUSIONS),
    )


def _autoregressive() -> Iterator[_Row]:
    """Yield the claims on `rfm bench frames`."""

    def fastest(results: Measured) -> Framed:
        return max(results.framed[1:], key=lambda way: way.speedup)

    def lost(results: Measured) -> float:
        return 100 * (fastest(results).success - results.framed[0].success)

    yield "autoregressive", "AURAS' throughput over SEQ's", "x", LEAST, 3.05, lambda r: fastest(r).speedup
    yield "autoregressive", "the same (promised)", "x", LEAST, 2.5, lambda r: fastest(r).speedup
    yield "autoregressive", "its success against SEQ's: not below by more than 3 points", "points", LEAST, -3.0, lost


def _structure() -> Iterator[_Row]:
    def most(results: Measured, policy: Policy) -> float:
        pipelines = max(results.timing(_of(policy, auras(d))).rate_hz for d in DEGREES if d <= policy.num_steps)
        return pipelines / max(results.timing(_of(policy, par(w))).rate_hz for w in WORKERS)

    for policy in (DIFFUSION40,):
        yield "11", f"AURAS' highest throughput over PAR's highest, {policy}", "x", LEAST, 1.07, _for(policy, most)
    yield (
        "11",
        "job completion time of two workers over SEQ's, diffusion 40",
        "x",
        LEAST,
        303 / 153,
        lambda r: r.timing(_of(DIFFUSION40, par(2))).latency_s / r.timing(_of(DIFFUSION40, SEQ)).latency_s,
    )
    yield (
        "startup",
        "AURAS' first answer after SEQ's, diffusion 40 (DP: the pipeline fills)",
        "ms",
        MOST,
        40.0,
        lambda r: 1e3 * (r.timing(_of(DIFFUSION40, best(DIFFUSION40))).first_s - r.timing(_of(DIFFUSION40, SEQ)).first_s),
    )


def _tuning() -> Iterator[_Row]:
    def rate(results: Measured, degree: int) -> float:
        return results.timing(_of(DIFFUSION40, auras(degree))).rate_hz

    def skewed(results: Measured, alpha: float) -> float:
        return results.timing(_of(DIFFUSION100, auras(SKEWED, alpha=alpha))).rate_hz

    def gained(results: Measured) -> float:
        return success(results, DIFFUSION100, auras(SKEWED, alpha=ALPHAS[-1])) - success(results, DIFFUSION100, auras(SKEWED))

    def growth(results: Measured, perception: bool) -> float:
        """Return the speedup with the largest network over that with the smallest."""
        ends = [scaled(scale, perception=perception) for scale in (SCALES[0], SCALES[-1])]
        small, large = (results.speedup(_of(p, best(p))) for p in ends)
        return large / small

    def by_steps(results: Measured, steps: int) -> float:
        policy = replace(DIFFUSION100, num_steps=steps)
        return results.speedup(_of(policy, best(policy)))

    yield "12", "throughput grows with pp_generation: 8 over 1", "x", LEAST, 1.0, lambda r: rate(r, 8) / rate(r, 1)
    yield (
        "12",
        "success that pp_perception 4 costs, against 1",
        "points",
        LEAST,
        10.0,
        lambda r: success(r, DIFFUSION40, auras(1, 1)) - success(r, DIFFUSION40, auras(1, 4)),
    )
    yield (
        "13",
        "throughput kept at alpha 1, of the uniform partition's",
        "%",
        LEAST,
        86.6,
        lambda r: 100 * skewed(r, 1.0) / skewed(r, 0.0),
    )
    yield "13", "success gained by alpha 1", "points", LEAST, 0.0, gained
    yield "14", "speedup with perception x4 over that with x0.5", "x", MOST, 1.0, lambda r: growth(r, True)
    yield "14", "speedup with generation x4 over that with x0.5", "x", LEAST, 1.0, lambda r: growth(r, False)
    yield (
        "15",
        "speedup with the fewest steps over that with the most",
        "x",
        MOST,
        1.0,
        lambda r: by_steps(r, ITERATIONS[0]) / by_steps(r, ITERATIONS[-1]),
    )
    yield (
        "16",
        "throughput with fetch_offset -1 over 0, at pp_perception 2, pp_generation 8",
        "x",
        Rule.NEAR,
        1.0,
        lambda r: (
            r.timing(_of(DIFFUSION40, auras(8, 2, fetch_offset=-1))).rate_hz / r.timing(_of(DIFFUSION40, auras(8, 2))).rate_hz
        ),
    )

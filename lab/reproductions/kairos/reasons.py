"""Tables of Kairos' page that explain failing claims, from recordings and replays."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product

import numpy as np

from lab.reproductions.kairos.claims import STATISTICS, Of, order_gains, reduction
from lab.reproductions.kairos.points import CORNERS, FLEETS, HORIZONS, LOADS, ORDER_SEEDS, POLICIES, TOP, Run

Row = tuple[str, ...]
STUDENT = 2.093
"""Student's t of 95 % with 19 degrees of freedom: one less than seeds."""
ASKED = ("workload", "horizon", "steps a task", "requests a task", "steps a round", "success")
SUCCEEDING = ("workload", "horizon", "dispatch", "below FIFO: all", "no failure", "below least attained: all", "no failure")
WAITS = ("workload", "horizon", "dispatch", "first request waits (s)", "a later one", "P25 (s)", "P25 with an idle edge")
FLEET = ("workload", "robots", "edge busy", "stood still", "requests a task", "steps a task", "mean (s)")
ORDER = ("longest first against first come, both in the bucket", "less, %")


def asked(of: Of) -> Iterator[Row]:
    """Yield the requests of the replayed scenes, which no replay changes."""
    for name, by_scene in of.recorded.traces.items():
        traces = list(by_scene.values())
        steps, rounds = sum(t.steps for t in traces), sum(len(t.executed) for t in traces)
        success = f"{sum(t.success for t in traces)} of {len(traces)}"
        yield of.workload, name, f"{steps / len(traces):.1f}", f"{rounds / len(traces):.2f}", f"{steps / rounds:.1f}", success


def succeeding(of: Of) -> Iterator[Row]:
    """Yield reductions at the highest rate below FIFO and least attained, over all scenes and those that always succeed."""
    for horizon, dispatch in product(HORIZONS, ("fifo", *POLICIES[2:])):
        told = [
            _reductions(of.run(horizon, dispatch, succeeding=only), of.run("static", base, succeeding=only))
            for base, only in product(POLICIES[:2], (False, True))
        ]
        if (horizon, dispatch) != CORNERS[0]:
            yield of.workload, horizon, dispatch, *told


def _reductions(run: Run, base: Run) -> str:
    return ", ".join(f"{reduction(run, base, statistic):.0f}" for statistic in STATISTICS)


def waits(of: Of) -> Iterator[Row]:
    """Yield waits at the highest rate, with P25 on an idle edge, where no task waits for others."""
    for horizon in HORIZONS:
        idle_s = of.run(horizon, "fifo", LOADS[0]).p25_s
        for dispatch in POLICIES:
            run = of.run(horizon, dispatch, TOP)
            told = (f"{run.first_wait_s:.2f}", f"{run.later_wait_s:.2f}", f"{run.p25_s:.2f}", f"{idle_s:.2f}")
            yield of.workload, horizon, dispatch, *told


def fleets(of: Of) -> Iterator[Row]:
    """Yield results of fleets by first come, first served: static horizons, then dynamic ones."""
    for robots in FLEETS:
        runs = [of.fleet(horizon, "fifo", robots) for horizon in HORIZONS]
        yield (
            of.workload,
            str(robots),
            _both(f"{run.busy:.0%}" for run in runs),
            _both(f"{run.stalled:.0%}" for run in runs),
            _both(f"{run.requests:.2f}" for run in runs),
            _both(f"{run.steps:.1f}" for run in runs),
            _both(f"{run.mean_s:.2f}" for run in runs),
        )


def _both(figures: Iterator[str]) -> str:
    return " to ".join(figures)


def orders(of: Of) -> Iterator[Row]:
    """Yield the gains over `ORDER_SEEDS` replays, paired by seed."""
    for statistic, name in STATISTICS.items():
        gains = np.array(order_gains(of, statistic))
        error = STUDENT * gains.std(ddof=1) / math.sqrt(len(gains))
        yield name, f"{gains.mean():.1f} +- {error:.1f}"


def slowest(of: Of) -> str:
    runs = [of.kairos(seed=seed) for seed in ORDER_SEEDS]
    slow, other = (_mean(runs, f"{which}_steps") for which in ("slow", "other"))
    asked_slow, asked_other = (_mean(runs, f"{which}_requests") for which in ("slow", "other"))
    return (
        f"The slowest tenth of the tasks execute {slow:.1f} steps a round and ask {asked_slow:.1f} times, the others {other:.1f} "
        f"and {asked_other:.1f}.\n"
    )


def _mean(runs: list[Run], name: str) -> float:
    return float(np.mean([getattr(run, name) for run in runs]))

"""The replays that Kairos' figures show: a figure is a set of points, a point is replayed with a few seeds and becomes a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

import numpy as np

from ros2_rfm_serving.reproductions.kairos.replay import Deployment, Load, Report, Wan, replay
from ros2_rfm_serving.reproductions.kairos.traces import Pace, Trace
from ros2_rfm_serving.server.dispatch import DispatchPolicy, EngineView, Waiting
from ros2_rfm_serving.server.dispatch.wait_ratio import BUCKETS, WaitRatio
from ros2_rfm_serving.simulation.events import source

RATES = (2.0, 4.0, 6.0, 8.0, 10.0, 12.0)
"""Tasks per second that arrive; the last are more than the edge can do with static horizons."""
BEYOND = (14.0, 16.0)
"""More than it can do with any."""
FLEETS = (10, 20, 50, 100)
HORIZONS, OTHER_HORIZONS = ("static", "confidence"), ("curvature", "static_one", "confidence_one")
POLICIES = ("fifo", "least_attained", "wait_ratio", "deadline", "best")
DEPLOYMENTS = ("edge", "cloud", "hybrid")
BUCKET_COUNTS = (2, 5, BUCKETS, 20, 0)
"""0: no buckets, the wait ratio itself."""
WAN_MS, WAN_MBPS = (20.0, 50.0, 100.0, 150.0, 200.0), (10.0, 50.0, 100.0, 500.0, 1000.0)
PACE = Pace(control_rate_hz=30.0, lead_steps=2, slo_s=0.5)
"""30 Hz as in the paper; asking two steps ahead hides the inference of a request that finds the edge idle."""
FIGURES = ("12", "13", "14", "15", "16", "17")


@dataclass(frozen=True, kw_only=True)
class Point:
    horizon: str
    """Of the traces."""
    dispatch: str
    rate_hz: float = 0.0
    robots: int = 0
    deployment: str = "edge"
    wan_ms: float = 100.0
    wan_mbps: float = 1000.0
    buckets: int = BUCKETS
    within: str = "longest"
    """Order inside a bucket: `longest` execution first, or `fifo`."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What all points share."""

    num_tasks: int
    """Per seed."""
    seeds: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Run:
    """Over all tasks of all seeds."""

    point: Point
    mean_s: float
    p25_s: float
    p95_s: float
    attainment: float
    """Share of requests answered within their SLO."""
    success: float
    requests: float
    """Per task."""
    stalled: float
    """Share of the tasks' time that robots stood still, after their first action."""
    batch: float
    offloaded: float
    """Share of requests that ran in the cloud, beside an edge."""
    load: float
    """Share of time that the first engine was busy."""


def points_of(figure: str, rates: Sequence[float] = RATES, fleets: Sequence[int] = FLEETS) -> Iterator[Point]:
    top = max(rates)
    kairos = Point(horizon="confidence", dispatch="wait_ratio", rate_hz=top)
    if figure == "12":
        yield from (
            Point(horizon=horizon, dispatch=policy, rate_hz=rate) for rate, horizon, policy in product(rates, HORIZONS, POLICIES)
        )
        others = product(OTHER_HORIZONS, ("fifo", "wait_ratio", "best"))
        yield from (Point(horizon=h, dispatch=policy, rate_hz=top) for h, policy in others)
        for rate in BEYOND:
            yield from (Point(horizon="static", dispatch="fifo", rate_hz=rate), replace(kairos, rate_hz=rate))
    elif figure == "13":
        for rate, where, policy in product(rates, DEPLOYMENTS, ("wait_ratio", "best")):
            yield replace(kairos, dispatch=policy, rate_hz=rate, deployment=where)
    elif figure == "14":
        yield from (Point(horizon=h, dispatch=policy, robots=n) for n, h, policy in product(fleets, HORIZONS, POLICIES))
    elif figure == "15":
        yield from (replace(kairos, horizon=h, buckets=buckets) for h, buckets in product(HORIZONS, BUCKET_COUNTS))
    elif figure == "16":
        yield from (replace(kairos, horizon=h, within=order) for h, order in product(HORIZONS, ("longest", "fifo")))
    elif figure == "17":
        yield from (replace(kairos, deployment="hybrid", wan_ms=wan_ms) for wan_ms in WAN_MS)
        yield from (replace(kairos, deployment="hybrid", wan_mbps=mbps) for mbps in WAN_MBPS)


def run(point: Point, traces: Sequence[Trace], setting: Setting) -> Run:
    """`traces`: of all horizons. The same seeds give the same tasks in the same order, whatever the horizon."""
    by_scene = {(t.task, t.seed): t for t in traces if t.horizon == point.horizon}
    load = Load(num_tasks=setting.num_tasks, rate_hz=point.rate_hz, num_robots=point.robots)
    reports = [replay(_drawn(by_scene, setting.num_tasks, seed), load, _deployment(point), PACE, seed) for seed in setting.seeds]
    return _run(point, reports)


def _drawn(by_scene: Mapping[tuple[str, int], Trace], num: int, seed: int) -> list[Trace]:
    """With replacement (Kairos §5.1)."""
    rng, scenes = source(seed, "tasks"), sorted(by_scene)
    return [by_scene[rng.choice(scenes)] for _ in range(num)]


def _deployment(point: Point) -> Deployment:
    return Deployment(
        dispatch=point.dispatch,
        policy=_variant(point),
        edge=point.deployment != "cloud",
        cloud=point.deployment != "edge",
        wan=Wan(latency_s=point.wan_ms / 1e3, bandwidth_mbps=point.wan_mbps),
    )


def _variant(point: Point) -> Callable[[], DispatchPolicy] | None:
    if point.within == "fifo":
        return FirstComeWithin
    return None if point.buckets == BUCKETS else partial(WaitRatio, point.buckets or 1_000_000)


class FirstComeWithin(WaitRatio):
    """Without the order inside a bucket (Fig. 16)."""

    def rank(self, waiting: Sequence[Waiting], engine: EngineView, now_s: float) -> Sequence[Waiting]:
        return sorted(waiting, key=lambda w: (-self.bucket(w.history.wait_ratio(now_s), w.history.skipped), w.since_s))


def _run(point: Point, reports: Sequence[Report]) -> Run:
    outcomes = [outcome for report in reports for outcome in report.outcomes]
    latencies_s = np.array([outcome.latency_s for outcome in outcomes])
    p25_s, p95_s = np.percentile(latencies_s, (25, 95))
    rows = sum(report.num_rows for report in reports)
    return Run(
        point=point,
        mean_s=float(latencies_s.mean()),
        p25_s=float(p25_s),
        p95_s=float(p95_s),
        attainment=float(np.mean([report.attainment for report in reports])),
        success=float(np.mean([outcome.trace.success for outcome in outcomes])),
        requests=rows / len(outcomes),
        stalled=sum(outcome.stalled_s for outcome in outcomes) / float(latencies_s.sum()),
        batch=rows / sum(report.num_batches for report in reports),
        offloaded=sum(report.offloaded_rows for report in reports) / rows,
        load=float(np.mean([report.busy_s / report.makespan_s for report in reports])),
    )

"""Points of Kairos' figures: each is replayed with a few seeds and becomes a run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

import numpy as np

from lab.reproductions.kairos.recorded import Recorded, Scene
from lab.reproductions.kairos.replay import (
    BATCHES_IN_FLIGHT,
    CLOUD_TIME,
    EDGE,
    MAX_BATCH_SIZE,
    Deployment,
    Load,
    Report,
    Wan,
    replay,
)
from lab.reproductions.kairos.traces import Outcome, Pace, Trace
from lab.reproductions.kairos.workloads import WORKLOADS
from ros2_rfm_serving.dispatch import DispatchPolicy, EngineView, WaitingRequest
from ros2_rfm_serving.dispatch.wait_ratio import BUCKETS, WaitRatioPolicy
from ros2_rfm_serving.virtual_time.events import source

LOADS = (0.5, 0.8, 1.0, 1.25, 1.5)
"""Arrival rates, as shares of the edge's capacity for a workload with static horizons."""
TOP = LOADS[-1]
"""Rate of the paper's tables: the highest."""
BEYOND = (2.0, 3.0)
"""Rates past the peak, beyond the capacity with any horizons."""
FLEETS = (10, 50, 100)
HORIZONS = ("static", "confidence")
OTHER_HORIZONS = ("static_best", "curvature", "static_one", "confidence_one")
POLICIES = ("fifo", "least_attained", "wait_ratio", "balanced")
CORNERS = (("static", "fifo"), ("confidence", "fifo"), ("static", "wait_ratio"), ("confidence", "wait_ratio"))
"""Neither part, the horizon alone, the scheduler alone, both."""
DEPLOYMENTS = ("edge", "cloud", "hybrid")
IN_FLIGHT = (1, 2, 3, 4)
CUTS = (4, 8, 12, 24)
"""Steps of every round of the same episodes when they are cut anew."""
NO_QUICKER, FAR_BEYOND = 1.0, 4.0
"""Relative batch time of a cloud as slow as the edge; and an arrival rate that fills a fast cloud."""
BUCKET_COUNTS = (2, 5, BUCKETS, 20, 0)
"""Numbers of buckets; 0: none, the wait ratio itself."""
WAN_MS, WAN_MBPS = (20.0, 50.0, 100.0, 150.0, 200.0), (10.0, 50.0, 100.0, 500.0, 1000.0)
LEADS, REFETCH_S = (2, 8), 0.05
"""Actions that are left when a robot sends a request; and age from which on an observation is requested again."""
RATE_HZ, SLO_S = 30.0, 0.5
"""Control rate as in the paper, and SLO; a request two steps ahead hides the inference on an idle edge."""
TENTHS = 10
ORDERS, ORDER_SEEDS = ("longest", "fifo"), tuple(range(20))
"""Orders of requests in a bucket; and seeds for the confidence of a difference between the two."""
SENSITIVE = "flow"
"""Workload of the figures that change one part alone (Kairos §5.5)."""
FIGURES = ("12", "13", "14", "15", "16", "17", "refetch")


@dataclass(frozen=True, kw_only=True)
class Point:
    workload: str
    horizon: str
    """Name of the horizon in `sweep.chosen`."""
    dispatch: str
    load: float = 0.0
    robots: int = 0
    deployment: str = "edge"
    in_flight: int = BATCHES_IN_FLIGHT
    wan_ms: float = 100.0
    wan_mbps: float = 1000.0
    buckets: int = BUCKETS
    within: str = "longest"
    """Order in a bucket: `longest` execution first, or `fifo`."""
    lead_steps: int = LEADS[0]
    refetch: bool = False
    without: str = ""
    """Task that is left out."""
    cut: int = 0
    """Steps that every round executes, except the last one of an episode; 0: as recorded."""
    cloud_time: float = CLOUD_TIME
    """Time of a batch in the cloud relative to the edge's."""
    succeeding: bool = False
    """Whether only scenes count that succeed with every horizon."""
    seed: int | None = None
    """Seed in place of those that all points share."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Parameters that all points share."""

    num_tasks: int
    """Tasks per seed."""
    seeds: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Run:
    """Results over all tasks of all seeds."""

    point: Point
    rate_hz: float
    """Rate of arriving tasks; 0: a fleet."""
    mean_s: float
    p25_s: float
    p95_s: float
    attainment: float
    """Share of requests answered within their SLO."""
    success: float
    requests: float
    """Requests per task."""
    stalled: float
    """Share of the tasks' time that robots stood still, after their first action."""
    batch: float
    offloaded: float
    """Share of requests that ran in the cloud, beside an edge."""
    busy: float
    """Share of time that the first engine was busy."""
    age_ms: float
    """Mean age of an observation when its batch began."""
    moved_steps: float
    """Mean steps that the robot had executed since the observation."""
    steps: float
    """Executed steps per task."""
    first_wait_s: float
    """Mean wait of a task's first request; the next field has that of the others."""
    later_wait_s: float
    slow_requests: float
    """Requests per task of the slowest tenth of the tasks; the next field has that of all others."""
    other_requests: float
    slow_steps: float
    """Executed steps per round of that tenth; the next field has that of all others."""
    other_steps: float


def points_of(figure: str, workload: str, loads: Sequence[float], fleets: Sequence[int]) -> Iterator[Point]:
    """Yield the points of a figure. loads: the last one is the highest rate."""
    kairos = Point(workload=workload, horizon="confidence", dispatch="wait_ratio", load=loads[-1])
    if figure == "12":
        for load, horizon, policy in product((*loads, *BEYOND), HORIZONS, POLICIES):
            yield replace(kairos, horizon=horizon, dispatch=policy, load=load)
        yield from (replace(kairos, horizon=h, dispatch=d) for h, d in product(OTHER_HORIZONS, ("fifo", *POLICIES[2:])))
        for task, (h, d) in product(WORKLOADS[workload].tasks, CORNERS):
            yield replace(kairos, horizon=h, dispatch=d, without=task)
        for h, d in product(HORIZONS, POLICIES):
            yield replace(kairos, horizon=h, dispatch=d, succeeding=True)
        for cut, policy in product(CUTS, POLICIES):
            yield replace(kairos, horizon="static", dispatch=policy, cut=cut)
    elif figure == "13":
        for load, where in product((*loads, *BEYOND), DEPLOYMENTS):
            yield replace(kairos, load=load, deployment=where)
        yield from (replace(kairos, dispatch="balanced", deployment=where) for where in DEPLOYMENTS)
        for load, number in product((loads[-1], *BEYOND), IN_FLIGHT):
            yield replace(kairos, load=load, deployment="hybrid", in_flight=number)
        yield from (replace(kairos, load=FAR_BEYOND, deployment=where) for where in DEPLOYMENTS[1:])
        for load, where in product((loads[-1], *BEYOND), DEPLOYMENTS[1:]):
            yield replace(kairos, load=load, deployment=where, cloud_time=NO_QUICKER)
    elif figure == "14":
        for robots, horizon, policy in product(fleets, HORIZONS, POLICIES):
            yield replace(kairos, horizon=horizon, dispatch=policy, load=0.0, robots=robots)
    elif workload == SENSITIVE:
        yield from _sensitivity(figure, kairos, loads)


def _sensitivity(figure: str, kairos: Point, loads: Sequence[float]) -> Iterator[Point]:
    if figure == "15":
        yield from (replace(kairos, horizon=h, buckets=buckets) for h, buckets in product(HORIZONS, BUCKET_COUNTS))
    elif figure == "16":
        yield from (replace(kairos, horizon=h, within=order) for h, order in product(HORIZONS, ORDERS))
        yield from (replace(kairos, within=order, seed=seed) for order, seed in product(ORDERS, ORDER_SEEDS))
    elif figure == "17":
        yield from (replace(kairos, deployment="hybrid", wan_ms=wan_ms) for wan_ms in WAN_MS)
        yield from (replace(kairos, deployment="hybrid", wan_mbps=mbps) for mbps in WAN_MBPS)
    elif figure == "refetch":
        for load, lead, refetch, where in product(loads, LEADS, (False, True), ("edge", "hybrid")):
            yield replace(kairos, load=load, lead_steps=lead, refetch=refetch, deployment=where)


def capacity_hz(recorded: Recorded) -> float:
    """Return the tasks per second that the edge can serve with static horizons and full batches."""
    return MAX_BATCH_SIZE / EDGE.mean_s(MAX_BATCH_SIZE) / recorded.requests()


def run(point: Point, recorded: Recorded, setting: Setting) -> Run:
    """Replay a point. The same seeds give the same tasks in the same order, whatever the horizon."""
    recorded = recorded.only(point.without, point.cut, point.succeeding)
    by_scene, rate_hz = recorded.traces[point.horizon], point.load * capacity_hz(recorded)
    seeds = setting.seeds if point.seed is None else (point.seed,)
    load = Load(num_tasks=setting.num_tasks, rate_hz=rate_hz, num_robots=point.robots)
    pace = Pace(control_rate_hz=RATE_HZ, lead_steps=point.lead_steps, slo_s=SLO_S)
    reports = [replay(_drawn(by_scene, setting.num_tasks, seed), load, _deployment(point), pace, seed) for seed in seeds]
    return _run(point, load.rate_hz, reports)


def _drawn(by_scene: Mapping[Scene, Trace], num: int, seed: int) -> list[Trace]:
    """Draw traces with replacement (Kairos §5.1)."""
    rng, scenes = source(seed, "tasks"), sorted(by_scene)
    return [by_scene[rng.choice(scenes)] for _ in range(num)]


def _deployment(point: Point) -> Deployment:
    return Deployment(
        dispatch=point.dispatch,
        policy=_variant(point),
        edge=point.deployment != "cloud",
        cloud=point.deployment != "edge",
        cloud_time=point.cloud_time,
        wan=Wan(latency_s=point.wan_ms / 1e3, bandwidth_mbps=point.wan_mbps),
        batches_in_flight=point.in_flight,
        refetch_after_s=REFETCH_S if point.refetch else math.inf,
    )


def _variant(point: Point) -> Callable[[], DispatchPolicy] | None:
    if point.within == "fifo":
        return FirstComeWithin
    return None if point.buckets == BUCKETS else partial(WaitRatioPolicy, point.buckets or 1_000_000)


class FirstComeWithin(WaitRatioPolicy):
    """Wait ratio without the order in a bucket (Fig. 16)."""

    def rank(self, waiting: Sequence[WaitingRequest], engine: EngineView, now_s: float) -> Sequence[WaitingRequest]:
        return sorted(waiting, key=lambda w: (-self.bucket(w.history.wait_ratio(now_s), w.history.skipped), w.since_s))


def _per(outcomes: Sequence[Outcome]) -> tuple[float, float]:
    """Return the requests per task and the steps per round."""
    rounds = sum(len(outcome.trace.executed) for outcome in outcomes)
    return rounds / max(1, len(outcomes)), sum(outcome.trace.steps for outcome in outcomes) / max(1, rounds)


def _run(point: Point, rate_hz: float, reports: Sequence[Report]) -> Run:
    outcomes = [outcome for report in reports for outcome in report.outcomes]
    latencies_s = np.array([outcome.latency_s for outcome in outcomes])
    p25_s, p95_s = np.percentile(latencies_s, (25, 95))
    order = np.argsort(latencies_s, kind="stable")
    last = max(1, len(order) // TENTHS)
    slow, other = (_per([outcomes[i] for i in each]) for each in (order[-last:], order[:-last]))
    later_s = [wait_s for outcome in outcomes for wait_s in outcome.waits_s[1:]]
    rows, rounds = sum(report.num_rows for report in reports), sum(len(outcome.trace.executed) for outcome in outcomes)
    return Run(
        point=point,
        rate_hz=rate_hz,
        mean_s=float(latencies_s.mean()),
        p25_s=float(p25_s),
        p95_s=float(p95_s),
        attainment=float(np.mean([report.attainment for report in reports])),
        success=float(np.mean([outcome.trace.success for outcome in outcomes])),
        requests=rounds / len(outcomes),
        stalled=sum(outcome.stalled_s for outcome in outcomes) / float(latencies_s.sum()),
        batch=rows / sum(report.num_batches for report in reports),
        offloaded=sum(report.offloaded_rows for report in reports) / rows,
        busy=float(np.mean([report.busy_s / report.makespan_s for report in reports])),
        age_ms=1e3 * sum(sum(outcome.ages_s) for outcome in outcomes) / rounds,
        moved_steps=sum(outcome.moved_steps for outcome in outcomes) / rounds,
        steps=sum(outcome.trace.steps for outcome in outcomes) / len(outcomes),
        first_wait_s=float(np.mean([outcome.waits_s[0] for outcome in outcomes])),
        later_wait_s=sum(later_s) / max(1, len(later_s)),
        slow_requests=slow[0],
        other_requests=other[0],
        slow_steps=slow[1],
        other_steps=other[1],
    )

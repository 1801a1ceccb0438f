"""The replays that Kairos' figures show: a figure is a set of points, a point is replayed with a few seeds and becomes a run."""

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
from ros2_rfm_serving.dispatch import DispatchPolicy, EngineView, Waiting
from ros2_rfm_serving.dispatch.wait_ratio import BUCKETS, WaitRatio
from ros2_rfm_serving.virtual_time.events import source

LOADS = (0.5, 0.8, 1.0, 1.25, 1.5)
"""Rates of arrival, as shares of what the edge can do of a workload with static horizons."""
TOP = LOADS[-1]
"""Where the paper's tables stand: the highest rate."""
BEYOND = (2.0, 3.0)
"""Past the peak: more than it can do with any horizons."""
FLEETS = (10, 50, 100)
HORIZONS = ("static", "confidence")
OTHER_HORIZONS = ("static_best", "curvature", "static_one", "confidence_one")
POLICIES = ("fifo", "least_attained", "wait_ratio", "balanced")
CORNERS = (("static", "fifo"), ("confidence", "fifo"), ("static", "wait_ratio"), ("confidence", "wait_ratio"))
"""Neither, the horizon alone, the scheduler alone, both."""
DEPLOYMENTS = ("edge", "cloud", "hybrid")
IN_FLIGHT = (1, 2, 3, 4)
CUTS = (4, 8, 12, 24)
"""Steps of every round of the same episodes, cut anew."""
NO_QUICKER, FAR_BEYOND = 1.0, 4.0
"""A cloud that takes as long as the edge; and a rate of arrival that fills a quick one."""
BUCKET_COUNTS = (2, 5, BUCKETS, 20, 0)
"""0: no buckets, the wait ratio itself."""
WAN_MS, WAN_MBPS = (20.0, 50.0, 100.0, 150.0, 200.0), (10.0, 50.0, 100.0, 500.0, 1000.0)
LEADS, REFETCH_S = (2, 8), 0.05
"""Actions that are left when a robot asks; and the age from which on an observation is asked for again."""
RATE_HZ, SLO_S = 30.0, 0.5
"""30 Hz as in the paper; asking two steps ahead hides the inference of a request that finds the edge idle."""
TENTHS = 10
ORDERS, ORDER_SEEDS = ("longest", "fifo"), tuple(range(20))
"""Of requests inside a bucket; and seeds that say how sure a difference between the two is."""
SENSITIVE = "flow"
"""The workload of the figures that change one part alone (Kairos §5.5)."""
FIGURES = ("12", "13", "14", "15", "16", "17", "refetch")


@dataclass(frozen=True, kw_only=True)
class Point:
    workload: str
    horizon: str
    """By the name that `sweep.chosen` gives it."""
    dispatch: str
    load: float = 0.0
    robots: int = 0
    deployment: str = "edge"
    in_flight: int = BATCHES_IN_FLIGHT
    wan_ms: float = 100.0
    wan_mbps: float = 1000.0
    buckets: int = BUCKETS
    within: str = "longest"
    """Order inside a bucket: `longest` execution first, or `fifo`."""
    lead_steps: int = LEADS[0]
    refetch: bool = False
    without: str = ""
    """A task that is left out."""
    cut: int = 0
    """Steps that every round executes, the last one of an episode excepted; 0: as recorded."""
    cloud_time: float = CLOUD_TIME
    """Of a batch in the cloud, over the edge's."""
    succeeding: bool = False
    """Only scenes that succeed with every horizon."""
    seed: int | None = None
    """In place of those that all points share."""


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
    rate_hz: float
    """Of arriving tasks; 0: a fleet."""
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
    busy: float
    """Share of time that the first engine was."""
    age_ms: float
    """Of an observation when its batch began, mean."""
    moved_steps: float
    """That the robot had executed since, mean."""
    steps: float
    """Executed per task."""
    first_wait_s: float
    """From a task's first request to its reply, mean; and from the others."""
    later_wait_s: float
    slow_requests: float
    """Of the tenth of the tasks that took longest, per task; and of all others."""
    other_requests: float
    slow_steps: float
    """Executed per round by that tenth; and by all others."""
    other_steps: float


def points_of(figure: str, workload: str, loads: Sequence[float], fleets: Sequence[int]) -> Iterator[Point]:
    """loads: the last stands for the highest rate."""
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
    """Tasks per second that the edge can do with static horizons and full batches."""
    return MAX_BATCH_SIZE / EDGE.mean_s(MAX_BATCH_SIZE) / recorded.requests()


def run(point: Point, recorded: Recorded, setting: Setting) -> Run:
    """The same seeds give the same tasks in the same order, whatever the horizon."""
    recorded = recorded.only(point.without, point.cut, point.succeeding)
    by_scene, rate_hz = recorded.traces[point.horizon], point.load * capacity_hz(recorded)
    seeds = setting.seeds if point.seed is None else (point.seed,)
    load = Load(num_tasks=setting.num_tasks, rate_hz=rate_hz, num_robots=point.robots)
    pace = Pace(control_rate_hz=RATE_HZ, lead_steps=point.lead_steps, slo_s=SLO_S)
    reports = [replay(_drawn(by_scene, setting.num_tasks, seed), load, _deployment(point), pace, seed) for seed in seeds]
    return _run(point, load.rate_hz, reports)


def _drawn(by_scene: Mapping[Scene, Trace], num: int, seed: int) -> list[Trace]:
    """With replacement (Kairos §5.1)."""
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
    return None if point.buckets == BUCKETS else partial(WaitRatio, point.buckets or 1_000_000)


class FirstComeWithin(WaitRatio):
    """Without the order inside a bucket (Fig. 16)."""

    def rank(self, waiting: Sequence[Waiting], engine: EngineView, now_s: float) -> Sequence[Waiting]:
        return sorted(waiting, key=lambda w: (-self.bucket(w.history.wait_ratio(now_s), w.history.skipped), w.since_s))


def _per(outcomes: Sequence[Outcome]) -> tuple[float, float]:
    """Requests of a task, steps of a round."""
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

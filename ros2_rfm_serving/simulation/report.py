"""Results of a simulation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from ros2_rfm_serving.simulation.chunk_continuity import ChunkContinuityReport
from ros2_rfm_serving.simulation.dynamic_robots import DynamicRobotFigures
from ros2_rfm_serving.simulation.goodput import ComponentCounts


@dataclass(frozen=True, kw_only=True)
class TaskReport:
    num_robots: int
    served: int
    """Robots with a route for System 1."""
    goodput: float
    """Executed predictions per second that count, for all robots of the task together."""
    raw: float


@dataclass(frozen=True, kw_only=True)
class ComponentReport:
    """Latency from sending a request to receiving its reply, for requests sent after the warm-up. NaN: none was answered."""

    count: int
    slo_attainment: float
    """Share of the requests that were answered within the SLO; NaN: no request was sent."""
    mean_s: float
    p50_s: float
    p99_s: float


@dataclass(frozen=True, kw_only=True)
class ServerReport:
    """Latency from a request's arrival to its reply."""

    server: str
    model: str
    utilisation: float
    """Share of time with a request in service."""
    rate_hz: float
    mean_s: float
    p50_s: float
    p99_s: float


@dataclass(frozen=True, kw_only=True)
class Counters:
    sent: int
    answered: int
    late: int
    lost: int
    refused: int
    dropped: int
    in_flight: int
    timeouts: int
    """Requests that a robot gave up."""
    failovers: int


@dataclass(frozen=True, kw_only=True)
class Visits:
    """Figures of joining and leaving robots, from the start, the warm-up included."""

    guests: DynamicRobotFigures
    schedules: int
    stays: Mapping[str, ChunkContinuityReport]
    """Task -> regularity of the chunks of its robots, declared ones and guests."""

    def to_json(self) -> dict[str, Any]:
        stays = {task: {key: _finite(value) for key, value in asdict(stay).items()} for task, stay in self.stays.items()}
        return {**asdict(self.guests), "schedules": self.schedules, "stays": stays}


@dataclass(frozen=True, kw_only=True)
class Report:
    policy: str
    seconds: float
    """Measured time, after the warm-up."""
    goodput: float
    raw: float
    tasks: Mapping[str, TaskReport]
    components: Mapping[str, ComponentReport]
    task_components: Mapping[str, Mapping[str, ComponentReport]]
    """task -> component"""
    servers: Sequence[ServerReport]
    counters: Counters
    """Counts from the start, the warm-up included."""
    visits: Visits | None = field(default=None, repr=False)
    """Figures of joining and leaving robots; None: no robot does."""

    def to_json(self) -> dict[str, Any]:
        """Return the structure of `rfm simulate --json`; numbers that are not finite become None."""
        return {
            "policy": self.policy,
            "seconds": self.seconds,
            "goodput": self.goodput,
            "raw": self.raw,
            "tasks": {
                name: {
                    **asdict(task),
                    "components": {c: _component_json(r) for c, r in self.task_components[name].items()},
                }
                for name, task in self.tasks.items()
            },
            "components": {name: _component_json(component) for name, component in self.components.items()},
            "servers": [
                {
                    "server": s.server,
                    "model": s.model,
                    "utilisation": s.utilisation,
                    "rate_hz": s.rate_hz,
                    **_milliseconds(s.mean_s, s.p50_s, s.p99_s),
                }
                for s in self.servers
            ],
            "counters": asdict(self.counters),
            **({"visits": self.visits.to_json()} if self.visits else {}),
        }


def component_report(tallies: Sequence[ComponentCounts]) -> ComponentReport:
    decided = sum(t.sent - t.undecided for t in tallies)
    latencies_s = [latency for t in tallies for latency in t.latencies_s]
    mean_s, p50_s, p99_s = latency_figures(latencies_s)
    within = sum(t.within for t in tallies)
    return ComponentReport(
        count=len(latencies_s),
        slo_attainment=within / decided if decided else math.nan,
        mean_s=mean_s,
        p50_s=p50_s,
        p99_s=p99_s,
    )


def latency_figures(latencies_s: Sequence[float]) -> tuple[float, float, float]:
    """Return (mean, p50, p99)."""
    if not latencies_s:
        return math.nan, math.nan, math.nan
    p50_s, p99_s = np.quantile(latencies_s, (0.5, 0.99))
    return float(np.mean(latencies_s)), float(p50_s), float(p99_s)


def _component_json(component: ComponentReport) -> dict[str, Any]:
    return {
        "slo_attainment": _finite(component.slo_attainment),
        "count": component.count,
        **_milliseconds(component.mean_s, component.p50_s, component.p99_s),
    }


def _milliseconds(mean_s: float, p50_s: float, p99_s: float) -> dict[str, float | None]:
    return {"mean_ms": _finite(1e3 * mean_s), "p50_ms": _finite(1e3 * p50_s), "p99_ms": _finite(1e3 * p99_s)}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None

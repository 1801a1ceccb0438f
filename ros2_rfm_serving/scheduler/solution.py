"""Result of a scheduling policy with its predictions, for users and the simulator; `routes.py` makes a `Schedule` of it."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

from ros2_rfm_serving.scheduler.slo import Slo

SLO_SLACK = 1 + 1e-6
"""Tolerance for rounding."""
RESERVE = 0.03
"""Reserve, as a share of an SLO that a queue keeps and the curve does not: a queue's tail is some per cent off."""


def limit_s(slo: Slo, curve_s: float, reserve: float = 0.0) -> float:
    """Return the limit of a prediction from request to reply. curve_s: the same by the profile's curve. reserve: share of the SLO
    that stays unused, whatever the curve gives."""
    least = RESERVE if curve_s > slo.kept_s * SLO_SLACK else 0.0
    return slo.kept_s * (1.0 - max(reserve, least)) * SLO_SLACK


@dataclass(frozen=True, kw_only=True)
class Stream:
    """Requests of equal robots for one component on one server."""

    task: str
    component: str
    num_robots: int
    rate_hz: float
    """Predicted request rate of one robot."""
    cap_hz: float
    """Highest request rate of one robot; inf: no rate control."""
    slo: Slo
    latency_s: float = 0.0
    """Predicted latency of the server at that percentile."""
    curve_s: float = 0.0
    """Time from request to reply by the profile's curve, for the load alone."""
    judged_s: float = 0.0
    """Time from request to reply that the SLO is compared with (see `responses`)."""
    network_s: float = 0.0
    """Part of the network in it, at that percentile."""
    server_slo_s: float = math.inf
    """Part of the SLO that network and margin leave for a server with this configuration."""
    rows: int = 0
    """Rows that each robot of a pipelined session keeps there; 0: it is not pipelined."""
    part: int = 0
    """Part of the robots of its task: those of one part have the same streams, wherever they are."""

    @property
    def response_s(self) -> float:
        """Return the time from request to reply."""
        return self.latency_s + self.network_s

    @property
    def slo_s(self) -> float:
        """Return the limit from request to reply; inf: none."""
        return self.slo.promised_s

    @property
    def percentile(self) -> float:
        return self.slo.percentile

    @property
    def keeps_slo(self) -> bool:
        return self.judged_s <= limit_s(self.slo, self.curve_s)

    @property
    def by_own_queue(self) -> bool:
        """Return whether it keeps its SLO and would not by the curve."""
        return self.keeps_slo and self.curve_s > self.slo.kept_s * SLO_SLACK


@dataclass(frozen=True, kw_only=True)
class ServerSolution:
    server: str
    gpu_type: str
    model: str
    batching: str
    batch_size: int
    streams: tuple[Stream, ...]
    rate_hz: float
    mean_s: float
    p99_s: float
    standby: bool = False
    gpu: str = ""
    """Server whose GPU it shares; set when several servers share one GPU."""
    unlucky: float = 0.0
    """Share of random starts after which its robots miss an SLO, because their requests keep colliding as at first."""
    beyond_profile: bool = False
    """Whether robots request more than was ever measured: the latencies are not the profile's (see `equilibrium`)."""

    @property
    def num_streams(self) -> int:
        return sum(stream.num_robots for stream in self.streams)


@dataclass(frozen=True, kw_only=True)
class TaskSolution:
    num_robots: int
    served: int
    action_rate_hz: float
    """Mean rate of one served robot, predicted by the profile's curves."""
    slowest_rate_hz: float
    """Lowest rate of the served robots: those on other servers may have another rate (see `parts`)."""
    closed_loop_rate_hz: float
    """Rate that the predicted latencies allow."""
    expected_rate_hz: float
    """Expected rate; it differs from `action_rate_hz` where robots pace themselves (`convoys`) or queues differ from curves."""


@dataclass(frozen=True, kw_only=True)
class LinkUse:
    """Highest traffic of robots and servers over one host's link, to it and from it, in Mbit/s."""

    host: str
    takes_mbit_s: float
    """Capacity of each way: the declared share of its bandwidth."""
    in_mbit_s: float
    out_mbit_s: float
    worst: str = ""
    """Covered loss with the highest traffic on the link, as text; empty: none is covered."""
    worst_in_mbit_s: float = 0.0
    worst_out_mbit_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Solution:
    policy: str
    feasible: bool
    objective: float
    """Objective of plans (`planning.objective`), in weighted actions/s within every SLO, predicted by the profile's curves."""
    bound: float
    """Upper bound on objectives of this kind by the curves; `expected` may be higher."""
    throughput: float = 0.0
    """Weighted actions/s within every SLO, predicted by the profile's curves; equal to the objective if that is `throughput`."""
    expected: float = 0.0
    """Throughput with robots that pace themselves and wait as in their own queue; by the curves alone it is `throughput`."""
    work: float = 0.0
    """Work of the search, in units of `budget`: about seconds of one core."""
    tasks: dict[str, TaskSolution] = field(default_factory=dict)
    servers: tuple[ServerSolution, ...] = ()
    standby_of: dict[str, str] = field(default_factory=dict)
    """Server -> its standby."""
    problems: tuple[str, ...] = ()
    """Problems as texts with their remedies."""
    notes: tuple[str, ...] = ()
    links: tuple[LinkUse, ...] = ()
    """Use of links with a declared bandwidth."""
    by_lowest: bool = False
    """Whether the objective is the lowest share (`max_min`), which its bound of fractional servers does not limit tightly."""
    below_curves: bool = False
    """Whether queues of robots give these servers clearly less throughput than the curves, on which the bound is based."""
    complete: bool = True
    """False: the work budget is used up; this is the best schedule found until then."""

    @property
    def expected_objective(self) -> float:
        """Return the objective, scaled by the expected throughput over the predicted one."""
        return self.expected * (self.objective / self.throughput if self.throughput else 1.0)

    @property
    def shares_gpus(self) -> bool:
        """Return whether models share a GPU in time slices."""
        return any(server.gpu for server in self.servers)

    @property
    def beyond_curves(self) -> bool:
        """Return whether robots keep an SLO by their own queue that the profile's curve does not."""
        return any(stream.by_own_queue for server in self.servers for stream in server.streams)

    @property
    def gap(self) -> float:
        """Return the share of the bound that is missing; NaN without a bound, and for a schedule that is expected to exceed it."""
        return self.gap_by_curves if self.expected_objective <= self.bound * SLO_SLACK else math.nan

    @property
    def shown_gap(self) -> float:
        """Return the gap where the bound is tight; otherwise NaN, because the gap then has little meaning."""
        return self.gap if self.bounded else math.nan

    @property
    def bounded(self) -> bool:
        """Return whether the bound is tight: whole GPUs, SLOs and rates by the profile's curves, and a sum over robots."""
        return not (self.shares_gpus or self.beyond_curves or self.below_curves or self.by_lowest)

    @property
    def gap_by_curves(self) -> float:
        """Return the gap without regard to expectations beyond the curves: the distance of the search from its best."""
        known = self.bound > 0 and math.isfinite(self.bound) and self.objective <= self.bound * SLO_SLACK
        return 1.0 - self.objective / self.bound if known else math.nan

    def to_json(self) -> dict[str, Any]:
        """Return the content of `rfm plan --json`; infinite numbers become None."""
        return {
            "policy": self.policy,
            "feasible": self.feasible,
            "objective": self.objective,
            "throughput": self.throughput,
            "bound": _finite(self.bound),
            "gap": _finite(self.shown_gap),
            "expected": self.expected,
            "complete": self.complete,
            "work": self.work,
            "tasks": {
                name: {
                    "num_robots": task.num_robots,
                    "served_robots": task.served,
                    "action_rate_hz": task.action_rate_hz,
                    "slowest_rate_hz": task.slowest_rate_hz,
                    "closed_loop_rate_hz": task.closed_loop_rate_hz,
                    "expected_rate_hz": task.expected_rate_hz,
                }
                for name, task in self.tasks.items()
            },
            "servers": [_server_json(server) for server in self.servers],
            "standby_of": self.standby_of,
            "links": [asdict(link) for link in self.links],
            "problems": list(self.problems),
            "notes": list(self.notes),
        }


def _server_json(server: ServerSolution) -> dict[str, Any]:
    return {
        "server": server.server,
        "gpu_type": server.gpu_type,
        "model": server.model,
        "batching": server.batching,
        "batch_size": server.batch_size,
        "standby": server.standby,
        "gpu": server.gpu or server.server,
        "rate_hz": server.rate_hz,
        "mean_ms": _finite(1e3 * server.mean_s),
        "p99_ms": _finite(1e3 * server.p99_s),
        "streams": [
            {
                "task": s.task,
                "component": s.component,
                "part": s.part,
                "num_robots": s.num_robots,
                "rate_hz_each": s.rate_hz,
                "max_rate_hz_each": _finite(s.cap_hz),
                "slo_ms": _finite(1e3 * s.slo_s),
                "percentile": s.percentile,
                "latency_ms": _finite(1e3 * s.latency_s),
                "network_ms": 1e3 * s.network_s,
                "server_slo_ms": _finite(1e3 * s.server_slo_s),
            }
            for s in server.streams
        ],
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None

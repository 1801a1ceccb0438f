"""What a scheduling policy decided, and what it predicts: for people and for the simulator; `routes.py` has it as a `Schedule`."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

from ros2_rfm_serving.scheduler.slo import Slo

SLO_SLACK = 1 + 1e-6
"""Rounding."""
RESERVE = 0.03
"""Of an SLO that robots' own queue keeps and the curve does not: a queue's tail is some per cent off."""


def limit_s(slo: Slo, curve_s: float, reserve: float = 0.0) -> float:
    """What a prediction from request to reply may be. curve_s: the same by the profile's curve. reserve: share of the SLO that is
    not to be used up, whatever the curve says."""
    least = RESERVE if curve_s > slo.kept_s * SLO_SLACK else 0.0
    return slo.kept_s * (1.0 - max(reserve, least)) * SLO_SLACK


@dataclass(frozen=True, kw_only=True)
class Stream:
    """Equal robots' requests for one component on one server."""

    task: str
    component: str
    num_robots: int
    rate_hz: float
    """Predicted, of one robot."""
    cap_hz: float
    """What one robot may send at the most; inf: no rate control."""
    slo: Slo
    latency_s: float = 0.0
    """Of the server, predicted, at that percentile."""
    curve_s: float = 0.0
    """From request to reply by the profile's curve, for the load alone."""
    judged_s: float = 0.0
    """From request to reply: what the SLO is compared with (see `responses`)."""
    network_s: float = 0.0
    """What the network adds to it, at that percentile."""
    server_slo_s: float = math.inf
    """What network and margin leave of the SLO for a server that is set up so."""
    rows: int = 0
    """That each robot of a pipelined session keeps there; 0: it is none."""
    part: int = 0
    """Of the robots of its task: those of one part have the same streams, wherever they are."""

    @property
    def response_s(self) -> float:
        """From request to reply."""
        return self.latency_s + self.network_s

    @property
    def slo_s(self) -> float:
        """From request to reply; inf: none"""
        return self.slo.promised_s

    @property
    def percentile(self) -> float:
        return self.slo.percentile

    @property
    def keeps_slo(self) -> bool:
        return self.judged_s <= limit_s(self.slo, self.curve_s)

    @property
    def by_own_queue(self) -> bool:
        """It keeps its SLO, and would not by the curve."""
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
    """Set when several servers share one GPU."""
    unlucky: float = 0.0
    """Share of the starts that were drawn after which its robots miss an SLO: they go on meeting as they first did."""
    beyond_profile: bool = False
    """Robots ask for more than was ever measured: the latencies are not the profile's (see `equilibrium`)."""

    @property
    def num_streams(self) -> int:
        return sum(stream.num_robots for stream in self.streams)


@dataclass(frozen=True, kw_only=True)
class TaskSolution:
    num_robots: int
    served: int
    action_rate_hz: float
    """Predicted by the profile's curves, of one robot that is served: the mean."""
    slowest_rate_hz: float
    """Of the robots that are served: those on other servers may go at another rate (see `parts`)."""
    closed_loop_rate_hz: float
    """What the predicted latencies allow."""
    expected_rate_hz: float
    """Other than `action_rate_hz` where robots pace themselves (see `convoys`), or wait longer or shorter in their own queue."""


@dataclass(frozen=True, kw_only=True)
class LinkUse:
    """What robots and servers may send at the most over one host's link: to it and from it, Mbit/s."""

    host: str
    takes_mbit_s: float
    """Each way: the declared share of its bandwidth."""
    in_mbit_s: float
    out_mbit_s: float
    worst: str = ""
    """The loss that standbys cover after which there is most on it, in words; empty: none is covered."""
    worst_in_mbit_s: float = 0.0
    worst_out_mbit_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Solution:
    policy: str
    feasible: bool
    objective: float
    """What plans are compared by (`planning.objective`), in weighted actions/s within every SLO, predicted by the profile's
    curves."""
    bound: float
    """No schedule's objective is higher, of its kind and by the curves; `expected` may be."""
    throughput: float = 0.0
    """Weighted actions/s within every SLO, predicted by the profile's curves; the objective, where that is `throughput`."""
    expected: float = 0.0
    """The throughput where robots that pace themselves do so, and wait as in their own queue; by the curves alone it is
    `throughput`."""
    work: float = 0.0
    """Done to find it, in units of `budget`: about the seconds that it takes one core."""
    tasks: dict[str, TaskSolution] = field(default_factory=dict)
    servers: tuple[ServerSolution, ...] = ()
    standby_of: dict[str, str] = field(default_factory=dict)
    """Server -> who takes its robots over when it is lost."""
    problems: tuple[str, ...] = ()
    """What is wrong, in words, with what would make it right."""
    notes: tuple[str, ...] = ()
    links: tuple[LinkUse, ...] = ()
    """Of hosts with a declared bandwidth."""
    by_lowest: bool = False
    """The objective is the lowest share of a pace (`max_min`): its bound counts servers by parts of them, which does not say how
    slow the slowest must be."""
    below_curves: bool = False
    """Robots' own queues let these servers do clearly less than the profile's curves do, which the bound is of."""
    complete: bool = True
    """False: the work that was allowed is done; this is the best schedule found until then."""

    @property
    def expected_objective(self) -> float:
        """The objective, if the throughput is as much more as is expected."""
        return self.expected * (self.objective / self.throughput if self.throughput else 1.0)

    @property
    def shares_gpus(self) -> bool:
        """Models share a GPU in time slices."""
        return any(server.gpu for server in self.servers)

    @property
    def beyond_curves(self) -> bool:
        """Robots keep an SLO by their own queue that the profile's curve does not."""
        return any(stream.by_own_queue for server in self.servers for stream in server.streams)

    @property
    def gap(self) -> float:
        """Share of the bound that is missing; NaN without a bound, and for a schedule that is expected to do more than that."""
        return self.gap_by_curves if self.expected_objective <= self.bound * SLO_SLACK else math.nan

    @property
    def shown_gap(self) -> float:
        """The gap where the bound is a tight one; else NaN, for it says little of the schedule."""
        return self.gap if self.bounded else math.nan

    @property
    def bounded(self) -> bool:
        """The bound is a tight one: of whole GPUs whose SLOs and rates are by the profile's curves, and of a sum over robots."""
        return not (self.shares_gpus or self.beyond_curves or self.below_curves or self.by_lowest)

    @property
    def gap_by_curves(self) -> float:
        """The same, whatever is expected beyond the curves: how far the search may be from its best."""
        known = self.bound > 0 and math.isfinite(self.bound) and self.objective <= self.bound * SLO_SLACK
        return 1.0 - self.objective / self.bound if known else math.nan

    def to_json(self) -> dict[str, Any]:
        """The shape of `rfm plan --json`; infinite numbers become None."""
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

"""ROSA §4 in the simulated factory: the runs of its figures and their results.

A figure is a set of points; a point is planned, simulated, and becomes a run. Figures share points, so that each is run once.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from ros2_rfm_serving.factory import Catalogue, Factory
from ros2_rfm_serving.factory.task import COMPONENTS
from ros2_rfm_serving.profiles import Profile
from ros2_rfm_serving.scheduler import POLICIES, Solution, plan_factory, to_schedule
from ros2_rfm_serving.scheduler.build_problem import curves_of, problem_of
from ros2_rfm_serving.scheduler.policies.baselines import equal, weighted
from ros2_rfm_serving.scheduler.policies.groups import ServerGroup, hosts_of
from ros2_rfm_serving.scheduler.prediction.bound import upper_bound
from ros2_rfm_serving.scheduler.prediction.bounds import Bounds
from ros2_rfm_serving.scheduler.prediction.predict import Operation, solution_of
from ros2_rfm_serving.scheduler.prediction.rates import HostedServer, Rates, RateSearch
from ros2_rfm_serving.simulation.report import ComponentReport, Report
from ros2_rfm_serving.simulation.simulate import simulate
from ros2_rfm_serving.types import SYSTEM1

SINGLE, MIXED = ("p1", "p2", "p3", "p4"), ("mix2", "mix4")
FLEETS = (8, 16, 32, 64)
"""Numbers of robots of every sweep."""
CAPPED = ("rosa", "best")
"""Policies with rate control of their own; the baselines send as soon as they can (ROSA §4.1)."""
SHARED, DEDICATED = ("baseline3", "baseline4"), ("baseline1", "baseline2")
MOST_SERVERS = 512
"""Largest number of servers that is tried (Fig. 11)."""
ENOUGH = 0.995
"""Share of ROSA's throughput that counts as reaching it: its own rate search stops at 0.1 % of the highest rate."""


@dataclass(frozen=True, kw_only=True)
class Point:
    workload: str
    num_robots: int
    policy: str
    capped: bool
    """Whether it has rate control."""
    allocation: str = ""
    """Policy whose number of servers per component is kept; batch sizes and rate control are ROSA's (Fig. 12)."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Parameters that all runs share."""

    seconds: float
    """Measured virtual time."""
    seed: int
    work: float
    """Budget of every plan."""


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """Workload with its declared number of robots."""

    factory: Factory
    profile: Profile
    catalogue: Catalogue


@dataclass(frozen=True, kw_only=True)
class Run:
    point: Point
    solution: Solution
    report: Report | None
    """None: there is no schedule."""

    @property
    def goodput(self) -> float:
        """Return the simulated SLO-qualified actions/s."""
        return self.report.goodput if self.report else 0.0

    @property
    def raw(self) -> float:
        return self.report.raw if self.report else 0.0

    @property
    def system1(self) -> ComponentReport | None:
        return self.report.components[SYSTEM1] if self.report else None

    @property
    def lowest_attainment(self) -> tuple[float, str]:
        """Return (share, component) of the component that meets its SLO least often; NaN without a schedule."""
        components = self.report.components if self.report else {}
        return min(((c.slo_attainment, name) for name, c in components.items() if c.count), default=(math.nan, ""))

    @property
    def goodput_deviation(self) -> float:
        """Return the relative deviation of the simulation from the schedule's expectation."""
        return self.goodput / self.solution.expected - 1.0

    @property
    def p99_deviations(self) -> list[float]:
        """Return the relative deviation of each server's latency."""
        simulated_s = {server.server: server.p99_s for server in self.report.servers} if self.report else {}
        pairs = [(simulated_s.get(server.server, math.nan), server.p99_s) for server in self.solution.servers]
        return [s / p - 1.0 for s, p in pairs if math.isfinite(s) and math.isfinite(p)]


def points_of(figure: str, fleets: Sequence[int] = FLEETS) -> Iterator[Point]:
    """Yield the points of Figures 6 to 10 and 12; `tables`: Table 3; `policies`: all policies, workloads and rate controls."""
    shared = [(policy, True) for policy in CAPPED] + [(policy, False) for policy in SHARED]
    ways = {
        "6": (SINGLE, shared),
        "7": (SINGLE, [(policy, True) for policy in CAPPED] + [(policy, False) for policy in DEDICATED]),
        "8": (MIXED, shared),
        "9": (("p4",), shared),
        "tables": (("p4",), [("rosa", True), *((policy, False) for policy in SHARED)]),
        "10": (("p4",), [(policy, capped) for policy in CAPPED for capped in (True, False)]),
        "policies": ((*SINGLE, *MIXED), [(policy, capped) for policy in POLICIES for capped in (True, False)]),
    }
    if figure == "12":
        for number, allocation in product(fleets, ("rosa", *SHARED)):
            yield Point(workload="p4", num_robots=number, policy="rosa", capped=True, allocation=allocation)
    workloads, policies = ways.get(figure, ((), []))
    for workload, number, (policy, capped) in product(workloads, fleets, policies):
        yield Point(workload=workload, num_robots=number, policy=policy, capped=capped)


def run(point: Point, inputs: Inputs, setting: Setting) -> Run:
    factory = inputs.factory.with_num_robots(point.num_robots)
    inputs = replace(inputs, factory=factory)
    solution = _allocated(point, inputs, setting) if point.allocation else _planned(point.policy, point.capped, inputs, setting)
    return Run(point=point, solution=solution, report=_simulated(solution, inputs, setting) if solution.servers else None)


def _planned(policy: str, capped: bool, inputs: Inputs, setting: Setting) -> Solution:
    return plan_factory(
        inputs.factory,
        inputs.profile,
        inputs.catalogue,
        policy=policy,
        rate_control=capped,
        work=setting.work,
        explained=False,
        arrivals=None if policy == "best" else "poisson",  # ROSA's own search plans with Poisson arrivals
    )


def _simulated(solution: Solution, inputs: Inputs, setting: Setting) -> Report:
    schedule = to_schedule(solution, inputs.factory.robots, epoch=1)
    return simulate(schedule, inputs.factory, inputs.catalogue, inputs.profile, seconds=setting.seconds, seed=setting.seed)


# --- allocations ---


def servers_per_component(solution: Solution) -> dict[str, int]:
    """Return component -> number of servers that serve it: the columns of ROSA Table 3 where no server serves two."""
    counts = Counter(component for server in solution.servers for component in {stream.component for stream in server.streams})
    order = [*COMPONENTS, *sorted(set(counts) - set(COMPONENTS))]
    return {component: counts[component] for component in order if counts[component]}


def allocation_text(solution: Solution) -> str:
    """Return a text as 5:1:1:1."""
    return ":".join(str(count) for count in servers_per_component(solution).values())


def placement_text(solution: Solution) -> str:
    """Return a text as `5 system1 (batch 2), 1 system2+monitor`."""
    kinds = Counter(
        ("+".join(sorted({stream.component for stream in server.streams})), server.batching, server.batch_size)
        for server in solution.servers
    )
    return ", ".join(
        f"{count} {components}" + (f" (batch {size})" if batching == "fixed" else "")
        for (components, batching, size), count in sorted(kinds.items(), key=lambda item: (-item[1], item[0]))
    )


def _allocated(point: Point, inputs: Inputs, setting: Setting) -> Solution:
    """Return the plan with ROSA's rate control and the best batch sizes for given numbers of servers (ROSA §4.3, Fig. 12)."""
    given = servers_per_component(_planned(point.allocation, point.allocation in CAPPED, inputs, setting))
    problem = problem_of(inputs.factory, _robots(inputs.factory), inputs.profile, inputs.catalogue)
    curves = curves_of(problem, inputs.profile)
    cautious = curves_of(problem, inputs.profile.under("poisson"))  # as in ROSA's own search
    found: tuple[float, tuple[HostedServer, ...], Rates] | None = None
    for configs in product(*(cautious.of(demand.model) for demand in problem.demands)):
        groups = [
            ServerGroup(config, given.get(demand.component, 0), ((demand.index, problem.robots_of(demand)),))
            for config, demand in zip(configs, problem.demands, strict=True)
        ]
        hosts = tuple(host for host in hosts_of(groups, problem) if host.robots)
        rates = RateSearch(problem, cautious, hosts).best()
        if rates is not None and (found is None or problem.objective(rates) > found[0]):
            found = (problem.objective(rates), hosts, rates)
    bounds = Bounds(problem, curves, upper_bound(problem, curves))
    if found is None or found[0] <= 0:
        why = f"{':'.join(map(str, given.values()))} cannot meet every SLO at any action rate"
        return Solution(policy="rosa", feasible=False, objective=0.0, bound=bounds.by_curves.objective, problems=(why,))
    _, hosts, rates = found
    return solution_of("rosa", problem, curves, Operation(hosts=hosts, caps=rates), bounds)


def _robots(factory: Factory) -> Counter[str]:
    return Counter(robot.task for robot in factory.robots)


# --- Fig. 11 ---


@dataclass(frozen=True, kw_only=True)
class Sizing:
    """GPUs that a baseline with ROSA's rate control needs to reach ROSA's throughput with the declared ones."""

    workload: str
    num_robots: int
    policy: str
    objective: float
    """Throughput of ROSA, predicted, in actions/s."""
    declared: int
    needed: int | None
    """None: more than `MOST_SERVERS`."""

    @property
    def ratio(self) -> float:
        return self.needed / self.declared if self.needed else math.inf


def gpus_to_match(workload: str, num_robots: int, policy: str, inputs: Inputs, setting: Setting) -> Sizing:
    """Return the size by the scheduler's prediction under Poisson arrivals for both, as in the paper."""
    factory = inputs.factory.with_num_robots(num_robots)
    target = _planned("rosa", True, replace(inputs, factory=factory), setting).objective
    counts = range(len(factory.tasks), MOST_SERVERS + 1)
    needed = next((n for n in counts if _static_objective(policy, factory.with_num_servers(n), inputs) >= ENOUGH * target), None)
    return Sizing(
        workload=workload,
        num_robots=num_robots,
        policy=policy,
        objective=target,
        declared=len(factory.servers),
        needed=needed,
    )


def _static_objective(policy: str, factory: Factory, inputs: Inputs) -> float:
    problem = problem_of(factory, _robots(factory), inputs.profile, inputs.catalogue)
    if len(problem.servers) < len({(d.component, d.model) for d in problem.demands}):
        return 0.0
    curves = curves_of(problem, inputs.profile.under("poisson"))
    placement = {"baseline3": equal, "baseline4": weighted}[policy](problem, curves)
    rates = RateSearch(problem, curves, placement.hosts).best()
    return problem.objective(rates) if rates is not None else 0.0


# --- Fig. 14 ---


@dataclass(frozen=True, kw_only=True)
class Batching:
    """Batch size that the scheduler chooses for one System 1 server without an SLO, and its gain."""

    num_robots: int
    period_ms: float
    batch_size: int
    predicted_speedup: float
    """Speedup of the action rate over batch size 1."""
    simulated_speedup: float
    """NaN: with batches of 1 no reply was in time, as on a profile of a busy CPU."""


def batching_decision(num_robots: int, period_ms: float, inputs: Inputs, setting: Setting) -> Batching:
    """Return the decision. inputs: a factory with one task of System 1 alone (P1)."""
    inputs = replace(inputs, factory=_single_server(inputs.factory, num_robots, period_ms))
    problem = problem_of(inputs.factory, _robots(inputs.factory), inputs.profile, inputs.catalogue)
    curves = curves_of(problem, inputs.profile)
    (demand,) = problem.demands
    rates: dict[int, Rates] = {}
    solutions: dict[int, Solution] = {}
    bounds = Bounds(problem, curves, upper_bound(problem, curves))
    for config in curves.of(demand.model):
        host = HostedServer(config, ((demand.index, num_robots),))
        found = RateSearch(problem, curves, [host]).best()
        assert found is not None, "nothing is required of it"
        rates[config.batch_size] = found
        solutions[config.batch_size] = solution_of(
            "rosa", problem, curves, Operation(hosts=(host,), caps=None, rates=found), bounds
        )
    chosen = max(rates, key=lambda size: (round(rates[size][0], 6), -size))
    goodputs = {size: _simulated(solutions[size], inputs, setting).goodput for size in {1, chosen}}
    return Batching(
        num_robots=num_robots,
        period_ms=period_ms,
        batch_size=chosen,
        predicted_speedup=rates[chosen][0] / rates[1][0],
        simulated_speedup=goodputs[chosen] / goodputs[1] if goodputs[1] else math.nan,
    )


def _single_server(factory: Factory, num_robots: int, period_ms: float) -> Factory:
    ((name, task),) = factory.tasks.items()
    pipeline = task.pipeline.model_copy(update={"action_period_ms": period_ms})
    components = {c: spec.model_copy(update={"slo_ms": None}) for c, spec in task.components.items()}
    changed = task.model_copy(update={"pipeline": pipeline, "components": components})
    tasks: Mapping[str, object] = {name: changed}
    return factory.with_num_robots(num_robots).with_num_servers(1).model_copy(update={"tasks": tasks})

"""Random factories, planned and run in virtual time several times: results of every run beside the predictions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median

from ros2_rfm_serving.factory import Catalogue, Factory
from ros2_rfm_serving.factory.fleet import NetworkEntry
from ros2_rfm_serving.profiles import Profile
from ros2_rfm_serving.scheduler import Solution, plan_factory, to_schedule
from ros2_rfm_serving.scheduler.solution import ServerSolution
from ros2_rfm_serving.simulation import Report, simulate
from ros2_rfm_serving.simulation.profiled_factories import hurried_factory, profiled_factory, trusting_factory
from ros2_rfm_serving.types import SYSTEM1

NEAR = 0.1
"""Relative error up to which a prediction counts as right."""
CHANCE = 3.0
"""Standard deviations of an SLO share up to which a deviation counts as chance."""


@dataclass(frozen=True, kw_only=True)
class Runs:
    """Duration of each run, and number of runs of every plan."""

    count: int
    seconds: float
    profile: Profile
    catalogue: Catalogue
    batching: str = "fixed"
    """Batching of action models."""


@dataclass(frozen=True, kw_only=True)
class Server:
    kind: str
    robots: int
    predicted_s: float
    """Predicted p99 from a request's arrival to its reply."""
    runs_s: tuple[float, ...]
    """The same, of every run with requests."""

    @property
    def hits(self) -> float:
        """Return the share of the runs that the prediction is near."""
        return fmean(near(run_s, self.predicted_s) for run_s in self.runs_s)

    @property
    def is_right(self) -> bool:
        """Return whether the prediction is near the median run."""
        return near(median(self.runs_s), self.predicted_s)

    @property
    def twins(self) -> float:
        """Return the share of the pairs of runs that are near each other."""
        pairs = [(a, b) for i, a in enumerate(self.runs_s) for j, b in enumerate(self.runs_s) if i != j]
        return fmean(near(a, b) for a, b in pairs)

    @property
    def others(self) -> float:
        """Return the share of the runs near the median of all others: the score of a model that knows everything but the start."""
        rest = [[s for j, s in enumerate(self.runs_s) if j != i] for i in range(len(self.runs_s))]
        return fmean(near(run_s, median(others)) for run_s, others in zip(self.runs_s, rest, strict=True))


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Results of a plan in its runs."""

    goodput: float
    """Mean actions in time per second over the runs."""
    expected: float
    """Actions per second that the plan expects."""
    acted: float
    """Mean actions per second over the runs."""
    missed: tuple[str, ...]
    """SLOs that fewer requests kept than promised, beyond chance."""
    servers: tuple[Server, ...]

    @property
    def acts_as_expected(self) -> bool:
        return near(self.acted, self.expected)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One factory; `aware` and `blind`: planned with its network and without."""

    seed: int
    kind: str
    """One of `KINDS`."""
    aware: Plan
    blind: Plan | None = None

    @property
    def gained(self) -> float:
        """Return the relative gain of goodput by a known network."""
        assert self.blind
        return self.aware.goodput / self.blind.goodput - 1.0 if self.blind.goodput else math.inf


def _far(seed: int, batching: str) -> Factory:
    return profiled_factory(seed, network=True, batching=batching)


def _near(seed: int, batching: str) -> Factory:
    return profiled_factory(seed, network=False, batching=batching)


def _hurried(seed: int, batching: str) -> Factory:
    return hurried_factory(seed)


FAR, HURRIED, TRUSTING = "with networks", "late answers", "horizons by servers"
KINDS: Mapping[str, Callable[[int, str], Factory]] = {"no network": _near, FAR: _far, HURRIED: _hurried, TRUSTING: trusting_factory}
"""Random factories, by seed and by batching of action models; those with late answers draw the batching themselves."""


def cases(seeds: Sequence[int], runs: Runs, *, kind: str) -> Iterator[Case | int]:
    """Yield the cases. kind: of `KINDS`. A number is the seed of a factory without a known plan."""
    for seed in seeds:
        factory = KINDS[kind](seed, runs.batching)
        aware = _planned(factory, runs)
        if not aware.feasible:
            yield seed
            continue
        blind = _planned(_without_network(factory), runs) if kind == FAR else None
        yield Case(
            seed=seed,
            kind=kind,
            aware=_run(aware, factory, runs),
            blind=_run(blind, factory, runs) if blind and blind.servers else None,
        )


def _planned(factory: Factory, runs: Runs) -> Solution:
    return plan_factory(factory, runs.profile, runs.catalogue, explained=False)


def _without_network(factory: Factory) -> Factory:
    fleet = tuple(entry.model_copy(update={"network": NetworkEntry()}) for entry in factory.robot_fleet)
    return factory.model_copy(update={"robot_fleet": fleet})


def _run(solution: Solution, factory: Factory, runs: Runs) -> Plan:
    schedule = to_schedule(solution, factory.robots, epoch=1)
    reports = [simulate(schedule, factory, runs.catalogue, seconds=runs.seconds, seed=seed) for seed in range(runs.count)]
    return Plan(
        goodput=fmean(report.goodput for report in reports),
        expected=sum(task.expected_rate_hz * task.served for task in solution.tasks.values()),
        acted=fmean(report.raw for report in reports),
        missed=tuple(_missed(reports, factory)),
        servers=tuple(s for server in solution.servers if (s := _server(server, reports)).runs_s),
    )


def _server(server: ServerSolution, reports: Sequence[Report]) -> Server:
    p99s_s = [found.p99_s for report in reports for found in report.servers if found.server == server.server]
    asked = tuple(p99_s for p99_s in p99s_s if math.isfinite(p99_s)) if server.streams else ()
    capped = any(math.isfinite(stream.cap_hz) for stream in server.streams)
    acts = any(stream.component == SYSTEM1 for stream in server.streams)
    kind = "text" if not acts else "actions, capped" if capped else "actions, no caps"
    found = Server(kind=kind, robots=server.num_streams, predicted_s=server.p99_s, runs_s=asked)
    return found if len(asked) > 1 else replace(found, runs_s=())


def _missed(reports: Sequence[Report], factory: Factory) -> Iterator[str]:
    for name, task in factory.tasks.items():
        for component, spec in task.components.items():
            found = [report.task_components[name][component] for report in reports]
            count = sum(one.count for one in found)
            if not count or spec.slo_ms is None:
                continue
            share = sum(one.slo_attainment * one.count for one in found if one.count) / count
            promised = (spec.percentile or task.percentile) / 100
            if share < promised - CHANCE * math.sqrt(promised * (1 - promised) / count):
                yield f"{component} of {name}: {100 * share:.1f} % of {100 * promised:g}"


def near(a: float, b: float) -> bool:
    return abs(a / b - 1.0) <= NEAR

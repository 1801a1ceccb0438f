"""Fixed against continuous batching on ROSA's workloads (§4.1): planned by our scheduler, then run in virtual time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from ros2_rfm_serving.operate.capacity import Question
from ros2_rfm_serving.operate.inputs import Inputs, load_inputs, solve, with_system1
from ros2_rfm_serving.reports.placement import allocation, components_of
from ros2_rfm_serving.scheduler import Solution, to_schedule
from ros2_rfm_serving.scheduler.sizing import Required, demanding
from ros2_rfm_serving.shipped import shipped
from ros2_rfm_serving.simulation.report import Report
from ros2_rfm_serving.simulation.simulate import simulate
from ros2_rfm_serving.types import SYSTEM1

WORKLOADS = ("p1", "p2", "p3", "p4")
FLEETS = (16, 32, 64, 96, 128)
BATCHINGS = ("fixed", "continuous")
KEPT = 0.99
"""Shares from which on an SLO counts as kept, of each component's requests, and a robot counts as served, of its rate."""

STEP = 2
"""Step of the search, in robots."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    seconds: float
    """Measured virtual time."""
    seed: int
    profiles: Path | None
    """Folder of profiles and catalogue; None: the shipped one."""
    system1: str = ""
    """Action model in place of the workloads' own; empty: none."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """Results of a fleet with one kind of batching. NaN: there is no schedule."""

    workload: str
    batching: str
    num_robots: int
    gpus: str
    """GPUs of each component in the schedule."""
    goodput: float
    """Simulated actions/s within their SLOs."""
    predicted: float
    """Actions/s within their SLOs as the scheduler expects."""
    p50_s: float
    """Response time of System 1 at the robot."""
    p99_s: float
    predicted_p99_s: float
    """Highest value of its servers."""
    attainment: float
    """Attainment of the component that meets its SLO least often."""


@dataclass(frozen=True, kw_only=True)
class Most:
    """Largest fleet in which every robot has its rate within every SLO."""

    workload: str
    batching: str
    rate_hz: float
    planned: int
    """Number by the scheduler, with every robot's rate as a floor."""
    simulated: int
    """Number by simulation of such schedules, to the nearest `STEP`; beyond the planned one, of the best without the floor."""


def rows(setting: Setting, workloads: tuple[str, ...], fleets: tuple[int, ...]) -> Iterator[Row]:
    for workload in workloads:
        for num_robots in fleets:
            for batching in BATCHINGS:
                yield row(workload, batching, inputs_of(workload, batching, setting, num_robots), setting)


def row(workload: str, batching: str, inputs: Inputs, setting: Setting) -> Row:
    solution = solve(inputs, "best", explained=False)
    report = _simulated(solution, inputs, setting)
    served = [s for s in solution.servers if any(stream.component == SYSTEM1 for stream in s.streams)]
    return Row(
        workload=workload,
        batching=batching,
        num_robots=len(inputs.factory.robots),
        gpus=allocation(solution, components_of(inputs.factory)) if solution.servers else "-",
        goodput=report.goodput if report else math.nan,
        predicted=solution.expected if report else math.nan,
        p50_s=report.components[SYSTEM1].p50_s if report else math.nan,
        p99_s=report.components[SYSTEM1].p99_s if report else math.nan,
        predicted_p99_s=max((s.p99_s for s in served), default=math.nan),
        attainment=_attainment(report) if report else math.nan,
    )


def most(workload: str, batching: str, rate_hz: float, setting: Setting) -> Most:
    inputs = inputs_of(workload, batching, setting)
    required = {name: Required(rate_hz=rate_hz, source="--rate") for name in inputs.factory.tasks}
    question = Question(inputs=inputs, required=required, policy="best", work=None, rtt_s=0.0)
    planned = question.robots(lambda text: None).found or 0
    holds, number = partial(_holds, question=question, rate_hz=rate_hz, setting=setting), planned
    if holds(number):
        while holds(number + STEP):
            number += STEP
    else:
        number = next((fewer for fewer in range(number - STEP, 0, -STEP) if holds(fewer)), 0)
    return Most(workload=workload, batching=batching, rate_hz=rate_hz, planned=planned, simulated=number)


def _holds(num_robots: int, question: Question, rate_hz: float, setting: Setting) -> bool:
    """Return whether, in virtual time, every component keeps its SLO and the robots have their rate on average."""
    if num_robots <= 0:
        return False
    factory = question.inputs.factory.with_num_robots(num_robots)
    solution = question.solve(demanding(factory, question.required))
    if not solution.servers:  # no schedule promises the rate, but the best one may still reach it
        solution = question.solve(factory)
    report = _simulated(solution, replace(question.inputs, factory=factory), setting)
    return report is not None and _attainment(report) >= KEPT and report.goodput >= KEPT * rate_hz * num_robots


def inputs_of(workload: str, batching: str, setting: Setting, num_robots: int | None = None) -> Inputs:
    inputs = load_inputs(shipped("config", "rosa", f"{workload}.yaml"), setting.profiles, robots=num_robots)
    factory = with_system1(inputs.factory, setting.system1)
    groups = tuple(group.model_copy(update={"batching": batching}) for group in factory.server_cluster)
    return replace(inputs, factory=factory.model_copy(update={"server_cluster": groups}))


def _simulated(solution: Solution, inputs: Inputs, setting: Setting) -> Report | None:
    if not solution.servers:
        return None
    schedule = to_schedule(solution, inputs.factory.robots, epoch=1)
    return simulate(
        schedule, inputs.factory, inputs.catalogue, inputs.profile, seconds=setting.seconds, seed=setting.seed, warm_up_s=5.0
    )


def _attainment(report: Report) -> float:
    return min(component.slo_attainment for component in report.components.values() if component.count)

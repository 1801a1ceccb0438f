"""Simulation of a constant schedule in virtual time, and its output."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import typer
from rich.console import Console, Group, RenderableType
from rich.progress import Progress
from rich.text import Text

from ros2_rfm_serving import compiled
from ros2_rfm_serving.monitoring.plain import PlainTable
from ros2_rfm_serving.operate.inputs import Inputs, console, print_json, solve
from ros2_rfm_serving.operate.progress import SHOWN_AFTER_S

if TYPE_CHECKING:
    from ros2_rfm_serving.simulation import ComponentReport, Report, SimulationConditions


@dataclass(frozen=True, kw_only=True)
class Asked:
    """Options of every simulation in virtual time."""

    inputs: Inputs
    seed: int
    policy: str
    work: float | None
    """Budget of one plan; None: default."""
    json: bool


class Times(NamedTuple):
    seconds: float
    warm_up_s: float

    @property
    def all_s(self) -> float:
        return self.warm_up_s + self.seconds


def run(asked: Asked, times: Times, conditions: SimulationConditions, rate_control: bool | None, arrivals: str | None) -> None:
    """Plan, simulate and print the result. Raises: `typer.Exit` when the policy places nothing."""
    from ros2_rfm_serving.scheduler import to_schedule
    from ros2_rfm_serving.simulation import simulate

    inputs = asked.inputs
    solution = solve(inputs, asked.policy, rate_control, asked.work, arrivals=arrivals)
    if not solution.servers:
        for problem in solution.problems:
            Console(stderr=True).print(f"problem: {problem}", style="red", highlight=False, markup=False)
        raise typer.Exit(1)
    given = (to_schedule(solution, inputs.factory.robots, epoch=1), inputs.factory, inputs.catalogue, inputs.profile)
    started_s = time.monotonic()
    with ProgressBar(times.all_s) as progress:
        report = simulate(
            *given,
            seconds=times.seconds,
            warm_up_s=times.warm_up_s,
            seed=asked.seed,
            conditions=conditions,
            progress=progress.told,
        )
    if asked.json:
        print_json(report.to_json())
    else:
        console.print(tables(report, solution.expected))
        console.print(_speed(times.all_s, time.monotonic() - started_s))


def _speed(ran_s: float, took_s: float) -> str:
    how = "compiled" if compiled.in_use() else "interpreted; rfm compile makes it faster"
    return f"{ran_s:g} s of the factory took {took_s:.1f} s: {ran_s / took_s:.0f} times faster than real time ({how})"


class ProgressBar:
    """Progress bar on stderr, which appears after a delay."""

    def __init__(self, total_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._bar = Progress(console=Console(stderr=True), transient=True)
        self._task = self._bar.add_task("simulating", total=total_s)
        self._clock, self._since_s, self._shown = clock, clock(), False

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown:
            self._bar.stop()

    def told(self, virtual_s: float) -> None:
        if not self._shown and self._clock() - self._since_s > SHOWN_AFTER_S and self._bar.console.is_terminal:
            self._bar.start()
            self._shown = True
        self._bar.update(self._task, completed=virtual_s)


def tables(report: Report, predicted_hz: float) -> RenderableType:
    tasks = PlainTable("task", "robots", "served", "goodput /s", "raw /s", title="tasks")
    for name, task in report.tasks.items():
        tasks.add_row(name, str(task.num_robots), str(task.served), f"{task.goodput:.2f}", f"{task.raw:.2f}")
    columns = ("task", "component", "answered", "within SLO", "mean ms", "p50 ms", "p99 ms")
    components = PlainTable(*columns, title="latency at the robot")
    for name, of_task in report.task_components.items():
        for component, figures in of_task.items():
            components.add_row(name, component, *_figures(figures))
    servers = PlainTable("server", "model", "busy", "requests/s", "mean ms", "p99 ms", title="servers")
    for s in report.servers:
        servers.add_row(s.server, s.model, f"{s.utilisation:.0%}", f"{s.rate_hz:.1f}", _ms(s.mean_s), _ms(s.p99_s))
    counters = report.counters
    faults = f"{counters.timeouts} timeouts, {counters.failovers} failovers, {counters.lost} lost, {counters.refused} refused"
    summary = Text(
        f"goodput {report.goodput:.2f} actions/s of {report.raw:.2f} raw, {predicted_hz:.2f} predicted (weighted); "
        f"{report.seconds:g} s, policy {report.policy}; {faults}"
    )
    return Group(tasks, components, servers, summary)


def _figures(component: ComponentReport) -> list[str]:
    attainment = f"{component.slo_attainment:.2%}" if math.isfinite(component.slo_attainment) else "-"
    return [str(component.count), attainment, _ms(component.mean_s), _ms(component.p50_s), _ms(component.p99_s)]


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.0f}" if math.isfinite(seconds) else "-"

"""`rfm simulate`: a factory in virtual time, under the schedule that a policy gives it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console, Group, RenderableType
from rich.progress import Progress
from rich.text import Text

from ros2_rfm_serving.cli.simulate_guests import (
    USUAL,
    Times,
    check_unused,
    lived,
    number,
    show_day,
    show_visited,
    turnover_of,
    visited,
)
from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.monitoring.plain import PlainTable
from ros2_rfm_serving.operate.inputs import (
    WAIT_S,
    Arrivals,
    Budget,
    CatalogueFile,
    FactoryFile,
    JsonFlag,
    Policy,
    Profiles,
    RateControl,
    Robots,
    Servers,
    console,
    load_inputs,
    print_json,
    solve,
)

if TYPE_CHECKING:
    from ros2_rfm_serving.simulation import ComponentReport, Conditions, Crash, Network, Report

Seconds = Annotated[float, typer.Option(min=0.1, help="Virtual time to measure, after the warm-up")]
CrashSpecs = Annotated[
    list[str] | None,
    typer.Option("--crash", metavar="SERVER@SECONDS", help="A server dies then, and loads its model again; repeatable"),
]
NetworkSpec = Annotated[
    str | None,
    typer.Option(metavar="latency=MS,jitter=MS,loss=SHARE", help="Each way; or trace=FILE.csv with columns time_s,delay_ms"),
]
Hours = Annotated[
    float | None,
    typer.Option(min=0.1, max=1e4, help="So many hours of the scheduler alone, with guests, instead of seconds"),
]
GuestSpec = Annotated[
    str | None,
    typer.Option(
        metavar="per_hour=N,stay_min=MINUTES,silent=SHARE",
        help="Robots that come and go, and the scheduler; `silent`: say no goodbye",
    ),
]


def simulate(
    file: FactoryFile,
    policy: Policy = "best",
    robots: Robots = None,
    servers: Servers = None,
    seconds: Seconds = 60.0,
    warm_up: Annotated[float, typer.Option(min=0, metavar="SECONDS", help="Before measuring")] = 5.0,
    seed: Annotated[int, typer.Option(help="The same seed gives the same figures")] = 0,
    rate_control: RateControl = None,
    arrivals: Arrivals = None,
    crash: CrashSpecs = None,
    network: NetworkSpec = None,
    hours: Hours = None,
    guests: GuestSpec = None,
    budget: Budget = None,
    json: JsonFlag = False,
    profiles: Profiles = None,
    catalogue: CatalogueFile = None,
) -> None:
    """Runs a factory in virtual time: the robots and servers of the floor, emulated models, no images.

    The exit status is 1 when the policy places nothing.

    Examples:  rfm simulate config/rosa/p4.yaml --robots 64 --policy rosa --seconds 120 --seed 1

               rfm simulate my_factory.yaml --crash server_1@10 --network latency=5,jitter=2,loss=0.01

               rfm simulate config/rosa/p4.yaml --robots 24 --seconds 120 --guests per_hour=240,stay_min=1,silent=0.2

               rfm simulate config/rosa/p4.yaml --robots 40 --hours 24 --guests per_hour=12,stay_min=45,silent=0.1
    """
    from ros2_rfm_serving.scheduler import to_schedule
    from ros2_rfm_serving.simulation import simulate as run

    conditions = conditions_of(crash or [], network)
    inputs = load_inputs(file, profiles, catalogue, robots=robots, servers=servers)
    if hours is not None:
        with ProgressBar(3600.0 * hours) as progress:
            show_day(lived(inputs, turnover_of(guests or USUAL), hours, seed, policy, budget, progress.told), json=json)
        return
    if guests is not None:
        check_unused({"--rate-control": rate_control, "--arrivals": arrivals})
        turnover = turnover_of(guests)
        with ProgressBar(warm_up + seconds) as progress:
            times = Times(seconds=seconds, warm_up_s=warm_up, seed=seed)
            watched = visited(inputs, turnover, times, conditions, policy, budget, progress.told)
        show_visited(watched, tables, json=json)
        return
    solution = solve(inputs, policy, rate_control, budget, arrivals=arrivals)
    if not solution.servers:
        for problem in solution.problems:
            Console(stderr=True).print(f"problem: {problem}", style="red", highlight=False, markup=False)
        raise typer.Exit(1)
    schedule = to_schedule(solution, inputs.factory.robots, epoch=1)
    started_s = time.monotonic()
    with ProgressBar(warm_up + seconds) as progress:
        report = run(
            schedule,
            inputs.factory,
            inputs.catalogue,
            inputs.profile,
            seconds=seconds,
            seed=seed,
            warm_up_s=warm_up,
            conditions=conditions,
            progress=progress.told,
        )
    if json:
        print_json(report.to_json())
    else:
        console.print(tables(report, solution.expected))
        took_s, ran_s = time.monotonic() - started_s, warm_up + seconds
        console.print(f"{ran_s:g} s of the factory took {took_s:.1f} s: {ran_s / took_s:.0f} times faster than real time")


class ProgressBar:
    """A bar on stderr, once one has waited for a while."""

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
        if not self._shown and self._clock() - self._since_s > WAIT_S and self._bar.console.is_terminal:
            self._bar.start()
            self._shown = True
        self._bar.update(self._task, completed=virtual_s)


# --- what is asked ---------------------------------------------------------------------------------------------------------


def conditions_of(crashes: list[str], network: str | None) -> Conditions:
    """Raises: `ConfigurationError` naming the option and what it takes."""
    from ros2_rfm_serving.simulation import Conditions

    return Conditions(crashes=tuple(_crash(text) for text in crashes), network=_network(network) if network else None)


def _crash(text: str) -> Crash:
    from ros2_rfm_serving.simulation import Crash

    server, _, at = text.partition("@")
    at_s = number(at)
    if not server or not 0 <= at_s < math.inf:
        raise ConfigurationError(f"cannot be read: {text!r}", key="--crash", fix="write server_1@10")
    return Crash(server=server, at_s=at_s)


def _network(text: str) -> Network:
    from ros2_rfm_serving.simulation import Network, load_trace

    fix = "write latency=5,jitter=2,loss=0.01 (ms, ms, share), or trace=FILE.csv"
    values: dict[str, float] = {}
    trace: tuple[tuple[float, float], ...] = ()
    for part in text.split(","):
        name, _, value = part.partition("=")
        if name == "trace" and value:
            trace = load_trace(Path(value))
        elif name in ("latency", "jitter", "loss") and name not in values and math.isfinite(number(value)):
            values[name] = number(value)
        else:
            raise ConfigurationError(f"cannot be read: {part!r}", key="--network", fix=fix)
    return Network(
        latency_s=values.get("latency", 0.0) / 1e3,
        jitter_s=values.get("jitter", 0.0) / 1e3,
        loss=values.get("loss", 0.0),
        trace=trace,
    )


# --- what is shown ---------------------------------------------------------------------------------------------------------


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

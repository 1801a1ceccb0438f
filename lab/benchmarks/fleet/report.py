"""`rfm bench fleet`: a growing fleet on the network of one machine; its start, and the loss of its scheduler and of a server."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from lab.benchmarks.console import JsonFile, console
from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.operate.inputs import write_text

if TYPE_CHECKING:
    from lab.benchmarks.fleet.notes import Spread
    from lab.benchmarks.fleet.run import Failover, Growth, Restart, Run

MOST_PROCESSES = 32
"""Processes on one machine that discover each other without multicast (docs/hosts.md)."""
FAILOVER_HZ = 0.5
"""Request rate of each robot of the killed server: high enough that its remaining actions are soon over."""


def fleet(
    robots: Annotated[str, typer.Option(help="Numbers of robots, one after the other")] = "10,100,300",
    servers: Annotated[int, typer.Option(min=1, help="Emulated servers of each fleet")] = 4,
    seconds: Annotated[float, typer.Option(min=1, help="Measured of each fleet; every robot is to be answered twice")] = 40.0,
    rate: Annotated[float, typer.Option(min=0.01, max=2.0, metavar="HZ", help="Requests of each robot per second")] = 0.05,
    per_process: Annotated[int, typer.Option(min=1, help="Robots of one process")] = 25,
    failover: Annotated[
        int, typer.Option(min=0, help="Sessions of the server that is killed, beside one standby; 0: none is")
    ] = 64,
    restart: Annotated[bool, typer.Option(help="Kill the scheduler under the largest fleet, and start it again")] = True,
    patience: Annotated[float, typer.Option(min=10, metavar="S", help="Until a whole fleet is at work")] = 240.0,
    domain: Annotated[int, typer.Option(help="ROS domain of the measurement")] = 79,
    plot: Annotated[Path | None, typer.Option(metavar="FILE.png", help="Draw it")] = None,
    json_file: JsonFile = None,
) -> None:
    """What a fleet costs as it grows: discovery, memory, CPU per robot and answer, admissions, all of it live over DDS.

    Real robots' brains, servers and scheduler, each with its node; models are emulated. All robots start at once, ten more join
    them, the scheduler is killed and started again under the largest fleet; then a server with many sessions is killed.

    Example:  rfm bench fleet --robots 10,100 --plot fleet.png
    """
    from lab.benchmarks.fleet.factory import Shape
    from ros2_rfm_serving.operate.running import prepare_environment

    sizes = _sizes(robots)
    shapes = [Shape(size, servers, 0, rate) for size in sizes]
    for shape in shapes:
        _check(shape, per_process)
    prepare_environment(domain)
    grown: list[Growth] = []
    restarted: Restart | None = None
    lost: Failover | None = None
    for shape in shapes:
        with _running(shape, per_process, patience) as run:
            grown.append(run.measure(seconds, *run.start()))
            _write(json_file, grown, restarted, lost)  # results of a long run are kept if it is ended
            if restart and shape.robots == max(sizes):
                restarted = run.restart_scheduler(seconds / 2)
    if failover:
        with _running(Shape(failover, 2, 1, FAILOVER_HZ), per_process, patience) as run:
            run.start()
            lost = run.kill_server()
    console.print(growth_table(grown))
    if restarted or lost:
        console.print(events_table(restarted, lost))
    _write(json_file, grown, restarted, lost)
    if plot:
        from lab.benchmarks.fleet.plot import draw

        draw(grown, lost, plot)


def _sizes(text: str) -> list[int]:
    """Return the numbers of robots. Raises: `ConfigurationError`."""
    parts = text.split(",")
    if not all(part.strip().isdecimal() and int(part) for part in parts):
        raise ConfigurationError(f"{text!r} are no numbers of robots", key="--robots", fix="write them as 10,100,300")
    return [int(part) for part in parts]


def _check(shape: Any, per_process: int) -> None:
    """Check the number of processes. Raises: `ConfigurationError`."""
    from lab.benchmarks.fleet.crowd import PROBE_ROBOTS

    processes = math.ceil(max(0, shape.robots - PROBE_ROBOTS) / per_process) + shape.servers + 3
    if processes > MOST_PROCESSES:
        problem = f"{shape.robots} robots and {shape.servers} servers are {processes} processes; {MOST_PROCESSES} find one another"
        raise ConfigurationError(problem, key="--per-process", fix="more robots of one process, or fewer servers")


@contextmanager
def _running(shape: Any, per_process: int, patience_s: float) -> Iterator[Run]:
    from lab.benchmarks.fleet.crowd import crowd
    from lab.benchmarks.fleet.run import Run
    from lab.benchmarks.fleet.watcher import watching

    with (
        TemporaryDirectory(prefix="rfm_fleet_") as folder,
        _saying(f"{shape.robots} robots, {shape.servers} servers") as say,
        crowd(shape, Path(folder), per_process) as made,
        watching(made.servers) as watcher,
    ):
        yield Run(made, watcher, say, patience_s)


@contextmanager
def _saying(title: str) -> Iterator[Callable[[str], None]]:
    """Show one status line; without a terminal, print a line for each kind of message."""
    said: set[str] = set()
    with console.status(title) as status:

        def say(text: str) -> None:
            status.update(f"{title}: {text}")
            kind = text.partition(":")[0]
            if not console.is_terminal and kind not in said:
                said.add(kind)
                console.print(f"{title}: {kind}", highlight=False)

        yield say


# --- tables ---


def growth_table(rows: Sequence[Growth]) -> Table:
    table = Table(title="a fleet as it grows (servers EMULATED)", title_justify="left")
    table.add_column("")
    for row in rows:
        table.add_column(f"{row.robots} robots", justify="right")
    table.add_column("last / first", justify="right")
    for heading, value, digits in LINES:
        figures = [value(row) for row in rows]
        growth = figures[-1] / figures[0] if len(figures) > 1 and figures[0] else math.nan
        shown = "-" if math.isnan(growth) else f"{growth:.2f}"
        table.add_row(heading, *(f"{figure:.{digits}f}" for figure in figures), shown)
    return table


LINES: tuple[tuple[str, Callable[[Any], float], int], ...] = (
    ("processes", lambda row: row.processes, 0),
    ("all started at once: first answer, p50 (s)", lambda row: row.started.p50_s, 1),
    ("  the last one's (s)", lambda row: row.started.worst_s, 1),
    ("ten join: on the graph to session, p50 (s)", lambda row: row.joined.p50_s, 2),
    ("  the last one's (s)", lambda row: row.joined.worst_s, 2),
    ("answers/s", lambda row: row.answers_hz, 1),
    ("  of those asked for (%)", lambda row: 100 * row.answers_hz / row.asked_hz, 0),
    ("streaming at the end", lambda row: row.streaming, 0),
    ("process of 10 robots: memory (MB)", lambda row: row.probe.rss_mb, 0),
    ("  CPU per robot (% of a core)", lambda row: 100 * row.probe.cpu_share / min(10, row.robots), 2),
    ("  CPU per answer (ms)", lambda row: row.probe.cpu_ms, 1),
    ("all robots: memory per robot (MB)", lambda row: row.robots_rss_mb, 1),
    ("  CPU per answer (ms)", lambda row: row.robots_cpu_ms, 1),
    ("servers: memory of one (MB)", lambda row: row.server.rss_mb, 0),
    ("  CPU per answer (ms)", lambda row: row.server.cpu_ms, 1),
    ("scheduler: memory (MB)", lambda row: row.scheduler.rss_mb, 0),
    ("  CPU (% of a core)", lambda row: 100 * row.scheduler.cpu_share, 1),
    ("  CPU per robot (% of a core)", lambda row: 100 * row.scheduler.cpu_share / row.robots, 3),
    ("admission, p50 (ms)", lambda row: 1e3 * row.admit.p50_s, 0),
    ("  worst (ms)", lambda row: 1e3 * row.admit.worst_s, 0),
    ("whole schedule anew, p50 (ms)", lambda row: 1e3 * row.replan.p50_s, 0),
)


def events_table(restarted: Restart | None, lost: Failover | None) -> Table:
    table = Table(title="what befell it", title_justify="left")
    for heading in ("", "seen"):
        table.add_column(heading)
    if restarted:
        of = restarted.robots
        table.add_row(f"scheduler killed and started again under {of} robots", f"followed after {_shown(restarted.followed)}")
        table.add_row("", f"{restarted.moved} sessions opened anew; {restarted.answers_hz:.1f} answers/s meanwhile")
    if lost:
        table.add_row(f"server of {lost.sessions} sessions killed", f"session elsewhere after {_shown(lost.session)}")
        table.add_row("", f"served after {_shown(lost.served)}; never: {lost.unserved}")
        refusals = ", ".join(f"{count} {kind}" for kind, count in lost.refusals.items()) or "none"
        table.add_row("", f"at most {lost.most_at_once} sessions opened within 0.1 s; refused by the standby: {refusals}")
    return table


def _shown(of: Spread) -> str:
    return f"{of.p50_s:.2f} s (p90 {of.p90_s:.2f}, last {of.worst_s:.2f}; {of.num} robots)"


def _write(file: Path | None, grown: Sequence[Growth], restarted: Restart | None, lost: Failover | None) -> None:
    if file:
        from lab.benchmarks.fleet.run import as_json

        told: dict[str, Any] = {"growth": [as_json(row) for row in grown]}
        told |= {name: as_json(found) for name, found in (("restart", restarted), ("failover", lost)) if found}
        write_text(file, json.dumps(told, indent=1) + "\n")

"""`rfm bench robots`: cost of many robots in one process, over DDS, with an emulated server in a process of its own."""

from __future__ import annotations

import json
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from rich.table import Table

from ros2_rfm_serving.errors import RfmError
from ros2_rfm_serving.operate.inputs import console, write_text

if TYPE_CHECKING:
    from lab.benchmarks.robots.world import Surroundings

START_LIMIT_S = 120.0
SETTLE_S = 3.0
SERVER = "bench"


class Usage(NamedTuple):
    """Resource use of a process since its start."""

    rss_mb: float
    cpu_s: float
    threads: int


class Figures(NamedTuple):
    robots: int
    streaming: int
    """Streaming robots at the end: the others lack actions or wait."""
    stale: int
    """Robots without a report for longer than `STALE_PERIODS` at the end; they are in no figure."""
    rss_mb: float
    cpu_share: float
    """Share of one core."""
    threads: int
    actions_hz: float
    """Median per robot; NaN, like all reported figures: every robot is stale."""
    worst_actions_hz: float
    """Rate of the robot that executed fewest."""
    chunks_hz: float
    late_p50_ms: float
    """Lateness of the ticks, median robot."""
    late_p99_ms: float
    """Lateness of the ticks, worst robot."""


def robots(
    robots: Annotated[str, typer.Option(help="Numbers of robots, one after the other")] = "1,16,64",
    seconds: Annotated[float, typer.Option(min=1, help="Of every measurement")] = 20.0,
    tick: Annotated[str, typer.Option(help="What gives the control period its rhythm: state or timer")] = "timer",
    image_size_px: Annotated[int, typer.Option(help="Two cameras of this width and height")] = 96,
    model: Annotated[str, typer.Option(help="What the server runs")] = "emulated/instant",
    domain: Annotated[int, typer.Option(help="ROS domain of the measurement")] = 79,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the figures there")] = None,
) -> None:
    """Memory, CPU, threads and punctuality of one process by the number of its robots, all of them at work.

    Each robot: 20 control periods and states per second, two cameras at 5 Hz, a chunk every 0.4 s.

    Example:  rfm bench robots --robots 1,16
    """
    from ros2_rfm_serving.operate.running import prepare_environment

    prepare_environment(domain)
    rows = []
    for count in (int(part) for part in robots.split(",")):
        rows.append(_measure(count, seconds, tick, image_size_px, model))
        console.print(f"{count} robots: done")
    console.print(_table(rows))
    if json_file:
        write_text(json_file, json.dumps([_finite(row) for row in rows], indent=1) + "\n")


def _measure(count: int, seconds: float, tick: str, image_size_px: int, model: str) -> Figures:
    from lab.benchmarks.processes import process, spinning
    from lab.benchmarks.robots.world import Surroundings

    names = [f"robot_{i + 1}" for i in range(count)]
    server = {"model": model, "server": SERVER, "batch_size": 8, "gpu_type": "EMULATED", "max_sessions": count}
    with (
        parameters_of(server) as of_server,
        parameters_of(robot_parameters(names, tick)) as of_robots,
        process("ros2_rfm_serving.ros.model_server_node", *of_server),
        process("ros2_rfm_serving.ros.robots_node", *of_robots) as pid,
        spinning(lambda: Surroundings(names, SERVER, image_size_px)) as (node, spin),
    ):
        spin(lambda: _num_working(node) == count, START_LIMIT_S)
        if not node.at_work:
            raise RfmError(f"no robot has a task after {START_LIMIT_S:g} s; they say {_states(node)}")
        spin(lambda: False, SETTLE_S)
        before, before_s = usage(pid), time.monotonic()
        spin(lambda: False, seconds)
        after, took_s = usage(pid), time.monotonic() - before_s
        return _figures(count, node.figures.fresh(time.monotonic()), after, (after.cpu_s - before.cpu_s) / took_s)


def robot_parameters(names: list[str], tick: str) -> dict[str, Any]:
    from lab.benchmarks.path.sides import ACTION_NAMES, CAMERAS, CONTROL_RATE_HZ, STATE_SIZE

    return {
        "robots": names,
        "action_names": list(ACTION_NAMES),
        "cameras": list(CAMERAS),
        "state_size": STATE_SIZE,
        "control_rate_hz": CONTROL_RATE_HZ,
        "tick": tick,
    }


@contextmanager
def parameters_of(values: dict[str, Any]) -> Iterator[list[str]]:
    """Yield command-line arguments for a node with these parameters."""
    from ros2_rfm_serving.factory.nodes import parameter_file

    with TemporaryDirectory() as folder:
        file = Path(folder) / "parameters.yaml"
        file.write_text(parameter_file(values), encoding="utf-8")
        yield ["--ros-args", "--params-file", str(file)]


def usage(pid: int) -> Usage:
    """Return the resource use of a process. Linux only."""
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines())
    ticks = int(stat[11]) + int(stat[12])
    return Usage(int(status["VmRSS"].split()[0]) / 1024, ticks / os.sysconf("SC_CLK_TCK"), int(status["Threads"]))


def _num_working(node: Surroundings) -> int:
    return sum(told["state"] == "STREAMING" for told in node.figures.fresh(time.monotonic())) if node.at_work else 0


def _states(node: Surroundings) -> dict[str, int]:
    return dict(Counter(told["state"] for told in node.figures.fresh(time.monotonic())))


def _figures(count: int, fresh: list[dict[str, str]], after: Usage, cpu_share: float) -> Figures:
    def over_robots(key: str, summary: Callable[[list[float]], float]) -> float:
        return summary([float(told[key]) for told in fresh]) if fresh else math.nan

    return Figures(
        robots=count,
        streaming=sum(told["state"] == "STREAMING" for told in fresh),
        stale=count - len(fresh),
        rss_mb=after.rss_mb,
        cpu_share=cpu_share,
        threads=after.threads,
        actions_hz=over_robots("action_rate_hz", median),
        worst_actions_hz=over_robots("action_rate_hz", min),
        chunks_hz=over_robots("chunk_rate_hz", median),
        late_p50_ms=over_robots("tick_late_p50_ms", median),
        late_p99_ms=over_robots("tick_late_p99_ms", max),
    )


def _finite(row: Figures) -> dict[str, float | None]:
    """Return the row without NaN, which JSON lacks."""
    return {name: value if math.isfinite(value) else None for name, value in row._asdict().items()}


def _shown(value: float, digits: int) -> str:
    return "stale" if math.isnan(value) else f"{value:.{digits}f}"


def _table(rows: list[Figures]) -> Table:
    table = Table(title="one process of robots", title_justify="left")
    headings = ("robots", "memory (MB)", "per further robot (MB)", "CPU (% of a core)", "per robot (%)", "threads")
    figures = ("streaming", "stale", "actions/s each", "of the worst", "chunks/s each")
    for heading in (*headings, *figures, "tick late p50 (ms)", "p99 of the worst (ms)"):
        table.add_column(heading, justify="right")
    for row in rows:
        further = row.robots - rows[0].robots
        table.add_row(
            str(row.robots),
            f"{row.rss_mb:.0f}",
            f"{(row.rss_mb - rows[0].rss_mb) / further:.2f}" if further > 0 else "-",
            f"{100 * row.cpu_share:.1f}",
            f"{100 * row.cpu_share / row.robots:.2f}",
            str(row.threads),
            str(row.streaming),
            str(row.stale),
            _shown(row.actions_hz, 1),
            _shown(row.worst_actions_hz, 1),
            _shown(row.chunks_hz, 2),
            _shown(row.late_p50_ms, 2),
            _shown(row.late_p99_ms, 2),
        )
    return table

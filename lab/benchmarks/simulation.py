"""`rfm bench simulation`: speed of virtual time, and work per request in it."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from ros2_rfm_serving import compiled
from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.operate.inputs import FactoryFile, Policy, console, load_inputs, solve, write_text
from ros2_rfm_serving.operate.progress import spinner

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ros2_rfm_serving.simulation import Report

ROBOTS_PER_SERVER = 8
"""Robots per server where a fleet is too large for the descriptor's servers."""
WARM_UP_S = 2.0
COUNTED_S = 0.5
"""Virtual time whose work is counted, which takes several times as long."""
Run = Callable[[float], "Report"]
"""Function of the seconds of virtual time after the warm-up to the report."""


@dataclass(frozen=True, kw_only=True)
class Row:
    robots: int
    servers: int
    requests_hz: float
    """Requests per second of virtual time."""
    speeds: list[float]
    """Virtual seconds per CPU second of this process, including the construction of the factory, by round."""
    calls: float
    """Function calls per request; of compiled functions only those from the interpreter."""


def simulation(
    file: FactoryFile,
    robots: Annotated[str, typer.Option(help="Numbers of robots, commas between them")] = "64,1000",
    policy: Policy = "best",
    seconds: Annotated[float, typer.Option(min=1, help="Virtual time of a round")] = 20.0,
    rounds: Annotated[int, typer.Option(min=1, help="Of each number, by turns")] = 5,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the figures there")] = None,
) -> None:
    """Virtual seconds per CPU second, and calls of functions per request.

    Example:  rfm bench simulation config/rosa/p4.yaml --robots 64,1000
    """
    fleets = [_fleet(file, number, policy) for number in _numbers(robots)]
    with spinner("simulating"):
        speeds = [[_speed(run, seconds) for _, run in fleets] for _ in range(rounds)]
        rows = [
            _row(servers, number, run, [each[i] for each in speeds])
            for i, ((servers, run), number) in enumerate(zip(fleets, _numbers(robots), strict=True))
        ]
    console.print(_table(rows))
    if json_file:
        write_text(json_file, json.dumps([vars(row) for row in rows], indent=1) + "\n")


def _numbers(text: str) -> list[int]:
    """Parse numbers of robots. Raises: `ConfigurationError`."""
    numbers = [int(part) if part.strip().isdecimal() else 0 for part in text.split(",")]
    if not all(numbers):
        raise ConfigurationError(f"is {text!r}", key="--robots", fix="give numbers from 1 on, commas between them")
    return numbers


def _fleet(file: Path, robots: int, policy: str) -> tuple[int, Run]:
    """Return the number of servers, and the factory's run. Raises: `ConfigurationError` when the policy places nothing."""
    from ros2_rfm_serving.scheduler import to_schedule
    from ros2_rfm_serving.simulation import simulate

    inputs = load_inputs(file, None, None, robots=robots)
    declared = sum(group.num_servers for group in inputs.factory.server_cluster)
    servers = max(declared, math.ceil(robots / ROBOTS_PER_SERVER))
    inputs = load_inputs(file, None, None, robots=robots, servers=servers)
    solution = solve(inputs, policy, None, None)
    if not solution.servers:
        raise ConfigurationError(
            f"{policy!r} places nothing for {robots} robots", key="--robots", fix="give fewer, or another policy"
        )
    schedule = to_schedule(solution, inputs.factory.robots, epoch=1)

    def run(seconds: float) -> Report:
        given = (schedule, inputs.factory, inputs.catalogue, inputs.profile)
        return simulate(*given, seconds=seconds, seed=0, warm_up_s=WARM_UP_S)

    return servers, run


def _speed(run: Run, seconds: float) -> float:
    began_s = time.process_time()
    run(seconds)
    return (WARM_UP_S + seconds) / (time.process_time() - began_s)


def _row(servers: int, robots: int, run: Run, speeds: list[float]) -> Row:
    short, long = _counted(run, COUNTED_S), _counted(run, 2 * COUNTED_S)
    requests = long[1] - short[1]
    return Row(
        robots=robots,
        servers=servers,
        requests_hz=requests / COUNTED_S,
        speeds=speeds,
        calls=(long[0] - short[0]) / max(1, requests),
    )


def _counted(run: Run, seconds: float) -> tuple[int, int]:
    """Return function calls and requests; a difference of two runs excludes the construction of the factory."""
    with counting() as calls:
        report = run(seconds)
    return sum(calls.values()), report.counters.sent


@contextmanager
def counting() -> Iterator[dict[str, int]]:
    """Count function calls meanwhile, of Python's own and of C, which are the same on every machine."""
    calls = {"call": 0, "c_call": 0, "return": 0, "c_return": 0, "c_exception": 0}

    def note(_frame: object, event: str, _arg: Any) -> None:
        calls[event] += 1

    sys.setprofile(note)
    try:
        yield calls
    finally:
        sys.setprofile(None)
        for other in ("return", "c_return", "c_exception"):
            del calls[other]


def _table(rows: list[Row]) -> Table:
    table = Table(title=f"virtual time, {'compiled' if compiled.in_use() else 'interpreted'}", title_justify="left")
    for heading in ("robots", "servers", "requests per virtual s", "virtual s per CPU s", "calls per request"):
        table.add_column(heading, justify="right")
    for row in rows:
        spread = f"{median(row.speeds):.3g} ({min(row.speeds):.3g} - {max(row.speeds):.3g})"
        table.add_row(str(row.robots), str(row.servers), f"{row.requests_hz:.0f}", spread, f"{row.calls:.0f}")
    return table

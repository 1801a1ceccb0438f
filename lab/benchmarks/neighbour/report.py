"""`rfm bench neighbour`: robots of one server, alone and beside a client that misbehaves in one way after the other."""

from __future__ import annotations

import json
import math
import os
import signal
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, NamedTuple

import typer
from rich.table import Table

from ros2_rfm_serving.errors import RfmError
from ros2_rfm_serving.operate.inputs import console, write_text

SERVER = "bench"
NEIGHBOURS = {
    "flood": "500 observations per second",
    "huge": "two images of 2048 x 1536 twenty times a second",
    "progressive": "the same, progressive",
    "sessions": "opens sessions, eight calls at a time",
    "jacobian": "asks for the true Jacobian, fifty times a second",
    "infer": "goals of infer, eight at a time",
}
START_LIMIT_S, SETTLE_S = 60.0, 3.0
TURN_S, SWITCH_S = 2.0, 0.5
"""Duration of a turn with or without the client, and of the pause before each, in which pending work ends."""


class Turn(NamedTuple):
    begun_s: float
    ended_s: float
    beside: bool


class Side(NamedTuple):
    requests: int
    answered: float
    """Share of answered requests."""
    p50_ms: float
    """Median of the turns, like the next field: fluctuations of the machine affect only some turns."""
    p99_ms: float


class Row(NamedTuple):
    neighbour: str
    alone: Side
    beside: Side
    change: tuple[float, float, float]
    """Quartiles of (p99 beside / p99 alone - 1) of two consecutive turns."""
    counted: dict[str, int]
    """Requests that the server refused or did not receive, by reason."""


def neighbour(
    robots: Annotated[int, typer.Option(min=1, help="Robots, each with five requests per second and two images of 640 x 480")] = 8,
    seconds: Annotated[float, typer.Option(min=1, help="Alone and beside each neighbour, by turns")] = 20.0,
    model: Annotated[str, typer.Option(help="What the server runs")] = "emulated/arm-policy",
    gpu_type: Annotated[str, typer.Option(help="Of the server")] = "EMULATED",
    only: Annotated[str, typer.Option(help="Neighbours, by name and separated by commas; empty: all")] = "",
    domain: Annotated[int, typer.Option(help="ROS domain of the measurement")] = 79,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the figures there")] = None,
) -> None:
    """What one misbehaving client costs the robots of the same server.

    Example:  rfm bench neighbour --only flood,infer
    """
    from ros2_rfm_serving.operate.running import prepare_environment
    from ros2_rfm_serving.ros.node.middleware import use_profile

    prepare_environment(domain)
    use_profile("large_images.xml")
    chosen = [name for name in only.split(",") if name] if only else list(NEIGHBOURS)
    rows = []
    for name in chosen:
        rows.append(_measure(name, robots, seconds, model, gpu_type))
        console.print(f"{name}: done")
    console.print(_table(rows))
    if json_file:
        write_text(json_file, json.dumps([_plain(row) for row in rows], indent=1) + "\n")


def _measure(name: str, robots: int, seconds: float, model: str, gpu_type: str) -> Row:
    """Measure with a new server each time, so that one neighbour leaves nothing for the next. The client is stopped and continued
    in turns, so that fluctuations of the machine affect both sides."""
    from lab.benchmarks.neighbour.robots import Record
    from lab.benchmarks.processes import process

    server = {"server": SERVER, "model": model, "gpu_type": gpu_type, "batch_size": 8, "max_sessions": 2 * robots}
    turns: list[Turn] = []
    with TemporaryDirectory() as folder, ExitStack() as running:
        record = Path(folder) / "answers.json"
        running.enter_context(process("ros2_rfm_serving.ros.model_server_node", *_arguments(server)))
        polite = {"record": str(record), "robots": robots, "server": SERVER}
        running.enter_context(process("lab.benchmarks.neighbour.robots", *_arguments(polite)))
        pest = {"does": name, "server": SERVER}
        pid = running.enter_context(process("lab.benchmarks.neighbour.pest", *_arguments(pest)))
        _wait_for(record)
        time.sleep(SETTLE_S)
        for i in range(2 * max(1, round(seconds / TURN_S))):
            os.kill(pid, signal.SIGCONT if i % 2 else signal.SIGSTOP)
            time.sleep(SWITCH_S)
            begun_s = time.monotonic()
            time.sleep(TURN_S)
            turns.append(Turn(begun_s, time.monotonic(), bool(i % 2)))
        os.kill(pid, signal.SIGCONT)
        time.sleep(SETTLE_S)
        told = Record(*json.loads(record.read_text(encoding="utf-8")))
    alone, beside = ([_of_turn(turn, told.sent) for turn in turns if turn.beside is side] for side in (False, True))
    changes = [two.p99_ms / one.p99_ms - 1.0 for one, two in zip(alone, beside, strict=True)]
    return Row(name, _typical(alone), _typical(beside), _quartiles(changes), told.counted)


def _of_turn(turn: Turn, sent: list[tuple[float, float | None]]) -> Side:
    answers_s = [answer_s for sent_s, answer_s in sent if turn.begun_s <= sent_s <= turn.ended_s]
    latencies_ms = sorted(1e3 * answer_s for answer_s in answers_s if answer_s is not None)
    share = len(latencies_ms) / len(answers_s) if answers_s else math.nan
    return Side(len(answers_s), share, _quantile(latencies_ms, 0.5), _quantile(latencies_ms, 0.99))


def _typical(turns: list[Side]) -> Side:
    requests = sum(turn.requests for turn in turns)
    answered = sum(turn.answered * turn.requests for turn in turns) / max(1, requests)
    return Side(requests, answered, _median([turn.p50_ms for turn in turns]), _median([turn.p99_ms for turn in turns]))


def _arguments(parameters: Mapping[str, object]) -> list[str]:
    return ["--ros-args", *(part for name, value in parameters.items() for part in ("-p", f"{name}:={value}"))]


def _wait_for(record: Path) -> None:
    end_s = time.monotonic() + START_LIMIT_S
    while not record.exists():
        if time.monotonic() > end_s:
            raise RfmError(f"the robots have no sessions after {START_LIMIT_S:g} s")
        time.sleep(0.1)


def _plain(row: Row) -> dict[str, object]:
    return {**row._asdict(), "alone": row.alone._asdict(), "beside": row.beside._asdict()}


def _median(values: list[float]) -> float:
    return _quantile(sorted(values), 0.5)


def _quartiles(values: list[float]) -> tuple[float, float, float]:
    ordered = sorted(values)
    return _quantile(ordered, 0.25), _quantile(ordered, 0.5), _quantile(ordered, 0.75)


def _quantile(ordered: list[float], quantile: float) -> float:
    return ordered[min(len(ordered) - 1, int(quantile * len(ordered)))] if ordered else math.nan


def _table(rows: list[Row]) -> Table:
    title = "robots of one server, alone and beside a neighbour; medians of turns of 2 s, change with quartiles"
    table = Table(title=title, title_justify="left")
    words = ("neighbour", "what it does")
    headings = (*words, "requests", "answered", "lost on the way", "p50 alone (ms)", "beside", "p99 alone (ms)", "beside", "change")
    for heading in headings:
        table.add_column(heading, justify="left" if heading in words else "right")
    for name, alone, beside, change, counted in rows:
        p50, p99 = ((f"{one:.1f}", f"{two:.1f}") for one, two in ((alone.p50_ms, beside.p50_ms), (alone.p99_ms, beside.p99_ms)))
        low, middle, high = (f"{share:+.0%}" for share in change)
        lost = str(counted.get("lost_on_the_way", 0))
        shown = f"{middle} ({low}, {high})"
        table.add_row(name, NEIGHBOURS[name], str(beside.requests), f"{beside.answered:.1%}", lost, *p50, *p99, shown)
    return table

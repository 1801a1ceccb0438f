"""`rfm bench dashboard`: cost of the web page for its process, by the number of robots, with one page open."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from rich.table import Table

from ros2_rfm_serving.errors import RfmError
from ros2_rfm_serving.operate.inputs import console, write_text

START_LIMIT_S, SETTLE_S = 60.0, 5.0
HOST = "127.0.0.1"


class Figures(NamedTuple):
    robots: int
    pages: int
    cpu_share: float
    """CPU time as a share of one core."""
    rss_mb: float
    kb_per_s: float
    """Data rate to each page."""
    frames_hz: float


def dashboard(
    robots: Annotated[str, typer.Option(help="Numbers of robots, one after the other")] = "30,300",
    pages: Annotated[int, typer.Option(min=0, help="That are open")] = 1,
    seconds: Annotated[float, typer.Option(min=1, help="Of every measurement")] = 20.0,
    domain: Annotated[int, typer.Option(help="ROS domain of the measurement")] = 81,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the figures there")] = None,
) -> None:
    """CPU and memory of `rfm dashboard`. The robots and servers are stand-ins: one process publishes what they would, at 2 Hz.

    Example:  rfm bench dashboard --robots 300
    """
    from ros2_rfm_serving.operate.running import prepare_environment

    prepare_environment(domain)
    rows = [_measure(int(count), pages, seconds) for count in robots.split(",")]
    console.print(_table(rows))
    if json_file:
        write_text(json_file, json.dumps([row._asdict() for row in rows], indent=1) + "\n")


def _measure(count: int, pages: int, seconds: float) -> Figures:
    from lab.benchmarks.processes import process
    from lab.benchmarks.robots.report import usage

    port = _free_port()
    serve = ("ros2_rfm_serving.cli", "dashboard", "--port", str(port))
    with process("lab.benchmarks.dashboard.stand_in", str(count)), process(*serve) as pid:
        _await_all(port, count)
        with _reading(port, pages) as readers:
            time.sleep(SETTLE_S)
            before, read, frames, begin_s = usage(pid), _total(readers), _frames(readers), time.monotonic()
            time.sleep(seconds)
            after, took_s = usage(pid), time.monotonic() - begin_s
            per_page_s = max(pages, 1) * took_s
            return Figures(
                robots=count,
                pages=pages,
                cpu_share=(after.cpu_s - before.cpu_s) / took_s,
                rss_mb=after.rss_mb,
                kb_per_s=(_total(readers) - read) / per_page_s / 1024,
                frames_hz=(_frames(readers) - frames) / per_page_s,
            )


class Reader(threading.Thread):
    """Client that its server sees as an open page."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self._stream = urllib.request.urlopen(f"http://{HOST}:{port}/api/stream", timeout=30)
        self.num_bytes = self.num_frames = 0

    def run(self) -> None:
        while line := self._stream.readline():
            self.num_bytes += len(line)
            self.num_frames += line.startswith(b"data:")


@contextmanager
def _reading(port: int, pages: int) -> Iterator[list[Reader]]:
    readers = [Reader(port) for _ in range(pages)]
    for reader in readers:
        reader.start()
    yield readers


def _await_all(port: int, count: int) -> None:
    end_s, heard = time.monotonic() + START_LIMIT_S, 0
    while heard < count:
        if time.monotonic() > end_s:
            raise RfmError(f"{heard} of {count} stand-ins were heard within {START_LIMIT_S:g} s")
        time.sleep(0.5)
        try:
            with urllib.request.urlopen(f"http://{HOST}:{port}/api/stream", timeout=5) as stream:
                told = next(line for line in stream if line.startswith(b"data:"))
        except OSError:
            continue
        heard = len(re.findall(rb'"state":"(?:STREAMING|DEGRADED)"', told))


def _total(readers: list[Reader]) -> int:
    return sum(reader.num_bytes for reader in readers)


def _frames(readers: list[Reader]) -> int:
    return sum(reader.num_frames for reader in readers)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def _table(rows: list[Figures]) -> Table:
    table = Table(title="rfm dashboard, robots and servers are stand-ins", title_justify="left")
    for heading in ("robots", "pages open", "CPU (% of a core)", "memory (MB)", "to a page (KB/s)", "frames/s"):
        table.add_column(heading, justify="right")
    for row in rows:
        shown = (f"{100 * row.cpu_share:.1f}", f"{row.rss_mb:.0f}", f"{row.kb_per_s:.0f}", f"{row.frames_hz:.1f}")
        table.add_row(str(row.robots), str(row.pages), *shown)
    return table

"""One system of `rfm bench serving`, once: its server, then each number of clients."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lab.benchmarks.serving.marked_processes import Marked
from lab.benchmarks.serving.systems import System
from ros2_rfm_serving.errors import RfmError

START_LIMIT_S, CLIENTS_LIMIT_S = 120.0, 150.0
"""Limits of start and measurement; the latter is beyond the measured time, for imports, connecting, a peer's lost replies."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """Results with one number of clients."""

    clients: int
    requests: int
    added_p50_ms: float
    """Time from request to reply, minus the model's time; NaN: no reply."""
    added_p99_ms: float
    requests_hz: float
    server_cpu_ms: float
    """CPU time per request, of all processes of the server."""
    clients_cpu_ms: float
    wrong: int
    """Replies to another request."""
    failed: int
    """Requests without a reply."""
    left_out: int = 0
    """Requests at a rate that were due while their client waited for the one before."""

    @property
    def cpu_ms(self) -> float:
        return self.server_cpu_ms + self.clients_cpu_ms


@dataclass(frozen=True, kw_only=True)
class Visit:
    """Results of one round of one system."""

    start_s: float
    """Time from the start of its process until it serves."""
    memory_mb: float
    """Memory of the server's processes, after the last number of clients."""
    num_processes: int
    cells: tuple[Cell, ...]


def visit(system: System, clients: Sequence[int], model_s: float, seconds: float) -> Visit:
    """Measure a system once. Raises: `RfmError` with the system's last output."""
    server = Marked(system.server, system.environment)
    try:
        start_s, output = _await(server, system.ready)
        cells = tuple(_measure(system, server, number, model_s, seconds) for number in clients)
        if server.process.poll() is not None:
            raise RfmError(f"{system.title} ended: {output[-1] if output else ''}")
        return Visit(start_s=start_s, memory_mb=server.memory_mb(), num_processes=len(server.pids()), cells=cells)
    finally:
        server.end()


def _await(server: Marked, ready: str) -> tuple[float, deque[str]]:
    """Return (seconds until the server is ready, its last lines, which are updated)."""
    said, lines = threading.Event(), deque[str](maxlen=20)
    started_s, ready_s = time.monotonic(), float("inf")

    def listen() -> None:
        nonlocal ready_s
        assert server.process.stdout
        for line in server.process.stdout:
            if line.strip():
                lines.append(line.strip())
            if ready in line and not said.is_set():
                ready_s = time.monotonic()
                said.set()
        said.set()

    threading.Thread(target=listen, daemon=True).start()
    if not said.wait(START_LIMIT_S) or ready_s == float("inf"):
        raise RfmError(f"the server does not start within {START_LIMIT_S:g} s: {lines[-1] if lines else 'it says nothing'}")
    return ready_s - started_s, lines


def _measure(system: System, server: Marked, number: int, model_s: float, seconds: float) -> Cell:
    clients = Marked((*system.clients, "--clients", str(number)), system.environment, subprocess.DEVNULL)
    watchdog = threading.Timer(CLIENTS_LIMIT_S + seconds, clients.kill)
    watchdog.daemon = True
    watchdog.start()
    cpu_s: dict[str, tuple[float, float]] = {}
    told: dict[str, Any] = {}
    try:
        assert clients.process.stdout
        for line in clients.process.stdout:
            if line.strip() in ("BEGIN", "END"):
                cpu_s[line.strip()] = (server.cpu_s(), clients.cpu_s())
            elif line.startswith("{"):
                told = json.loads(line)
    finally:
        watchdog.cancel()
        clients.end()
    if not told:
        raise RfmError(f"{number} clients of {system.title} did not finish")
    used = [after - before for before, after in zip(cpu_s["BEGIN"], cpu_s["END"], strict=True)]
    return cell(number, told, (used[0], used[1]), model_s, seconds)


def cell(number: int, told: dict[str, Any], used_s: tuple[float, float], model_s: float, seconds: float) -> Cell:
    """Return the results. told: output of the clients; used_s: CPU time of server and clients."""
    added_ms = 1e3 * (np.asarray(told["latencies_s"], float) - model_s)
    requests = len(added_ms)
    p50, p99 = np.quantile(added_ms, (0.5, 0.99)) if requests else (np.nan, np.nan)
    server_ms, clients_ms = (1e3 * used / requests if requests else float("nan") for used in used_s)
    return Cell(
        clients=number,
        requests=requests,
        added_p50_ms=float(p50),
        added_p99_ms=float(p99),
        requests_hz=requests / seconds,
        server_cpu_ms=server_ms,
        clients_cpu_ms=clients_ms,
        wrong=told["wrong"],
        failed=told["failed"],
        left_out=told.get("left_out", 0),
    )

"""HTTP endpoints `/metrics`, `/healthz`, `/livez` and `/readyz` of a board, and `/livez/<server>` and `/readyz/<server>` of one
server."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.monitoring.board import Board
from ros2_rfm_serving.monitoring.disk import disk_usage
from ros2_rfm_serving.monitoring.metrics.families import BoardCollector
from ros2_rfm_serving.monitoring.metrics.health import not_alive, not_living, not_ready
from ros2_rfm_serving.monitoring.metrics.http import bounded_server
from ros2_rfm_serving.security.tls import ServerTls

Start = Callable[[str, list[tuple[str, str]]], object]
PROBES: dict[str, Callable[[Board, float, str], list[str]]] = {"livez": not_living, "readyz": not_ready}


class DiskCollector(Collector):
    """Metrics of the file system that holds the logs and recordings of this machine."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def collect(self) -> Iterator[Metric]:
        usage = disk_usage(self._folder)
        for word, about, value in (("size", "Of the file system", usage.total), ("free", "Left on it", usage.free)):
            family = GaugeMetricFamily(f"rfm_disk_{word}_bytes", about, labels=["path"])
            family.add_metric([str(self._folder)], value)
            yield family


class DoorCollector(Collector):
    """Metrics of the exporter's own port."""

    def __init__(self, turned_away: Callable[[], Mapping[str, int]]) -> None:
        self._turned_away = turned_away

    def collect(self) -> Iterator[Metric]:
        family = CounterMetricFamily("rfm_exporter_refused", "Connections that were not answered", labels=["reason"])
        for reason, number in self._turned_away().items():
            family.add_metric([reason], number)
        yield family


class App:
    """WSGI application of the endpoints."""

    def __init__(self, board: Board, folder: Path, server: str = "") -> None:
        registry = CollectorRegistry()
        self.turned_away: Mapping[str, int] = {}
        """Number of refused connections by reason."""
        own = DoorCollector(lambda: self.turned_away)
        for collector in (BoardCollector(board, time.monotonic, server), DiskCollector(folder.resolve()), own):
            registry.register(collector)
        ProcessCollector(registry=registry), PlatformCollector(registry=registry), GCCollector(registry=registry)
        self._metrics, self._board, self._server = make_wsgi_app(registry), board, server

    def __call__(self, environ: dict[str, Any], start: Start) -> Iterable[bytes]:
        now_s, path = time.monotonic(), environ.get("PATH_INFO", "/")
        if path == "/metrics":
            return self._metrics(environ, start)  # type: ignore[no-any-return]
        if path == "/healthz":
            return _answer(start, not_alive(self._board, now_s))
        probe, _, server = path.removeprefix("/").partition("/")
        if probe in PROBES:
            return _answer(start, PROBES[probe](self._board, now_s, server or self._server))
        start("404 Not Found", [("Content-Type", "text/plain; charset=utf-8")])
        return [b"/metrics /healthz /livez /readyz /livez/<server> /readyz/<server>\n"]


def _answer(start: Start, problems: list[str]) -> Iterable[bytes]:
    start("503 Service Unavailable" if problems else "200 OK", [("Content-Type", "application/json")])
    return [json.dumps({"ok": not problems, "problems": problems}).encode() + b"\n"]


@contextmanager
def exporting(board: Board, address: str, port: int, folder: Path, server: str = "", tls: ServerTls | None = None) -> Iterator[str]:
    """Serve the board until the context ends; yield the URL of the metrics. folder: the file system to observe. server: restrict it
    to that server. Raises: `ConfigurationError` when the port cannot be opened."""
    app = App(board, folder, server)
    try:
        http = bounded_server(address, port, app, tls)
    except OSError as error:
        problem = f"{address}:{port} cannot be listened on: {error.strerror or error}"
        raise ConfigurationError(problem, key="port", fix="choose another port, or 0 for any") from None
    app.turned_away = http.turned_away
    thread = threading.Thread(target=http.serve_forever, name="metrics", daemon=True)
    thread.start()
    try:
        yield f"{'https' if tls else 'http'}://{address}:{http.server_port}/metrics"
    finally:
        http.shutdown()
        http.server_close()
        thread.join(timeout=5.0)

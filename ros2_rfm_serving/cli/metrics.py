"""`rfm metrics`: figures of a running factory for Prometheus."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Annotated

import typer

from ros2_rfm_serving.operate.enclaves import members
from ros2_rfm_serving.operate.extras import needing
from ros2_rfm_serving.operate.running import METRICS_PORT, console, observing, prepare_environment, stop_signals


def metrics(
    port: Annotated[int, typer.Option(min=0, max=65535, help="Of /metrics, /healthz, /livez and /readyz; 0: any")] = METRICS_PORT,
    address: Annotated[str, typer.Option(help="To listen on; 0.0.0.0: everybody may read")] = "127.0.0.1",
    server: Annotated[str, typer.Option(help="Of this server alone: a port of its own for each; empty: the whole factory")] = "",
    disk: Annotated[Path, typer.Option(help="Watch the file system of this folder")] = Path("logs"),
    tls: Annotated[Path | None, typer.Option(metavar="DIR", help="With cert.pem and key.pem, for TLS; default: plain text")] = None,
    domain: Annotated[int, typer.Option(help="ROS domain; -1: ROS_DOMAIN_ID or 0")] = -1,
    namespace: Annotated[str, typer.Option(help="Namespace of the whole factory")] = "",
) -> None:
    """Serves the figures of a factory to Prometheus, from the graph alone; until Ctrl-C. It may be started before the factory.

    Examples:  rfm metrics   |   rfm metrics --server server_1 --port 9465

    Exit code: 0, or 2 when the port is taken.
    """
    prepare_environment(domain)
    from ros2_rfm_serving.monitoring.board import Board
    from ros2_rfm_serving.security.tls import ServerTls

    with needing("metrics", "rfm metrics"):
        from ros2_rfm_serving.monitoring.metrics.exporter import exporting

    member = members(tls)
    board, stop = Board([], [server] if server else []), threading.Event()
    made = ServerTls(tls, "--tls") if tls else None
    with (
        stop_signals(stop),
        observing(board, namespace, discover=not server, enclave=member),
        exporting(board, address, port, disk, server, made) as url,
    ):
        console.print(f"{url}, /healthz, /livez, /readyz")
        stop.wait()

"""`rfm dashboard`: a running factory as a web page."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Annotated

import typer

from ros2_rfm_serving.operate.enclaves import members
from ros2_rfm_serving.operate.page import DASHBOARD_PORT, dashboard_page
from ros2_rfm_serving.operate.running import observing, prepare_environment, stop_signals


def dashboard(
    port: Annotated[int, typer.Option(min=0, max=65535, help="Of the page; 0: any")] = DASHBOARD_PORT,
    address: Annotated[str, typer.Option(help="To listen on; 0.0.0.0: everybody may look")] = "127.0.0.1",
    token_file: Annotated[
        Path | None, typer.Option(help="Who may act: a line `name token` each; default: one token, drawn at random and printed")
    ] = None,
    tls: Annotated[Path | None, typer.Option(metavar="DIR", help="With cert.pem and key.pem, for TLS; default: plain text")] = None,
    domain: Annotated[int, typer.Option(help="ROS domain; -1: ROS_DOMAIN_ID or 0")] = -1,
    namespace: Annotated[str, typer.Option(help="Namespace of the whole factory")] = "",
) -> None:
    """Serves a page with the robots, servers, schedule and events of a factory, however it was started, until Ctrl-C. Everybody
    with access to its address may look; pausing, resuming, aborting, admitting, releasing and draining take the token.

    Examples:  rfm dashboard   |   rfm dashboard --port 8080 --token-file tokens.txt --domain 7

    Exit code: 0, or 2 when the port is taken.
    """
    prepare_environment(domain)
    from ros2_rfm_serving.monitoring.board import Board

    member = members(tls)
    board, stop = Board([], []), threading.Event()
    with (
        stop_signals(stop),
        observing(board, namespace, discover=True, enclave=member) as node,
        dashboard_page(board, node, namespace, address, port, token_file, tls),
    ):
        stop.wait()

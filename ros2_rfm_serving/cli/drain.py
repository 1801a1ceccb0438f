"""`rfm drain`: before a server is stopped, by hand or by whatever runs it."""

from __future__ import annotations

from typing import Annotated

import typer

from ros2_rfm_serving.operate.running import console, prepare_environment

WITHIN_S = 10.0
"""Twice the time that a server needs for running and waiting requests, unless its `drain_timeout_s` differs."""


def drain(
    server: Annotated[str, typer.Argument(metavar="SERVER", help="Its name, such as server_1", show_default=False)],
    within: Annotated[float, typer.Option(min=0.1, help="Wait for so long, s")] = WITHIN_S,
    domain: Annotated[int, typer.Option(help="ROS domain; -1: ROS_DOMAIN_ID or 0")] = -1,
    namespace: Annotated[str, typer.Option(help="Namespace of the whole factory")] = "",
) -> None:
    """Lets a server finish what it has and take nothing new; its robots turn to others.

    It stays drained until it is activated (`rfm order`, `rfm dashboard`), started again, or another schedule comes.

    Example:  rfm drain server_1

    Exit code: 0, or 2 when no status of it is received, or it does not finish.
    """
    prepare_environment(domain)
    from ros2_rfm_serving.operate.draining import drain as drain_server

    console.print(drain_server(server, namespace, within), markup=False, highlight=False)

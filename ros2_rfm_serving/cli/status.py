"""`rfm status`: the state of a factory that another process has started."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Annotated

import typer
from rich.live import Live

from ros2_rfm_serving.operate.looking import await_factory
from ros2_rfm_serving.operate.running import console, observing, prepare_environment, stop_signals

if TYPE_CHECKING:
    from ros2_rfm_serving.monitoring.board import Board


def status(
    watch: Annotated[bool, typer.Option(help="Go on until Ctrl-C")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The figures alone, as JSON; with --watch, a line every second")] = False,
    domain: Annotated[int, typer.Option(help="ROS domain; -1: ROS_DOMAIN_ID or 0")] = -1,
    namespace: Annotated[str, typer.Option(help="Namespace of the whole factory")] = "",
    wait: Annotated[float, typer.Option(min=0, help="Look for a factory for so long, s")] = 5.0,
) -> None:
    """Shows the robots and servers of a running factory, however it was started, as `rfm up` does.

    Examples:  rfm status --watch   |   rfm status --json --domain 7

    Exit code: 0, or 2 when no factory is there.
    """
    prepare_environment(domain)
    from ros2_rfm_serving.monitoring.board import Board

    board, stop = Board([], []), threading.Event()
    with stop_signals(stop), observing(board, namespace, discover=True):
        await_factory(board, wait, stop)
        if watch:
            _watch(board, stop, as_json)
        elif not stop.is_set():
            _show(board, as_json)


def _watch(board: Board, stop: threading.Event, as_json: bool) -> None:
    if as_json or not console.is_terminal:
        _show(board, as_json)
        while not stop.wait(1.0):
            _show(board, as_json)
        return
    from ros2_rfm_serving.operate.view import picture

    with Live(console=console, refresh_per_second=2, auto_refresh=False) as live:
        while not stop.is_set():
            live.update(picture(board.factory, board, []), refresh=True)
            stop.wait(0.5)


def _show(board: Board, as_json: bool) -> None:
    if as_json:
        from ros2_rfm_serving.monitoring.summary import status_json

        print(status_json(board, time.monotonic()), flush=True)
        return
    from ros2_rfm_serving.operate.view import picture

    console.print(picture(board.factory, board, []))

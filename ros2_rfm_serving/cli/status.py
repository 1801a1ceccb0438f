"""`rfm status`: how a factory does that somebody else started."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Annotated

import typer
from rich.live import Live

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.operate.progress import spinner
from ros2_rfm_serving.operate.running import console, observing, prepare_environment, ros_domain, stop_signals

if TYPE_CHECKING:
    from ros2_rfm_serving.monitoring.board import Board

LOOK_PERIOD_S = 0.1
ALL_HEARD_S, SOME_SILENT_S = 1.0, 2.0
"""Without news, that is all there is: two and four periods of a status."""
UNDATED_S = 5.0
"""For a server to be found, and to answer whose schedule is in force."""


def status(
    watch: Annotated[bool, typer.Option(help="Go on until Ctrl-C")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The figures alone, as JSON; with --watch, a line every second")] = False,
    domain: Annotated[int, typer.Option(help="ROS domain; -1: ROS_DOMAIN_ID or 0")] = -1,
    namespace: Annotated[str, typer.Option(help="Namespace of the whole factory")] = "",
    wait: Annotated[float, typer.Option(min=0, help="Look for a factory for so long, s")] = 5.0,
) -> None:
    """Shows the robots and servers of a running factory, whoever started it, as `rfm up` does.

    Examples:  rfm status --watch   |   rfm status --json --domain 7

    Exit code: 0, or 2 when no factory is there.
    """
    prepare_environment(domain)
    from ros2_rfm_serving.monitoring.board import Board

    board, stop = Board([], []), threading.Event()
    with stop_signals(stop), observing(board, namespace, discover=True):
        with spinner(f"looking for a factory in ROS domain {ros_domain()}, for up to {wait:g} s"):
            _await_factory(board, wait, stop)
        if watch:
            _watch(board, stop, as_json)
        elif not stop.is_set():
            _show(board, as_json)


def _await_factory(board: Board, limit_s: float, stop: threading.Event) -> None:
    """Until everybody has been heard, and a server has said that this is of now, or nobody new for a while, or the time is over."""
    from ros2_rfm_serving.monitoring.board import Proof

    end_s = time.monotonic() + limit_s
    news, news_s = (0, 0), time.monotonic()
    while time.monotonic() < end_s and not stop.wait(LOOK_PERIOD_S):
        seen = [row.seen_s > 0 for row in board.robots.values()] + [row.seen_s > 0 for row in board.servers.values()]
        if (len(seen), sum(seen)) != news:
            news, news_s = (len(seen), sum(seen)), time.monotonic()
        quiet_s = UNDATED_S if board.proof is Proof.UNDATED else ALL_HEARD_S if all(seen) else SOME_SILENT_S
        if any(seen) and board.factory and time.monotonic() - news_s > quiet_s:
            return
    if not stop.is_set() and not (board.robots or board.servers or board.factory):
        fix = "start it with `rfm up`, or name its --domain and --namespace"
        raise ConfigurationError(f"no factory is running in ROS domain {ros_domain()}", fix=fix)


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

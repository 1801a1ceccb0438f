"""Processes that benchmarks start, and a node in this process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


def module_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module in a process of its own; one of the lab is found from any folder."""
    return [sys.executable, "-W", "ignore", "-m", "ros2_rfm_serving.checkout", module, *arguments]


@contextmanager
def process(module: str, *arguments: str) -> Iterator[int]:
    """Yield the process id of a node in a process of its own, which ends with the block."""
    command = module_command(module, *arguments)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    started = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        yield started.pid
    finally:
        started.send_signal(signal.SIGINT)
        try:
            started.wait(timeout=10)
        except subprocess.TimeoutExpired:
            started.kill()


@contextmanager
def spinning(make: Any) -> Iterator[Any]:
    """Yield a node of this process and its `spin(until, at most seconds)`."""
    import rclpy
    from rclpy.signals import SignalHandlerOptions

    from ros2_rfm_serving.ros.node.runtime import executor

    rclpy.init(args=[], signal_handler_options=SignalHandlerOptions.NO)  # Ctrl-C is handled here, so that every block ends in order
    node, spinner = make(), executor()
    spinner.add_node(node)

    try:
        with told_to_end() as look:

            def spin(until: Any, at_most_s: float) -> None:
                """Spin until a condition holds. Raises: `KeyboardInterrupt` when this process received a signal to end."""
                end_s = time.monotonic() + at_most_s
                while time.monotonic() < end_s and not until():
                    spinner.spin_once(timeout_sec=0.1)
                    look()

            yield node, spin
    finally:
        node.destroy_node()
        rclpy.try_shutdown()


@contextmanager
def told_to_end() -> Iterator[Callable[[], None]]:
    """Yield a function that raises `KeyboardInterrupt` after SIGINT or SIGTERM. At any other line the exception could be lost in
    foreign code, or leave a started process that is not known yet. A second signal raises at once."""
    told: list[int] = []

    def hear(number: int, frame: object) -> None:
        told.append(number)
        if len(told) > 1:
            raise KeyboardInterrupt

    def look() -> None:
        if told:
            raise KeyboardInterrupt

    before = {number: signal.signal(number, hear) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield look
        look()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

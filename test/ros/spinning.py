"""A node that lives beside a test."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import rclpy
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node

N = TypeVar("N", bound=Node)


@contextmanager
def living(make: Callable[[rclpy.Context], N], domain: int | None = None) -> Iterator[N]:
    """With a context and a thread of its own. domain: as the environment says, unless it is given."""
    context = rclpy.Context()
    context.init(domain_id=domain)
    node, spinner, ending = make(context), SingleThreadedExecutor(context=context), threading.Event()
    spinner.add_node(node)

    def spin() -> None:
        while not ending.is_set():
            spinner.spin_once(timeout_sec=0.1)

    thread = threading.Thread(target=spin, daemon=True)
    thread.start()
    try:
        yield node
    finally:
        ending.set()
        thread.join(timeout=5.0)
        spinner.shutdown()
        node.destroy_node()
        context.try_shutdown()

"""A service whose answers may take long, without a coroutine that rclpy resumes."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from functools import partial
from typing import Any

from rclpy.node import Node
from rclpy.service import Service
from rclpy.task import Future


class Awaited(Future):
    """What a patient service's coroutine awaits. Done, it resumes that on the next turn of the executor."""

    def __await__(self) -> Generator[Any, None, Any]:
        yield self
        return self.result()


def create_patient_service(
    node: Node, kind: Any, name: str, serve: Callable[[Any, Any], Coroutine[Any, None, Any]], **options: Any
) -> Service:
    """As `Node.create_service`, of a coroutine that awaits nothing but `Awaited`s: rclpy resumes a waiting one on every turn of the
    executor, at the cost of a core."""
    service = node.create_service(kind, name, lambda request, response: partial(serve, request, response), **options)
    send_response = service.send_response

    def send(begin: Callable[[], Coroutine[Any, None, Any]], header: Any) -> None:
        """Called with what the callback has returned."""
        _go_on(begin(), lambda response: send_response(response, header))

    service.send_response = send
    return service


def _go_on(running: Coroutine[Any, None, Any], answer: Callable[[Any], None]) -> None:
    try:
        change = running.send(None)
    except StopIteration as end:
        answer(end.value)
    else:
        change.add_done_callback(lambda _: _go_on(running, answer))

"""Service whose replies may take long, without a coroutine that rclpy resumes."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from functools import partial
from typing import Any

from rclpy.node import Node
from rclpy.service import Service
from rclpy.task import Future


class Awaited(Future):
    """Future for the coroutine of a patient service to await; once done, it resumes the coroutine on the next iteration."""

    def __await__(self) -> Generator[Any, None, Any]:
        yield self
        return self.result()


def create_patient_service(
    node: Node, kind: Any, name: str, serve: Callable[[Any, Any], Coroutine[Any, None, Any]], **options: Any
) -> Service:
    """Create a service, as `Node.create_service`, from a coroutine function that awaits nothing but `Awaited` futures.
    rclpy would resume a waiting coroutine on every iteration of the executor, at the cost of a core."""
    service = node.create_service(kind, name, lambda request, response: partial(serve, request, response), **options)
    send_response = service.send_response

    def send(begin: Callable[[], Coroutine[Any, None, Any]], header: Any) -> None:
        """Run the coroutine that the callback has returned, and send its response."""
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

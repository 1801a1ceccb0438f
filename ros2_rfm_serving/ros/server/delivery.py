"""Delivery of an engine's replies to each endpoint in isolation: a failure of one does not affect the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from ros2_rfm_serving.ros.server.infer_door import InferDoor
from ros2_rfm_serving.ros.server.reply_topics import ReplyTopics
from ros2_rfm_serving.types import Reply, RequestId

if TYPE_CHECKING:
    from ros2_rfm_serving.ros.server.websocket_door import WebsocketDoor
T = TypeVar("T")
Mishap = Callable[[str, str], None]


class Delivery:
    """Callable that delivers a batch's outcome on an engine's thread.
    Failures are reported only to callers of a single inference, because a robot asks again by itself."""

    def __init__(self, topics: ReplyTopics, infer: InferDoor, gateway: WebsocketDoor | None) -> None:
        self._topics, self._infer, self._gateway = topics, infer, gateway

    def __call__(self, replies: list[Reply], failed: Sequence[RequestId], mishap: Mishap) -> None:
        """Deliver replies and failures. mishap: counts what could not be delivered."""
        if failed:
            self._tried(mishap, None, lambda: self._infer.fail(failed))
        if self._gateway and failed:
            gateway = self._gateway
            self._tried(mishap, None, lambda: gateway.fail(failed))
        for reply in self._of_others(replies, mishap):
            if not self._tried(mishap, True, lambda reply=reply: self._infer.take(reply)):  # type: ignore[misc]
                problem = self._tried(mishap, "", lambda reply=reply: self._topics.send(reply))  # type: ignore[misc]
                if problem:
                    mishap("publish_failed", problem)

    def _of_others(self, replies: list[Reply], mishap: Mishap) -> list[Reply]:
        """Give the gateway its replies, and return the others."""
        if not self._gateway:
            return replies
        gateway = self._gateway
        return self._tried(mishap, replies, lambda: gateway.take(replies))

    def _tried(self, mishap: Mishap, otherwise: T, handing_over: Callable[[], T]) -> T:
        try:
            return handing_over()
        except (Exception, SystemExit) as error:
            mishap("publish_failed", f"{type(error).__name__}: {error}")
            return otherwise

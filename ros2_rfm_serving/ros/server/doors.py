"""Endpoints for requests that no robot publishes, their limits, and the delivery of replies."""

from __future__ import annotations

from collections.abc import Callable

from rclpy.node import Node

from ros2_rfm_serving.errors import ModelError
from ros2_rfm_serving.ros.node.runtime import clock
from ros2_rfm_serving.ros.server.delivery import Delivery
from ros2_rfm_serving.ros.server.infer_door import Deposit, InferDoor, Limits
from ros2_rfm_serving.ros.server.reply_topics import ReplyTopics
from ros2_rfm_serving.ros.server.serving import Serving
from ros2_rfm_serving.ros.server.settings import ServerParams
from ros2_rfm_serving.ros.server.standing import Standing
from ros2_rfm_serving.ros.server.watchdog import Stalled, Watchdog
from ros2_rfm_serving.ros.server.websocket_settings import open_gateway
from ros2_rfm_serving.server import ModelServer
from ros2_rfm_serving.types import ServerState


class Doors:
    """`Infer` action and, if the parameters ask for it, the websocket gateway. work: the loaded model, or None."""

    def __init__(
        self,
        node: Node,
        infer: str,
        topics: ReplyTopics,
        standing: Standing,
        watchdog: Watchdog,
        work: Callable[[], Serving | None],
        params: Callable[[], ServerParams],
    ) -> None:
        """Create the endpoints. infer: name of the action. Raises: `ConfigurationError`."""
        self._standing, self._watchdog, self._work, self._params = standing, watchdog, work, params
        self._unready = ModelError("not ready")
        self._infer = InferDoor(node, infer, self._serving_goals, lambda: standing.refusal or self._unready, self._limits)
        self._gateway = open_gateway(node, self.serving, params().decode_threads, self._is_healthy)
        self.deliver = Delivery(topics, self._infer, self._gateway)

    def serving(self) -> tuple[ModelServer, Callable[[], None]] | None:
        """Return (the server, the function that wakes its engine); None: it accepts nothing new."""
        work = self._work()
        return (work.server, work.threads.wake) if self._standing.state == ServerState.READY and work else None

    @property
    def watched(self) -> dict[str, Stalled]:
        return {"the gateway": self._gateway.stalled_s} if self._gateway else {}

    def release(self) -> None:
        """End every unanswered request with an error."""
        self._infer.release(self._standing.refusal or self._unready)
        if self._gateway:
            self._gateway.release(self._standing.detail)

    def stop(self) -> None:
        """Close the gateway before the process ends."""
        if self._gateway:
            self._gateway.stop()
            self._gateway = None

    def _serving_goals(self) -> tuple[ModelServer, Deposit] | None:
        """Return the server and the function that accepts requests; images of goals are decoded as those of observations are."""
        work = self._work()
        if self._standing.state != ServerState.READY or work is None:
            return None
        intake = work.intake
        return work.server, lambda request, refused: intake.put(request, clock(), refused)

    def _limits(self) -> Limits:
        params = self._params()
        return Limits(params.infer_rate_hz, params.infer_waiting)

    def _is_healthy(self) -> bool:
        """Return whether a model is served, also while it drains, and makes progress."""
        serves = self._standing.state in (ServerState.READY, ServerState.DRAINING) and self._work() is not None
        return serves and not self._watchdog.hung

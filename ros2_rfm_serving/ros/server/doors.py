"""How requests come in that no robot publishes, what each of these doors may have, and how replies leave."""

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
    """`Infer` goals and, if the parameters ask for it, the gateway. `work`: what is loaded, or None."""

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
        """infer: the action's name. Raises: `ConfigurationError`."""
        self._standing, self._watchdog, self._work, self._params = standing, watchdog, work, params
        self._unready = ModelError("not ready")
        self._infer = InferDoor(node, infer, self._serving_goals, lambda: standing.refusal or self._unready, self._limits)
        self._gateway = open_gateway(node, self.serving, params().decode_threads, self._is_healthy)
        self.deliver = Delivery(topics, self._infer, self._gateway)

    def serving(self) -> tuple[ModelServer, Callable[[], None]] | None:
        """(what is served, what wakes its engine); None: nothing new is taken."""
        work = self._work()
        return (work.server, work.threads.wake) if self._standing.state == ServerState.READY and work else None

    @property
    def watched(self) -> dict[str, Stalled]:
        return {"the gateway": self._gateway.stalled_s} if self._gateway else {}

    def release(self) -> None:
        """What has not been answered is not any more: whoever waits is told."""
        self._infer.release(self._standing.refusal or self._unready)
        if self._gateway:
            self._gateway.release(self._standing.detail)

    def stop(self) -> None:
        """Before the process ends."""
        if self._gateway:
            self._gateway.stop()
            self._gateway = None

    def _serving_goals(self) -> tuple[ModelServer, Deposit] | None:
        """Images of goals are decoded where those of observations are."""
        work = self._work()
        if self._standing.state != ServerState.READY or work is None:
            return None
        intake = work.intake
        return work.server, lambda request, refused: intake.put(request, clock(), refused)

    def _limits(self) -> Limits:
        params = self._params()
        return Limits(params.infer_rate_hz, params.infer_waiting)

    def _is_healthy(self) -> bool:
        """A model is served, be it only what it has, and moves."""
        serves = self._standing.state in (ServerState.READY, ServerState.DRAINING) and self._work() is not None
        return serves and not self._watchdog.hung

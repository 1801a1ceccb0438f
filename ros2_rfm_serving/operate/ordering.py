"""An operator's command to one robot or server, as dashboard pages give it."""

from __future__ import annotations

from concurrent.futures import TimeoutError as NoAnswerError

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.operate.running import observing, ros_domain


def order(target: str, what: str, namespace: str, within_s: float) -> str:
    """Send a command and return its result as text. Raises: `ConfigurationError` when it failed."""
    from ros2_rfm_serving.monitoring.board import Board
    from ros2_rfm_serving.ros.monitor.hands import Hands
    from ros2_rfm_serving.ros.wire.qos import Names

    with observing(Board([], []), namespace) as observer:
        try:
            answer = Hands(observer, Names(namespace)).order(what, target, "").result(timeout=within_s)
        except NoAnswerError:
            raise ConfigurationError(f"no answer within {within_s:g} s in ROS domain {ros_domain()}", key=target) from None
    if not answer.done:
        raise ConfigurationError(answer.message, key=target)
    return f"{target}: {answer.message}"

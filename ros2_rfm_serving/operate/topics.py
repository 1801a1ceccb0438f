"""Topics of a ROS graph on the terminal, by a node of this process."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.operate.progress import spinner
from ros2_rfm_serving.operate.running import spinning

if TYPE_CHECKING:
    from rclpy.node import Node

    from ros2_rfm_serving.ros.monitor.topics import Rate, TopicEndpoint, TopicRow

DISCOVERY_S = 1.5
"""Time without a change after which a graph counts as discovered."""
MOST_DISCOVERY_S = 10.0
"""Time that a busy machine may take to discover the first topic."""
LOOK_PERIOD_S = 0.1


@contextmanager
def _node() -> Iterator[Node]:
    from rclpy.node import Node

    with spinning(lambda: Node("rfm_topic", enable_rosout=False, start_parameter_services=False)) as node:
        yield node


def list_topics(part: str) -> tuple[list[TopicRow], list[TopicEndpoint]]:
    """Return the topics whose name contains this part, and publishers and subscribers of the topic with exactly this name."""
    from ros2_rfm_serving.ros.monitor.topics import endpoints

    with _node() as node:
        with spinner("looking at the graph"):
            rows = _discovered(node, part)
        return rows, endpoints(node, part) if part in [row.name for row in rows] else []


def _discovered(node: Node, part: str) -> list[TopicRow]:
    """Return the topics whose name contains this part once they stay the same; empty after `MOST_DISCOVERY_S` without any."""
    from ros2_rfm_serving.ros.monitor.topics import topic_rows

    rows: list[TopicRow] = []
    began_s = changed_s = time.monotonic()
    while (now_s := time.monotonic()) - changed_s < DISCOVERY_S or not (rows or now_s - began_s > MOST_DISCOVERY_S):
        found = topic_rows(node, part)
        if found != rows:
            rows, changed_s = found, now_s
        time.sleep(LOOK_PERIOD_S)
    return rows


def _await_publisher(node: Node, topic: str, wait_s: float, stop: threading.Event) -> None:
    """Wait for a publisher. Raises: `ConfigurationError` when there is none within that time."""
    from ros2_rfm_serving.ros.monitor.topics import publishers_of, unpublished

    end_s = time.monotonic() + max(wait_s, DISCOVERY_S)
    while not publishers_of(node, topic):
        if stop.wait(LOOK_PERIOD_S):
            return
        if time.monotonic() > end_s:
            raise unpublished(node, topic)


def messages(topic: str, num: int, wait_s: float, stop: threading.Event, *, whole: bool) -> Iterator[Any]:
    """Yield messages as plain values. num: number of messages; 0: until `stop`. Raises: `ConfigurationError`."""
    from ros2_rfm_serving.ros.monitor.topics import TopicListener, plain_message

    came: queue.Queue[Any] = queue.Queue()
    with _node() as node:
        _await_publisher(node, topic, wait_s, stop)
        if stop.is_set():
            return
        TopicListener(node, topic, came.put, raw=False)
        num_shown = 0
        while not stop.is_set() and (not num or num_shown < num):
            try:
                message = came.get(timeout=LOOK_PERIOD_S)
            except queue.Empty:
                continue
            num_shown += 1
            yield plain_message(message, whole=whole)


def rates(topic: str, seconds: float, wait_s: float, stop: threading.Event) -> Iterator[tuple[int, Rate | None]]:
    """Yield (messages so far, their rate) once a second. seconds: total time; 0: until `stop`. Raises: `ConfigurationError`."""
    from ros2_rfm_serving.ros.monitor.topics import TopicListener

    with _node() as node:
        _await_publisher(node, topic, wait_s, stop)
        if stop.is_set():
            return
        listener = TopicListener(node, topic, raw=True)
        begun_s = time.monotonic()
        while not stop.wait(1.0):
            yield listener.num, listener.intervals.rate
            if seconds and time.monotonic() - begun_s >= seconds:
                return


def absolute(topic: str) -> str:
    """Return the name with its slash. Raises: `ConfigurationError` for a name that no topic can have."""
    from rclpy.exceptions import InvalidTopicNameException
    from rclpy.validate_topic_name import validate_topic_name

    name = topic if topic.startswith("/") else f"/{topic}"
    try:
        validate_topic_name(name)
    except InvalidTopicNameException as error:
        raise ConfigurationError(str(error).splitlines()[0], fix="`rfm topic list` has all topics") from None
    return name

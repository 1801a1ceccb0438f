"""Looks at single robots for a page: their answers and their cameras, subscribed only while somebody looks, a few at a time.

Pages ask from another thread. All that is done on the graph is done by a timer, on the executor's.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from rclpy.node import Node
from rfm_serving import msg
from sensor_msgs.msg import CompressedImage

from ros2_rfm_serving.errors import BadMessageError
from ros2_rfm_serving.monitoring.dashboard.closeup import Closeup
from ros2_rfm_serving.ros.node.runtime import clock
from ros2_rfm_serving.ros.node.timers import every
from ros2_rfm_serving.ros.wire import bounded, convert, qos
from ros2_rfm_serving.types import EncodedImage, Reply

MAX_ROBOTS, MAX_CAMERAS = 8, 12
"""That are looked at at a time, by all pages together: each is one more reader for its robot."""
LEASE_S = 4.0
"""After it was asked for last."""
ATTEND_PERIOD_S, LOOK_PERIOD_S, MAX_SHARE = 0.25, 2.0, 0.01
"""`LOOK_PERIOD_S`: for cameras on the graph, at least; `MAX_SHARE`: of the executor's computing time for that."""
OLD_S = 3.0
"""Of a picture: it says nothing about now."""
IMAGE = "sensor_msgs/msg/CompressedImage"
READERS: dict[type, Callable[[Any], Reply]] = {
    msg.ActionChunk: convert.chunk_from,
    msg.Judgement: convert.verdict_from,
    msg.Plan: convert.plan_from,
}


class _Camera:
    def __init__(self, subscription: Any = None) -> None:
        self.subscription, self.data, self.at_s = subscription, b"", -math.inf

    def take(self, data: bytes) -> None:
        self.data, self.at_s = data, clock()


class _Near(NamedTuple):
    closeup: Closeup
    subscriptions: list[Any]


class Eyes:
    """`Looking`, on a node that spins."""

    def __init__(self, node: Node, names: qos.Names) -> None:
        self._node, self._names = node, names
        self._asked_robots: dict[str, float] = {}
        self._asked_cameras: dict[str, float] = {}
        """By topic: when somebody asked last."""
        self._near: dict[str, _Near] = {}
        self._heard: dict[str, _Camera] = {}
        self._topics: dict[str, dict[str, str]] = {}
        """Robot -> camera -> topic."""
        self._wanted_s, self._look_s = -math.inf, -math.inf
        """When cameras were asked for last, and when to look for them next."""
        every(node, ATTEND_PERIOD_S, self._attend)

    # --- asked on other threads ---

    def closeup(self, robot: str) -> Closeup | None:
        if robot not in self._asked_robots and len(self._asked_robots) >= MAX_ROBOTS:
            return None
        self._asked_robots[robot] = clock()
        near = self._near.get(robot)
        return near.closeup if near else Closeup()

    def cameras(self, robot: str) -> list[str]:
        self._wanted_s = clock()
        return list(self._topics.get(robot, ()))

    def picture(self, robot: str, camera: str) -> EncodedImage | None:
        topic = self._topics.get(robot, {}).get(camera)
        if topic is None or (topic not in self._asked_cameras and len(self._asked_cameras) >= MAX_CAMERAS):
            return None
        now_s = self._asked_cameras[topic] = clock()
        heard = self._heard.get(topic)
        if heard is None or now_s - heard.at_s > OLD_S:
            return None
        try:
            image = bounded.read(heard.data, CompressedImage)
        except BadMessageError:
            return None
        return EncodedImage(camera=camera, format="jpeg", data=memoryview(image.data))

    # --- on the executor's thread ---

    def _attend(self) -> None:
        now_s = clock()
        for robot in _due(self._asked_robots, self._near, now_s):
            self._near[robot] = self._approach(robot)
        for topic in _due(self._asked_cameras, self._heard, now_s):
            self._heard[topic] = camera = _Camera()
            camera.subscription = self._node.create_subscription(CompressedImage, topic, camera.take, qos.SENSOR, raw=True)
        for robot in _over(self._asked_robots, now_s):
            self._let_go(self._near.pop(robot).subscriptions if robot in self._near else ())
        for topic in _over(self._asked_cameras, now_s):
            self._let_go([self._heard.pop(topic).subscription] if topic in self._heard else ())
        if now_s - self._wanted_s < LEASE_S and now_s >= self._look_s:
            self._look_for_cameras()

    def _approach(self, robot: str) -> _Near:
        closeup = Closeup()

        def take(kind: type, message: Any) -> None:
            try:
                closeup.take(READERS[kind](message), clock())
            except BadMessageError as error:
                refuse(error)

        def refuse(error: BadMessageError) -> None:
            """The robot refuses and counts it."""

        topics = {kind: self._names.robot(robot, leaf) for kind, leaf in convert.REPLIES.values()}
        return _Near(
            closeup,
            [
                bounded.hear(self._node, kind, topic, functools.partial(take, kind), qos.REPLY, refuse)
                for kind, topic in topics.items()
            ],
        )

    def _let_go(self, subscriptions: Iterable[Any]) -> None:
        for subscription in subscriptions:
            self._node.destroy_subscription(subscription)

    def _look_for_cameras(self) -> None:
        """Of every robot: whatever compressed images there are below its name."""
        begin_s = time.thread_time()
        root, found = self._names.robot("", "").rstrip("/"), dict[str, dict[str, str]]()
        for topic, kinds in self._node.get_topic_names_and_types():
            if IMAGE in kinds and topic.startswith(f"{root}/"):
                robot, _, leaf = topic.removeprefix(f"{root}/").partition("/")
                found.setdefault(robot, {})[_short(leaf)] = topic
        self._topics = {robot: dict(sorted(cameras.items())) for robot, cameras in found.items()}
        self._look_s = clock() + max(LOOK_PERIOD_S, (time.thread_time() - begin_s) / MAX_SHARE)


def _due(asked: Mapping[str, float], there: Mapping[str, Any], now_s: float) -> list[str]:
    return [name for name, at_s in list(asked.items()) if name not in there and now_s - at_s <= LEASE_S]


def _over(asked: dict[str, float], now_s: float) -> list[str]:
    """Forgets them."""
    over = [name for name, at_s in list(asked.items()) if now_s - at_s > LEASE_S]
    for name in over:
        del asked[name]
    return over


def _short(leaf: str) -> str:
    """A camera's name for a page: that of `camera/<name>/image/compressed`, or the whole topic."""
    return leaf.removeprefix("camera/").removesuffix("/compressed").removesuffix("/image").replace("/", ".")

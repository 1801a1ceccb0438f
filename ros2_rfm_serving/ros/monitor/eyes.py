"""Details of single robots for dashboard pages: replies and camera images, subscribed only while a page shows them, a few at a
time.

Pages ask from another thread. A timer does everything on the graph, on the executor's thread.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from rclpy.node import Node, NodeNameNonExistentError
from rclpy.serialization import deserialize_message
from rfm_serving import msg
from sensor_msgs.msg import CompressedImage, Image

from ros2_rfm_serving.errors import BadMessageError
from ros2_rfm_serving.monitoring.dashboard.closeup import Closeup, Offers
from ros2_rfm_serving.ros.node.runtime import clock
from ros2_rfm_serving.ros.node.timers import every
from ros2_rfm_serving.ros.robot.cameras import encoded
from ros2_rfm_serving.ros.robot.encodings import MAX_RAW_BYTES, check_raw, read_raw
from ros2_rfm_serving.ros.wire import bounded, convert, qos
from ros2_rfm_serving.types import EncodedImage, Reply

MAX_ROBOTS, MAX_CAMERAS = 8, 12
"""Maximum numbers for all pages together: each subscription is one more reader for its robot."""
LEASE_S = 4.0
"""Time after the last request at which a subscription ends."""
ATTEND_PERIOD_S, LOOK_PERIOD_S, MAX_SHARE = 0.25, 2.0, 0.01
"""Minimum period of the search for cameras on the graph, and its maximum share of the executor's computing time."""
OLD_S = 3.0
"""Age at which an image is no longer shown."""
MAX_RAW_CAMERAS = 4
"""Maximum number of raw cameras among these: raw images come at the camera's full rate, each of several megabytes."""
DEPTH_RANGE_M = (0.1, 10.0)
"""Range of depth images that is shown, from black to white, m."""
ROBOT_NODE = "robot"
"""Name of the node of one robot, in the robot's namespace."""
QUALITY, MAX_SIZE_PX = 75, 320
"""JPEG settings for raw images, which are encoded once a second while a page shows them."""
KINDS: dict[str, type] = {"sensor_msgs/msg/CompressedImage": CompressedImage, "sensor_msgs/msg/Image": Image}
READERS: dict[type, Callable[[Any], Reply]] = {
    msg.ActionChunk: convert.chunk_from,
    msg.Judgement: convert.verdict_from,
    msg.Plan: convert.plan_from,
}


class _Topic(NamedTuple):
    name: str
    kind: type


class _Camera:
    def __init__(self, kind: type) -> None:
        self.kind, self.subscription, self.data, self.at_s = kind, None, b"", -math.inf

    def take(self, data: bytes) -> None:
        self.data, self.at_s = data, clock()


class _Near(NamedTuple):
    closeup: Closeup
    subscriptions: list[Any]


class Eyes:
    """Implementation of `Looking` on a spinning node."""

    def __init__(self, node: Node, names: qos.Names) -> None:
        self._node, self._names = node, names
        self._asked_robots: dict[str, float] = {}
        self._asked_cameras: dict[str, float] = {}
        """Topic -> time of the last request."""
        self._near: dict[str, _Near] = {}
        self._heard: dict[str, _Camera] = {}
        self._topics: dict[str, dict[str, _Topic]] = {}
        """Robot -> camera -> topic."""
        self._kinds: dict[str, type] = {}
        """Topic -> type of its images."""
        self._offers: dict[str, Offers] = {}
        """Offers of the robots that pages show."""
        self._offers_s = -math.inf
        self._wanted_s: dict[str, float] = {}
        """Robot -> time at which its cameras were last requested."""
        self._look_s = -math.inf
        """Time of the next search for cameras."""
        every(node, ATTEND_PERIOD_S, self._attend)

    # --- asked on other threads ---

    def closeup(self, robot: str) -> Closeup | None:
        if robot not in self._asked_robots and len(self._asked_robots) >= MAX_ROBOTS:
            return None
        self._asked_robots[robot] = clock()
        near = self._near.get(robot)
        return near.closeup if near else Closeup()

    def cameras(self, robot: str) -> list[str]:
        self._wanted_s[robot] = clock()
        return list(self._topics.get(robot, ()))

    def offers(self, robot: str) -> Offers:
        return self._offers.get(robot, Offers())

    def picture(self, robot: str, camera: str) -> EncodedImage | None:
        topic = self._topics.get(robot, {}).get(camera)
        if topic is None or (topic.name not in self._asked_cameras and self._is_full(topic.kind)):
            return None
        self._kinds[topic.name] = topic.kind
        now_s = self._asked_cameras[topic.name] = clock()
        heard = self._heard.get(topic.name)
        if heard is None or now_s - heard.at_s > OLD_S:
            return None
        if heard.kind is Image:
            return _of_raw(camera, heard.data)
        try:
            image = bounded.read(heard.data, CompressedImage)
        except BadMessageError:
            return None
        return EncodedImage(camera=camera, format="jpeg", data=memoryview(image.data))

    def _is_full(self, kind: type) -> bool:
        asked = list(self._asked_cameras)
        raw = sum(self._kinds.get(name) is Image for name in asked)
        return len(asked) >= MAX_CAMERAS or (kind is Image and raw >= MAX_RAW_CAMERAS)

    # --- on the executor's thread ---

    def _attend(self) -> None:
        now_s = clock()
        for robot in _due(self._asked_robots, self._near, now_s):
            self._near[robot] = self._approach(robot)
        for topic in _due(self._asked_cameras, self._heard, now_s):
            self._heard[topic] = self._subscribe(topic)
        if now_s >= self._offers_s:
            self._look_for_offers(now_s)
        for robot in _over(self._asked_robots, now_s):
            self._let_go(self._near.pop(robot).subscriptions if robot in self._near else ())
        for topic in _over(self._asked_cameras, now_s):
            heard = self._heard.pop(topic, None)
            self._let_go([heard.subscription] if heard and heard.subscription else ())
            self._kinds.pop(topic, None)
        _over(self._wanted_s, now_s)
        if self._wanted_s and now_s >= self._look_s:
            self._look_for_cameras()

    def _subscribed_images(self, robot: str) -> dict[str, _Topic]:
        """Return the images that a `robot_node` subscribes to.
        A process of many robots is left out: its subscriptions do not show the robot that they are for."""
        namespace = self._names.robot(robot, "").rstrip("/")
        try:
            subscribed = self._node.get_subscriber_names_and_types_by_node(ROBOT_NODE, namespace)
        except (NodeNameNonExistentError, ValueError):
            return {}
        images = {topic: next((made for name, made in KINDS.items() if name in kinds), None) for topic, kinds in subscribed}
        return {_short(topic.lstrip("/")): _Topic(topic, kind) for topic, kind in images.items() if kind is not None}

    def _subscribe(self, topic: str) -> _Camera:
        camera = _Camera(self._kinds.get(topic, CompressedImage))
        try:
            camera.subscription = self._node.create_subscription(camera.kind, topic, camera.take, qos.SENSOR, raw=True)
        except RuntimeError as error:
            text = f"{topic} may not be read: {error}; `rfm security` gives the permissions"
            self._node.get_logger().warning(text, throttle_duration_sec=60.0)
        return camera

    def _look_for_offers(self, now_s: float) -> None:
        """Update the offers of the robots that pages show: few, because counting services takes time."""
        self._offers_s = now_s + LOOK_PERIOD_S
        self._offers = {robot: offers_of(self._node, self._names, robot) for robot in self._near}

    def _approach(self, robot: str) -> _Near:
        closeup = Closeup()

        def take(kind: type, message: Any) -> None:
            try:
                closeup.take(READERS[kind](message), clock())
            except BadMessageError as error:
                refuse(error)

        def refuse(error: BadMessageError) -> None:
            """Ignore the error: the robot refuses the message as well, and counts it."""

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
        """Find the cameras of every robot: all images below its name, or else those that its node subscribes to.
        Of a camera that sends both kinds, the compressed images are used."""
        begin_s = time.thread_time()
        root, found = self._names.robot("", "").rstrip("/"), dict[str, dict[str, _Topic]]()
        for topic, kinds in self._node.get_topic_names_and_types():
            kind = next((made for name, made in KINDS.items() if name in kinds), None)
            if kind is None or not topic.startswith(f"{root}/"):
                continue
            robot, _, leaf = topic.removeprefix(f"{root}/").partition("/")
            cameras = found.setdefault(robot, {})
            if kind is CompressedImage or _short(leaf) not in cameras:
                cameras[_short(leaf)] = _Topic(topic, kind)
        for robot in set(self._wanted_s) - found.keys():  # another thread adds to it
            found[robot] = self._subscribed_images(robot)
        self._topics = {robot: dict(sorted(cameras.items())) for robot, cameras in found.items()}
        self._look_s = clock() + max(LOOK_PERIOD_S, (time.thread_time() - begin_s) / MAX_SHARE)


def _due(asked: Mapping[str, float], there: Mapping[str, Any], now_s: float) -> list[str]:
    return [name for name, at_s in list(asked.items()) if name not in there and now_s - at_s <= LEASE_S]


def _over(asked: dict[str, float], now_s: float) -> list[str]:
    """Remove expired requests, and return them."""
    over = [name for name, at_s in list(asked.items()) if now_s - at_s > LEASE_S]
    for name in over:
        del asked[name]
    return over


def _short(leaf: str) -> str:
    """Return a camera's name for a page.
    It is that of `camera/<name>/image/compressed` or `camera/<name>/image_raw`, or the whole topic."""
    plain = leaf.removeprefix("camera/").removesuffix("/compressed").removesuffix("/image").removesuffix("/image_raw")
    return plain.replace("/", ".")


def _of_raw(camera: str, data: bytes) -> EncodedImage | None:
    """Convert a raw image to a small JPEG. Raises: `BadMessageError` for an image that cannot be shown."""
    bounded.check(data, Image, MAX_RAW_BYTES)
    image = deserialize_message(data, Image)
    check_raw(image, DEPTH_RANGE_M)
    jpeg = encoded(read_raw(image, DEPTH_RANGE_M), QUALITY, MAX_SIZE_PX)
    return EncodedImage(camera=camera, format="jpeg", data=jpeg)


def offers_of(node: Node, names: qos.Names, robot: str) -> Offers:
    """Return the tasks and resets for which the graph has a server; a client of a service alone does not count."""
    tasks = node.count_services(f"{names.robot(robot, 'execute_task')}/_action/send_goal")
    return Offers(tasks=tasks > 0, reset=node.count_services(names.robot(robot, "reset")) > 0)

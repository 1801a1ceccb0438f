"""A robot that knows neither ROS nor this project: zenoh-ros2-sdk, an implementation of rmw_zenoh's format by others, and `.msg`
files.

python -m test.zenoh_robot ROUTER_ADDRESS DOMAIN ROBOT SERVER: asks for chunks, one request in flight, until it is ended. A JSON
array per line on stdout for everything that happens: the time on the monotonic clock, what, and how."""

from __future__ import annotations

import json
import queue
import re
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg
from zenoh_ros2_sdk import ROS2Publisher, ROS2ServiceClient, ROS2Subscriber
from zenoh_ros2_sdk.qos import QosDurability, QosProfile, QosReliability
from zenoh_ros2_sdk.session import ZenohSession
from zenoh_ros2_sdk.utils import compute_service_type_hash, get_type_hash

REPOSITORY = Path(__file__).resolve().parents[1]
NESTED = re.compile(r"^\s*(?:(\w+)/)?([A-Z]\w*)(?:\[[^\]]*\])?\s+[a-z]", re.ASCII | re.MULTILINE)
BEST_EFFORT = QosProfile(reliability=QosReliability.BEST_EFFORT, history_depth=1)
RELIABLE = QosProfile(history_depth=2)
LATCHED = QosProfile(durability=QosDurability.TRANSIENT_LOCAL, history_depth=1)
NOTHING: Mapping[str, bytes] = {}
ACTIONS, CAMERAS, STATE_SIZE = ["delta_x", "delta_y", "delta_z", "gripper"], ("side", "front"), 39
"""Of `emulated/arm-policy`."""
ANSWER_S = 2.0
"""Beyond it the request is given up."""


def definition(kind: str) -> str:
    """Of `std_msgs/msg/Header`, from where the files of a build lie."""
    package, folder, name = kind.split("/")
    root = REPOSITORY if package == "rfm_serving" else Path(sys.prefix) / "share" / package
    text = (root / folder / f"{name}.{folder}").read_text(encoding="utf-8")
    return "\n".join(line.partition("#")[0] for line in text.splitlines() if not re.search(r"\w=", line.partition("#")[0]))


def parts(kind: str, text: str) -> dict[str, str]:
    """All that it is made of, and what that is made of before it."""
    found: dict[str, str] = {}
    for package, name in NESTED.findall(text):
        inner = f"{package or kind.split('/')[0]}/msg/{name}"
        found |= {**parts(inner, definition(inner)), inner: definition(inner)}
    return found


def hash_of(kind: str) -> str:
    """As the SDK computes it (REP 2016), from the text alone."""
    if "/srv/" in kind:
        request, response = definition(kind).split("---")
        made_of = parts(kind, request) | parts(kind, response)
        return str(compute_service_type_hash(kind, request_definition=request, response_definition=response, dependencies=made_of))
    return str(get_type_hash(kind, definition(kind), parts(kind, definition(kind))))


class Robot:
    """What it says and hears. One per process: the SDK has one session."""

    def __init__(self, address: str, domain: int, name: str, server: str, namespace: str = "", port: int = 7447) -> None:
        self.name, self.server, self._root = name, server, namespace
        self._where = {"domain_id": domain, "router_ip": address, "router_port": port}
        self._session = ZenohSession.get_instance(address, port)
        self.chunks: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.heard: list[tuple[str, Any]] = []
        own, of_server = f"{namespace}/{name}", f"{namespace}/rfm/servers/{server}"
        self.ends = [
            self._hear("rfm_serving/msg/ActionChunk", f"{own}/rfm/action_chunk", self.chunks.put, RELIABLE),
            self._hear("rfm_serving/msg/RequestId", f"{own}/rfm/refetch", lambda m: self.heard.append(("refetch", m)), BEST_EFFORT),
            self._hear("rfm_serving/msg/Schedule", f"{namespace}/rfm/schedule", self._on_schedule, LATCHED),
            self._hear("rfm_serving/msg/ServerStatus", f"{of_server}/status", self._on_server, RELIABLE),
        ]
        self.observation = self.publisher("rfm_serving/msg/Observation", f"{of_server}/observation", BEST_EFFORT)
        self.status = self.publisher("rfm_serving/msg/RobotStatus", f"{own}/rfm/status", RELIABLE)
        self._opening = self.client("rfm_serving/srv/OpenSession", f"{of_server}/open_session")
        self.epoch = self.sequence = 0

    def close(self) -> None:
        for end in (*self.ends, self.observation, self.status, self._opening):
            end.close()
        self._session.close()

    def publisher(self, kind: str, topic: str, qos: QosProfile, **more: Any) -> ROS2Publisher:
        self._learn(kind, definition(kind))
        given = {"type_hash": hash_of(kind), **self._where, **more}
        return ROS2Publisher(topic, kind, definition(kind), node_name=self.name, qos=qos, **given)

    def client(self, kind: str, name: str, timeout_s: float = ANSWER_S) -> ROS2ServiceClient:
        request, response = definition(kind).split("---")
        self._learn(kind, request)
        self._learn(kind, response)
        return ROS2ServiceClient(
            name, kind, request, response, node_name=self.name, type_hash=hash_of(kind), timeout=timeout_s, **self._where
        )

    def call(self, client: ROS2ServiceClient, **given: Any) -> Any:
        """None: no answer, or a refusal of whoever is between."""
        return client.call(**{**self.blank(client.request_store_type), **given})

    def open(self, **given: Any) -> Any:
        asked = {"schema_version": 1, "robot": self.name, "component": "system1", "control_rate_hz": 30.0, **given}
        answer = self.call(self._opening, **asked)
        self.epoch, self.sequence = (answer.session_epoch if answer else 0), 0
        return answer

    def observe(self, state: list[float], images: Mapping[str, bytes] = NOTHING) -> None:
        """One request."""
        self.sequence += 1
        given = self.blank("rfm_serving/msg/Observation")
        identity = {
            "robot": self.name,
            "component": "system1",
            "session_epoch": self.epoch,
            "episode": 1,
            "sequence": self.sequence,
        }
        given["id"] = self.make("rfm_serving/msg/RequestId", **identity)
        given["header"].frame_id = self.name
        given |= {
            "stamp_ns": time.monotonic_ns(),
            "state": np.array(state, np.float32),
            "episode_start": self.sequence == 1,
        }
        for camera, data in images.items():
            image = self.make("sensor_msgs/msg/CompressedImage", format="jpeg", data=np.frombuffer(data, np.uint8))
            image.header.frame_id = camera
            given["images"].append(image)
        self.observation.publish(**given)

    def tell(self) -> None:
        given = self.blank("rfm_serving/msg/RobotStatus")
        given["header"].frame_id = self.name
        self.status.publish(**given)

    def make(self, kind: str, **fields: Any) -> Any:
        return self._session.store.types[kind](**{**self.blank(kind), **fields})

    def blank(self, kind: str) -> dict[str, Any]:
        """Zero, empty, nothing: every field of a message."""
        return {name: self._empty(of) for name, of in self._session.store.fielddefs[kind][1]}

    def _empty(self, of: Any) -> Any:
        sort, inner = of
        if sort == 1:  # a primitive
            return {"string": "", "bool": False, "float32": 0.0, "float64": 0.0}.get(inner[0], 0)
        if sort == 2:  # a message
            return self.make(inner)
        kind = inner[0][1]
        plain = inner[0][0] == 1 and kind[0] != "string"
        size = inner[1] if sort == 3 else 0  # of an array; else of a sequence, which may be shorter
        return np.zeros(size, kind[0]) if plain else []

    def _hear(self, kind: str, topic: str, take: Callable[[Any], None], qos: QosProfile) -> ROS2Subscriber:
        self._learn(kind, definition(kind))
        text = definition(kind)
        return ROS2Subscriber(topic, kind, take, text, node_name=self.name, type_hash=hash_of(kind), qos=qos, **self._where)

    def _learn(self, kind: str, text: str) -> None:
        for inner, inner_text in parts(kind, text).items():
            self._session.register_message_type(inner_text, inner)

    def _on_schedule(self, message: Any) -> None:
        self.heard.append(("schedule", message))

    def _on_server(self, message: Any) -> None:
        self.heard.append(("server", message))


def main(address: str, domain: str, name: str, server: str) -> None:
    def note(what: str, how: Any = "") -> None:
        print(json.dumps([time.monotonic(), what, how]), flush=True)

    rng = np.random.default_rng(0)
    images = {one: simplejpeg.encode_jpeg(rng.integers(0, 255, (96, 96, 3), np.uint8), quality=85) for one in CAMERAS}
    robot = Robot(address, int(domain), name, server)
    note("there")
    while True:
        if not robot.epoch:
            answer = robot.open(action_names=ACTIONS, cameras=list(CAMERAS), state_size=STATE_SIZE)
            note("opened" if robot.epoch else "refused", answer.error_msg if answer else "no answer")
            if not robot.epoch:
                time.sleep(0.3)
                continue
        robot.tell()
        robot.observe([0.0] * STATE_SIZE, images)
        began_s = time.monotonic()
        try:
            while (
                chunk := robot.chunks.get(timeout=max(0.01, began_s + ANSWER_S - time.monotonic()))
            ).id.sequence != robot.sequence:
                note("late", chunk.id.sequence)
            note("chunk", time.monotonic() - began_s)
            time.sleep(0.15)
        except queue.Empty:
            note("unanswered", robot.sequence)
            robot.epoch = 0


if __name__ == "__main__":
    main(*sys.argv[1:])

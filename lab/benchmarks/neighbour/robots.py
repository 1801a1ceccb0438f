"""Robots of `rfm bench neighbour`: each sends requests at a fixed rate, spread over the period, and records latencies. They and
their neighbour are in a schedule with the same rate."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any, NamedTuple

from rclpy.node import Node
from rfm_serving import msg, srv

from lab.benchmarks.path.pictures import photograph
from lab.benchmarks.path.sides import ACTION_NAMES, CAMERAS, STATE_SIZE
from ros2_rfm_serving.ros.node.runtime import clock, parameter, run_node
from ros2_rfm_serving.ros.node.timers import every
from ros2_rfm_serving.ros.wire import cdr, convert, qos
from ros2_rfm_serving.ros.wire.session_messages import grant_from, session_request_to
from ros2_rfm_serving.types import (
    NO_VALUES,
    SYSTEM1,
    EncodedImage,
    ObservationRequest,
    RequestId,
    Route,
    Schedule,
    SessionRequest,
    empty,
)

PEST = "pest"
"""Name of the neighbour."""
REQUESTS_HZ = 5.0
IMAGE_PX = (640, 480)
RECORD_PERIOD_S = 1.0


class Record(NamedTuple):
    sent: list[tuple[float, float | None]]
    """(time, seconds until its answer; None: there was none) of each request."""
    counted: dict[str, int]
    """Requests of these robots and their neighbour that the server refused or did not receive, by reason."""


def session(robot: str, **more: Any) -> Any:
    """Return a request of `srv.OpenSession`."""
    return session_request_to(
        SessionRequest(robot=robot, component=SYSTEM1, action_names=ACTION_NAMES, cameras=CAMERAS, state_size=STATE_SIZE, **more)
    )


def request(robot: str, epoch: int, sequence: int, images: tuple[bytes, ...]) -> ObservationRequest:
    pictures = tuple(EncodedImage(camera=camera, format="jpeg", data=data) for camera, data in zip(CAMERAS, images, strict=True))
    return ObservationRequest(
        id=RequestId(robot=robot, component=SYSTEM1, session_epoch=epoch, episode=1, sequence=sequence),
        stamp_ns=int(1e9 * clock()),
        instruction="reach the red goal",
        state=empty(STATE_SIZE) if STATE_SIZE else NO_VALUES,
        images=pictures,
    )


def schedule(robots: list[str], server: str) -> Any:
    """Return a schedule in which each of them may send to this server at the rate of these robots."""
    routes = tuple(Route(robot=robot, component=SYSTEM1, server=server, max_rate_hz=REQUESTS_HZ, slo_s=1.0) for robot in robots)
    return convert.schedule_to(Schedule(epoch=1, placements=(), routes=routes, predicted_actions_hz=0.0, policy="bench"), "bench")


class Robots(Node):
    """Robots that write a `Record` to the file `record`, once a second."""

    def __init__(self) -> None:
        super().__init__("bench_robots")
        self._record = Path(parameter(self, "record", "", "File"))
        num_robots = parameter(self, "robots", 8, "Robots")
        names, server = qos.Names(), parameter(self, "server", "bench", "Server")
        self._images = tuple(photograph(*IMAGE_PX, seed) for seed in range(len(CAMERAS)))
        self._out = self.create_publisher(msg.Observation, names.server(server, "observation"), qos.OBSERVATION_SENT)
        self._open = self.create_client(srv.OpenSession, names.server(server, "open_session"))
        self._names = [f"polite_{i}" for i in range(num_robots)]
        self._counted: dict[str, int] = {}
        self.create_subscription(msg.ServerStatus, names.server(server, "status"), self._on_status, qos.SERVER_STATUS)
        self._schedules = self.create_publisher(msg.Schedule, names.schedule, qos.SCHEDULE)
        self._schedules.publish(schedule([*self._names, PEST], server))
        self._epochs: dict[str, int] = {}
        self._asked: set[str] = set()
        self._sent: dict[RequestId, tuple[float, float | None]] = {}
        for name in self._names:
            topic = names.robot(name, "rfm/action_chunk")
            self.create_subscription(msg.ActionChunk, topic, self._on_chunk, qos.REPLY, raw=True)
        self._turn = 0
        every(self, 1.0 / (REQUESTS_HZ * num_robots), self._ask_next)
        every(self, RECORD_PERIOD_S, self._write)

    def _ask_next(self) -> None:
        sequence, index = divmod(self._turn, len(self._names))
        self._turn += 1
        name = self._names[index]
        if name in self._epochs:
            asked = request(name, self._epochs[name], sequence + 1, self._images)
            self._sent[asked.id] = (clock(), None)
            self._out.publish(cdr.observation_to(asked))
        elif name not in self._asked and self._open.service_is_ready():
            self._asked.add(name)
            self._open.call_async(session(name)).add_done_callback(functools.partial(self._on_open, name))

    def _on_open(self, name: str, answer: Any) -> None:
        self._asked.discard(name)
        if answer.result().success:
            self._epochs[name] = grant_from(answer.result()).session_epoch

    def _on_chunk(self, data: bytes) -> None:
        identity = cdr.chunk_from(data).id
        sent_s, answered_s = self._sent.get(identity, (0.0, 0.0))
        if answered_s is None:
            self._sent[identity] = (sent_s, clock() - sent_s)

    def _on_status(self, status: Any) -> None:
        self._counted = {count.name: count.count for count in status.refused}

    def _write(self) -> None:
        if len(self._epochs) == len(self._names):
            partial = self._record.with_suffix(".part")
            partial.write_text(json.dumps(Record(list(self._sent.values()), self._counted)), encoding="utf-8")
            partial.rename(self._record)


def main() -> None:
    run_node(Robots, __doc__)


if __name__ == "__main__":
    main()

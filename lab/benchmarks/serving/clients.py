"""Robots of `rfm bench serving`: sessions on the real wire that send again once answered, or at a rate, all in one process.

They print the same as `lab/benchmarks/serving/peers/run.py`: BEGIN and END of the measured time, then the figures as JSON.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import json
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import rclpy
from rclpy.node import Node
from rclpy.task import Future
from rfm_serving import msg, srv

from lab.benchmarks.serving.peers.run import dues
from ros2_rfm_serving.errors import CapacityError, ContractError
from ros2_rfm_serving.ros.node.runtime import clock, executor
from ros2_rfm_serving.ros.node.timers import every
from ros2_rfm_serving.ros.wire import cdr, qos
from ros2_rfm_serving.ros.wire.session_messages import grant_from, session_request_to
from ros2_rfm_serving.types import SYSTEM1, EncodedImage, ObservationRequest, RequestId, SessionRequest, empty

ACTION_NAMES = tuple(f"joint_{i}" for i in range(14))
STATE_SIZE = len(ACTION_NAMES)
CONNECT_LIMIT_S, LOST_AFTER_S = 60.0, 1.0


@dataclass
class Client:
    """One session and its request in flight."""

    request: ObservationRequest
    sent_s: float = 0.0
    waits: bool = False


class Clients(Node):
    """Clients of one server. `samples`: (time of the answer, latency) in s. A lost request is sent again after `LOST_AFTER_S`."""

    def __init__(self, server: str, num_clients: int, images: dict[str, bytes], rate_hz: float = 0.0) -> None:
        """rate_hz: of each client; 0: a client sends again once it is answered."""
        super().__init__("bench_clients", enable_rosout=False, start_parameter_services=False)
        self.samples: list[tuple[float, float]] = []
        self.num_wrong = self.num_lost = self.num_left_out = 0
        self.asking, self._rate_hz = True, rate_hz
        self._sessions: dict[str, Client] = {}
        self._images = tuple(EncodedImage(camera=name, format="jpeg", data=data) for name, data in images.items())
        names = qos.Names()
        self._out = self.create_publisher(msg.Observation, names.server(server, "observation"), qos.OBSERVATION_SENT)
        self._open = self.create_client(srv.OpenSession, names.server(server, "open_session"))
        self._open.wait_for_service(timeout_sec=CONNECT_LIMIT_S)
        for i in range(num_clients):
            topic = names.robot(f"bench_{i}", "rfm/action_chunk")
            self.create_subscription(msg.ActionChunk, topic, lambda data, i=i: self._on_chunk(i, data), qos.REPLY, raw=True)
        self._num_clients, self.connected = num_clients, Future()
        self._open_next()
        every(self, LOST_AFTER_S, self._send_again)

    def _open_next(self) -> None:
        """Open sessions one after the other, because a service queues ten calls at most."""
        index = len(self._sessions)
        call = self._open.call_async(session_request_to(self._session(f"bench_{index}")))
        call.add_done_callback(lambda future: self._opened(index, future.result()))

    def _session(self, robot: str) -> SessionRequest:
        cameras = tuple(image.camera for image in self._images)
        return SessionRequest(
            robot=robot, component=SYSTEM1, action_names=ACTION_NAMES, cameras=cameras, state_size=STATE_SIZE, control_rate_hz=50.0
        )

    def _opened(self, index: int, answer: Any) -> None:
        if not answer.success:
            raise ContractError([f"client {index}: {answer.error_msg}"])
        robot, epoch = f"bench_{index}", grant_from(answer).session_epoch
        state = empty(STATE_SIZE)
        state[0] = index
        request = ObservationRequest(
            id=RequestId(robot=robot, component=SYSTEM1, session_epoch=epoch, episode=1, sequence=0),
            stamp_ns=0,
            instruction="pick it up",
            state=state,
            images=self._images,
        )
        self._sessions[robot] = Client(request)
        if not self._rate_hz:
            self._send(self._sessions[robot])
        if len(self._sessions) < self._num_clients:
            self._open_next()
        else:
            self.connected.set_result(None)
            if self._rate_hz:
                threading.Thread(target=self._send_at_rate, daemon=True).start()

    def _send_at_rate(self) -> None:
        """Send the requests of all clients at their rate; a client that still waits is left out."""
        begin_s, clients = clock(), list(self._sessions.values())
        for due_s, index in heapq.merge(*(zip(dues(i, self._rate_hz), itertools.repeat(i)) for i in range(len(clients)))):
            time.sleep(max(0.0, begin_s + due_s - clock()))
            if not self.asking:
                return
            if clients[index].waits:
                self.num_left_out += 1
            else:
                self._send(clients[index])

    def _send(self, client: Client) -> None:
        before = client.request
        sequence = before.id.sequence + 1
        client.sent_s, client.waits = clock(), True
        before.state[1] = sequence % (1 << 20)
        client.request = replace(before, id=replace(before.id, sequence=sequence), stamp_ns=int(1e9 * client.sent_s))
        self._out.publish(cdr.observation_to(client.request))

    def _on_chunk(self, index: int, data: bytes) -> None:
        chunk = cdr.chunk_from(data)
        now_s = clock()
        client = self._sessions[f"bench_{index}"]
        if chunk.id != client.request.id:
            return  # the reply to a request that was given up as lost
        client.waits = False
        self.samples.append((now_s, now_s - client.sent_s))
        self.num_wrong += not np.array_equal(chunk.chunk_robot[0, :2], client.request.state[:2])
        if self.asking and not self._rate_hz:
            self._send(client)

    def _send_again(self) -> None:
        for client in self._sessions.values():
            if self.asking and client.waits and clock() - client.sent_s > LOST_AFTER_S:
                self.num_lost += 1
                self._send(client)


def measure(node: Clients, warm_up_s: float, seconds: float) -> dict[str, Any]:
    spinner = executor()
    spinner.add_node(node)

    def spin(at_most_s: float) -> None:
        spinner.spin_until_future_complete(Future(), timeout_sec=at_most_s)

    try:
        spinner.spin_until_future_complete(node.connected, timeout_sec=CONNECT_LIMIT_S)
        if not node.connected.done():
            raise CapacityError(f"not all sessions are open after {CONNECT_LIMIT_S:g} s")
        spin(warm_up_s)
        before = node.num_wrong, node.num_lost, node.num_left_out
        node.samples.clear()
        print("BEGIN", flush=True)
        spin(seconds)
        print("END", flush=True)
        latencies_s = [latency for _, latency in node.samples]
        counts = np.subtract((node.num_wrong, node.num_lost, node.num_left_out), before).tolist()
        figures = {"latencies_s": latencies_s, **dict(zip(("wrong", "failed", "left_out"), counts, strict=True))}
        node.asking = False
        spin(0.5)
        return figures
    finally:
        spinner.shutdown()


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--server", required=True)
    parser.add_argument("--images", type=Path, required=True, help="folder with one JPEG per camera")
    parser.add_argument("--clients", type=int, default=1)
    parser.add_argument("--warm-up-s", type=float, default=1.0)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rate-hz", type=float, default=0.0, help="of each client; 0: as soon as it is answered")
    given = parser.parse_args(arguments)
    images = {file.stem: file.read_bytes() for file in sorted(given.images.glob("*.jpg"))}
    rclpy.init(args=[])
    node = Clients(given.server, given.clients, images, given.rate_hz)
    try:
        print(json.dumps(measure(node, given.warm_up_s, given.seconds)), flush=True)
    finally:
        node.destroy_node()
        rclpy.try_shutdown()


if __name__ == "__main__":
    main(sys.argv[1:])

"""Clients that no schedule knows, a process: `python -m test.operate.crowd <server> <rate_hz> <robot> ...`; each opens a session
for System 1 and asks so often."""

from __future__ import annotations

import sys
import time
from functools import partial
from typing import Any

import numpy as np
import rclpy
from rclpy.node import Node
from rfm_serving import msg, srv

from ros2_rfm_serving.benchmarks.path.sides import camera_image
from ros2_rfm_serving.ros.wire import convert, qos
from ros2_rfm_serving.ros.wire.session_messages import session_request_to
from ros2_rfm_serving.types import EncodedImage, ObservationRequest, RequestId, SessionRequest, empty

from .sensor import CAMERA, JOINTS

ACTIONS = ("shoulder", "elbow")
IMAGE = EncodedImage(camera=CAMERA, format="jpeg", data=camera_image(64, 0))


class Crowd(Node):
    def __init__(self, server: str, robots: list[str]) -> None:
        super().__init__("crowd")
        names = qos.Names()
        self.epochs: dict[str, int] = {}
        self._sequence = 0
        self._out = self.create_publisher(msg.Observation, names.server(server, "observation"), qos.OBSERVATION_SENT)
        self._hears = [
            self.create_subscription(msg.ActionChunk, names.robot(r, "rfm/action_chunk"), _deaf, qos.REPLY) for r in robots
        ]
        self.opener = self.create_client(srv.OpenSession, names.server(server, "open_session"), qos_profile=qos.CONTROL)
        self._robots = robots

    def open(self) -> None:
        for robot in self._robots:
            wanted = SessionRequest(
                robot=robot, component="system1", action_names=ACTIONS, cameras=(CAMERA,), state_size=len(JOINTS)
            )
            self.opener.call_async(session_request_to(wanted)).add_done_callback(partial(self._opened, robot))

    def _opened(self, robot: str, done: Any) -> None:
        answer = done.result()
        assert answer.success, answer.error_msg
        self.epochs[robot] = answer.session_epoch

    def ask(self) -> None:
        for robot, epoch in self.epochs.items():
            self._sequence += 1
            request = ObservationRequest(
                id=RequestId(robot=robot, component="system1", session_epoch=epoch, episode=1, sequence=self._sequence),
                stamp_ns=0,
                instruction="stay",
                state=np.zeros(len(JOINTS), np.float32),
                images=(IMAGE,),
                prefix_model=empty(0, len(ACTIONS)),
                prefix_robot=empty(0, len(ACTIONS)),
            )
            self._out.publish(convert.observation_to(request))


def _deaf(message: Any) -> None:
    pass


if __name__ == "__main__":
    rclpy.init()
    crowd = Crowd(sys.argv[1], sys.argv[3:])
    while not crowd.opener.wait_for_service(1.0):
        time.sleep(0.1)
    crowd.open()
    crowd.create_timer(1.0 / float(sys.argv[2]), crowd.ask)
    rclpy.spin(crowd)

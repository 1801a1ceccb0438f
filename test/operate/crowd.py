"""Clients that no schedule knows, a process: `python -m test.operate.crowd <server> <rate_hz> <robot>[/<component>] ...`; each
opens a session, for System 1 unless it says otherwise, and asks so often."""

from __future__ import annotations

import sys
import time
from functools import partial
from typing import Any

import numpy as np
import rclpy
from rclpy.node import Node
from rfm_serving import msg, srv

from lab.benchmarks.path.sides import camera_image
from ros2_rfm_serving.ros.wire import convert, qos
from ros2_rfm_serving.ros.wire.session_messages import session_request_to
from ros2_rfm_serving.types import ActionChunk, EncodedImage, JudgeVerdict, ObservationRequest, RequestId, SessionRequest, empty

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
        self._components = {robot: component or "system1" for robot, _, component in (each.partition("/") for each in robots)}
        self._hears = []
        for robot, component in self._components.items():  # a server gives up who does not listen for its answers
            kind, topic = convert.REPLIES[ActionChunk if component == "system1" else JudgeVerdict]
            self._hears.append(self.create_subscription(kind, names.robot(robot, topic), _deaf, qos.REPLY))
        self.opener = self.create_client(srv.OpenSession, names.server(server, "open_session"), qos_profile=qos.CONTROL)

    def open(self) -> None:
        for robot, component in self._components.items():
            contract = {"action_names": ACTIONS, "state_size": len(JOINTS)} if component == "system1" else {}
            wanted = SessionRequest(robot=robot, component=component, cameras=(CAMERA,), **contract)  # type: ignore[arg-type]
            self.opener.call_async(session_request_to(wanted)).add_done_callback(partial(self._opened, robot))

    def _opened(self, robot: str, done: Any) -> None:
        answer = done.result()
        assert answer.success, answer.error_msg
        self.epochs[robot] = answer.session_epoch

    def ask(self) -> None:
        for robot, epoch in self.epochs.items():
            self._sequence += 1
            acts = self._components[robot] == "system1"
            request = ObservationRequest(
                id=RequestId(
                    robot=robot, component=self._components[robot], session_epoch=epoch, episode=1, sequence=self._sequence
                ),
                stamp_ns=0,
                instruction="stay",
                state=np.zeros(len(JOINTS) if acts else 0, np.float32),
                images=(IMAGE,),
                prefix_model=empty(0, len(ACTIONS) if acts else 0),
                prefix_robot=empty(0, len(ACTIONS) if acts else 0),
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

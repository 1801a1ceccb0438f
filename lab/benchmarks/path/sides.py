"""Both sides of `rfm bench path`: robots that send requests as fast as they may, and a bare echo as the transport's own cost."""

from __future__ import annotations

from typing import Any

import numpy as np
import simplejpeg
from rclpy.node import Node
from rfm_serving import msg, srv

from lab.benchmarks.path.pictures import patches
from ros2_rfm_serving.robot import RobotConfig, RobotCore, TaskGoal
from ros2_rfm_serving.robot.core import Sensors
from ros2_rfm_serving.ros.node.runtime import clock, run_node
from ros2_rfm_serving.ros.node.timers import every
from ros2_rfm_serving.ros.wire import convert, qos
from ros2_rfm_serving.ros.wire.session_messages import grant_from, session_request_to
from ros2_rfm_serving.types import SYSTEM1, EncodedImage, Placement, Route, Schedule, SessionRequest

ACTION_NAMES = ("delta_x", "delta_y", "delta_z", "gripper")
CAMERAS = ("side", "front")
STATE_SIZE, CHUNK_LENGTH, CONTROL_RATE_HZ, REQUESTS_HZ = 39, 16, 20.0, 5.0


def camera_image(size_px: int, seed: int) -> bytes:
    """Return a JPEG with much detail (coloured patches and noise), quality 90."""
    encoded: bytes = simplejpeg.encode_jpeg(patches(size_px, size_px, 8, seed), quality=90, colorspace="RGB")
    return encoded


class BenchRobots(Node):
    """Robot cores in one process. `overheads_s`: from sending an observation to the chunk in the queue, minus inference."""

    def __init__(self, server: str, num_robots: int, image_size_px: int) -> None:
        super().__init__("bench_robots", enable_rosout=False, start_parameter_services=False)
        self.overheads_s: list[float] = []
        self.queue_waits_s: list[float] = []
        self._server = server
        names = qos.Names()
        self._out = self.create_publisher(msg.Observation, names.server(server, "observation"), qos.OBSERVATION_SENT)
        self._open = self.create_client(srv.OpenSession, names.server(server, "open_session"))
        self.create_subscription(msg.ServerStatus, names.server(server, "status"), self._on_status, qos.SERVER_STATUS)
        self._images = tuple(
            EncodedImage(camera=camera, format="jpeg", data=camera_image(image_size_px, i)) for i, camera in enumerate(CAMERAS)
        )
        self._brains = {f"bench_{i}": self._brain(f"bench_{i}") for i in range(num_robots)}
        for name in self._brains:
            topic = names.robot(name, "rfm/action_chunk")
            self.create_subscription(msg.ActionChunk, topic, lambda m, robot=name: self._on_chunk(robot, m), qos.REPLY)
        # One timer serves all robots: ticks are spread over the period, like those of independent robots.
        self._turn = 0
        every(self, 1.0 / (CONTROL_RATE_HZ * num_robots), self._tick_next)

    @property
    def image_bytes(self) -> int:
        return sum(len(image.data) for image in self._images)

    def _brain(self, name: str) -> RobotCore:
        horizon = round(CONTROL_RATE_HZ / REQUESTS_HZ)
        brain = RobotCore(
            RobotConfig(
                name=name,
                action_names=ACTION_NAMES,
                cameras=CAMERAS,
                state_size=STATE_SIZE,
                control_rate_hz=CONTROL_RATE_HZ,
                execution_horizon=horizon,
            )
        )
        placement = Placement(
            server=self._server,
            model="",
            components=(SYSTEM1,),
            gpu_type="",
            batching="fixed",
            batch_size=8,
            max_sessions=64,
            predicted_p99_s=0.0,
        )
        route = Route(robot=name, component=SYSTEM1, server=self._server, max_rate_hz=100.0, slo_s=0.0)
        brain.on_schedule(
            Schedule(epoch=1, placements=(placement,), routes=(route,), predicted_actions_hz=0.0, policy="bench"), clock()
        )
        brain.start(TaskGoal(task="bench", instruction="reach the red goal", time_budget_s=1e9, reset=False), clock())
        return brain

    def _on_status(self, message: Any) -> None:
        for brain in self._brains.values():
            brain.on_server_status(self._server, message.state == msg.ServerStatus.READY, clock())

    def _tick_next(self) -> None:
        name = list(self._brains)[self._turn % len(self._brains)]
        self._turn += 1
        now_s = clock()
        sensors = Sensors(state=np.zeros(STATE_SIZE, np.float32), state_s=now_s, images=self._images, images_s=now_s)
        tick = self._brains[name].tick(sensors, now_s)
        for _, request in tick.requests:
            self._out.publish(convert.observation_to(request))
        for server, opening in tick.opens:
            self._session(name, server, opening)

    def _session(self, robot: str, server: str, opening: SessionRequest) -> None:
        def done(future: Any) -> None:
            answer = future.result()
            if answer.success:
                self._brains[robot].on_session_opened(opening.component, server, grant_from(answer), clock())
            else:
                self._brains[robot].on_session_refused(opening.component, server, answer.error_msg, clock())

        self._open.call_async(session_request_to(opening)).add_done_callback(done)

    def _on_chunk(self, robot: str, message: Any) -> None:
        chunk = convert.chunk_from(message)
        self._brains[robot].on_reply(chunk, clock())
        self.overheads_s.append(clock() - chunk.stamp_ns * 1e-9 - chunk.served.inference_s)
        self.queue_waits_s.append(chunk.served.queue_wait_s)


class Echo(Node):
    """Echo that answers every observation with a fixed chunk without reading it, so that only the transport is measured."""

    def __init__(self) -> None:
        super().__init__("bench_echo", enable_rosout=False, start_parameter_services=False)
        self._out = self.create_publisher(msg.ActionChunk, "/bench/echo/chunk", qos.REPLY)
        zeros = np.zeros((CHUNK_LENGTH, len(ACTION_NAMES)), np.float32)
        self._answer = msg.ActionChunk(chunk_model=convert.tensor_to(zeros), chunk_robot=convert.tensor_to(zeros))
        self.create_subscription(
            msg.Observation, "/bench/echo/observation", self._on_observation, qos.OBSERVATION_RECEIVED, raw=True
        )

    def _on_observation(self, _: bytes) -> None:
        self._out.publish(self._answer)


class EchoClient(Node):
    """Client with one observation in flight to the echo, as large as the robots'."""

    def __init__(self, image_size_px: int) -> None:
        super().__init__("bench_echo_client", enable_rosout=False, start_parameter_services=False)
        self.round_trips_s: list[float] = []
        self._out = self.create_publisher(msg.Observation, "/bench/echo/observation", qos.OBSERVATION_SENT)
        self.create_subscription(msg.ActionChunk, "/bench/echo/chunk", self._on_chunk, qos.REPLY)
        self._message = msg.Observation(
            images=[
                convert.image_to(EncodedImage(camera=c, format="jpeg", data=camera_image(image_size_px, i)))
                for i, c in enumerate(CAMERAS)
            ]
        )
        self._sent_s = 0.0
        every(self, 1.0 / REQUESTS_HZ / 2, self._send)

    def _send(self) -> None:
        self._sent_s = clock()
        self._out.publish(self._message)

    def _on_chunk(self, _: Any) -> None:
        self.round_trips_s.append(clock() - self._sent_s)


if __name__ == "__main__":
    run_node(Echo)

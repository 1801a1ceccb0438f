"""Stand-ins for a large factory: one process publishes twice a second like its robots and servers. No robot and no model runs.

python -m lab.benchmarks.dashboard.stand_in 300
"""

from __future__ import annotations

import random
import sys
from typing import Any

from rclpy.node import Node
from rfm_serving import msg

from ros2_rfm_serving.ros.node.runtime import run_node
from ros2_rfm_serving.ros.node.timers import every
from ros2_rfm_serving.ros.wire import convert, qos
from ros2_rfm_serving.types.histogram import TICK_BOUNDS_S, Histogram

ROBOTS_PER_SERVER, SLICES = 25, 20
"""Parts of a period (`SLICES`), over which messages are spread: real robots do not publish all at once."""
SCHEDULE_PERIOD_S = 2.0
TASKS = ("pick_place", "door_open", "push")
SLO_S = 0.4


class Robot:
    """Stand-in for a robot, with a slightly different status every time."""

    def __init__(self, node: Node, names: qos.Names, number: int, server: str) -> None:
        self.name, self.task, self.server = f"robot_{number + 1}", TASKS[number % len(TASKS)], server
        self._publisher = node.create_publisher(msg.RobotStatus, names.robot(self.name, "rfm/status"), qos.ROBOT_STATUS)
        self._random, self._answers = random.Random(number), 0
        self._trips, self._ticks = Histogram(), Histogram(TICK_BOUNDS_S)

    def tell(self) -> None:
        draw = self._random
        round_trip_s = draw.uniform(0.05, 0.09)
        self._answers += 2
        self._trips.add(round_trip_s)
        self._ticks.add(draw.uniform(0.0002, 0.002))
        words = [msg.Counter(name="ongoing", count=self._answers)]
        status = msg.RobotStatus(
            state=msg.RobotStatus.DEGRADED if draw.random() < 0.01 else msg.RobotStatus.STREAMING,
            phase=msg.RobotStatus.EXECUTING,
            task=self.task,
            instruction=f"do {self.task}",
            verdict="ongoing",
            episode=1 + self._answers // 200,
            schedule_epoch=1,
            server=self.server,
            queue_depth=draw.randint(4, 20),
            staleness_s=draw.uniform(0.05, 0.3),
            action_rate_hz=draw.uniform(19.5, 20.0),
            chunk_rate_hz=draw.uniform(3.8, 4.0),
            window_s=5.0,
            round_trip_p50_s=round_trip_s,
            round_trip_p99_s=2 * round_trip_s,
            components=[
                msg.ComponentFigures(component="system1", slo_s=SLO_S, in_time=self._answers),
                msg.ComponentFigures(component="monitor", slo_s=1.0, in_time=self._answers, words=words),
            ],
            histograms=[
                convert.histogram_to("staleness_s", self._trips),
                convert.histogram_to("tick_s", self._ticks),
                convert.histogram_to("tick_late_s", self._ticks),
                convert.histogram_to("round_trip_s", self._trips, "system1"),
                convert.histogram_to("round_trip_s", self._trips, "monitor"),
            ],
        )
        status.header.frame_id = self.name
        self._publisher.publish(status)


class Server:
    def __init__(self, node: Node, names: qos.Names, number: int) -> None:
        self.name = f"server_{number + 1}"
        self._publisher = node.create_publisher(msg.ServerStatus, names.server(self.name, "status"), qos.SERVER_STATUS)
        self._random, self._waits, self._runs, self._served = random.Random(-1 - number), Histogram(), Histogram(), 0

    def tell(self) -> None:
        draw = self._random
        self._served += 50
        self._waits.add(draw.uniform(0.001, 0.02))
        self._runs.add(draw.uniform(0.03, 0.04))
        status = msg.ServerStatus(
            state=msg.ServerStatus.READY,
            model="stand-in/policy",
            emulated=True,
            schedule_epoch=1,
            sessions=ROBOTS_PER_SERVER,
            max_sessions=2 * ROBOTS_PER_SERVER,
            waiting=draw.randint(0, 4),
            batch_size=8,
            mean_batch_size=draw.uniform(3.0, 5.0),
            window_s=5.0,
            request_rate_hz=draw.uniform(95.0, 100.0),
            latency_p50_s=draw.uniform(0.04, 0.05),
            latency_p99_s=draw.uniform(0.06, 0.08),
            load=draw.uniform(0.5, 0.7),
            served=self._served,
            histograms=[convert.histogram_to("queue_wait_s", self._waits), convert.histogram_to("inference_s", self._runs)],
        )
        status.header.frame_id = self.name
        self._publisher.publish(status)


class StandIn(Node):
    def __init__(self, num_robots: int) -> None:
        super().__init__("stand_in", enable_rosout=False, start_parameter_services=False)
        names = qos.Names()
        self._servers = [Server(self, names, i) for i in range(-(-num_robots // ROBOTS_PER_SERVER))]
        hosts = [server.name for server in self._servers]
        self._robots = [Robot(self, names, i, hosts[i // ROBOTS_PER_SERVER]) for i in range(num_robots)]
        self._slice = 0
        self._schedule = self.create_publisher(msg.Schedule, names.schedule, qos.SCHEDULE)
        every(self, qos.STATUS_PERIOD_S / SLICES, self._tell)
        every(self, SCHEDULE_PERIOD_S, self._plan)
        self._plan()

    def _tell(self) -> None:
        self._slice = (self._slice + 1) % SLICES
        for robot in self._robots[self._slice :: SLICES]:
            robot.tell()
        for server in self._servers[self._slice :: SLICES]:
            server.tell()

    def _plan(self) -> None:
        parts = (("system1", 4.0, SLO_S), ("monitor", 2.0, 1.0))
        schedule = msg.Schedule(
            scheduler=1,
            epoch=1,
            factory=f"{len(self._robots)} stand-ins",
            policy="best",
            predicted_actions_hz=4.0 * len(self._robots),
            gap=0.02,
            placements=[_placement(server.name) for server in self._servers],
            routes=[
                msg.Route(robot=robot.name, component=part, server=robot.server, max_rate_hz=rate_hz, slo_s=slo_s, task=robot.task)
                for robot in self._robots
                for part, rate_hz, slo_s in parts
            ],
        )
        self._schedule.publish(schedule)


def _placement(server: str) -> Any:
    return msg.Placement(
        server=server,
        model="stand-in/policy",
        components=["system1", "monitor"],
        gpu_type="none",
        batching="fixed",
        batch_size=8,
        max_sessions=2 * ROBOTS_PER_SERVER,
        predicted_p99_s=0.09,
    )


if __name__ == "__main__":
    run_node(lambda: StandIn(int(sys.argv[1])), __doc__)

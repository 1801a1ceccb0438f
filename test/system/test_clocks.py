"""Whatever the wall clock and `/clock` do, the factory works and says so as before: only stamps of messages follow them."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest
from rfm_serving.msg import RobotStatus, Schedule, ServerStatus

from ros2_rfm_serving.ros.wire import qos
from test.system.test_faults import SERVER, Floor, Witness, begin_task, factory

WATCH_S = 6.0
"""Longer than a liveliness lease and than the repetition of a schedule."""
FEWEST_HEARD = 3
"""Statuses in that time and, where a busy machine swallowed some, a while longer: a clock that stands still swallows all."""
FEWEST_SCHEDULES = 2
"""The one that is latched, and one of those that are repeated every 2 s."""
FEWEST_CHUNKS = 4


class WallClock:
    """Of the processes that have its environment; `wall_clock.c` moves it."""

    def __init__(self, folder: Path) -> None:
        library, self._file = folder / "wall_clock.so", folder / "wall_clock"
        source = Path(__file__).with_name("wall_clock.c")
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, source, "-ldl", "-lpthread"], check=True)
        self.step(0.0)
        self.environment = {"LD_PRELOAD": str(library), "WALL_CLOCK_FILE": str(self._file)}

    def step(self, seconds: float) -> None:
        """In place: the processes have the file in their memory."""
        with self._file.open("r+b" if self._file.exists() else "wb") as file:
            file.write(struct.pack("=q", round(1e9 * seconds)))


def hears_everybody(witness: Witness) -> None:
    """For `WATCH_S`, and until all have said enough."""
    heard, chunks = [0, 0, 0], len(witness.chunks)

    def count(kind: int) -> None:
        heard[kind] += 1

    subscriptions = [
        witness.create_subscription(RobotStatus, "/arm_1/rfm/status", lambda _: count(0), qos.ROBOT_STATUS),
        witness.create_subscription(ServerStatus, f"/rfm/servers/{SERVER}/status", lambda _: count(1), qos.SERVER_STATUS),
        witness.create_subscription(Schedule, "/rfm/schedule", lambda _: count(2), qos.SCHEDULE_HEARD),
    ]
    witness.watch(WATCH_S)
    witness.wait(lambda: min(heard[:2]) >= FEWEST_HEARD and heard[2] >= FEWEST_SCHEDULES)
    witness.wait(lambda: len(witness.chunks) >= chunks + FEWEST_CHUNKS)
    for subscription in subscriptions:
        witness.destroy_subscription(subscription)


def works_as_before(floor: Floor, witness: Witness) -> None:
    seen = len(witness.states)
    hears_everybody(witness)
    lost = {RobotStatus.RECONNECTING, RobotStatus.DEAD}
    assert not lost & set(witness.states[seen:]), [witness.states[seen:], witness.robot.reason]
    assert floor.all_alive()


@pytest.mark.timeout(200)
@pytest.mark.parametrize("step_s", [-3600.0, pytest.param(-5.0, marks=pytest.mark.thorough), 86400.0])
def test_a_step_of_the_wall_clock_is_nothing_to_anybody(repository: Path, tmp_path: Path, ros_domain: int, step_s: float) -> None:
    wall_clock = WallClock(tmp_path)
    with factory(repository, tmp_path, environment=wall_clock.environment) as (floor, witness):
        begin_task(witness)
        works_as_before(floor, witness)
        wall_clock.step(step_s)
        works_as_before(floor, witness)
        assert abs(witness.server.header.stamp.sec - time.time() - step_s) < 60.0, "the clock did step, and stamps follow it"


@pytest.mark.timeout(200)
def test_nobody_needs_a_simulated_clock_that_runs(repository: Path, tmp_path: Path, ros_domain: int) -> None:
    """`use_sim_time`, and nobody publishes `/clock`: as when a simulation is paused."""
    with factory(repository, tmp_path, common={"use_sim_time": True}) as (floor, witness):
        begin_task(witness)
        works_as_before(floor, witness)


SPEAKER = """
import time
from rclpy.node import Node
from std_msgs.msg import Empty
from ros2_rfm_serving.operate.running import spinning
with spinning(lambda: Node("speaker")) as node:
    publisher = node.create_publisher(Empty, "word", 10)
    while True:
        publisher.publish(Empty())
        time.sleep(0.1)
"""
LISTENER = """
import threading
from rclpy.node import Node
from std_msgs.msg import Empty
from ros2_rfm_serving.operate.running import spinning
heard = threading.Event()
with spinning(lambda: Node("listener")) as node:
    node.create_subscription(Empty, "word", lambda _: heard.set(), 10)
    print("heard" if heard.wait(90.0) else "heard nothing", flush=True)
    threading.Event().wait()
"""


@contextmanager
def running(script: str, environment: dict[str, str]) -> Iterator[tuple[subprocess.Popen[str], IO[str]]]:
    """And what it says."""
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", script], env=os.environ | environment, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        yield process, process.stdout
    finally:
        process.kill()
        process.wait(timeout=30)
        process.stdout.close()


@pytest.mark.timeout(200)
def test_who_takes_the_place_of_a_killed_process_is_heard_after_the_clock_was_set_back(tmp_path: Path, ros_domain: int) -> None:
    """Fast DDS would go on writing to the killed one, in whose port another one listens, until the clock has caught up."""
    wall_clock = WallClock(tmp_path)
    with running(SPEAKER, wall_clock.environment):
        with running(LISTENER, wall_clock.environment) as (first, said):
            assert said.readline() == "heard\n"
            wall_clock.step(-3600.0)
            first.kill()
        for _ in range(2):
            with running(LISTENER, wall_clock.environment) as (_, said):
                assert said.readline() == "heard\n"

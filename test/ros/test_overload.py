"""Processes that were held up for seconds: what has piled up meanwhile holds nobody up afterwards."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from ros2_rfm_serving.benchmarks.processes import process, spinning
from ros2_rfm_serving.benchmarks.robots.report import _num_working, parameters_of, robot_parameters
from ros2_rfm_serving.benchmarks.robots.world import Surroundings

NAMES = [f"robot_{i + 1}" for i in range(12)]
HELD_UP_S = 3.0
"""Longer than a server may be silent, and than a request may take."""


class Fleet:
    def __init__(self, running: ExitStack) -> None:
        server = {"server": "s", "model": "emulated/instant", "gpu_type": "EMULATED", "batch_size": 8, "max_sessions": len(NAMES)}
        of_server = running.enter_context(parameters_of(server))
        of_robots = running.enter_context(parameters_of(robot_parameters(NAMES, "timer")))
        self.server = running.enter_context(process("ros2_rfm_serving.ros.model_server_node", *of_server))
        self.robots = running.enter_context(process("ros2_rfm_serving.ros.robots_node", *of_robots))
        self.node, self._spin = running.enter_context(spinning(lambda: Surroundings(NAMES, "s", 96)))

    def wait(self, until: Callable[[], bool], what: str) -> None:
        self._spin(until, 60.0)
        assert until(), what

    def all_stream(self) -> bool:
        return _num_working(self.node) == len(NAMES)

    def hold_up(self, pid: int) -> None:
        os.kill(pid, signal.SIGSTOP)
        self._spin(lambda: False, HELD_UP_S)
        os.kill(pid, signal.SIGCONT)


@pytest.fixture
def fleet(ros_domain: int) -> Iterator[Any]:
    with ExitStack() as running:
        yield Fleet(running)


def test_every_robot_streams_again_after_its_server_or_its_own_process_was_held_up(fleet: Fleet) -> None:
    fleet.wait(fleet.all_stream, "streaming")
    for pid in (fleet.server, fleet.robots):
        fleet.hold_up(pid)
        fleet.wait(lambda: not fleet.all_stream(), "a word of it")
        fleet.wait(fleet.all_stream, "streaming again")

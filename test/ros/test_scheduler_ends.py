"""A scheduler's process ends while it plans a whole factory: whoever waits is answered, and nothing is left behind."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import rclpy
from rclpy.node import Node
from rfm_serving import srv

from ros2_rfm_serving.errors import PlannerError
from ros2_rfm_serving.factory import load_factory
from ros2_rfm_serving.ros import planner
from ros2_rfm_serving.ros.node.runtime import executor
from ros2_rfm_serving.scheduler import PlanJob, PlanResult
from test.ros.test_scheduler_node import FACTORY


class Rig:
    def __init__(self, folder: Path) -> None:
        (folder / "factory.yaml").write_text(FACTORY)
        node = "ros2_rfm_serving.ros.scheduler_node"
        command = [sys.executable, "-W", "ignore", "-m", node, "--ros-args", "-p", f"factory_file:={folder / 'factory.yaml'}"]
        self.process = subprocess.Popen(command, start_new_session=True)
        self._peer, self._executor = Node("peer"), executor()
        self._executor.add_node(self._peer)
        self.replan = self._peer.create_client(srv.Replan, "/rfm/replan")

    def wait(self, until: Callable[[], Any]) -> None:
        end_s = time.monotonic() + 120.0
        while not until():
            assert time.monotonic() < end_s, "waited in vain"
            self._executor.spin_once(timeout_sec=0.02)

    def planner(self) -> int:
        """The process that plans, once there is one."""
        found: list[int] = []
        self.wait(lambda: found.extend(planners_of(self.process.pid)) or found)
        return found[0]

    def close(self) -> None:
        self._executor.shutdown()
        self._peer.destroy_node()
        self.process.kill()
        self.process.wait()


@pytest.fixture
def rig(ros_domain: int, tmp_path: Path) -> Iterator[Rig]:
    rclpy.init()
    made = Rig(tmp_path)
    try:
        made.wait(made.replan.service_is_ready)
        yield made
    finally:
        made.close()
        rclpy.try_shutdown()


def planners_of(parent: int) -> list[int]:
    """Before one runs its own program it is a copy of its parent, which waits for it: whoever stopped it then would stop both."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [int(child) for child in children if b"plan_worker" in command_line(child)]


def command_line(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_ctrl_c_while_it_plans_answers_and_ends(rig: Rig) -> None:
    answer = rig.replan.call_async(srv.Replan.Request())
    planner_id = rig.planner()
    os.kill(planner_id, signal.SIGSTOP)
    os.killpg(rig.process.pid, signal.SIGINT)  # as a terminal does: everybody in front gets it
    rig.wait(answer.done)
    assert not answer.result().success and "the scheduler ends" in answer.result().error_msg
    assert rig.process.wait(timeout=30) == 0
    rig.wait(lambda: not lives(planner_id))


def test_a_scheduler_that_is_killed_leaves_no_planner_behind(rig: Rig) -> None:
    rig.replan.call_async(srv.Replan.Request())
    planner_id = rig.planner()
    rig.process.kill()
    rig.process.wait()
    rig.wait(lambda: not lives(planner_id))


def test_a_planner_that_stands_still_is_replaced(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Robots without a standby may wait for its plan: who does nothing is not waited for until the longest plan would be there."""
    monkeypatch.setattr(planner, "LONGEST_STILL_S", 2.0)
    (tmp_path / "factory.yaml").write_text(FACTORY)
    factory = load_factory(tmp_path / "factory.yaml")
    order, made = PlanJob(factory=factory, robots=tuple(factory.robots), policy="best"), []
    fleet: Any = SimpleNamespace(wanted=order, planned=lambda order, plan: made.append(plan))
    plans = planner.Planner(repository / "config" / "profiles", logging.getLogger())
    try:
        plans.look(fleet)
        assert plans._worker
        stopped = plans._worker.process.pid
        os.kill(stopped, signal.SIGSTOP)
        end_s = time.monotonic() + 120.0
        while not (made and isinstance(made[-1], PlanResult)):
            assert time.monotonic() < end_s, made
            plans.look(fleet)
            time.sleep(0.05)
        assert isinstance(made[0], PlannerError) and "has done nothing" in str(made[0])
        assert not lives(stopped)
    finally:
        plans.end()

"""What a robot does when what it depends on hangs, becomes another, or is gone: real processes, real DDS, an idle arm.

Servers that are killed: `test_factory.py` and `test_standby.py`.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import rclpy
import yaml
from rfm_serving.action import ExecuteTask
from rfm_serving.msg import ActionChunk, RobotStatus

from lab.benchmarks.network.run import module_of
from ros2_rfm_serving.ros.wire import qos
from test.system.test_factory import PlainClient

ROBOT, SERVER = "arm_1", "server_1"
FACTORY = """\
server_cluster: {{num_servers: 1, gpu_type: {gpu_type}}}
robot_fleet: [{{task: arm, num_robots: 1}}]
arm:
  pipeline: {{action_period_ms: 400}}
  components:
    system1: {{model: {model}, prompt: stay, slo_ms: 400}}
"""
SCHEDULER_AWAY_S = 10.0
"""A minute has the same outcome: nothing on the robot's or the server's side waits for the scheduler."""


class Floor:
    """Nodes of a small factory, each a process that the test can break."""

    def __init__(
        self, repository: Path, folder: Path, model: str, gpu_type: str, environment: dict[str, str], common: dict[str, Any]
    ) -> None:
        self._repository, self._folder, self._environment, self._common = repository, folder, environment, common
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        (folder / "factory.yaml").write_text(FACTORY.format(model=model, gpu_type=gpu_type))

    def start(self, executable: str, **parameters: Any) -> None:
        robot = {"robot": ROBOT, "task": "arm", "instruction": "stay", "max_action_age_s": 2.0}
        own = {
            "scheduler_node": {"factory_file": str(self._folder / "factory.yaml")},
            "model_server_node": {"server": SERVER},
            "robot_node": yaml.safe_load((self._repository / "config/robots/metaworld_arm.yaml").read_text())["/**"][
                "ros__parameters"
            ]
            | robot,
            "stand_in_node": {"robot": ROBOT, "give_tasks": False, "state_rate_hz": 20.0},
        }[executable]
        file = self._folder / f"{executable}.yaml"
        file.write_text(yaml.safe_dump({"/**": {"ros__parameters": own | self._common | parameters}}))
        command = [
            sys.executable,
            "-W",
            "ignore",
            "-m",
            module_of(executable),
            "--ros-args",
            "--params-file",
            str(file),
        ]
        with (self._folder / f"{executable}.log").open("ab") as log:
            environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"} | self._environment
            self.running[executable] = subprocess.Popen(
                command, cwd=self._repository, stdout=log, stderr=subprocess.STDOUT, env=environment
            )

    def signal(self, executable: str, number: signal.Signals) -> None:
        self.running[executable].send_signal(number)

    def kill(self, executable: str) -> None:
        process = self.running.pop(executable)
        process.kill()
        process.wait(timeout=30)

    def all_alive(self) -> bool:
        return all(process.poll() is None for process in self.running.values())


class Witness(PlainClient):
    """Sees every state in order, and which models' chunks arrive."""

    def __init__(self) -> None:
        self.states: list[int] = []
        self.chunks: list[tuple[int, str]] = []
        """(sequence number, hash)"""
        super().__init__(ROBOT, SERVER)
        self.create_subscription(ActionChunk, f"/{ROBOT}/rfm/action_chunk", self._on_chunk, qos.REPLY)

    def _on_robot(self, message: Any) -> None:
        super()._on_robot(message)
        if not self.states or self.states[-1] != message.state:
            self.states.append(message.state)

    def _on_chunk(self, message: Any) -> None:
        self.chunks.append((message.id.sequence, message.model_hash))

    def at_work(self) -> bool:
        return bool(self.robot and self.robot.state == RobotStatus.STREAMING and self.robot.queue_depth and self.chunks)

    def more_chunks(self, count: int) -> None:
        before = len(self.chunks)
        self.wait(lambda: len(self.chunks) >= before + count)

    def close(self) -> None:
        self._executor.shutdown()
        self.destroy_node()


@contextmanager
def factory(
    repository: Path,
    folder: Path,
    model: str = "emulated/arm-policy",
    gpu_type: str = "EMULATED",
    *,
    environment: dict[str, str] | None = None,
    common: dict[str, Any] | None = None,
    **robot: Any,
) -> Iterator[tuple[Floor, Witness]]:
    """environment: of every process; common: parameters of every node."""
    floor = Floor(repository, folder, model, gpu_type, environment or {}, common or {})
    rclpy.init()
    witness = Witness()
    try:
        floor.start("scheduler_node")
        floor.start("model_server_node")
        floor.start("robot_node", **robot)
        floor.start("stand_in_node")
        yield floor, witness
        assert floor.all_alive(), "a node died"
    finally:
        witness.close()
        rclpy.try_shutdown()
        for process in floor.running.values():
            process.send_signal(signal.SIGCONT)
            process.send_signal(signal.SIGINT)
        for process in floor.running.values():
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()


def begin_task(witness: Witness) -> Any:
    handle = witness.send(reset=True, time_budget_s=250.0)
    assert handle.accepted
    witness.wait(witness.at_work)
    return handle


@pytest.mark.timeout(200)
def test_a_hung_server_means_hold_and_it_goes_on_by_itself(repository: Path, tmp_path: Path, ros_domain: int) -> None:
    with factory(repository, tmp_path) as (floor, witness):
        begin_task(witness)
        held, seen = witness.robot.held_ticks, len(witness.states)
        floor.signal("model_server_node", signal.SIGSTOP)
        witness.wait(lambda: witness.robot.state == RobotStatus.RECONNECTING and SERVER in witness.robot.reason)
        witness.wait(lambda: witness.robot.held_ticks > held + 20)
        assert witness.robot.phase == RobotStatus.EXECUTING, "the task is not given up"
        floor.signal("model_server_node", signal.SIGCONT)
        witness.wait(witness.at_work)
        witness.more_chunks(3)
        assert RobotStatus.RECONNECTING in witness.states[seen:] and RobotStatus.DEAD not in witness.states


@pytest.mark.timeout(250)
def test_a_server_that_comes_back_with_another_model_is_refused(repository: Path, tmp_path: Path, ros_domain: int) -> None:
    with factory(repository, tmp_path, "rfm/metaworld-flow", "CPU") as (floor, witness):
        handle = begin_task(witness)
        ours, (others, folder) = witness.chunks[-1][1], retrained(repository, tmp_path)
        assert ours == content_hash(repository / "models" / "metaworld_flow") != others
        floor.kill("model_server_node")
        floor.start("model_server_node", models_folder=str(folder))
        witness.wait(lambda: witness.robot.state == RobotStatus.DEAD)
        assert ours[:12] in witness.robot.reason and others[:12] in witness.robot.reason, witness.robot.reason
        answer = witness.result(handle).result
        assert answer.error_code == ExecuteTask.Result.OFFLINE and others[:12] in answer.error_msg, answer
        assert {model for _, model in witness.chunks} == {ours}, "the other model's chunks reached the robot"


def content_hash(folder: Path) -> str:
    from ros2_rfm_serving.engines.embedded import bundle  # here: every process that collects tests would wait for PyTorch

    return bundle.content_hash(folder)


def retrained(repository: Path, folder: Path) -> tuple[str, Path]:
    """(hash, models folder) of the same network with a note in its configuration: to the robot another model."""
    copy = folder / "models" / "metaworld_flow"
    shutil.copytree(repository / "models" / "metaworld_flow", copy)
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | {"note": "trained again"}))
    return content_hash(copy), copy.parent


@pytest.mark.timeout(200)
def test_without_a_scheduler_everybody_goes_on(
    repository: Path, tmp_path: Path, ros_domain: int, record_property: Callable[[str, object], None]
) -> None:
    with factory(repository, tmp_path) as (floor, witness):
        begin_task(witness)
        followed, held, seen = witness.robot.scheduler, witness.robot.held_ticks, len(witness.states)
        floor.kill("scheduler_node")
        before = len(witness.chunks)
        witness.watch(SCHEDULER_AWAY_S)
        record_property("chunks_without_scheduler", len(witness.chunks) - before)
        record_property("held_without_scheduler", witness.robot.held_ticks - held)
        assert len(witness.chunks) > before + 3, "the robot is not served any more"
        online = {RobotStatus.STREAMING, RobotStatus.DEGRADED, RobotStatus.STALLED}
        late = {RobotStatus.RECONNECTING}  # on a busy machine: its session is opened again, for which nobody asks a scheduler
        assert set(witness.states[seen:]) <= online | late and witness.robot.scheduler == followed
        witness.wait(witness.at_work)
        witness.more_chunks(3)
        assert witness.robot.scheduler == followed
        floor.start("scheduler_node")
        witness.wait(lambda: witness.robot.scheduler != followed)
        witness.wait(witness.at_work)
        witness.more_chunks(3)


@pytest.mark.timeout(200)
def test_a_robot_works_with_faults_on_its_wire(repository: Path, tmp_path: Path, ros_domain: int) -> None:
    """What is damaged is refused and counted by whoever gets it, what is lost is asked for again, and the robot goes on."""
    faults = "drop=0.1 duplicate=0.2 reorder=0.1 corrupt=0.1 delay_ms=10 jitter_ms=5"
    with factory(repository, tmp_path, faults=faults, faults_seed=7) as (_, witness):
        begin_task(witness)
        witness.wait(lambda: witness.server and len(witness.server.refused) >= 2)
        witness.more_chunks(20)
        witness.wait(witness.at_work)
        assert "faults on purpose: drop=0.1" in (tmp_path / "robot_node.log").read_text()
        counted = {counter.name for counter in witness.server.refused}
        known = {"stale_sequence", "stale_episode", "stale_epoch", "unknown_session", "non_finite", "bad_shape", "bad_image"}
        # The last: what was sent while a machine stood still comes at once.
        assert counted <= known | {"delay_too_long", "lost_on_the_way", "over_quota"}, counted
        assert RobotStatus.DEAD not in witness.states

"""A robot of another simulator, with another body and another policy, through the same nodes: examples/jaco_world."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rclpy
from rclpy.node import Node
from rclpy.qos import QoSProfile
from rfm_serving.msg import ActionChunk, EpisodeScore, RobotStatus
from sensor_msgs.msg import JointState
from std_msgs.msg import Float64MultiArray

from ros2_rfm_serving.engines.bundles import load_bundle
from ros2_rfm_serving.factory import load_factory
from ros2_rfm_serving.factory.nodes import node_list
from ros2_rfm_serving.ros.wire import qos
from ros2_rfm_serving.worlds.base import WorldSpec
from ros2_rfm_serving.worlds.registry import teaching_world
from ros2_rfm_serving.worlds.rollout import run_episodes
from test.waiting import eventually

ROBOT = "reach_site_1"
SEEDS = list(range(2_000_000, 2_000_010))
"""Of scenes that training never saw."""
JOINTS = slice(0, 6)
STOOD = 10
"""Commands of nothing, one after the other."""
ALL = QoSProfile(depth=1000)


@pytest.fixture
def example(repository: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = repository / "examples/jaco_world"
    monkeypatch.syspath_prepend(str(folder))
    return folder


def test_expert_and_shipped_policy_do_the_task_and_a_seed_repeats_itself(example: Path) -> None:
    arm = teaching_world("jaco_world:build", WorldSpec(task="reach_site", image_size_px=96))
    engine = load_bundle("jaco/reach-site", example / "models/reach_site_flow")
    try:
        assert engine.contract.action_names == tuple(arm.action_names) and engine.contract.cameras == tuple(arm.cameras)
        first = [arm.reset(seed) or arm.state.copy() for seed in (7, 8, 7)]
        assert np.array_equal(first[0], first[2]) and not np.array_equal(first[0], first[1])
        assert sum(_shown(arm, seed) for seed in SEEDS) == len(SEEDS)
        done = run_episodes(arm, engine, arm.instructions[0], SEEDS, execute=4)
        assert sum(episode.success for episode in done) >= 8, done
    finally:
        engine.close()
        arm.close()


def _shown(arm: Any, seed: int) -> bool:
    arm.reset(seed)
    expert = arm.expert()
    for _ in range(300):
        arm.step(expert.get_action(arm.state.astype(np.float64)))
        if arm.success:
            return True
    return False


def test_drives_that_nobody_tells_anything_stop(example: Path) -> None:
    arm = teaching_world("jaco_world:build", WorldSpec(task="reach_site"))
    last = np.ones(9, np.float32)
    assert [float(arm.idle(last, steps).max()) for steps in (1, 4, 5, 50)] == [1, 1, 0, 0]
    arm.close()


def test_its_factory_is_that_of_any_robot(repository: Path, example: Path) -> None:
    nodes = node_list(load_factory(example / "factory.yaml"), repository / "config")
    assert {node.executable for node in nodes} == {"scheduler_node", "model_server_node", "simulated_robot_node", "robot_node"}


class Witness(Node):
    """Of one robot: what it is commanded, how it moves, and what it was told by whom, in the order in which it came."""

    def __init__(self) -> None:
        super().__init__("witness")
        self.commands: list[Any] = []
        """[9] each; None: a chunk came."""
        self.speeds = np.zeros(9)
        self.status: Any = None
        self.states: list[int] = []
        """All that it said it was in."""
        self.successes = 0
        self.create_subscription(Float64MultiArray, f"/{ROBOT}/command", self._take_command, ALL)
        self.create_subscription(ActionChunk, f"/{ROBOT}/rfm/action_chunk", lambda _: self.commands.append(None), qos.REPLY)
        self.create_subscription(JointState, f"/{ROBOT}/joint_states", self._take_joints, qos.SENSOR)
        self.create_subscription(RobotStatus, f"/{ROBOT}/rfm/status", self._take_status, qos.ROBOT_STATUS)
        self.create_subscription(EpisodeScore, f"/{ROBOT}/world/score", self._take_score, qos.SCORE)

    def _take_command(self, message: Any) -> None:
        self.commands.append(np.array(message.data))

    def _take_joints(self, message: Any) -> None:
        self.speeds = np.array(message.velocity)

    def _take_status(self, message: Any) -> None:
        self.status = message
        self.states.append(message.state)

    def _take_score(self, message: Any) -> None:
        self.successes += message.success and message.finished

    def wait(self, true: Any, what: str) -> None:
        def looked() -> Any:
            for _ in range(20):
                rclpy.spin_once(self, timeout_sec=0.001)
            return true()

        assert eventually(looked, 120.0), what


@pytest.fixture
def factory(repository: Path, example: Path, tmp_path: Path, ros_domain: int) -> Iterator[Path]:
    """With one server, so that nobody takes over. Its logs."""
    text = (example / "factory.yaml").read_text().replace("num_servers: 2", "num_servers: 1")
    (tmp_path / "factory.yaml").write_text(text)
    (tmp_path / "jaco_arm.yaml").write_text((example / "jaco_arm.yaml").read_text())
    command = [sys.executable, "-m", "ros2_rfm_serving.cli", "up", str(tmp_path / "factory.yaml"), "--end-on-score"]
    command += ["--profiles", str(example / "models"), "--logs", str(tmp_path / "logs")]
    paths = os.pathsep.join([str(repository), str(example), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, cwd=repository, env=environment, stdout=subprocess.DEVNULL)
    try:
        yield tmp_path / "logs"
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(90) == 0


def test_two_of_them_work_over_dds_and_without_their_server_they_come_to_rest_and_go_on(factory: Path) -> None:
    rclpy.init()
    witness = Witness()
    try:
        witness.wait(lambda: witness.successes >= 2, "two tasks done")
        witness.wait(lambda: witness.status.state == RobotStatus.STREAMING and witness.status.queue_depth, "work")
        mark, told = len(witness.commands), len(witness.states)
        os.kill(_server(factory), signal.SIGKILL)
        witness.wait(lambda: _zeros(witness.commands[mark:]) >= STOOD, "standstill")
        witness.wait(lambda: np.abs(witness.speeds[JOINTS]).max() < 0.01, "the arm at rest")
        witness.wait(lambda: set(witness.states[told:]) - {RobotStatus.STREAMING}, "the reason why")
        came_to_rest = _before_its_successor(witness.commands[mark:])
        before = witness.successes
        witness.wait(lambda: witness.successes > before + 1, "work with the server's successor")
    finally:
        witness.destroy_node()
        rclpy.try_shutdown()
    _nothing_wrong(came_to_rest)


def _server(logs: Path) -> int:
    """Its process."""
    asked = subprocess.run(["pgrep", "-f", str(logs / "server_1.yaml")], capture_output=True, text=True, check=True)
    return int(asked.stdout.split()[0])


def _zeros(commands: list[Any]) -> int:
    """How many in a row, at the end."""
    count = 0
    for command in reversed(commands):
        if command is None or command.any():
            break
        count += 1
    return count


def _before_its_successor(commands: list[Any]) -> list[Any]:
    """Up to the first chunk after the standstill."""
    stood = next(i for i in range(STOOD, len(commands) + 1) if _zeros(commands[:i]) >= STOOD)
    return commands[: next((i for i in range(stood, len(commands)) if commands[i] is None), len(commands))]


def _nothing_wrong(commands: list[Any]) -> None:
    """Within limits; after the last chunk its actions, then ever less of the last motion, then nothing."""
    last_chunk = max((i for i, command in enumerate(commands) if command is None), default=-1)
    left = np.array(commands[last_chunk + 1 :])
    assert np.isfinite(left).all() and np.abs(left).max() <= 1.0
    moving = left[left.any(axis=1)]
    assert len(moving) <= 24 + 0.3 * 25 + 2, "as many actions as a chunk has, and 0.3 s of ramp"
    assert not left[len(moving) :].any(), "and once it stands, it stands"

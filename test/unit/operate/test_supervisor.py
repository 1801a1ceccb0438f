"""When a factory whose processes keep failing is over, and when it goes on without them."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ros2_rfm_serving.factory.nodes import NodeSpec
from ros2_rfm_serving.monitoring.board import Board
from ros2_rfm_serving.operate import supervisor
from ros2_rfm_serving.operate.running import Options, show_until_end
from ros2_rfm_serving.operate.supervisor import Supervisor
from ros2_rfm_serving.ros.node.process import EXIT_CONFIGURATION


def factory(folder: Path) -> Supervisor:
    robots = [NodeSpec(name=name, executable="robot_node", namespace=name) for name in ("arm_1", "arm_2")]
    worlds = [NodeSpec(name=f"{name}_world", executable="metaworld_robot_node", namespace=name) for name in ("arm_1", "arm_2")]
    servers = [NodeSpec(name=name, executable="model_server_node") for name in ("server_1", "server_2")]
    others = [NodeSpec(name="scheduler", executable="scheduler_node"), NodeSpec(name="foreman", executable="foreman_node")]
    return Supervisor([*others, *servers, *worlds, *robots], folder)


def give_up(supervisor: Supervisor, *names: str, code: int = 1) -> None:
    for process in supervisor.processes:
        if process.node.name in names:
            process.gave_up, process.last_exit = True, code


@pytest.mark.parametrize(
    ("names", "code", "over"),
    [
        ((), 0, False),
        (("arm_1",), 1, False),
        (("arm_1", "arm_2"), 1, True),
        (("arm_1_world", "server_1", "foreman"), 1, False),
        (("server_1", "server_2"), 1, True),
        (("scheduler",), 1, False),
        (("scheduler",), EXIT_CONFIGURATION, True),
        (("server_1",), EXIT_CONFIGURATION, False),
    ],
)
def test_a_factory_is_over_when_nobody_is_left_who_could_serve_or_be_served(
    tmp_path: Path, names: tuple[str, ...], code: int, over: bool
) -> None:
    supervisor = factory(tmp_path)
    give_up(supervisor, *names, code=code)
    assert supervisor.is_hopeless is over


def test_a_robot_without_its_world_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--episodes` ends with the robots that are left."""
    supervisor, board = factory(tmp_path), Board(["arm_1", "arm_2"], ["server_1", "server_2"])
    give_up(supervisor, "arm_1_world")
    monkeypatch.setattr(Supervisor, "watch", lambda self: [])
    score = SimpleNamespace(success=True)
    monkeypatch.setattr(Board, "episodes", lambda self, robot: [score] * 3 if robot == "arm_2" else [])
    looks: list[Any] = []

    def give_in() -> bool:
        looks.append(None)
        return len(looks) > 20

    show_until_end("test", supervisor, board, Options(episodes=3), threading.Event(), give_in)
    assert len(looks) == 1


def test_a_process_gets_what_its_node_is_to_find_in_its_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The GPU of each server, of a real process's own environment."""
    show = [sys.executable, "-S", "-c", "import os; print(os.environ['CUDA_VISIBLE_DEVICES'], os.environ['ROS_DOMAIN_ID'])"]
    monkeypatch.setattr(supervisor, "command_of", lambda executable: show)
    monkeypatch.setenv("ROS_DOMAIN_ID", "147")
    nodes = [
        NodeSpec(name=f"server_{i}", executable="model_server_node", environment={"CUDA_VISIBLE_DEVICES": str(i)}) for i in (1, 2)
    ]
    started = Supervisor(nodes, tmp_path / "logs")
    started.start()
    try:
        for process in started.processes:
            assert process.running is not None and process.running.wait(timeout=60) == 0
            assert process.log.read_text().split() == [process.node.name[-1], "147"]
    finally:
        started.stop()
    assert (tmp_path / "logs").stat().st_mode & 0o777 == 0o700
    assert {one.stat().st_mode & 0o777 for one in (tmp_path / "logs").iterdir()} == {0o600}, "logs and parameters"


ENDS_SLOWLY = """
import os, signal, sys, time
def end(*_):
    time.sleep(float(sys.argv[1])); print(time.monotonic_ns()); sys.exit()
signal.signal(signal.SIGINT, end)
print("begun", flush=True)
while True: time.sleep(0.02)
"""


def test_robots_end_before_the_servers_that_answer_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the slower ones among them see a server lost in every end, and turn to another."""
    patience = {"model_server_node": "0", "robot_node": "0.5"}
    monkeypatch.setattr(
        supervisor, "command_of", lambda executable: [sys.executable, "-S", "-c", ENDS_SLOWLY, patience[executable]]
    )
    nodes = [NodeSpec(name="server_1", executable="model_server_node"), NodeSpec(name="arm_1", executable="robot_node")]
    started = Supervisor(nodes, tmp_path)
    started.start()
    try:
        while not all("begun" in process.log.read_text() for process in started.processes):
            time.sleep(0.02)
    finally:
        killed = started.stop()
    server_ns, robot_ns = (int(process.log.read_text().split()[-1]) for process in started.processes)
    assert not killed and robot_ns < server_ns


def test_a_server_may_take_what_it_was_given_to_answer_what_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A drain that was promised is not cut short; nor is a recorder that waits for its disk."""
    monkeypatch.setattr(supervisor, "command_of", lambda executable: [sys.executable, "-S", "-c", ENDS_SLOWLY, "1.0"])
    monkeypatch.setattr(supervisor, "STOP_TIMEOUT_S", 0.1)
    monkeypatch.setattr(supervisor, "TERMINATE_TIMEOUT_S", 0.1)
    draining = NodeSpec(name="server_1", executable="model_server_node", parameters={"drain_timeout_s": 30.0})
    nodes = [draining, NodeSpec(name="server_2", executable="model_server_node")]
    started = Supervisor(nodes, tmp_path, around=[NodeSpec(name="recorder", executable="recorder_node")])
    started.start()
    try:
        while not all("begun" in process.log.read_text() for process in started.processes):
            time.sleep(0.02)
    finally:
        killed = started.stop()
    assert not killed and all(len(process.log.read_text().split()) == 2 for process in started.processes)
    assert [process.patience_s for process in started.processes] == [20.1, 30.1, 0.1]


def test_a_frozen_container_cuts_short_no_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock goes on while nothing runs: in 40 s that nobody had, nobody could end."""
    monkeypatch.setattr(supervisor, "command_of", lambda executable: [sys.executable, "-S", "-c", ENDS_SLOWLY, "1.0"])
    monkeypatch.setattr(supervisor, "TERMINATE_TIMEOUT_S", 0.1)
    started = Supervisor([NodeSpec(name="server_1", executable="model_server_node")], tmp_path)
    started.start()
    while "begun" not in started.processes[0].log.read_text():
        time.sleep(0.02)
    looks, clock = iter(range(1, 10_000)), time.monotonic
    monkeypatch.setattr(supervisor.time, "monotonic", lambda: clock() + 40.0 * (next(looks) > 2))
    assert not started.stop()


def test_a_process_that_hears_nothing_is_killed_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deaf = "import signal, time; [signal.signal(n, signal.SIG_IGN) for n in (2, 15)]; print('begun', flush=True); time.sleep(600)"
    monkeypatch.setattr(supervisor, "command_of", lambda executable: [sys.executable, "-S", "-c", deaf])
    monkeypatch.setattr(supervisor, "ROBOTS_FIRST_S", 0.1)
    monkeypatch.setattr(supervisor, "STOP_TIMEOUT_S", 0.1)
    monkeypatch.setattr(supervisor, "TERMINATE_TIMEOUT_S", 0.1)
    started = Supervisor([NodeSpec(name="arm_1", executable="robot_node")], tmp_path)
    started.start()
    try:
        while "begun" not in started.processes[0].log.read_text():
            time.sleep(0.02)
    finally:
        killed = started.stop()
    assert killed == ["arm_1"]

"""What pip installed: every executable, started as ROS starts it, and how processes end: on signals that come as two or three, at
any moment, from a terminal; and when they cannot run as they are configured."""

from __future__ import annotations

import contextlib
import os
import pty
import random
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ros2_rfm_serving.factory.nodes import NodeSpec
from ros2_rfm_serving.operate.supervisor import Supervisor
from ros2_rfm_serving.ros.node.process import EXIT_CONFIGURATION
from test.waiting import eventually

PREFIX = Path(sys.prefix)
EXECUTABLES = PREFIX / "lib" / "rfm_serving"
MOMENTS = 6
"""At which each node is told to end, of its first seconds."""


def test_every_executable_starts_with_a_bare_environment_and_ends_on_two_signals(repository: Path, ros_domain: int) -> None:
    subprocess.run([sys.executable, repository / "scripts" / "start_executables", PREFIX], check=True, timeout=280)


@pytest.mark.parametrize(
    ("executable", "parameter"),
    [("robot_node", "robot:=arm_1"), ("scheduler_node", "factory_file:={factory}"), ("model_server_node", "server:=server_1")],
)
def test_two_or_three_signals_at_any_moment_are_one(
    repository: Path, tmp_path: Path, ros_domain: int, executable: str, parameter: str
) -> None:
    """From the process's own first line on; before, while Python itself starts, a signal ends it as it ends any process."""
    dice = random.Random(executable)
    given = parameter.format(factory=repository / "config" / "factory_emulated.yaml")
    for i in range(MOMENTS):
        log = tmp_path / f"{i}.log"
        with log.open("wb") as file:
            node = subprocess.Popen([EXECUTABLES / executable, "--ros-args", "-p", given], stdout=file, stderr=file)
        try:
            until(lambda: takes(node.pid, signal.SIGTERM) or node.poll() is not None)  # noqa: B023
            time.sleep(dice.uniform(0.0, 2.5))
            for number in (signal.SIGINT, *dice.choices([signal.SIGINT, signal.SIGTERM], k=2)):
                node.send_signal(number)
                time.sleep(dice.uniform(0.0, 0.2))
            code = node.wait(timeout=90)
            assert code == 0 and "Traceback" not in log.read_text(), f"exit code {code}: {log.read_text()}"
        finally:
            node.kill()


@pytest.mark.timeout(200)
def test_ctrl_c_in_a_terminal_pressed_twice_stops_the_installed_rfm_up(repository: Path, tmp_path: Path, ros_domain: int) -> None:
    command = [
        str(PREFIX / "bin" / "rfm"),
        "up",
        str(repository / "config" / "factory_emulated.yaml"),
        "--logs",
        str(tmp_path),
        "--log-level",
        "debug",
    ]
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        os.execv(command[0], command)
    said, ended = bytearray(), False
    try:
        until(lambda: drain(terminal, said) or "STREAMING" in (tmp_path / "idle_arm_1.log").read_text(), OSError)
        running = processes_of(tmp_path)
        assert running and all(str(EXECUTABLES) in line for line in running), "not what is installed"
        for _ in range(2):
            os.write(terminal, b"\x03")
            time.sleep(0.05)
        until(lambda: drain(terminal, said) or os.waitpid(pid, os.WNOHANG)[0])
        ended = True
    finally:
        if not ended:  # its nodes end with it
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        os.close(terminal)
        until(lambda: not processes_of(tmp_path))
    assert b"killed" not in said and b"Traceback" not in said, said.decode()
    logs = {file.stem: file.read_text() for file in tmp_path.glob("*.log")}
    assert logs and not any("Fatal" in log or "Traceback" in log for log in logs.values()), logs


@pytest.mark.parametrize(
    ("executable", "arguments", "says"),
    [
        ("scheduler_node", [], "factory_file: is empty; name a descriptor"),
        ("scheduler_node", ["-p", "factory_file:=/no/such/file.yaml"], "/no/such/file.yaml"),
        ("scheduler_node", ["-p", "factory_file:=5"], "factory_file"),
        ("foreman_node", [], "robots: names no robot"),
        ("metaworld_robot_node", ["-p", "task:=psh"], "did you mean 'push'"),
        ("metaworld_robot_node", ["-p", "control_rate_hz:=0.0"], "control_rate_hz"),
        ("robot_node", ["--log-level", "loud"], "valid severity level"),
        ("robot_node", ["--params-file", "/no/such/file.yaml"], "/no/such/file.yaml"),
    ],
)
def test_a_node_that_cannot_run_as_configured_says_why_and_by_its_exit_code(
    ros_domain: int, executable: str, arguments: list[str], says: str
) -> None:
    command = [EXECUTABLES / executable, "--ros-args", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert ended.returncode == EXIT_CONFIGURATION, ended
    assert "error: " in ended.stderr and says in ended.stderr and "Traceback" not in ended.stderr, ended.stderr


def test_such_a_node_is_not_started_again(tmp_path: Path, ros_domain: int) -> None:
    supervisor = Supervisor([NodeSpec(name="scheduler", executable="scheduler_node")], tmp_path)
    supervisor.start()
    try:
        events: list[str] = []
        until(lambda: events.extend(supervisor.watch()) or supervisor.gave_up)
        assert len(events) == 1 and "cannot run as it is configured" in events[0], events
        assert "factory_file" in (tmp_path / "scheduler.log").read_text()
    finally:
        supervisor.stop()


def until(condition: Callable[[], Any], *forgiven: type[Exception], seconds: float = 90.0) -> None:
    def holds() -> Any:
        with contextlib.suppress(*forgiven):
            return condition()

    assert eventually(holds, seconds), "waited in vain"


def takes(pid: int, number: signal.Signals) -> bool:
    """Whether a process has a handler of its own for a signal."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    caught = next((line for line in status.splitlines() if line.startswith("SigCgt:")), "SigCgt: 0")
    return bool(int(caught.split()[1], 16) >> (number - 1) & 1)


def drain(terminal: int, into: bytearray) -> bool:
    """What is said there would block its writer one day; False, for `or`."""
    while select.select([terminal], [], [], 0)[0]:
        try:
            into += os.read(terminal, 65536)
        except OSError:  # nobody has it open any more
            break
    return False


def processes_of(logs: Path) -> list[str]:
    """Command lines of the nodes that read their parameters there."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if f"--params-file {logs}" in line:
                found.append(line)
    return found

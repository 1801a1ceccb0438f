"""A small factory of processes that a test breaks one at a time, and a shell in which the runbook's commands run as printed."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import rclpy
import yaml
from rfm_serving.action import ExecuteTask
from rfm_serving.msg import RobotStatus, ServerStatus
from std_srvs.srv import Trigger

from lab.benchmarks.network.run import module_of
from test.system.test_clocks import WallClock
from test.system.test_factory import PlainClient

from .crowd import ACTIONS
from .sensor import CAMERA, JOINTS

ROBOT, SERVER, MODEL = "arm_1", "server_1", "runbook/arm"
PROFILED_S = 0.03
PATIENT_S = 240.0
"""For processes to start beside many others."""
FACTORY = f"""\
server_cluster: {{num_servers: 1, gpu_type: TEST}}
robot_fleet: [{{task: arm, num_robots: 1}}]
arm:
  pipeline: {{action_period_ms: 200}}
  execution: {{mode: async}}
  components:
    system1: {{model: {MODEL}, prompt: stay, slo_ms: 400}}
"""
HEADER = "model,gpu_type,batching,batch_size,rate_hz,mean_ms,p50_ms,p90_ms,p95_ms,p99_ms\n"
ROBOT_PARAMETERS = {
    "robot": ROBOT,
    "task": "arm",
    "instruction": "stay",
    "action_names": list(ACTIONS),
    "cameras": [CAMERA],
    "state_size": len(JOINTS),
    "state_parts": ["joint_states"],
    "joints": list(JOINTS),
    "control_rate_hz": 20.0,
    "execution_horizon": 4,
    "command_type": "delta",
    "fallback": ["hold"],
    "conditioning": "none",
    "max_action_age_s": 2.0,
}


def write_profiles(folder: Path, model: str = MODEL) -> Path:
    """The catalogue, and a latency profile; how long the engine takes, `seconds` beside them says at any time."""
    folder.mkdir(exist_ok=True)
    (folder / "seconds").write_text(str(PROFILED_S))
    ms = 1e3 * PROFILED_S
    entry = {
        "engine": "test.paced_engine:build",
        "options": {"seconds_file": str(folder / "seconds")},
        "action_names": list(ACTIONS),
        "cameras": [CAMERA],
        "state_size": len(JOINTS),
        "chunk_length": 16,
        "gpus": {"TEST": {"memory_gb": 1, "load_s": 0, "source": "chosen for tests; no model runs"}},
    }
    (folder / "models.yaml").write_text(yaml.safe_dump({"models": {model: entry}}))
    rows = [f"{model},TEST,fixed,1,{rate},{ms},{ms},{ms},{ms},{4 * ms}\n" for rate in (1, 33)]
    (folder / "arm.csv").write_text(HEADER + "".join(rows))
    return folder


class Floor:
    """Logs, parameters and profiles are below `folder`; commands run there."""

    def __init__(self, repository: Path, folder: Path, wall_clock: WallClock | None = None) -> None:
        """wall_clock: of all its processes; none: the machine's."""
        self._repository, self.folder, self.wall_clock = repository, folder, wall_clock
        self._environment = wall_clock.environment if wall_clock else {}
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self.profiles = write_profiles(folder / "profiles")
        (folder / "logs").mkdir(exist_ok=True)
        (folder / "factory.yaml").write_text(FACTORY)
        shell = folder / "bin" / "rfm"
        shell.parent.mkdir()
        shell.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -W ignore -m ros2_rfm_serving.cli "$@"\n')
        shell.chmod(0o755)
        rclpy.init()
        self.client = PlainClient(ROBOT, SERVER)

    # --- processes ---

    def node(
        self,
        executable: str,
        name: str = "",
        *,
        environment: Mapping[str, str] = MappingProxyType({}),
        remapped: tuple[str, ...] = (),
        **parameters: Any,
    ) -> None:
        """remapped: rules as "/from:=/to"."""
        own = {
            "scheduler_node": {"factory_file": str(self.folder / "factory.yaml"), "profiles_folder": str(self.profiles)},
            "model_server_node": {
                "server": SERVER,
                "profiles_folder": str(self.profiles),
                "hung_after_s": 0.0,
                "absent_grace_s": 1.0,
            },
            "robot_node": ROBOT_PARAMETERS,
        }[executable]
        name = name or executable
        file = self.folder / f"{name}.yaml"
        file.write_text(yaml.safe_dump({"/**": {"ros__parameters": own | parameters}}))
        rules = [text for rule in remapped for text in ("-r", rule)]
        self.start(name, module_of(executable), "--ros-args", "--params-file", str(file), *rules, environment=environment)

    def start(self, name: str, module: str, *arguments: str, environment: Mapping[str, str] = MappingProxyType({})) -> None:
        command = [sys.executable, "-W", "ignore", "-m", module, *arguments]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"} | self._environment | environment
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(command, cwd=self._repository, stdout=log, stderr=subprocess.STDOUT, env=environment)
        self._running[name] = process

    def send(self, name: str, number: signal.Signals) -> None:
        self._running[name].send_signal(number)

    def pace(self, seconds: float) -> None:
        """Of the engine, from its next batch on."""
        (self.profiles / "seconds").write_text(str(seconds))

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        process = self._running.pop(name)
        process.send_signal(number)
        process.wait(timeout=30)

    def ended(self, name: str) -> bool:
        """By itself."""
        return self._running[name].poll() is not None

    def call(self, verb: str) -> None:
        """Of a person: pause, resume."""
        service = self.client.create_client(Trigger, f"/{ROBOT}/rfm/{verb}")
        self.wait(service.service_is_ready)
        asked = service.call_async(Trigger.Request())
        self.wait(asked.done)
        assert asked.result().success, asked.result().message
        self.client.destroy_client(service)

    def open(self) -> None:
        for executable in ("scheduler_node", "model_server_node", "robot_node"):
            self.node(executable)
        for sensor in ("camera", "joints"):
            self.start(sensor, "test.operate.sensor", sensor, ROBOT)
        self.work()

    def work(self) -> None:
        """A task, until the robot executes."""
        self.client.robot = self.client.server = None
        self.wait(lambda: self.client.robot and self._idles(self.client.robot))
        self.give_task()
        self.streams()

    def work_again(self) -> None:
        """Wait until the robot executes, with a new task if its last one ended, as that of a robot without a server does."""
        self.client.robot = self.client.server = None
        self.wait(lambda: self._serves() and (self._works(self.client.robot) or self._idles(self.client.robot)))
        if self._idles(self.client.robot):
            self.give_task()
        self.streams()

    def give_task(self) -> None:
        """Again until it is taken: a robot that was killed a moment ago still seems to be there, and hears nothing."""
        asked: list[Any] = []
        while not any(sending.done() and sending.result().accepted for sending in asked):
            asked.append(self.client.action.send_goal_async(ExecuteTask.Goal(time_budget_s=3000.0)))
            self.watch(1.0)
            assert len(asked) < 60, "no task is taken"

    def streams(self) -> None:
        self.client.robot = self.client.server = None
        self.wait(lambda: self._works(self.client.robot) and self._serves())

    def _serves(self) -> bool:
        """Return whether the server is ready. A robot counts as streaming for a moment after its server was killed."""
        return bool(self.client.server and self.client.server.state == ServerStatus.READY)

    @staticmethod
    def _idles(robot: Any) -> bool:
        return bool(robot and robot.phase == RobotStatus.IDLE and robot.state == RobotStatus.STREAMING)

    @staticmethod
    def _works(robot: Any) -> bool:
        return bool(robot and robot.state == RobotStatus.STREAMING and robot.chunk_rate_hz > 3.0)

    def wait(self, until: Callable[[], Any]) -> Any:
        return self.client.wait(until, PATIENT_S)

    def watch(self, seconds: float) -> None:
        """Receive statuses meanwhile."""
        self.client.watch(seconds)

    def close(self) -> None:
        self.client.destroy_node()
        rclpy.try_shutdown()
        for process in self._running.values():
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait(timeout=30)

    # --- what an operator types ---

    def shell(self, command: str) -> subprocess.CompletedProcess[str]:
        path = f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
        environment = os.environ | {"PATH": path, "PYTHONPATH": str(self._repository)}
        return subprocess.run(
            command, shell=True, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=120, check=False
        )

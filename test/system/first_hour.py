"""A factory whose robots were each set up with one mistake, side by side: real nodes, real DDS, a stand-in of their drivers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import rclpy
import yaml
from geometry_msgs.msg import Twist
from rclpy.action import ActionClient
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, QoSProfile, qos_profile_sensor_data
from rfm_serving.action import ExecuteTask
from rfm_serving.msg import RobotStatus
from sensor_msgs.msg import CompressedImage, Image, JointState
from std_msgs.msg import Float64MultiArray

from lab.benchmarks.network.run import module_of
from lab.benchmarks.path.sides import camera_image
from test.operate.floor import HEADER
from test.waiting import eventually

from .mistaken_engine import BATCH, RATE_HZ, SECONDS
from .mistakes import CAMERA, JOINTS, Driver, Mistake

MODEL = "first_hour/arm"
FACTORY = """\
server_cluster: {{num_servers: 1, gpu_type: TEST}}
robot_fleet: [{{task: arm, num_robots: {robots}}}]
arm:
  robot: arm.yaml
  pipeline: {{action_period_ms: 500}}
  execution: {{mode: async}}
  components:
    system1: {{model: {model}, prompt: stay, slo_ms: 2000}}
"""
RIGHT = {
    "task": "arm",
    "instruction": "stay",
    "action_names": list(JOINTS),
    "cameras": [CAMERA],
    "state_size": len(JOINTS),
    "state_parts": ["joint_states"],
    "joints": list(JOINTS),
    "control_rate_hz": RATE_HZ,
    "execution_horizon": 10,
    "command_type": "delta",
    "fallback": ["hold"],
    "conditioning": "none",
    "max_action_age_s": 3.0,
}
"""Parameters of a robot without a mistake."""
JPEG = camera_image(64, 0)


def write_profiles(folder: Path) -> None:
    """Write the catalogue with the model, and its latency profile."""
    folder.mkdir(parents=True, exist_ok=True)
    entry = {
        "engine": "test.system.mistaken_engine:build",
        "action_names": list(JOINTS),
        "cameras": [CAMERA],
        "state_size": len(JOINTS),
        "chunk_length": 20,
        "gpus": {"TEST": {"memory_gb": 1, "load_s": 0, "source": "chosen for tests; no model runs"}},
    }
    (folder / "models.yaml").write_text(yaml.safe_dump({"models": {MODEL: entry}}))
    ms = 1e3 * SECONDS
    rows = [f"{MODEL},TEST,fixed,{BATCH},{rate},{ms},{ms},{ms},{ms},{4 * ms}\n" for rate in (1, 100)]
    (folder / "arm.csv").write_text(HEADER + "".join(rows))


def write_files(folder: Path, num_robots: int) -> None:
    """Write a descriptor, its robots' file, and the profiles of its model."""
    write_profiles(folder / "profiles")
    (folder / "factory.yaml").write_text(FACTORY.format(robots=num_robots, model=MODEL))
    (folder / "arm.yaml").write_text(_parameters_file({key: value for key, value in RIGHT.items() if key != "task"}))


def _parameters_file(parameters: dict[str, Any]) -> str:
    """Return the text of a ROS parameter file, which has no aliases: lists that robots share are written for each."""
    return yaml.safe_dump({"/**": {"ros__parameters": json.loads(json.dumps(parameters))}})


class StandIn:
    """One robot's driver: its sensors and its controller."""

    def __init__(self, node: Node, robot: str, driver: Driver) -> None:
        self._driver, self._robot, self._node = driver, robot, node
        self._positions = list(driver.positions)
        self._joints = node.create_publisher(JointState, f"/{robot}/joint_states", qos_profile_sensor_data)
        self._camera = node.create_publisher(self._image_type, f"/{robot}/{driver.camera_topic}", qos_profile_sensor_data)
        node.create_timer(1.0 / driver.joint_rate_hz, self._publish_joints)
        node.create_timer(1.0 / driver.camera_rate_hz, self._publish_image)
        self._control()

    def _control(self) -> None:
        kind = Twist if self._driver.controller == "twist" else Float64MultiArray
        profile = QoSProfile(depth=1)
        if self._driver.controller == "transient_local":
            profile.durability = DurabilityPolicy.TRANSIENT_LOCAL
        if self._driver.controller:
            self._node.create_subscription(kind, f"/{self._robot}/command", self._on_command, profile)
        if self._driver.commands_too:
            self._rival = self._node.create_publisher(Float64MultiArray, f"/{self._robot}/command", 1)

    def _on_command(self, message: Any) -> None:
        if self._driver.follows and isinstance(message, Float64MultiArray):
            self._positions = [here + 1e-3 for here in self._positions]

    @property
    def _image_type(self) -> type:
        return CompressedImage if self._driver.camera == "compressed" else Image

    def _publish_joints(self) -> None:
        self._joints.publish(JointState(name=list(self._driver.joint_names), position=self._positions, effort=[0.0, 0.0]))

    def _publish_image(self) -> None:
        image = self._image()
        if self._driver.stamps == "stuck":
            image.header.stamp.sec = 5
        elif self._driver.stamps == "whole seconds":
            image.header.stamp.sec = int(time.time())
        self._camera.publish(image)

    def _image(self) -> Any:
        if self._driver.camera == "compressed":
            return CompressedImage(format="jpeg", data=JPEG)
        encoding = "rgb565" if self._driver.camera == "encoding" else "rgb8"
        data = bytes(4) if self._driver.camera == "bytes" else bytes(320 * 240 * 3)
        return Image(height=240, width=320, encoding=encoding, step=960, data=data)


class FirstHour:
    """`robots` has the name of each mistake's robot. Logs and parameters are below `folder`."""

    def __init__(self, repository: Path, folder: Path, live: dict[str, Mistake]) -> None:
        self._repository, self.folder = repository, folder
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self.robots = {title: f"arm_{place}" for place, title in enumerate(live, start=1)}
        self._live = live
        write_files(folder, len(live))
        self._context = rclpy.Context()
        rclpy.init(context=self._context)
        self._node = Node("driver", context=self._context)
        self._streams: dict[str, Any] = {}
        self._executor = SingleThreadedExecutor(context=self._context)
        self._executor.add_node(self._node)
        self._drivers = [StandIn(self._node, self.robots[title], one.driver) for title, one in live.items()]
        for robot in self.robots.values():
            self._node.create_subscription(RobotStatus, f"/{robot}/rfm/status", self._on_status, 1)
        self._clients = {
            title: ActionClient(self._node, ExecuteTask, f"/{self.robots[title]}/execute_task")
            for title, one in live.items()
            if one.instruction
        }
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._spin, daemon=True)
        self._thread.start()

    def _spin(self) -> None:
        while not self._ending.is_set():
            self._executor.spin_once(timeout_sec=0.1)

    def _on_status(self, status: Any) -> None:
        self._streams[status.header.frame_id] = status

    # --- processes ---

    def start(self, name: str, executable: str, parameters: dict[str, Any] | str, **environment: str) -> None:
        """parameters: of the node, or the text of its file."""
        file = self.folder / f"{name}.yaml"
        text = parameters if isinstance(parameters, str) else _parameters_file(parameters)
        file.write_text(text)
        command = [sys.executable, "-W", "ignore", "-m", module_of(executable), "--ros-args", "--params-file", str(file)]
        with (self.folder / f"{name}.log").open("wb") as log:
            self._running[name] = subprocess.Popen(
                command,
                cwd=self._repository,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"} | environment,
            )

    def start_scheduler(self, name: str, **environment: str) -> None:
        parameters = {"factory_file": str(self.folder / "factory.yaml"), "profiles_folder": str(self.folder / "profiles")}
        self.start(name, "scheduler_node", parameters, **environment)

    def pin(self, name: str, core: int) -> None:
        """Let all threads of a process run on one core alone."""
        for thread in Path(f"/proc/{self._running[name].pid}/task").iterdir():
            os.sched_setaffinity(int(thread.name), {core})

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def ended(self, name: str) -> int:
        """Return how a process ended that ends by itself."""
        return self._running[name].wait(timeout=60)

    def open(self) -> None:
        """Start the factory, and beside its robots one that is not in the descriptor."""
        self.start_scheduler("scheduler")
        profiles = str(self.folder / "profiles")
        self.start("server", "model_server_node", {"server": "server_1", "profiles_folder": profiles, "hung_after_s": 0.0})
        shared = RIGHT | {"robots": [*self.robots.values(), "guest_1"]}
        own = {f"{self.robots[title]}.{key}": value for title, one in self._live.items() for key, value in one.parameters.items()}
        self.start("robots", "robots_node", shared | own)

    def give_tasks(self, *, reset: bool) -> None:
        """Give those with a reset, which is waited for half a minute, or those without."""
        wanted = {title: one for title, one in self._live.items() if one.instruction and one.reset is reset}
        sent = {}
        for title, one in wanted.items():
            self.wait(self._clients[title].server_is_ready, title)
            self.wait(lambda robot=self.robots[title]: robot in self._streams, title)
            goal = ExecuteTask.Goal(instruction=one.instruction, reset=one.reset, time_budget_s=3000.0)
            sent[title] = self._clients[title].send_goal_async(goal)
        for title, sending in sent.items():
            self.wait(sending.done, title)
            assert sending.result().accepted, title

    def wait(self, until: Callable[[], Any], what: str) -> None:
        assert eventually(until, 240.0), f"waited in vain for {what}"

    def shell(self, command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run `rfm ...` as a user types it."""
        arguments = [sys.executable, "-W", "ignore", "-m", "ros2_rfm_serving.cli", *command.split()[1:]]
        environment = os.environ | {"PYTHONPATH": str(self._repository), "COLUMNS": "1000"} | environment
        return subprocess.run(arguments, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=150, check=False)

    def close(self) -> None:
        for process in self._running.values():
            process.kill()
            process.wait(timeout=30)
        self._ending.set()
        self._thread.join(timeout=10)
        self._context.try_shutdown()

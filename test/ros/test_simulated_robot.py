"""A simulated robot of no known simulator, on the graph: what it says, what it does as told, and when it is told nothing."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import rclpy
from rclpy.node import Node
from rfm_serving.msg import EpisodeScore
from sensor_msgs.msg import CompressedImage, JointState
from std_msgs.msg import Float32MultiArray, Float64MultiArray
from std_srvs.srv import Trigger

from ros2_rfm_serving.ros.wire import qos
from test.waiting import eventually

NODE = "ros2_rfm_serving.ros.simulated_robot_node"
PARAMETERS = (
    "robot:=t1",
    "simulator:=test.line_world:build",
    "task:=reach",
    "seed:=7",
    "control_rate_hz:=20.0",
    "image_size_px:=32",
    "action_names:=[speed]",
)


class Driver(Node):
    """Hears all that the robot says."""

    def __init__(self) -> None:
        super().__init__("driver")
        self.state: list[float] = []
        self.speeds: list[float] = []
        self.image: Any = None
        self.score: Any = None
        self.create_subscription(Float32MultiArray, "/t1/state", self._take_state, qos.SENSOR)
        self.create_subscription(JointState, "/t1/joint_states", lambda m: self.speeds.append(m.velocity[0]), qos.SENSOR)
        self.create_subscription(CompressedImage, "/t1/camera/above/image/compressed", self._take_image, qos.SENSOR)
        self.create_subscription(EpisodeScore, "/t1/world/score", self._take_score, qos.SCORE)
        self._commands = self.create_publisher(Float64MultiArray, "/t1/command", qos.COMMAND)
        self._reset = self.create_client(Trigger, "/t1/reset")

    def _take_state(self, message: Any) -> None:
        self.state = list(message.data)

    def _take_image(self, message: Any) -> None:
        self.image = message

    def _take_score(self, message: Any) -> None:
        self.score = message

    def command(self, *values: float) -> None:
        self._commands.publish(Float64MultiArray(data=list(values)))

    def wait(self, true: Any) -> None:
        assert self.sees(true, 60.0)

    def sees(self, true: Any, seconds: float) -> Any:
        def looked() -> Any:
            rclpy.spin_once(self, timeout_sec=0.01)
            return true()

        return eventually(looked, seconds)

    def reset(self) -> str:
        assert self._reset.wait_for_service(60.0)
        asked = self._reset.call_async(Trigger.Request())
        self.wait(asked.done)
        return str(asked.result().message)


@pytest.fixture
def driver(ros_domain: int) -> Iterator[Driver]:
    parameters = [part for value in PARAMETERS for part in ("-p", value)]
    robot = subprocess.Popen([sys.executable, "-m", NODE, "--ros-args", *parameters])
    rclpy.init()
    made = Driver()
    try:
        yield made
    finally:
        made.destroy_node()
        rclpy.try_shutdown()
        robot.send_signal(signal.SIGINT)
        assert robot.wait(30) == 0


def test_any_world_is_a_robot_on_the_graph(driver: Driver) -> None:
    driver.wait(lambda: driver.state and driver.image and driver.score)
    assert len(driver.state) == 6 and driver.image.header.frame_id == "above"
    assert (driver.score.task, driver.score.header.frame_id) == ("reach", "t1")
    assert driver.score.declared_time_scale == pytest.approx(2.0), "0.1 s of it in 0.05 s"
    assert [driver.reset(), driver.reset()] == ["episode 1, seed 7", "episode 2, seed 8"]

    for wrong in ((), (0.5, 0.5), (float("nan"),)):
        driver.command(*wrong)
    del driver.speeds[:]
    driver.wait(lambda: len(driver.speeds) > 5)
    assert set(driver.speeds) == {0.0}, "it was told nothing that it could do"

    for _ in range(6):  # states are best effort: a busy machine may lose the one that has the speed of the command
        driver.command(0.5)
        if driver.sees(lambda: 0.5 in driver.speeds and driver.speeds[-1] < 0.01, 10.0):
            break
    told = driver.speeds[driver.speeds.index(0.5) :]
    assert told == sorted(told, reverse=True) and set(told) <= {0.5 / 2**k for k in range(60)}, "once; then what its drive does"


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        (("simulator:=metawrold",), "did you mean `metaworld`"),
        (("simulator:=test.line_world:half",), "lacks action_names"),
        ((), "no simulator is named ''"),
    ],
)
def test_a_world_that_is_none_is_refused_by_name(ros_domain: int, parameters: tuple[str, ...], says: str) -> None:
    given = [part for value in ("robot:=t1", *parameters) for part in ("-p", value)]
    ended = subprocess.run(
        [sys.executable, "-m", NODE, "--ros-args", *given], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 78 and "simulator" in ended.stderr and says in ended.stderr, ended.stderr


def test_a_world_whose_commands_would_mean_something_else_does_not_start(ros_domain: int) -> None:
    """The same names in another order would move other joints, with nothing to show for it."""
    parameters = ("robot:=t1", "simulator:=test.line_world:crane", "action_names:=[hoist, speed]")
    given = [part for value in parameters for part in ("-p", value)]
    ended = subprocess.run(
        [sys.executable, "-m", NODE, "--ros-args", *given], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 78 and "action_names" in ended.stderr and "takes speed, hoist" in ended.stderr, ended.stderr


def test_a_simulator_that_fails_for_good_ends_its_process(ros_domain: int) -> None:
    """One that stays is a robot that stands: nobody starts another."""
    given = [part for value in (PARAMETERS[0], "simulator:=test.line_world:broken", *PARAMETERS[2:]) for part in ("-p", value)]
    ended = subprocess.run(
        [sys.executable, "-m", NODE, "--ros-args", *given], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 1 and "the simulator has failed for 2 s" in ended.stderr, ended.stderr[-2000:]

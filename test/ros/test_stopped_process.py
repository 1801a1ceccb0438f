"""Processes that are stopped and continued: time in which one did not run is no time of its engine, and no silence of others."""

from __future__ import annotations

import array
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import rclpy
from rclpy.node import Node
from rfm_serving import msg
from sensor_msgs.msg import CompressedImage

from ros2_rfm_serving.ros.node.running_time import RunningTime
from ros2_rfm_serving.ros.server.interpreter_watch import InterpreterWatch
from ros2_rfm_serving.ros.server.watchdog import EXIT_HUNG, FROZEN_FACTOR, SAYS_SO_S
from ros2_rfm_serving.ros.wire import convert, qos
from test.ros.robot_rig import Rig
from test.ros.test_robot_node import PARAMETERS
from test.ros.test_server_node import Client
from test.unit.fakes import JPEG, schedule
from test.waiting import eventually

BUSY = """\
import sys, threading, time
from ros2_rfm_serving.ros.server import watchdog

limit_s, stalled = float(sys.argv[1]), [time.monotonic()]
watchdog.EXECUTOR_S = limit_s
dog = watchdog.Watchdog(print, ends_process=True)
dog.watch(limit_s, {"the engine": lambda now_s: now_s - stalled[0]})
threading.Thread(target=lambda: [print("works", flush=True) for _ in sys.stdin], daemon=True).start()
print("works", flush=True)
while True:  # batches that take a good part of the limit
    time.sleep(0.1)
    dog.beat()
    if time.monotonic() - stalled[0] > 0.3 * limit_s and "wedged" not in sys.argv:
        stalled[0] = time.monotonic()
"""


BUSY_COMMAND = (sys.executable, "-W", "ignore", "-c", BUSY)


def survives(repository: Path, limit_s: float, *, with_watch: bool) -> bool:
    """Return whether a server that is stopped for longer than its interpreter may take, and continued, goes on.

    with_watch: with the process that watches over it, which goes on first, as in a container that was frozen.
    """
    process = subprocess.Popen(
        [*BUSY_COMMAND, str(limit_s)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=repository, bufsize=1
    )
    assert process.stdin and process.stdout
    try:
        assert process.stdout.readline() == "works\n"
        watches = children(process.pid) if with_watch else []
        assert len(watches) == with_watch
        for pid in (process.pid, *watches):
            os.kill(pid, signal.SIGSTOP)
        time.sleep(FROZEN_FACTOR * limit_s + SAYS_SO_S + 1.5)
        for pid in (*watches, process.pid):
            os.kill(pid, signal.SIGCONT)
        time.sleep(1.5)  # in which a watchdog that counts the pause ends it
        if process.poll() is None:
            process.stdin.write("?\n")
        return process.stdout.readline() == "works\n"
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("with_watch", [False, True])
def test_a_process_that_was_stopped_and_continued_goes_on(repository: Path, with_watch: bool) -> None:
    """It is tried again where the machine is so busy that a healthy one stands still for the limit."""
    assert any(survives(repository, 1.5, with_watch=with_watch) for _ in range(3))


def test_a_hang_is_found_all_the_same(repository: Path) -> None:
    done = subprocess.run(
        [*BUSY_COMMAND, "0.6", "wedged"], cwd=repository, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False
    )
    assert done.returncode == EXIT_HUNG and b"the engine" in done.stdout


def test_the_process_that_watches_over_an_interpreter_ends_with_its_parent_and_is_started_again(repository: Path) -> None:
    watch = InterpreterWatch()
    watch.beat(0.0)
    assert not children(os.getpid()), "nothing is watched"
    for _ in range(2):
        watch.beat(1000.0)
        (child,) = children(os.getpid())
        os.kill(child, signal.SIGKILL)
        assert eventually(lambda: not running(child))  # noqa: B023
        watch.beat(1000.0)  # the first beat after that may still be taken by the pipe
    watch.beat(1000.0)
    (child,) = [one for one in children(os.getpid()) if running(one)]
    os.kill(child, signal.SIGSTOP)  # it leaves nothing behind all the same
    watch.stop()
    assert eventually(lambda: not running(child))


def children(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize(
    ("pauses", "since_s", "passed_s"),
    [
        ([], 5.0, 15.0),
        ([(10.0, 40.0)], 5.0, 15.25),
        ([(10.0, 40.0)], 45.0, 5.0),
        ([(10.0, 40.0), (45.0, 50.0)], 5.0, 10.5),
        ([(10.0, 40.0)], 30.0, 10.0),
    ],
)
def test_time_in_which_a_process_was_stopped_is_no_time_of_its_own(
    pauses: list[tuple[float, float]], since_s: float, passed_s: float
) -> None:
    """pauses: from and to. The clock shows 50 s, or 20 s where there is none."""
    now_s, clock_s = (50.0 if pauses else 20.0), 0.0
    ran = RunningTime(0.0)
    while clock_s < now_s:
        clock_s += 0.25
        if not any(begins_s < clock_s < ends_s for begins_s, ends_s in pauses):
            ran.look(clock_s)
    assert ran.passed_s(since_s, now_s) == pytest.approx(passed_s, abs=0.26)


def test_a_pause_counts_for_nothing_before_anybody_has_looked() -> None:
    """Another thread may be the first to run again."""
    ran = RunningTime(0.0)
    for look in range(1, 41):
        ran.look(0.25 * look)
    assert ran.passed_s(8.0, 50.0) == pytest.approx(2.0, abs=0.3) and ran.passed_s(8.0, 10.5) == 2.5


def test_a_server_node_that_was_stopped_and_continued_answers(ros_domain: int, repository: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-m", "ros2_rfm_serving.ros.model_server_node", "--ros-args"]
    parameters = {"server": "s1", "model": "emulated/instant", "gpu_type": "EMULATED", "hung_after_s": 2.0}
    command += [part for name, value in parameters.items() for part in ("-p", f"{name}:={value}")]
    process = subprocess.Popen(command, cwd=repository, start_new_session=True)
    rclpy.init()
    client = Client()
    try:
        client.wait(lambda: client.status and client.status.state == msg.ServerStatus.READY, 120.0)
        process.send_signal(signal.SIGSTOP)
        time.sleep(FROZEN_FACTOR * 2.0 + SAYS_SO_S + 1.5)
        process.send_signal(signal.SIGCONT)
        told = len(client.told)
        client.wait(lambda: len(client.told) > told + 5, 60.0)  # statuses, two a second
        described = client.call(client.describe, client.describe.srv_type.Request())
        assert described.model.endswith("emulated/instant") and process.poll() is None
        assert client.status.state == msg.ServerStatus.READY
    finally:
        client._executor.shutdown()
        client.destroy_node()
        rclpy.try_shutdown()
        process.kill()
        process.wait()


# --- robots -----------------------------------------------------------------------------------------------------------------


class RobotProcess(Rig):
    """The robot `r1` in a process of its own; its sensors and its server are the test's."""

    def __init__(self, repository: Path) -> None:
        super().__init__(Node("nobody"), "r1")
        self.robot, self.reasons = self.robots["r1"], set[str]()
        parameters = [part for one in PARAMETERS if not one.startswith("autostart") for part in ("-p", one)]
        command = [sys.executable, "-W", "ignore", "-m", "ros2_rfm_serving.ros.executables", "robot_node", "--ros-args"]
        self.process = subprocess.Popen([*command, *parameters], cwd=repository, start_new_session=True)
        self._image = self.peer.create_publisher(CompressedImage, "/r1/camera/front/image/compressed", qos.SENSOR)
        self._frame = CompressedImage(format="jpeg")
        convert.put(self._frame, "data", array.array("B", JPEG))
        self.peer.create_timer(0.02, self._sense)
        self.peer.create_timer(1.0, lambda: self.schedule.publish(convert.schedule_to(schedule(), "f")))

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        super().close()

    def acts(self) -> None:
        self.robot.commands.clear()
        self.wait(lambda: sum(map(np.any, self.robot.commands)) > 10, "actions")

    def _sense(self) -> None:
        self._image.publish(self._frame)
        self.robot.sense()
        if self.robot.status is not None:
            self.reasons.add(self.robot.status.reason)


@pytest.fixture
def robot(ros_domain: int, repository: Path) -> Iterator[RobotProcess]:
    rclpy.init()
    made = RobotProcess(repository)
    try:
        yield made
    finally:
        made.close()
        rclpy.try_shutdown()


def test_a_robot_that_was_stopped_and_continued_keeps_its_server(robot: RobotProcess) -> None:
    """It executes nothing that is old by then, and has not lost the server that it did not listen to."""
    robot.goal("r1", time_budget_s=600.0)
    robot.acts()
    sessions, _ = dict(robot.server.opened), robot.reasons.clear()
    robot.process.send_signal(signal.SIGSTOP)
    robot.spin(5.0)  # more than `server_timeout_s` and `max_action_age_s`
    robot.process.send_signal(signal.SIGCONT)
    robot.acts()
    robot.wait(lambda: any(one.name == "stale_action" for one in robot.robot.status.refused), "old actions that are dropped")
    assert robot.server.opened == sessions and not any("silent" in reason for reason in robot.reasons)

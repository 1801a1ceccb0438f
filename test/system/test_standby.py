"""A running factory when a robot joins or leaves, and when a server with a standby is killed: real processes, real DDS."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import rclpy
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rfm_serving.msg import ActionChunk, RobotStatus, Schedule, ServerStatus

from ros2_rfm_serving.ros.wire import qos
from test.system.test_factory import pids, rfm_up
from test.waiting import eventually

QUICKSTART, STANDBY = "config/factory_quickstart.yaml", "config/factory_standby.yaml"
ROBOTS = ("pick_place_1", "door_open_1", "push_1")


class Arrival(NamedTuple):
    """Of a chunk at the watcher."""

    at_s: float
    server: str
    episode: int


class Watcher(Node):
    """Hears every schedule, chunk and status of a factory; says nothing."""

    def __init__(self, robots: tuple[str, ...], servers: tuple[str, ...]) -> None:
        super().__init__("watcher")
        self.schedules: dict[int, Any] = {}
        self.chunks: dict[str, list[Arrival]] = defaultdict(list)
        self.robots: dict[str, Any] = {}
        self.servers: dict[str, Any] = {}
        self.create_subscription(Schedule, "/rfm/schedule", self._on_schedule, qos.SCHEDULE)
        for server in servers:
            self.create_subscription(ServerStatus, f"/rfm/servers/{server}/status", self._on_server, qos.SERVER_STATUS)
        for robot in robots:
            self.create_subscription(RobotStatus, f"/{robot}/rfm/status", self._on_robot, qos.ROBOT_STATUS)
            self.create_subscription(ActionChunk, f"/{robot}/rfm/action_chunk", self._on_chunk, qos.REPLY)
        self._executor = SingleThreadedExecutor()
        self._executor.add_node(self)

    def wait(self, until: Callable[[], Any], what: str, seconds: float = 120.0) -> Any:
        found = eventually(until, seconds, lambda: self._executor.spin_once(timeout_sec=0.05))
        states = {name: (r.state, r.phase, r.reason) for name, r in self.robots.items()}
        assert found, f"waited in vain: {what}; epochs {sorted(self.schedules)}, robots {states}"
        return found

    def works(self, robot: str) -> bool:
        """Executes actions out of chunks."""
        status = self.robots.get(robot)
        return bool(
            status
            and status.state == RobotStatus.STREAMING
            and status.phase == RobotStatus.EXECUTING
            and status.action_rate_hz > 1
            and self.chunks[robot]
        )

    def ready(self, server: str) -> bool:
        status = self.servers.get(server)
        return bool(status and status.state == ServerStatus.READY)

    def chunks_since(self, robot: str, since_s: float) -> list[Arrival]:
        return [chunk for chunk in self.chunks[robot] if chunk.at_s > since_s]

    @property
    def schedule(self) -> Any:
        """The newest."""
        return self.schedules[max(self.schedules)]

    def _on_schedule(self, message: Any) -> None:
        self.schedules[message.epoch] = message

    def _on_server(self, message: Any) -> None:
        self.servers[message.header.frame_id] = message

    def _on_robot(self, message: Any) -> None:
        self.robots[message.header.frame_id] = message

    def _on_chunk(self, message: Any) -> None:
        self.chunks[message.id.robot].append(Arrival(time.monotonic(), message.header.frame_id, message.id.episode))


@contextmanager
def watching(robots: tuple[str, ...], servers: tuple[str, ...]) -> Iterator[Watcher]:
    rclpy.init()
    node = Watcher(robots, servers)
    try:
        yield node
    finally:
        node.destroy_node()
        rclpy.try_shutdown()


def routes(schedule: Any) -> dict[tuple[str, str], dict[str, Any]]:
    """(robot, component) -> every field."""
    return {(r.robot, r.component): {name: getattr(r, name) for name in r.get_fields_and_field_types()} for r in schedule.routes}


def hosts(schedule: Any) -> dict[str, tuple[str, str, int]]:
    return {p.server: (p.model, p.batching, p.batch_size) for p in schedule.placements}


def is_of(schedule: Any, robot: str, *, not_by: int) -> bool:
    """Serves the robot, and is another scheduler's."""
    return schedule.scheduler != not_by and robot in robots_of(schedule)


def robots_of(schedule: Any) -> set[str]:
    return {route.robot for route in schedule.routes}


@contextmanager
def rfm_robot(repository: Path, logs: Path, *arguments: str, domain: int) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-W", "ignore", "-m", "ros2_rfm_serving.cli", "robot", *arguments]
    command += ["--domain", str(domain), "--logs", str(logs)]
    process = subprocess.Popen(
        command, cwd=repository, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.alone
@pytest.mark.timeout(600)
def test_a_fourth_robot_joins_and_leaves_and_no_other_route_changes(repository: Path, tmp_path: Path, ros_domain: int) -> None:
    joining = ("--task", "push", "--name", "push_2")
    with (
        rfm_up(repository, tmp_path / "up", QUICKSTART, domain=ros_domain),
        watching((*ROBOTS, "push_2"), ("server_1", "server_2")) as watcher,
    ):
        watcher.wait(lambda: all(map(watcher.works, ROBOTS)), "three robots at work")
        before = watcher.schedule
        with rfm_robot(repository, tmp_path / "robot", QUICKSTART, *joining, domain=ros_domain) as robot:
            watcher.wait(lambda: before.epoch + 1 in watcher.schedules or robot.poll(), "a schedule with the fourth robot")
            assert robot.poll() is None, robot.communicate()
            admitted = watcher.schedules[before.epoch + 1]
            old, new = routes(before), routes(admitted)
            assert {key: new.get(key) for key in old} == old and hosts(admitted) == hosts(before)
            assert {name for name, _ in new.keys() - old.keys()} == {"push_2"} and ("push_2", "system1") in new
            watcher.wait(lambda: watcher.works("push_2"), "the fourth robot at work")

            # The plan made in the background moves nobody: it is not worth it.
            log = tmp_path / "up" / "scheduler.log"
            watcher.wait(lambda: "another schedule would gain" in log.read_text(), "the plan made in the background")
            since_s = time.monotonic()
            watcher.wait(lambda: all(watcher.chunks_since(name, since_s) for name in (*ROBOTS, "push_2")), "chunks for four")
            assert watcher.schedule.epoch == admitted.epoch

            # A second one of that name is refused, and says why.
            again = subprocess.run(
                [*robot.args[:5], "robot", QUICKSTART, *joining, "--domain", str(ros_domain), "--logs", str(tmp_path / "again")],
                cwd=repository,
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
            assert again.returncode == 2 and "a robot 'push_2' is running" in again.stderr, again.stderr
            assert not list(tmp_path.glob("again/*.log"))

            # The scheduler is killed: the next one serves all four. Then the fourth is killed, started again and admitted again.
            (scheduler,) = pids(str(tmp_path / "up" / "scheduler.yaml"))
            watcher.schedules.clear()
            os.kill(scheduler, signal.SIGKILL)
            watcher.wait(lambda: any(is_of(s, "push_2", not_by=admitted.scheduler) for s in watcher.schedules.values()), "all four")
            robot.kill()
            robot.wait()
        with rfm_robot(repository, tmp_path / "robot", QUICKSTART, *joining, domain=ros_domain) as robot:
            assert robot.stdout and any("push_2: admitted" in line for line in robot.stdout)
            since_s = time.monotonic()
            watcher.wait(lambda: watcher.chunks_since("push_2", since_s), "chunks for the robot that was started again")
            watcher.wait(lambda: "push_2" in robots_of(watcher.schedule), "the schedule that those are of")
            last = watcher.schedule.epoch
            robot.send_signal(signal.SIGINT)
            output, _ = robot.communicate(timeout=90)
            assert robot.returncode == 0, output
            assert "released" in output
        assert pids(str(tmp_path / "robot")) == [], "processes were left behind"

        watcher.wait(lambda: "push_2" not in robots_of(watcher.schedule), "a schedule without the fourth robot")
        assert watcher.schedule.epoch == last + 1 and routes(watcher.schedule).keys() == old.keys()
        since_s = time.monotonic()
        watcher.wait(lambda: all(watcher.chunks_since(name, since_s) for name in ROBOTS), "chunks for the three that stay")


@pytest.mark.alone
@pytest.mark.timeout(600)
def test_the_standby_takes_over_from_a_killed_server_before_a_schedule_says_so(
    repository: Path, tmp_path: Path, ros_domain: int, record_property: Callable[[str, object], None]
) -> None:
    summary = tmp_path / "summary.json"
    with (
        rfm_up(repository, tmp_path, STANDBY, "--json", str(summary), domain=ros_domain) as factory,
        watching(ROBOTS, ("server_1", "server_2", "server_3")) as watcher,
    ):
        watcher.wait(lambda: all(map(watcher.works, ROBOTS)), "three robots at work")
        (home,) = {r.server for r in watcher.schedule.routes if r.component == "system1"}
        (standby,) = {r.standby for r in watcher.schedule.routes if r.component == "system1"}
        assert [p.server for p in watcher.schedule.placements if p.standby] == [standby] != [home]
        watcher.wait(lambda: watcher.ready(standby), "the standby is ready")
        assert (watcher.servers[standby].sessions, watcher.servers[standby].served) == (0, 0), "the standby gets traffic"

        # One robot has just begun an episode, which therefore cannot end before the standby answers; the others are at work.
        begun = len({chunk.episode for chunk in watcher.chunks["push_1"]})
        watcher.wait(lambda: len({chunk.episode for chunk in watcher.chunks["push_1"]}) > begun, "a new episode")
        epoch, episode = watcher.schedule.epoch, watcher.chunks["push_1"][-1].episode
        (pid,) = pids(str(tmp_path / f"{home}.yaml"))
        killed_s = time.monotonic()
        os.kill(pid, signal.SIGKILL)

        def first_from_standby(robot: str) -> Arrival | None:
            return next((chunk for chunk in watcher.chunks_since(robot, killed_s) if chunk.server == standby), None)

        watcher.wait(lambda: all(map(first_from_standby, ROBOTS)), "a chunk from the standby for every robot")
        taken = {robot: first_from_standby(robot) for robot in ROBOTS}
        after_s = {robot: round(chunk.at_s - killed_s, 3) for robot, chunk in taken.items() if chunk}
        print(f"from kill to the first chunk from the standby, s: {after_s}")
        record_property("failover_s", after_s)
        assert taken["push_1"] and taken["push_1"].episode == episode, "the episode did not go on"
        watcher.wait(lambda: all(watcher.works(robot) and watcher.robots[robot].server == standby for robot in ROBOTS), "work")

        # The dead server comes back. Newer schedules say what robots have done already: nobody moves back.
        watcher.wait(lambda: pids(str(tmp_path / f"{home}.yaml")) not in ([], [pid]), "the server is started again")
        since_s = time.monotonic()
        watcher.wait(lambda: watcher.servers[home].state == ServerStatus.READY and watcher.servers[home].served == 0, "it is back")
        watcher.wait(lambda: all(len(watcher.chunks_since(robot, since_s)) > 2 for robot in ROBOTS), "work")
        assert {chunk.server for robot in ROBOTS for chunk in watcher.chunks_since(robot, since_s)} == {standby}
        newer = [schedule for number, schedule in watcher.schedules.items() if number > epoch]
        assert {r.server for schedule in newer for r in schedule.routes if r.component == "system1"} <= {standby}

        factory.send_signal(signal.SIGINT)
        output, _ = factory.communicate(timeout=90)
    assert factory.returncode == 0 and f"{home} was lost; streams from {standby} after" in output, output
    for robot in ROBOTS:
        failovers = json.loads(summary.read_text())["robots"][robot]["failovers"]
        assert [(failover["lost"], failover["server"]) for failover in failovers] == [(home, standby)], failovers
        assert failovers[0]["seconds"] > 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--task", "psuh", "--name", "push_2"), "did you mean `push`?"),
        (("--task", "push", "--name", "push 2"), "cannot name a robot"),
        (("--task", "push", "--name", "push_2"), "no factory is running in ROS domain"),
    ],
)
def test_a_robot_that_cannot_join_is_told_why(
    repository: Path, tmp_path: Path, ros_domain: int, arguments: tuple[str, ...], words: str
) -> None:
    command = [sys.executable, "-W", "ignore", "-m", "ros2_rfm_serving.cli", "robot", QUICKSTART, *arguments]
    command += ["--domain", str(ros_domain), "--logs", str(tmp_path / "logs")]
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 2 and words in done.stderr and "Traceback" not in done.stderr, done.stderr
    assert not (tmp_path / "logs").exists()


def test_rfm_robot_help_has_an_example(repository: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-m", "ros2_rfm_serving.cli", "robot", "--help"]
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0 and "Example" in done.stdout

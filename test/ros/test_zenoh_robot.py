"""A robot that is no node, with the brain of all others, at a factory on DDS, through a real Zenoh router."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import zenoh
from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.logging import get_logger

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.factory import load_factory
from ros2_rfm_serving.robot import Sensors
from ros2_rfm_serving.ros.node.draft import draft
from ros2_rfm_serving.ros.node.timers import turns_of
from ros2_rfm_serving.ros.robot.settings import robot_settings
from ros2_rfm_serving.ros.wire import convert
from ros2_rfm_serving.ros.zenoh.format import Attachment
from ros2_rfm_serving.ros.zenoh.robot import ZenohRobot, _Ground, settings_of
from ros2_rfm_serving.ros.zenoh.session import Outlet
from ros2_rfm_serving.shipped import shipped
from ros2_rfm_serving.types import EncodedImage, RobotState
from test import ports
from test.ros.robot_rig import FakeServer, RobotClient
from test.ros.zenoh_rig import ADDRESS, Floor, client, floor, router
from test.unit.fakes import JPEG, NAMES, schedule

GIVEN = {
    "action_names": list(NAMES),
    "cameras": ["front"],
    "state_size": 3,
    "control_rate_hz": 50.0,
    "execution_horizon": 2,
    "max_action_age_s": 0.5,
}


@pytest.fixture
def free_port() -> int:
    return ports.free_port(ADDRESS)


@pytest.fixture
def port(free_port: int) -> Iterator[int]:
    session = router(free_port)
    yield free_port
    session.close()


class Driven:
    """A robot without ROS whose periods pass while the factory goes on."""

    def __init__(self, here: Floor, domain: int, port: int) -> None:
        self._here = here
        self.robot = ZenohRobot(robot_settings(draft(GIVEN), "arm_1"), router=f"tcp/{ADDRESS}:{port}", domain=domain)
        self.commands: list[Any] = []
        self._due_s = 0.0

    def wait(self, until: Callable[[], Any], what: str) -> Any:
        return self._here.wait(lambda: self._period() or until(), what)

    def _period(self) -> None:
        now_s = time.monotonic()
        if now_s < self._due_s:
            self.robot.serve(0.0)
            return
        self._due_s = now_s + 0.02
        image = EncodedImage(camera="front", format="jpeg", data=JPEG, height_px=16, width_px=16)
        command = self.robot.tick(Sensors(state=np.zeros(3, np.float32), state_s=now_s, images=(image,), images_s=now_s))
        if command is not None:
            self.commands.append((now_s, command))


def served_by(here: Floor, server: str, standby: str = "") -> None:
    made = schedule("arm_1", server=server)
    routes = tuple(replace(route, standby=standby) for route in made.routes)
    here.schedule.publish(convert.schedule_to(replace(made, scheduler=7, routes=routes), "hall"))


def test_it_has_all_that_keeps_other_robots_safe(ros_domain: int, port: int) -> None:
    """Served, without a server it stands when its actions are too old, and goes on with the standby."""
    with floor(port) as here:
        other = FakeServer("s2")
        here.executor.add_node(other)
        served_by(here, "s1", "s2")
        here.wait(lambda: here.count("servers") == 2, "both servers on Zenoh")
        driven = Driven(here, ros_domain, port)
        driven.robot.start("stay")
        driven.wait(lambda: len(driven.commands) > 10 and driven.robot.brain.state is RobotState.STREAMING, "commands")
        assert "arm_1" in here.server.opened
        driven.wait(lambda: here.statuses and here.statuses[-1].server == "s1", "its status on DDS")
        here.lose(here.server)
        driven.wait(lambda: "arm_1" in other.opened, "a session with the standby")
        number = len(driven.commands)
        driven.wait(lambda: driven.robot.brain.system1_server == "s2" and len(driven.commands) > number + 10, "commands again")
        here.lose(other)
        lost_s = time.monotonic()
        driven.wait(lambda: time.monotonic() > lost_s + 1.5, "time")
        assert driven.commands[-1][0] < lost_s + 0.5 + 0.1, "an action that was too old"
        assert driven.robot.works and driven.robot.brain.state is not RobotState.STREAMING
        driven.robot.close()
        assert not driven.robot.works
        here.wait(lambda: here.count("robots") == 0, "its leaving")


def test_who_is_admitted_while_it_waits_is_served_from_then_on(ros_domain: int, port: int) -> None:
    """Through a router and a door that were there before anybody knew of it."""
    with floor(port) as here:
        here.schedule.publish(convert.schedule_to(replace(schedule("arm_9"), scheduler=7), "hall"))
        here.wait(lambda: here.count("servers") == 1, "the server on Zenoh")
        driven = Driven(here, ros_domain, port)
        driven.robot.start("stay")
        driven.wait(lambda: here.count("robots") == 1 and here.statuses, "its coming, and its status on DDS")
        assert not driven.commands and not here.statuses[-1].admitted_by
        routes = tuple(replace(route, task="push") for robot in ("arm_9", "arm_1") for route in schedule(robot).routes)
        both = replace(schedule("arm_1", epoch=2), scheduler=7, routes=routes)
        here.schedule.publish(convert.schedule_to(both, "hall"))
        driven.wait(lambda: len(driven.commands) > 10, "commands")
        driven.wait(lambda: here.statuses[-1].admitted_by == 7, "its telling a scheduler that comes next")
        driven.robot.close()


def test_without_its_router_it_stands_and_goes_on_with_the_next(ros_domain: int, free_port: int) -> None:
    first = router(free_port)
    with floor(free_port) as here:
        served_by(here, "s1")
        here.wait(lambda: here.count("servers") == 1, "the server on Zenoh")
        driven = Driven(here, ros_domain, free_port)
        driven.robot.start("stay")
        driven.wait(lambda: len(driven.commands) > 10, "commands")
        first.close()
        lost_s = time.monotonic()
        driven.wait(lambda: time.monotonic() > lost_s + 1.5, "time")
        assert driven.commands[-1][0] < lost_s + 0.5 + 0.1, "an action that was too old"
        second = router(free_port)
        number = len(driven.commands)
        driven.wait(lambda: len(driven.commands) > number + 10, "commands again")
        driven.robot.close()
        second.close()


def test_what_was_dropped_on_its_way_is_counted(ros_domain: int, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """By who misses it: Zenoh tells no sender what it dropped under congestion."""
    put, dropped = Outlet.put, list[str]()

    def dropping(outlet: Any, data: bytes) -> str:
        key = str(outlet._publisher.key_expr)
        if "action_chunk" in key and outlet._sequence == 3 and key not in dropped:
            dropped.append(key)
            outlet._sequence += 2
        return put(outlet, data)

    monkeypatch.setattr(Outlet, "put", dropping)
    with floor(port) as here:
        served_by(here, "s1")
        here.wait(lambda: here.count("servers") == 1, "the server on Zenoh")
        driven = Driven(here, ros_domain, port)
        driven.robot.start("stay")
        driven.wait(lambda: driven.robot.brain.refused["lost_behind_the_door"] == 2, "the count")
        driven.wait(
            lambda: any(c.name == "lost_behind_the_door" for s in here.statuses for c in s.refused), "its telling the factory"
        )
        driven.wait(
            lambda: here.count("lost_behind_the_door") == 2 and here.level == DiagnosticStatus.WARN, "the door's own figure"
        )
        driven.robot.close()


def test_whoever_takes_the_doors_identity_is_in_nobodys_way(ros_domain: int, port: int) -> None:
    """It is in the graph for all to see, as the door's numbers are. What an intruder says with them and one far ahead is refused
    for what it says, and every chunk after it arrives."""
    with floor(port) as here:
        served_by(here, "s1")
        here.wait(lambda: here.count("servers") == 1, "the server on Zenoh")
        intruder, heard = client(port), list[Any]()
        keys = f"{ros_domain}/arm_1/rfm/action_chunk/*/*"
        intruder.declare_subscriber(keys, zenoh.handlers.Callback(heard.append, indirect=False))
        own = f"{ros_domain}/arm_1/rfm/servers/s1/*/*/*"
        observed = list[Any]()
        intruder.declare_subscriber(own, zenoh.handlers.Callback(observed.append, indirect=False))
        driven = Driven(here, ros_domain, port)
        driven.robot.start("stay")
        driven.wait(lambda: len(driven.commands) > 5 and heard and observed, "commands, and observations under its own name")
        for _ in range(3):
            said = heard[-1]
            far = Attachment.read(said.attachment.to_bytes())._replace(sequence=1 << 60).written()
            intruder.put(said.key_expr, said.payload.to_bytes(), attachment=far, congestion_control=zenoh.CongestionControl.BLOCK)
            number, chunks = len(driven.commands), len(heard)
            driven.wait(lambda: len(driven.commands) > number + 10 and len(heard) > chunks + 3, "commands as before")  # noqa: B023
        figures = driven.robot.ends.figures()
        assert figures["out_of_turn"] >= 1 and not [what for what in figures if what.startswith("refused")], figures
        driven.robot.close(), intruder.close()


def test_a_node_whose_servers_are_on_zenoh_is_itself_on_dds(ros_domain: int, port: int) -> None:
    """All that a robot's node is, but what it says to servers and hears of them."""
    given = [f"{name}:={value}" for name, value in {**GIVEN, "robot": "arm_1", "zenoh_router": f"tcp/{ADDRESS}:{port}"}.items()]
    command = [sys.executable, "-W", "ignore", "-m", "ros2_rfm_serving.ros.executables", "robot_node", "--ros-args"]
    with floor(port) as here:
        served_by(here, "s1")
        here.wait(lambda: here.count("servers") == 1, "the server on Zenoh")
        node = subprocess.Popen([*command, *(word for one in given for word in ("-p", one))])
        try:
            client = RobotClient(here.peer, "arm_1")
            here.wait(lambda: client.status is not None, "its status, of its own and not the door's")
            here.wait(lambda: here.count("refused_name_taken"), "the door's word that it is on DDS as well")
        finally:
            node.terminate()
            node.wait()


ROUTER = """
import sys, time
from test.ros.zenoh_rig import router
session = router(int(sys.argv[1]))
print("there", flush=True)
time.sleep(120)
"""


def test_however_much_comes_a_period_ends(port: int) -> None:
    robot = ZenohRobot(robot_settings(draft(GIVEN), "arm_1"), router=f"tcp/{ADDRESS}:{port}")
    calls: list[None] = []

    def again() -> None:
        calls.append(None)
        assert len(calls) < 10_000, "it is served without an end"
        robot._waiting.put(again)

    robot._waiting.put(again)
    robot.serve(0.0)
    robot.ends.close()
    assert calls


def test_a_robot_that_the_factory_has_not_is_named_unless_it_comes_later() -> None:
    factory = load_factory(shipped("config", "factory_zenoh.yaml"))
    with pytest.raises(ConfigurationError, match=r"no robot is named 'push_9'.*did you mean `push_1`"):
        settings_of(factory, "push_9")
    told, declared = settings_of(factory, "push_9", "push"), settings_of(factory, "push_1")
    assert told.config == replace(declared.config, name="push_9") and told.task == "push"
    with pytest.raises(ConfigurationError, match="no task is named 'pusch'"):
        settings_of(factory, "push_9", "pusch")


def test_a_router_that_cannot_be_is_named() -> None:
    with pytest.raises(ConfigurationError, match="Zenoh cannot use it"):
        ZenohRobot(robot_settings(draft(GIVEN), "arm_1"), router="nonsense")


def test_what_is_to_happen_later_does_without_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as that a server is given up in whose name somebody else has answered."""
    now_s, done = 100.0, list[str]()
    monkeypatch.setattr("ros2_rfm_serving.ros.node.timers.clock", lambda: now_s)
    ground: Any = _Ground(get_logger("ground"))
    turns_of(ground).once(1.0, lambda: done.append("later"))
    turns_of(ground).once(2.0, lambda: done.append("last"))
    for now_s, so_far in (
        (100.5, []),
        (101.1, ["later"]),
        (101.2, ["later"]),
        (102.1, ["later", "last"]),
        (103.0, ["later", "last"]),
    ):
        ground.ring(now_s)
        assert done == so_far
    assert not ground._timers

"""Robots without ROS, far away, at a factory on DDS: through its door, a Zenoh router, and a bad network. Needs Linux, root and
/dev/net/tun; where they are missing it fails and says so."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from lab.benchmarks.network.netlink import EmulatedNetwork, emulated_network
from lab.benchmarks.network.switch import check_machine
from ros2_rfm_serving.factory import load_factory
from ros2_rfm_serving.operate.zenoh import Options, files
from test.system.hosts import without_ros
from test.waiting import eventually

HOSTS = {"plant": "10.80.0.1/24", "far_1": "10.80.0.2/24", "far_2": "10.80.0.3/24"}
WAN = "delay_ms=25 jitter_ms=10 drop=0.05"
"""Of every frame that a host sends."""
PYTHON = (sys.executable, "-W", "ignore")
NODE = (*PYTHON, "-m", "ros2_rfm_serving.ros.executables")
ROUTE = "import sys, time, zenoh; s = zenoh.open(zenoh.Config.from_file(sys.argv[1])); print('up', flush=True); time.sleep(1e6)"
SERVER = ("model:=emulated/arm-policy", "server:=s1", "gpu_type:=EMULATED", "batch_size:=4", "max_sessions:=4")
CUT_S, CUTS = 3.0, 3
"""Whoever depended on another's link would notice each; where frames are lost and a machine is busy, one is noticed at times."""


class Line(NamedTuple):
    s: float
    what: str
    how: object


class Far:
    """Two robots, each on a host of its own, and the plant."""

    def __init__(self, network: EmulatedNetwork, folder: Path) -> None:
        self.network, self._folder = network, folder
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        config = folder / "config"
        config.mkdir()
        factory = load_factory(Path(__file__).parents[2] / "config" / "factory_emulated.yaml")
        for name, text in files(factory, Options(address="10.80.0.1")).items():
            (config / name).write_text(text)
        self._session = {"ZENOH_SESSION_CONFIG_URI": str(config / "client.json5")}
        for name in ("router", "server", "door"):
            self.begin(name)
        for i in (1, 2):
            self.start(f"arm_{i}", f"far_{i}", *PYTHON, "-m", "test.zenoh_robot", "10.80.0.1", "0", f"arm_{i}", "s1")

    def begin(self, name: str) -> None:
        """router, server or door."""
        given = [word for parameter in SERVER for word in ("-p", parameter)]
        config = self._folder / "config"
        commands = {
            "router": (*PYTHON, "-c", ROUTE, str(config / "router.json5")),
            "server": (*NODE, "model_server_node", "--ros-args", *given),
            "door": (*NODE, "zenoh_door_node", "--ros-args", "-p", f"zenoh_config:={config / 'client.json5'}"),
        }
        self.start(name, "plant", *commands[name])

    def start(self, name: str, host: str, *command: str) -> None:
        with (self._folder / f"{name}.txt").open("ab") as output:
            self._running[name] = subprocess.Popen(
                self.network.command(host, *command), stdout=output, stderr=subprocess.STDOUT, env=without_ros() | self._session
            )

    def kill(self, name: str) -> None:
        process = self._running.pop(name)
        process.kill()
        process.wait(timeout=30)

    def close(self) -> None:
        for name in list(self._running):
            self.kill(name)

    def said(self, robot: str, what: str, since_s: float = 0.0, until_s: float = float("inf")) -> list[Line]:
        lines = (self._folder / f"{robot}.txt").read_text().splitlines()
        told = [Line(*json.loads(line)) for line in lines if line.startswith("[") and line.endswith("]")]
        return [line for line in told if line.what == what and since_s <= line.s < until_s]

    def wait(self, condition: Callable[[], object], what: str, seconds: float = 60.0) -> None:
        found = eventually(lambda: self._ended() or condition(), seconds, lambda: time.sleep(0.05))
        if not found or self._ended():
            logs = {file.stem: file.read_text(errors="replace")[-500:] for file in self._folder.glob("*.txt")}
            raise AssertionError(f"waited in vain for {what}; ended: {self._ended()}; {logs}")

    def _ended(self) -> dict[str, int | None]:
        return {name: one.returncode for name, one in self._running.items() if one.poll() is not None}


@contextmanager
def far(folder: Path) -> Iterator[Far]:
    check_machine()
    with emulated_network(HOSTS, f"z{os.getpid()}") as network:
        network.set(WAN)
        made = Far(network, folder)
        try:
            yield made
        finally:
            made.close()


def cut_off(factory: Far) -> tuple[list[Line], float, list[Line]]:
    """arm_2, for a while: what came for arm_1 meanwhile, until when, and what it missed."""
    cut_s = time.monotonic()
    factory.network.cut("far_2")
    time.sleep(CUT_S)
    factory.wait(lambda: len(factory.said("arm_1", "chunk", cut_s)) >= 3, "chunks for arm_1 meanwhile")
    joined_s = time.monotonic()
    during = factory.said("arm_1", "chunk", cut_s, joined_s)
    bad = [line for what in ("unanswered", "refused", "late") for line in factory.said("arm_1", what, cut_s, joined_s)]
    assert not factory.said("arm_2", "chunk", cut_s + 1.0, joined_s), "a cut that is none"
    factory.network.join("far_2")
    factory.wait(lambda: factory.said("arm_2", "chunk", joined_s), "chunks for arm_2 again")
    return during, joined_s, bad


@pytest.mark.alone
@pytest.mark.timeout(240)
def test_robots_far_away_are_served_across_a_routers_death_and_not_by_each_others_links(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    robots = ("arm_1", "arm_2")
    with far(tmp_path) as factory:
        for robot in robots:
            factory.wait(lambda: len(factory.said(robot, "chunk")) >= 6, f"chunks for {robot}")  # noqa: B023

        killed_s = time.monotonic()
        factory.kill("router")
        for robot in robots:
            factory.wait(lambda: factory.said(robot, "unanswered", killed_s), f"{robot}'s noticing")  # noqa: B023
        factory.begin("router")
        routed_s = time.monotonic()
        for robot in robots:
            factory.wait(lambda: len(factory.said(robot, "chunk", routed_s)) >= 6, f"chunks for {robot} again")  # noqa: B023

        bad: list[Line] = []
        for _ in range(CUTS):
            during, joined_s, bad = cut_off(factory)
            if not bad:
                break
        assert not bad, f"arm_1 noticed: {bad}"

        trips = [line.how for line in factory.said("arm_1", "chunk")]
        figures = {
            "round_trip_p50_s": float(np.percentile(trips, 50)),
            "round_trip_p99_s": float(np.percentile(trips, 99)),
            "served_after_router_s": {robot: factory.said(robot, "chunk", routed_s)[0].s - routed_s for robot in robots},
            "served_after_join_s": factory.said("arm_2", "chunk", joined_s)[0].s - joined_s,
            "during_cut": len(during),
        }
        record_property("wan", figures)
        print(figures)
        assert len(during) >= 3, figures
        assert "Traceback" not in (tmp_path / "door.txt").read_text() + (tmp_path / "server.txt").read_text()


@pytest.mark.alone
@pytest.mark.thorough
@pytest.mark.timeout(280)
def test_whatever_dies_between_them_robots_are_served_again(tmp_path: Path) -> None:
    """The router, the door, a robot's uplink, the server, in a random order, each several times."""
    robots, dice = ("arm_1", "arm_2"), random.Random(11)
    with far(tmp_path) as factory:
        for fault in dice.sample(("router", "door", "server", "far_1", "far_2") * 2, 10):
            for robot in robots:
                since_s = time.monotonic()
                factory.wait(lambda: len(factory.said(robot, "chunk", since_s)) >= 3, f"chunks for {robot} before {fault}")  # noqa: B023
            if fault in HOSTS:
                factory.network.cut(fault)
            else:
                factory.kill(fault)
            time.sleep(dice.uniform(0.5, 5.0))
            if fault in HOSTS:
                factory.network.join(fault)
            else:
                factory.begin(fault)
        assert "Traceback" not in (tmp_path / "door.txt").read_text()

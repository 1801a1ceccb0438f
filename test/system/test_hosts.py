"""A factory on three machines without multicast: one descriptor, one command each, in any order; and one of them is unplugged.
Needs Linux, root and /dev/net/tun; where they are missing it fails and says so."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from lab.benchmarks.network.netlink import EmulatedNetwork
from ros2_rfm_serving.factory import Factory, load_factory
from ros2_rfm_serving.factory.environment import discovery_environment
from ros2_rfm_serving.shipped import shipped
from test.system.hosts import IDLE_ARMS, no_multicast, up_everywhere, without_ros
from test.system.test_factory import pids
from test.waiting import eventually

ROBOTS = ("idle_arm_1", "idle_arm_2")
MAX_ACTION_AGE_S = 3.0
"""Of a robot that does not say: beyond it no action is executed."""
RECOVERY_S = 15.0
"""Generous, for machines are busy: how long it took is recorded."""
HEARD_LATE_S = 1.0
"""A command, by a watcher that a busy machine keeps waiting."""
HOSTS = """\
server_cluster: {num_servers: 2, gpu_type: EMULATED}
hosts:
  robots: {address: 10.79.0.1}
  gpu_a: {address: 10.79.0.2, gpus: {EMULATED: 1}}
  gpu_b: {address: 10.79.0.3, gpus: {EMULATED: 1}}
discovery: {mode: MODE, partition: hall_3}
"""
QUICKSTART, OVER_ZENOH = (shipped("config") / f"factory_{name}.yaml" for name in ("hosts", "zenoh"))


class Seen(NamedTuple):
    s: float
    kind: str
    robot: str
    what: str


class Watched:
    """What the watchers have written until now."""

    def __init__(self, file: Path, logs: Path, *more: Path) -> None:
        """more: of watchers on other hosts."""
        self._files, self._logs = (file, *more), logs

    def lines(self, kind: str, robot: str, since_s: float = 0.0) -> list[Seen]:
        text = "".join(file.read_text().rpartition("\n")[0] + "\n" for file in self._files if file.exists())
        seen = [Seen(*json.loads(line)) for line in text.splitlines() if line]
        return sorted(line for line in seen if line.kind == kind and line.robot == robot and line.s >= since_s)

    def server_of(self, robot: str) -> str:
        """That its newest chunk is of; empty: none yet."""
        return next((chunk.what for chunk in reversed(self.lines("chunk", robot))), "")

    def executed(self, robot: str) -> tuple[int, float]:
        """How many actions since the start, and no older than what, s: by the age of the observation behind each."""
        told = json.loads(self.lines("ages", robot)[-1].what)
        bounds = [*told["bounds"], math.inf]
        return sum(told["counts"]), max(bound for bound, count in zip(bounds, told["counts"], strict=True) if count)

    def works(self, robot: str) -> bool:
        states = self.lines("state", robot)
        return bool(states) and states[-1].what == "STREAMING" and bool(self.server_of(robot))

    def wait(self, until: Callable[[], bool], what: str, seconds: float = 90.0) -> None:
        if not eventually(until, seconds, lambda: time.sleep(0.1)):
            said = "\n".join(f"{file.name}: {file.read_text(errors='replace')[-1500:]}" for file in self._logs.glob("*.txt"))
            raise AssertionError(f"waited in vain: {what}; {said}")


@contextmanager
def watching(network: EmulatedNetwork, file: Path, folder: Path, hosts: Collection[str]) -> Iterator[Watched]:
    factory = load_factory(file)
    robots = [robot.name for robot in factory.robots]
    watched = {host: folder / f"watched_{host}.jsonl" for host in hosts}
    command = [sys.executable, "-W", "ignore", "-m", "test.system.hosts_watcher"]
    running = [
        subprocess.Popen(network.command(host, *command, str(at), *robots), env=watchers_environment(factory, host, folder))
        for host, at in watched.items()
    ]
    try:
        first, *more = watched.values()
        yield Watched(first, folder, *more)
    finally:
        for process in running:
            process.kill()
            process.wait()


def watchers_environment(factory: Factory, host: str, folder: Path) -> dict[str, str]:
    from ros2_rfm_serving.ros.node.middleware import use_partition, use_profile

    environment = without_ros() | {k: v for k, v in discovery_environment(factory, host).items() if v}
    use_profile(environment=environment)
    if factory.discovery.partition:
        use_partition(factory.discovery.partition, folder, environment)
    return environment


@contextmanager
def factory_on_hosts(
    file: Path, folder: Path, order: tuple[str, ...], *options: str, watchers: Collection[str] = ("robots",)
) -> Iterator[tuple[EmulatedNetwork, Watched]]:
    robots = [robot.name for robot in load_factory(file).robots]
    with (
        no_multicast(f"h{os.getpid()}", file) as network,
        up_everywhere(network, file, folder, order, *options),
        watching(network, file, folder, watchers) as watched,
    ):
        watched.wait(lambda: all(map(watched.works, robots)), "all robots at work", 200.0)
        yield network, watched


def emulated(mode: str, folder: Path) -> Path:
    """Its descriptor."""
    file = folder / "factory.yaml"
    file.write_text(HOSTS.replace("MODE", mode) + IDLE_ARMS, encoding="utf-8")
    return file


def unplug(network: EmulatedNetwork, watched: Watched, host: str, mine: str, others: Collection[str]) -> dict[str, object]:
    """The host that serves a robot. others: servers that may serve it then."""
    lost, cut_s = watched.server_of(mine), time.monotonic()
    network.cut(host)
    watched.wait(lambda: watched.server_of(mine) in others, f"{mine} served by another host", 60.0)
    again_s = next(chunk.s for chunk in watched.lines("chunk", mine, cut_s) if chunk.what in others)

    def streaming() -> list[Seen]:
        return [state for state in watched.lines("state", mine, again_s) if state.what == "STREAMING"]

    watched.wait(lambda: bool(streaming()), f"{mine} at work again", 60.0)
    works_s = streaming()[0].s
    noticed = [state for state in watched.lines("state", mine, cut_s) if state.what not in ("STREAMING", "NO_TASK")]
    noticed_s = min([again_s, *(state.s for state in noticed)])
    before = next(ages for ages in watched.lines("ages", mine, cut_s))
    num_executed, oldest_s = watched.executed(mine)
    figures = {
        "noticed_s": noticed_s - cut_s,
        "served_again_s": again_s - cut_s,
        "works_again_s": works_s - cut_s,
        "states": [state.what for state in noticed],
        "executed": num_executed,
        "oldest_s": oldest_s,
    }
    assert again_s - noticed_s < RECOVERY_S, figures
    assert num_executed > sum(json.loads(before.what)["counts"]), f"nothing was executed after the loss: {figures}"
    assert oldest_s <= MAX_ACTION_AGE_S, f"executed an action that was too old: {figures}"
    last_s = max(chunk.s for chunk in watched.lines("chunk", mine) if chunk.what == lost)
    commands = [c for c in watched.lines("command", mine, last_s + MAX_ACTION_AGE_S + HEARD_LATE_S) if c.s < again_s]
    assert not commands, f"commanded when every action was too old: {figures}"
    return figures | {"between_chunks_s": again_s - last_s, "lost": lost}


@pytest.mark.alone
@pytest.mark.thorough
@pytest.mark.timeout(240)
def test_a_host_is_unplugged_and_its_robots_go_on_with_the_other(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """By static peers. Its robot executes nothing that is too old, and the other robot does not notice."""
    file = emulated("peers", tmp_path)
    with factory_on_hosts(file, tmp_path, ("gpu_b", "robots", "gpu_a")) as (network, watched):
        mine, other = ROBOTS
        lost, left = watched.server_of(mine), watched.server_of(other)
        assert {lost, left} == {"server_1", "server_2"}  # each robot its own: none of them shares a host
        cut_s = time.monotonic()
        record_property("unplugged", unplug(network, watched, {"server_1": "gpu_a", "server_2": "gpu_b"}[lost], mine, {left}))
        assert {state.what for state in watched.lines("state", other, cut_s)} == {"STREAMING"}, "the other robot noticed"
    assert pids(str(tmp_path)) == [], "processes were left behind"


@pytest.mark.alone
@pytest.mark.timeout(400)
def test_the_quickstart_goes_on_when_a_host_is_unplugged(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    """As it is shipped: three arms and the real policy and judge, each model on either GPU host."""
    with factory_on_hosts(QUICKSTART, tmp_path, ("gpu_b", "robots", "gpu_a")) as (network, watched):
        record_property("unplugged", unplug_whoever_serves(QUICKSTART, network, watched))
    assert pids(str(tmp_path)) == [], "processes were left behind"


@pytest.mark.thorough
@pytest.mark.alone
@pytest.mark.timeout(400)
def test_the_quickstart_over_zenoh_goes_on_when_a_host_is_unplugged(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """As it is shipped: robots on Zenoh alone, by mutual TLS through a router with access control."""
    security = tmp_path / "security"
    rfm = [sys.executable, "-W", "ignore", "-m", "ros2_rfm_serving.cli"]
    subprocess.run([*rfm, "security", "init", str(OVER_ZENOH), str(security), "--router", "10.77.0.4"], check=True)
    options, order = ("--security", str(security)), ("gpu_b", "robots", "gpu_a", "plant")
    with factory_on_hosts(OVER_ZENOH, tmp_path, order, *options, watchers=("robots", "plant")) as (network, watched):
        record_property("unplugged", unplug_whoever_serves(OVER_ZENOH, network, watched))
        heard_on_dds = Watched(tmp_path / "watched_robots.jsonl", tmp_path)
        assert not heard_on_dds.server_of("push_1"), "a server is heard on the robots' DDS"
    assert pids(str(tmp_path)) == [], "processes were left behind"


def unplug_whoever_serves(file: Path, network: EmulatedNetwork, watched: Watched) -> dict[str, object]:
    """The first robot."""
    factory = load_factory(file)
    seats = factory.gpu_assignments
    homes = {robot.name: seats[watched.server_of(robot.name)].host for robot in factory.robots}
    mine, lost = next(iter(homes.items()))
    others = {server for server, seat in seats.items() if seat.host != lost}
    figures = unplug(network, watched, lost, mine, others)
    watched.wait(lambda: all(watched.works(robot) and watched.server_of(robot) in others for robot in homes), "all robots again")
    print(figures)
    return figures


@pytest.mark.alone
@pytest.mark.thorough
@pytest.mark.timeout(240)
def test_a_discovery_server_will_do_as_well(tmp_path: Path) -> None:
    """Of ours, on the scheduler's host, which is the last to be started."""
    file = emulated("server", tmp_path)
    with factory_on_hosts(file, tmp_path, ("gpu_a", "gpu_b", "robots")) as (_, watched):
        assert {watched.server_of(robot) for robot in ROBOTS} == {"server_1", "server_2"}
    assert pids(str(tmp_path)) == [], "processes were left behind"


@pytest.mark.timeout(120)
def test_the_same_host_twice_on_one_machine_is_refused_and_the_first_goes_on(ros_domain: int, tmp_path: Path) -> None:
    """It is told who runs there; nothing of it is started."""
    file = emulated("peers", tmp_path)
    command = [sys.executable, "-W", "ignore", "-m", "ros2_rfm_serving.cli", "up", str(file), "--host", "gpu_a"]
    command += ["--domain", str(ros_domain), "--logs"]
    with (
        (tmp_path / "first.txt").open("w") as output,
        subprocess.Popen([*command, str(tmp_path / "first")], stdout=output, stderr=output, env=without_ros()) as first,
    ):
        try:
            log = tmp_path / "first" / "server_1.log"
            assert (
                eventually(lambda: log.exists() or first.poll() is not None, 60.0, lambda: time.sleep(0.1)) and first.poll() is None
            )
            second = subprocess.run(
                [*command, str(tmp_path / "second")], capture_output=True, text=True, env=without_ros(), check=False
            )
            told = " ".join(second.stderr.split())
            assert second.returncode == 2 and "Traceback" not in told, told
            assert f"rfm up --host gpu_a runs on this machine already, in ROS domain {ros_domain}: process {first.pid}" in told
            assert str(tmp_path / "first") in told.replace(" ", "") and not list((tmp_path / "second").glob("server*"))
            assert first.poll() is None
        finally:
            first.send_signal(signal.SIGINT)
        assert first.wait(60.0) == 0

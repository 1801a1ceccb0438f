"""A factory on three machines without multicast: one descriptor, one command each, in any order; and one of them is unplugged.
Needs Linux, root and /dev/net/tun; where they are missing it fails and says so."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from ros2_rfm_serving.benchmarks.network.netlink import EmulatedNetwork
from ros2_rfm_serving.factory import load_factory
from ros2_rfm_serving.factory.environment import discovery_environment
from test.system.hosts import no_multicast, up_everywhere, without_ros
from test.system.test_factory import pids

ROBOTS = ("idle_arm_1", "idle_arm_2")
MAX_ACTION_AGE_S = 3.0
"""Of a robot that does not say: beyond it no action is executed."""
RECOVERY_S = 3.0
FACTORY = """\
server_cluster: {num_servers: 2, gpu_type: EMULATED}
hosts:
  robots: {address: 10.79.0.1}
  gpu_a: {address: 10.79.0.2, gpus: {EMULATED: 1}}
  gpu_b: {address: 10.79.0.3, gpus: {EMULATED: 1}}
discovery: {mode: MODE, partition: hall_3}
robot_fleet: [{task: idle_arm, num_robots: 2}]
idle_arm:
  pipeline: {action_period_ms: 200}
  execution: {mode: async}
  task_retry: {max_task_retries: 1, on_max_task_retries: return_to_safe_state}
  safety_and_slo_violation: {max_consecutive_slo_violation: 20, on_max_violation: return_to_safe_state}
  components: {system1: {model: emulated/arm-policy, prompt: stay, slo_ms: 400}}
  world: {simulator: metaworld, task: reach, control_rate_hz: 20, camera_rate_hz: 5, seed: 4000000}
"""


class Seen(NamedTuple):
    s: float
    kind: str
    robot: str
    what: str


class Watched:
    """What the watcher on the robots' host has written until now."""

    def __init__(self, file: Path, logs: Path) -> None:
        self._file, self._logs = file, logs

    def lines(self, kind: str, robot: str, since_s: float = 0.0) -> list[Seen]:
        text = self._file.read_text() if self._file.exists() else ""
        seen = [Seen(*json.loads(line)) for line in text.splitlines(keepends=True) if line.endswith("\n")]
        return [line for line in seen if line.kind == kind and line.robot == robot and line.s >= since_s]

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
        end_s = time.monotonic() + seconds
        while not until():
            said = "\n".join(f"{file.name}: {file.read_text()[-1500:]}" for file in self._logs.glob("*.txt"))
            assert time.monotonic() < end_s, f"waited in vain: {what}; {said}"
            time.sleep(0.1)


@contextmanager
def watching(network: EmulatedNetwork, factory: Path, folder: Path) -> Iterator[Watched]:
    file = folder / "watched.jsonl"
    from ros2_rfm_serving.ros.node.middleware import use_partition, use_profile

    environment = without_ros() | {k: v for k, v in discovery_environment(load_factory(factory), "robots").items() if v}
    use_profile(environment=environment)
    use_partition("hall_3", folder, environment)
    command = [sys.executable, "-W", "ignore", "-m", "test.system.hosts_watcher", str(file), *ROBOTS]
    process = subprocess.Popen(network.command("robots", *command), env=environment)
    try:
        yield Watched(file, folder)
    finally:
        process.kill()
        process.wait()


@contextmanager
def factory_on_three_hosts(mode: str, folder: Path, order: tuple[str, ...]) -> Iterator[tuple[EmulatedNetwork, Watched]]:
    file = folder / "factory.yaml"
    file.write_text(FACTORY.replace("MODE", mode), encoding="utf-8")
    with (
        no_multicast(f"h{os.getpid()}") as network,
        up_everywhere(network, file, folder, order),
        watching(network, file, folder) as watched,
    ):
        watched.wait(lambda: all(map(watched.works, ROBOTS)), "both robots at work")
        yield network, watched


@pytest.mark.alone
@pytest.mark.timeout(240)
def test_a_host_is_unplugged_and_its_robots_go_on_with_the_other(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """By static peers. Its robot executes nothing that is too old, and the other robot does not notice."""
    with factory_on_three_hosts("peers", tmp_path, ("gpu_b", "robots", "gpu_a")) as (network, watched):
        mine, other = ROBOTS
        lost = watched.server_of(mine)
        left = watched.server_of(other)
        assert {lost, left} == {"server_1", "server_2"}  # each robot its own: none of them shares a host
        cut_s = time.monotonic()
        network.cut({"server_1": "gpu_a", "server_2": "gpu_b"}[lost])
        watched.wait(lambda: watched.server_of(mine) == left, "the robot served by the other host", 30.0)
        again_s = next(chunk.s for chunk in watched.lines("chunk", mine, cut_s) if chunk.what == left)
        noticed = [state for state in watched.lines("state", mine, cut_s) if state.what != "STREAMING"]
        noticed_s = min(state.s for state in noticed) if noticed else again_s
        watched.wait(lambda: watched.works(mine), "the robot at work again", 30.0)
        figures = {"noticed_s": noticed_s - cut_s, "served_again_s": again_s - cut_s, "states": [s.what for s in noticed]}
        record_property("unplugged", figures)
        assert again_s - noticed_s < RECOVERY_S, figures
        before = next(ages for ages in watched.lines("ages", mine, cut_s))
        num_executed, oldest_s = watched.executed(mine)
        figures |= {"executed": num_executed, "oldest_s": oldest_s}
        assert num_executed > sum(json.loads(before.what)["counts"]), "nothing was executed after the loss"
        assert oldest_s <= MAX_ACTION_AGE_S, f"executed an action that was too old: {figures}"
        last_s = max(chunk.s for chunk in watched.lines("chunk", mine) if chunk.what == lost)
        commands = [c for c in watched.lines("command", mine, last_s + MAX_ACTION_AGE_S) if c.s < again_s]
        assert not commands, f"commanded when every action was too old: {figures}"
        assert {state.what for state in watched.lines("state", other, cut_s)} == {"STREAMING"}, "the other robot noticed"
    assert pids(str(tmp_path)) == [], "processes were left behind"


@pytest.mark.alone
@pytest.mark.thorough
@pytest.mark.timeout(240)
def test_a_discovery_server_will_do_as_well(tmp_path: Path) -> None:
    """Of ours, on the scheduler's host, which is the last to be started."""
    with factory_on_three_hosts("server", tmp_path, ("gpu_a", "gpu_b", "robots")) as (_, watched):
        assert {watched.server_of(robot) for robot in ROBOTS} == {"server_1", "server_2"}
    assert pids(str(tmp_path)) == [], "processes were left behind"

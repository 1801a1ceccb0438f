"""A factory on several hosts, in network namespaces of their own, joined by a network without multicast."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from lab.benchmarks.network.netlink import EmulatedNetwork, emulated_network
from ros2_rfm_serving.factory import load_factory

STOP_S = 60.0
IDLE_ARMS = """\
robot_fleet: [{task: idle_arm, num_robots: 2}]
idle_arm:
  pipeline: {action_period_ms: 200}
  execution: {mode: async}
  task_retry: {max_task_retries: 1, on_max_task_retries: return_to_safe_state}
  safety_and_slo_violation: {max_consecutive_slo_violation: 20, on_max_violation: return_to_safe_state}
  components: {system1: {model: emulated/arm-policy, prompt: stay, slo_ms: 400}}
  world: {simulator: metaworld, task: reach, control_rate_hz: 20, camera_rate_hz: 5, seed: 4000000}
"""
"""Of a descriptor: two arms that are served by an emulated model."""


def without_ros() -> dict[str, str]:
    """The environment of somebody who has set nothing."""
    ours = ("ROS_", "FASTDDS_", "FASTRTPS_", "RMW_")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)} | {"OMP_NUM_THREADS": "1"}


@contextmanager
def no_multicast(net: str, file: Path) -> Iterator[EmulatedNetwork]:
    """The hosts of a descriptor. Raises: `ConfigurationError` where there are no namespaces: such a machine cannot run these
    tests, and says so."""
    addresses = {name: f"{host.address}/24" for name, host in load_factory(file).hosts.items()}
    with emulated_network(addresses, net) as network:
        network.set(multicast=False)
        yield network


@contextmanager
def up_everywhere(
    network: EmulatedNetwork, file: Path, logs: Path, order: tuple[str, ...], *options: str
) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """One command per host, as a user types it; what they print is in `logs`/<host>.txt."""
    logs.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        running = {}
        for host in order:
            command = [sys.executable, "-W", "ignore", "-m", "ros2_rfm_serving.cli", "up", str(file), "--host", host, *options]
            command = network.command(host, *command, "--logs", str(logs / host))
            output = stack.enter_context((logs / f"{host}.txt").open("wb"))
            running[host] = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=without_ros())
        try:
            yield running
        finally:
            for process in running.values():
                process.send_signal(signal.SIGINT)
            for process in running.values():
                try:
                    process.wait(STOP_S)
                except subprocess.TimeoutExpired:
                    process.kill()

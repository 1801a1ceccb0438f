"""A factory on three hosts, in network namespaces of their own, joined by a network without multicast."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from ros2_rfm_serving.benchmarks.network.netlink import EmulatedNetwork, emulated_network

ADDRESSES = {"robots": "10.79.0.1", "gpu_a": "10.79.0.2", "gpu_b": "10.79.0.3"}
STOP_S = 60.0


def without_ros() -> dict[str, str]:
    """The environment of somebody who has set nothing."""
    ours = ("ROS_", "FASTDDS_", "FASTRTPS_", "RMW_")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)} | {"OMP_NUM_THREADS": "1"}


@contextmanager
def no_multicast(net: str) -> Iterator[EmulatedNetwork]:
    """Raises: `ConfigurationError` where there are no namespaces: such a machine cannot run these tests, and says so."""
    with emulated_network({host: f"{address}/24" for host, address in ADDRESSES.items()}, net) as network:
        network.set(multicast=False)
        yield network


@contextmanager
def up_everywhere(
    network: EmulatedNetwork, file: Path, logs: Path, order: tuple[str, ...]
) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """One command per host, as a user types it; what they print is in `logs`/<host>.txt."""
    logs.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        running = {}
        for host in order:
            command = [sys.executable, "-W", "ignore", "-m", "ros2_rfm_serving.cli", "up", str(file), "--host", host]
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

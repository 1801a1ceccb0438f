"""Two factories on one network without multicast, each of which asks the other's machine who is there: they hear nothing of each
other where a key of `discovery` differs, and everything where none does. Needs Linux, root and /dev/net/tun."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from lab.benchmarks.network.netlink import EmulatedNetwork, emulated_network
from ros2_rfm_serving.factory import Factory, parse_factory
from test.system.hosts import IDLE_ARMS
from test.system.test_hosts import watchers_environment
from test.waiting import eventually

ADDRESSES = {"hall_a": "10.81.0.1", "hall_b": "10.81.0.2"}
ALIKE = "domain: 51"
DIFFERENT = {
    "domain": ("domain: 52", "domain: 53"),
    "namespace": (f"{ALIKE}, namespace: hall_a", f"{ALIKE}, namespace: hall_b"),
    "partition": (f"{ALIKE}, partition: hall_a", f"{ALIKE}, partition: hall_b"),
}
SPEAK = """
import json, sys, time
import rclpy
from rfm_serving.msg import Schedule
from ros2_rfm_serving.ros.wire import qos
name, namespace = sys.argv[1:]
rclpy.init(args=[])
node, names, heard = rclpy.create_node("scheduler"), qos.Names(namespace), set()
node.create_subscription(Schedule, names.schedule, lambda message: heard.add(message.factory), qos.SCHEDULE)
node.create_publisher(Schedule, names.schedule, qos.SCHEDULE).publish(Schedule(factory=name))
while True:
    rclpy.spin_once(node, timeout_sec=0.2)
    print(json.dumps(sorted(heard)), flush=True)
"""


def factories(keys: tuple[str, str]) -> dict[str, Factory]:
    """Either has the other's machine among its peers."""
    text = """\
server_cluster: {{num_servers: 1, gpu_type: EMULATED}}
hosts: {{{host}: {{address: {address}, gpus: {{EMULATED: 1}}}}}}
discovery: {{mode: peers, peers: [{other}], {keys}}}
"""
    first, second = ADDRESSES.items()
    made = {}
    for (host, address), (_, other), own in ((first, second, keys[0]), (second, first, keys[1])):
        made[host] = parse_factory(text.format(host=host, address=address, other=other, keys=own) + IDLE_ARMS)
    return made


@contextmanager
def speaking(network: EmulatedNetwork, keys: tuple[str, str], folder: Path) -> Iterator[list[Path]]:
    """What each of the two has heard: a file, the last line of which counts."""
    with ExitStack() as stack:
        said = []
        for host, factory in factories(keys).items():
            place = folder / host
            place.mkdir(parents=True)
            said.append(place / "heard")
            command = [sys.executable, "-W", "ignore", "-c", SPEAK, host, factory.discovery.namespace or ""]
            out = stack.enter_context(said[-1].open("wb"))
            environment = watchers_environment(factory, host, place)
            process = subprocess.Popen(network.command(host, *command), stdout=out, env=environment)
            stack.callback(process.wait)
            stack.callback(process.kill)
        yield said


def heard(files: list[Path]) -> list[list[str]]:
    """Of whom."""
    lines = [file.read_text().rpartition("\n")[0].splitlines() for file in files]
    return [list(json.loads(of[-1])) if of else [] for of in lines]


@pytest.mark.timeout(240)
def test_two_factories_on_one_network_hear_each_other_only_where_nothing_keeps_them_apart(tmp_path: Path) -> None:
    with (
        emulated_network({name: f"{address}/24" for name, address in ADDRESSES.items()}, f"n{os.getpid()}") as network,
        ExitStack() as all_,
    ):
        network.set(multicast=False)
        alone, together = [["hall_a"], ["hall_b"]], [["hall_a", "hall_b"]] * 2
        apart = [all_.enter_context(speaking(network, keys, tmp_path / what)) for what, keys in DIFFERENT.items()]
        assert eventually(lambda: all(heard(files) == alone for files in apart), 60.0), [heard(files) for files in apart]
        alike = all_.enter_context(speaking(network, (ALIKE, ALIKE), tmp_path / "alike"))
        assert eventually(lambda: heard(alike) == together, 60.0), heard(alike)
        assert all(heard(files) == alone for files in apart), [heard(files) for files in apart]

"""Zenoh configurations for a whole factory, from its descriptor: the shipped ones (config/zenoh), with its addresses, its sizes and
the paths of its certificates.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.factory import Factory
from ros2_rfm_serving.factory.dds import message_bytes
from ros2_rfm_serving.factory.nodes import ZENOH_PORT, merged_parameters, node_list
from ros2_rfm_serving.shipped import shipped

LOOPBACK = "127.0.0.1"
ROOM = 2
"""Factor of the largest declared observation for the maximum size: prefixes and text come with the images."""
LEAST_BYTES = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Options:
    address: str = ""
    """Address of the factory's router, as robots reach it; empty: the scheduler's host's."""
    port: int = ZENOH_PORT
    tls: str = ""
    """Folder with ca.pem, own.pem and own.key on each machine; empty: no TLS."""
    shared_memory: bool = True

    def __post_init__(self) -> None:
        if self.address and not re.fullmatch(r"[\w.-]+|\[[0-9A-Fa-f:]+\]", self.address, re.ASCII):
            fix = "write a name, four numbers, or an IPv6 address in brackets"
            raise ConfigurationError(f"{self.address!r} is no address", key="--address", fix=fix)
        if self.tls and not re.fullmatch(r"/[\w./+@:-]*", self.tls, re.ASCII):
            fix = "give an absolute path of letters, digits and ._-+@:"
            raise ConfigurationError(f"{self.tls!r} cannot stand in a configuration", key="--tls", fix=fix)


def files(factory: Factory, options: Options) -> dict[str, str]:
    """Return the files by name. Raises: `ConfigurationError`."""
    address = options.address or _scheduler_address(factory)
    protocol = "tls" if options.tls else "tcp"
    away, here = f"{protocol}/{address}:{options.port}", f"tcp/{LOOPBACK}:{ZENOH_PORT}"
    listening = [away] if (address, options.port) == (LOOPBACK, ZENOH_PORT) and not options.tls else [away, here]
    router = _with(shipped_text("router.json5"), r"size_limit: \d+", f"size_limit: {largest_bytes(factory)}")
    router, session = (_common(text, options) for text in (router, shipped_text("session.json5")))
    client = _with(_with(session, r'mode: "peer"', 'mode: "client"'), r'endpoints: \["tcp/127.0.0.1:0"\]', "endpoints: []")
    written = {
        "router.json5": _listening(router, listening),
        "machine_router.json5": _connected(_listening(router, [here]), away),
        "session.json5": session,
        "client.json5": _connected(client, away),
    }
    about = f"Of {_plain(factory.name)}, written by `rfm zenoh`: change the descriptor, and write it anew."
    return {"README.md": _readme(factory, away, options), **{name: f"// {about}\n{text}" for name, text in written.items()}}


def largest_bytes(factory: Factory) -> int:
    """Return the maximum size of a declared robot's observation, bytes."""
    nodes = node_list(factory, shipped("config"))
    robots = {node.namespace: merged_parameters(node) for node in nodes if node.executable == "robot_node"}
    sizes = [message_bytes(max(factory.tasks[robot.task].image_size), robots[robot.name]) for robot in factory.robots]
    return max(LEAST_BYTES, ROOM * max(sizes, default=0))


def shipped_text(name: str) -> str:
    return shipped("config", "zenoh", name).read_text(encoding="utf-8")


def _scheduler_address(factory: Factory) -> str:
    return str(factory.hosts[factory.scheduler_host].address) if factory.hosts else LOOPBACK


def _listening(text: str, endpoints: list[str]) -> str:
    return _with(text, r"listen: \{\n    endpoints: \[.*\]", f"listen: {{\n    endpoints: {_list(endpoints)}")


def _connected(text: str, endpoint: str) -> str:
    return _with(text, r"connect: \{\n    endpoints: \[.*\]", f"connect: {{\n    endpoints: {_list([endpoint])}")


def _common(text: str, options: Options) -> str:
    if not options.shared_memory:
        text = _with(text, "shared_memory: { enabled: true", "shared_memory: { enabled: false")
    return _with(text, r"tls: \{ enable_mtls: false \}", _tls(options.tls.rstrip("/"))) if options.tls else text


def _tls(folder: str) -> str:
    """Return the TLS section, in which both sides authenticate. The file is the same for all: the keys differ."""
    lines = {
        "root_ca_certificate": "ca.pem",
        **{f"{side}_certificate": "own.pem" for side in ("listen", "connect")},
        **{f"{side}_private_key": "own.key" for side in ("listen", "connect")},
    }
    said = "".join(f'        {key}: "{folder}/{file}",\n' for key, file in lines.items())
    return f"tls: {{\n        enable_mtls: true,\n{said}        close_link_on_expiration: true,\n      }}"


def _with(text: str, pattern: str, said: str) -> str:
    changed, times = re.subn(pattern, lambda _: said, text)
    assert times == 1, f"config/zenoh has {pattern!r} {times} times"
    return changed


def _list(endpoints: list[str]) -> str:
    return "[" + ", ".join(f'"{endpoint}"' for endpoint in endpoints) + "]"


def _plain(text: str) -> str:
    return "".join(letter if letter.isprintable() else " " for letter in text)


def _readme(factory: Factory, away: str, options: Options) -> str:
    domain = "ROS_DOMAIN_ID" if factory.discovery.domain is None else str(factory.discovery.domain)
    namespace = f" -p fleet_namespace:={factory.discovery.namespace}" if factory.discovery.namespace else ""
    own = f"\nOn every machine: `{options.tls.rstrip('/')}/ca.pem`, and beside it `own.pem` and `own.key`, which are its own.\n"
    keys = own if options.tls else ""
    return _README.format(name=_plain(factory.name), away=away, domain=domain, namespace=namespace, keys=keys)


_README = """\
# {name} on Zenoh

Written by `rfm zenoh` from the descriptor: the same descriptor gives the same files. ROS domain: {domain}.

| file | for |
| --- | --- |
| `router.json5` | the factory's router, at {away} |
| `machine_router.json5` | a router on any other machine, such as a robot's own computer: it connects to the factory's |
| `session.json5` | every process on `rmw_zenoh_cpp`: it connects to the router of its machine |
| `client.json5` | a process without a router on its machine: the door, robots on eclipse-zenoh without ROS |
{keys}
The factory's machine:

    ZENOH_ROUTER_CONFIG_URI=$PWD/router.json5 ros2 run rmw_zenoh_cpp rmw_zenohd

A robot's computer:

    ZENOH_ROUTER_CONFIG_URI=$PWD/machine_router.json5 ros2 run rmw_zenoh_cpp rmw_zenohd &
    export RMW_IMPLEMENTATION=rmw_zenoh_cpp ZENOH_SESSION_CONFIG_URI=$PWD/session.json5
    ros2 run rfm_serving robot_node --ros-args -p robot:=<name>{namespace}

A factory on DDS opens its door to them:

    ros2 run rfm_serving zenoh_door_node --ros-args -p zenoh_config:=$PWD/client.json5{namespace}
"""

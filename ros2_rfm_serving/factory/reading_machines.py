"""Validation of `hosts` and `discovery` in a descriptor. Each error has its line, its value and a fix."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from ros2_rfm_serving.factory.descriptor import CLUSTER, DISCOVERY, HOSTS, Factory
from ros2_rfm_serving.factory.discovery import Discovery, DiscoveryMode
from ros2_rfm_serving.factory.machines import Machine
from ros2_rfm_serving.factory.yaml_source import KeyPath, YamlSource, did_you_mean

MAX_HOSTS = 256


def read_hosts(source: YamlSource, tasks: Iterable[str]) -> dict[str, Machine]:
    """Return the validated hosts by name. Raises: `ConfigurationError`."""
    if HOSTS not in source.data:
        return {}
    data = source.data[HOSTS]
    if not isinstance(data, dict) or not data:
        raise source.error((HOSTS,), "must name at least one machine", "write `<name>: {address: <IPv4 address>}`")
    if len(data) > MAX_HOSTS:
        raise source.error((HOSTS,), f"are {len(data)} machines", f"at most {MAX_HOSTS}: beyond it, several factories")
    for name in data:
        if not isinstance(name, str) or not re.fullmatch(r"[a-z][a-z0-9_]{0,30}", name):
            fix = "small letters, digits and underscores, a letter first; quote it if YAML takes it for something else"
            raise source.error((HOSTS, str(name)), f"{name!r} cannot name a host", fix)
    hosts = {name: source.validate(Machine, (HOSTS, name), host) for name, host in data.items()}
    _check_addresses(source, hosts)
    _check_robots(source, hosts, list(tasks))
    if len(schedulers := [name for name, host in hosts.items() if host.scheduler]) > 1:
        fix = f"it runs on {schedulers[0]!r} already: say so of one host"
        raise source.error((HOSTS, schedulers[1], "scheduler"), "a factory has one scheduler", fix)
    if not schedulers and (first := next(iter(hosts))) and hosts[first].zenoh:
        fix = "write another host first, or `scheduler: true` in it"
        raise source.error((HOSTS, first, "zenoh"), "the scheduler runs on the first host, and is on DDS", fix)
    return hosts


def _check_addresses(source: YamlSource, hosts: Mapping[str, Machine]) -> None:
    first: dict[str, str] = {}
    for name, host in hosts.items():
        other = first.setdefault(str(host.address), name)
        if other != name:
            fix = "an address is one machine's; write what is one machine as one host"
            raise source.error((HOSTS, name, "address"), f"{host.address} is {other!r}'s already", fix)


def _check_robots(source: YamlSource, hosts: Mapping[str, Machine], tasks: list[str]) -> None:
    first: dict[str, str] = {}
    for name, host in hosts.items():
        for i, task in enumerate(host.robots):
            path = (HOSTS, name, "robots", i)
            if task not in tasks:
                raise source.error(path, f"no task is named {task!r}", did_you_mean(task, tasks))
            if task in first:
                raise source.error(path, f"the robots of {task!r} run on {first[task]!r} already", "name each task once")
            first[task] = name


def read_discovery(source: YamlSource, hosts: Mapping[str, Machine]) -> Discovery:
    """Return the validated section `discovery`. Raises: `ConfigurationError`."""
    discovery = source.validate(Discovery, (DISCOVERY,), source.data.get(DISCOVERY, {}))
    if discovery.mode is not DiscoveryMode.MULTICAST and not hosts:
        fix = f"declare the machines in `{HOSTS}`"
        raise source.error((DISCOVERY, "mode"), f"`{discovery.mode.value}` needs to know whom to find", fix)
    if discovery.servers and discovery.mode is not DiscoveryMode.SERVER:
        raise source.error((DISCOVERY, "servers"), f"`mode: {discovery.mode.value}` has none", "write `mode: server`")
    if discovery.peers and discovery.mode is not DiscoveryMode.PEERS:
        raise source.error((DISCOVERY, "peers"), f"`mode: {discovery.mode.value}` has none", "write `mode: peers`")
    _check_known(source, (DISCOVERY, "servers"), discovery.servers, hosts)
    for i, name in enumerate(discovery.servers):
        if name in discovery.servers[:i]:
            raise source.error((DISCOVERY, "servers", i), f"{name!r} runs one already", "name each host once")
    return discovery


def check_located(source: YamlSource, factory: Factory) -> None:
    """Check that every server finds a host. Raises: `ConfigurationError`."""
    for i, group in enumerate(factory.server_cluster):
        path = (CLUSTER, i, "hosts") if isinstance(source.data[CLUSTER], list) else (CLUSTER, "hosts")
        _check_known(source, path, group.hosts, factory.hosts)
        for j, name in enumerate(group.hosts):
            if not factory.hosts[name].num_gpus(group.gpu_type):
                has = ", ".join(factory.hosts[name].gpus) or "none"
                raise source.error((*path, j), f"{name!r} has no {group.gpu_type!r}", f"its `gpus` are: {has}")
    seats = factory.gpu_assignments if factory.hosts else dict.fromkeys(factory.servers)
    if missing := next((server for server in factory.servers if server not in seats), ""):
        group = factory.groups[missing]
        there = {name: n for name, host in factory.hosts.items() if (n := host.num_gpus(group.gpu_type))}
        wanted = sum(g.num_servers for g in factory.server_cluster if g.gpu_type == group.gpu_type)
        found = " + ".join(f"{n} on {name}" for name, n in there.items()) or "none"
        within = f", of which some may only run on {', '.join(group.hosts)}" if group.hosts else ""
        raise source.error(
            (HOSTS,),
            f"{missing} finds no GPU: {wanted} servers want one of type {group.gpu_type!r}{within}; declared: {found}",
            f"write in each host how many it has, `gpus: {{{group.gpu_type}: ...}}`, or ask for fewer servers",
        )


def _check_known(source: YamlSource, path: KeyPath, names: Iterable[str], hosts: Mapping[str, Machine]) -> None:
    for i, name in enumerate(names):
        if name not in hosts:
            raise source.error((*path, i), f"no host is named {name!r}", did_you_mean(name, hosts))

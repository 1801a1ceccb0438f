"""Machines of a factory: the host and the GPU of each of its processes (ROSA §3.5; Remote-RTC §6). Ours.

hosts: {<name>: {address, gpus, robots, scheduler, round_trip_ms, bandwidth_mbit_s, zenoh}, ...}
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from ipaddress import IPv4Address
from typing import Annotated, NamedTuple

from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator, model_validator

from ros2_rfm_serving.factory.section import Section

NO_DEVICE = frozenset({"CPU", "EMULATED"})
"""GPU types that are no GPU: no device is chosen for their servers."""
MAX_NETWORK_MS = 60_000.0
MAX_OBSERVATION_KB = 64_000.0
MAX_GPUS = 1024
DEVICE = re.compile(r"\d{1,4}|(GPU|MIG)-[\w/-]+", re.ASCII)


def _text(address: object) -> object:
    if not isinstance(address, (str, IPv4Address)):
        raise ValueError("is no address: write four numbers, 10.0.0.1")  # 1 would be 0.0.0.1
    return address


def _machine_address(address: IPv4Address) -> IPv4Address:
    if address.is_multicast or address.packed[0] == 0 or address == IPv4Address("255.255.255.255"):
        raise ValueError("is no machine's own address")
    return address


Address = Annotated[IPv4Address, BeforeValidator(_text), AfterValidator(_machine_address)]
"""Address under which other hosts reach it. DDS speaks IPv4 by default."""


def _number_or_devices(value: object) -> int | tuple[str, ...]:
    if isinstance(value, int) and not isinstance(value, bool):
        if 1 <= value <= MAX_GPUS:
            return value
        raise ValueError(f"must be from 1 to {MAX_GPUS}: leave out a type that is not there")
    if isinstance(value, (list, tuple)) and value and all(DEVICE.fullmatch(str(device)) for device in value):
        return tuple(str(int(device)) if str(device).isdecimal() else str(device) for device in value)  # CUDA reads 00 as 0
    raise ValueError("is neither a number of GPUs nor a list of devices as CUDA_VISIBLE_DEVICES has them ([0, 2] or [GPU-8a5...])")


GpuType = Annotated[str, BeforeValidator(str)]
Gpus = Annotated[int | tuple[str, ...], PlainValidator(_number_or_devices)]
"""Number of GPUs, which are numbered in the order of the file; or their indices, or identities as `nvidia-smi -L` shows them."""


class Machine(Section):
    """One machine."""

    address: Address
    gpus: dict[GpuType, Gpus] = Field(default_factory=dict)
    """GPU type -> GPUs, each of which can have one server."""
    robots: tuple[str, ...] = ()
    """Tasks whose robots' nodes run here; those of a task that no host names run on the scheduler's host."""
    scheduler: bool = False
    """The scheduler and the foreman run here; where no host declares it, they run on the first."""
    round_trip_ms: float = Field(default=0.0, ge=0, le=MAX_NETWORK_MS)
    """Round trip between the robots and this host, in addition to their `network` in `robot_fleet`. It counts for each server on
    the host."""

    bandwidth_mbit_s: float | None = Field(default=None, ge=0.1, le=1e6)
    """Bandwidth of its link, each way, for the traffic between robots and servers. None: unlimited."""
    zenoh: bool = False
    """Its robots communicate with the factory only over Zenoh, through the router on the scheduler's host; their DDS traffic does
    not leave this machine."""

    @model_validator(mode="after")
    def _robots_alone(self) -> Machine:
        if self.zenoh and (self.gpus or self.scheduler):
            raise ValueError("with `zenoh: true` it has robots alone: `gpus` and `scheduler` belong to hosts on DDS")
        if self.zenoh and not self.robots:
            raise ValueError("with `zenoh: true` it names the tasks whose robots it has, `robots: [...]`")
        return self

    @model_validator(mode="after")
    def _every_device_once(self) -> Machine:
        named = [device for devices in self.gpus.values() if not isinstance(devices, int) for device in devices]
        if len(named) != len(set(named)):
            raise ValueError("a device is listed twice")
        counted = [gpu for gpu, devices in self.gpus.items() if isinstance(devices, int) and gpu not in NO_DEVICE]
        if named and counted:
            raise ValueError(f"some types list their devices, {counted[0]!r} says how many: which are those? List them as well")
        return self

    def round_trip_with_ms(self, request_kb: float) -> float:
        """Return the round trip of a request, with this size of the request and its answer together."""
        return self.round_trip_ms + (8.0 * request_kb / self.bandwidth_mbit_s if self.bandwidth_mbit_s else 0.0)

    def num_gpus(self, gpu_type: str) -> int:
        devices = self.gpus.get(gpu_type, 0)
        return devices if isinstance(devices, int) else len(devices)

    def devices(self, gpu_type: str) -> list[str]:
        """Return the device of each GPU of a type, for one server each; empty strings for a type without devices (`NO_DEVICE`)."""
        first = 0
        for name, devices in self.gpus.items():
            if name == gpu_type and not isinstance(devices, int):
                return list(devices)
            if name == gpu_type:
                return [""] * self.num_gpus(name) if name in NO_DEVICE else [str(first + i) for i in range(self.num_gpus(name))]
            first += 0 if name in NO_DEVICE else self.num_gpus(name)
        return []


class GpuAssignment(NamedTuple):
    """Host and GPU of a server."""

    host: str
    device: str
    """Value of CUDA_VISIBLE_DEVICES; empty: the server has no device."""


class GpuRequest(NamedTuple):
    """Requirement of a server on its host."""

    gpu_type: str
    hosts: tuple[str, ...] = ()
    """Any of these; empty: any that has the type."""


def assign_gpus(hosts: Mapping[str, Machine], requests: Mapping[str, GpuRequest]) -> dict[str, GpuAssignment]:
    """Return a host and a GPU for every server, spread over the hosts as far as the requirements allow.

    Where all places of a server are occupied, a server there moves to another host if it can (augmenting paths of a bipartite
    matching), so that a flexible server never occupies another's only place. If a server finds none, it and all later ones are left
    out.
    """
    seating = _GpuMatching(hosts, requests)
    for server in requests:
        if not seating.assign(server, set()):
            break
    left = {(name, gpu): host.devices(gpu) for name, host in hosts.items() for gpu in host.gpus}
    placed = {server: seating.host_of[server] for server in requests if server in seating.host_of}
    return {server: GpuAssignment(host, left[host, requests[server].gpu_type].pop(0)) for server, host in placed.items()}


class _GpuMatching:
    def __init__(self, hosts: Mapping[str, Machine], requests: Mapping[str, GpuRequest]) -> None:
        self._hosts, self._requests, self._kinds = hosts, requests, tuple(dict.fromkeys(requests.values()))
        self.host_of: dict[str, str] = {}
        self._assigned: dict[tuple[str, GpuRequest], list[str]] = defaultdict(list)
        self._free = {(name, gpu): host.num_gpus(gpu) for name, host in hosts.items() for gpu in host.gpus}
        self._num = Counter[str]()

    def assign(self, server: str, tried: set[str]) -> bool:
        """Place a server, and return whether there was a place; otherwise no server has moved. tried: hosts already searched for
        one."""
        wish = self._requests[server]
        may = [host for host in self._hosts if (host, wish.gpu_type) in self._free and (not wish.hosts or host in wish.hosts)]
        if free := [host for host in may if self._free[host, wish.gpu_type]]:
            self._record(server, min(free, key=lambda host: self._num[host]))
            return True
        for host in may:
            if host not in tried:
                tried.add(host)
                if self._reassign_one(host, wish, tried):
                    self._record(server, host)
                    return True
        return False

    def _reassign_one(self, host: str, request: GpuRequest, tried: set[str]) -> bool:
        """Move one server with another requirement to another host, to free a GPU; servers with equal requirements are
        interchangeable."""
        for other in [kind for kind in self._kinds if kind.gpu_type == request.gpu_type and self._assigned[host, kind]]:
            moved = self._assigned[host, other][-1]
            if self.assign(moved, tried):
                self._assigned[host, other].remove(moved)
                self._free[host, request.gpu_type] += 1
                self._num[host] -= 1
                return True
        return False

    def _record(self, server: str, host: str) -> None:
        wish = self._requests[server]
        self.host_of[server] = host
        self._assigned[host, wish].append(server)
        self._free[host, wish.gpu_type] -= 1
        self._num[host] += 1

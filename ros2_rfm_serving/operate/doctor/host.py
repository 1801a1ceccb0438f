"""Check whether this machine is a host of a descriptor: its address, and its GPUs."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from ros2_rfm_serving.factory import Catalogue, Factory
from ros2_rfm_serving.factory.environment import VISIBLE, host_named, server_hosts, visible_devices
from ros2_rfm_serving.factory.machines import NO_DEVICE, Machine
from ros2_rfm_serving.operate.carried import WITHOUT_GPU, entries_of
from ros2_rfm_serving.operate.doctor.finding import Finding, Verdict

SMI_S = 30.0


class Gpu(NamedTuple):
    """GPU by nvidia-smi."""

    number: str
    identity: str
    name: str


def gpus_here() -> list[Gpu]:
    """Return the GPUs in the order of the PCI bus, as the servers count them; empty where nvidia-smi is missing or fails."""
    program = shutil.which("nvidia-smi")
    if not program:
        return []
    query = [program, "--query-gpu=index,uuid,name", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=SMI_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    lines = [[part.strip() for part in line.split(",", 2)] for line in done.stdout.splitlines()]
    return [] if done.returncode else [Gpu(*parts) for parts in lines if len(parts) == 3]


def host_findings(
    factory: Factory, name: str, gpus: Callable[[], list[Gpu]] = gpus_here, environment: Mapping[str, str] = os.environ
) -> Iterator[Finding]:
    """Yield the findings of a host. Raises: `ConfigurationError` for a host that does not exist."""
    host = host_named(factory, name)
    yield _address(name, host)
    declared = {device: gpu for gpu in host.gpus if gpu not in NO_DEVICE for device in host.devices(gpu)}
    if declared:
        yield _gpus(name, declared, gpus(), environment)
    if name in server_hosts(factory):
        yield _port(str(host.address), factory.discovery.port)


def shared_gpu(
    factory: Factory, profiles: Path, gpus: Callable[[], list[Gpu]] = gpus_here, environment: Mapping[str, str] = os.environ
) -> list[str]:
    """Return a warning when servers that are started without a host would all use the first of several GPUs.
    profiles: the folder with `models.yaml`. Raises: `ModelError` for a model that it does not have."""
    servers = [server for server, gpu_type in factory.gpu_types.items() if gpu_type not in NO_DEVICE]
    if len(servers) < 2 or (num := len(_visible(gpus(), environment))) < 2:
        return []
    entries = entries_of(factory, Catalogue.load(profiles / "models.yaml"))
    if not any(entry.engine not in WITHOUT_GPU and "device" not in entry.options for entry in entries):
        return []
    fix = "for one each, declare this machine in `hosts` and start it with its name (docs/hosts.md)"
    return [f"{', '.join(servers)} take the first of {num} GPUs, all of them: {fix}"]


def _address(name: str, host: Machine) -> Finding:
    part, fix = f"{name}: address", "correct `address` in `hosts`, or start the host that this machine is"
    if not is_here(host):
        return Finding(part=part, verdict=Verdict.MISSING, found=f"{host.address} is not this machine's", fix=fix)
    return Finding(part=part, verdict=Verdict.OK, found=str(host.address))


def is_here(host: Machine) -> bool:
    """Return whether the host's address is one of this machine's."""
    try:
        _bind(str(host.address), 0)
    except OSError:
        return False
    return True


def _gpus(name: str, declared: Mapping[str, str], here: list[Gpu], environment: Mapping[str, str]) -> Finding:
    """Check the GPUs. declared: device -> type."""
    part = f"{name}: GPUs"
    if not here:
        found = f"{len(declared)} declared; nvidia-smi shows none"
        return Finding(part=part, verdict=Verdict.MISSING, found=found, fix="install the driver, or correct `gpus` in `hosts`")
    shown = _visible(here, environment)
    by_device = {str(i): gpu for i, gpu in enumerate(shown)} | {gpu.identity: gpu for gpu in here}
    missing = [device for device in declared if device not in by_device and not device.startswith("MIG-")]
    if missing:
        limit = f" ({VISIBLE}={environment[VISIBLE]!r})" if VISIBLE in environment else ""
        found = f"there is no GPU {', '.join(missing)}; here: {len(shown)}{limit}"
        return Finding(part=part, verdict=Verdict.MISSING, found=found, fix="correct `gpus` in `hosts`")
    if same := [names for names in _one_gpu(declared, by_device) if len(names) > 1]:
        found = f"{' and '.join(same[0])} are one GPU, {by_device[same[0][0]].identity}"
        return Finding(part=part, verdict=Verdict.MISSING, found=found, fix="list each GPU once in `gpus` in `hosts`")
    found = ", ".join(f"{device}: {by_device[device].name}" if device in by_device else device for device in declared)
    others = [d for d, gpu_type in declared.items() if d in by_device and not _alike(gpu_type, by_device[d].name)]
    if others:
        odd = "; ".join(f"GPU {d} is declared {declared[d]!r}" for d in others)
        fix = "plans take the latencies of the declared type: is it another name for the same?"
        return Finding(part=part, verdict=Verdict.NOTE, found=f"{found}; {odd}", fix=fix)
    return Finding(part=part, verdict=Verdict.OK, found=found)


def _one_gpu(declared: Iterable[str], by_device: Mapping[str, Gpu]) -> Iterator[list[str]]:
    """Yield the names of each GPU: an index and an identity may name the same."""
    for identity in {by_device[device].identity for device in declared if device in by_device}:
        yield [device for device in declared if device in by_device and by_device[device].identity == identity]


def _visible(here: list[Gpu], environment: Mapping[str, str]) -> list[Gpu]:
    """Return the GPUs that this process may use, in its order."""
    if VISIBLE not in environment:
        return here
    known = {gpu.number: gpu for gpu in here} | {gpu.identity: gpu for gpu in here}
    return [known[device] for device in visible_devices(environment) if device in known]


def _alike(declared: str, name: str) -> bool:
    """Return whether two names are alike: 'H200' and 'NVIDIA H200'; every word of one is in the other."""
    ours, theirs = (set(text.lower().replace("-", " ").split()) for text in (declared, name))
    return ours <= theirs or theirs <= ours


def _port(address: str, port: int) -> Finding:
    part = "discovery server"
    try:
        _bind(address, port)
    except OSError:
        found = f"UDP port {port} of {address} cannot be had, or the factory runs"
        return Finding(part=part, verdict=Verdict.NOTE, found=found, fix="give `discovery` another `port`, if somebody else has it")
    return Finding(part=part, verdict=Verdict.OK, found=f"UDP port {port} is free")


def _bind(address: str, port: int) -> None:
    with socket.socket(type=socket.SOCK_DGRAM) as door:
        door.bind((address, port))

"""Resources that each process requests on any machine: CPUs, memory, shared memory, the right image."""

from __future__ import annotations

from typing import NamedTuple

from ros2_rfm_serving.operate.deploy.options import Options
from ros2_rfm_serving.operate.deploy.processes import Process, Role


class Need(NamedTuple):
    cpu_millicores: int
    memory_mib: int


NEEDS = {
    Role.SCHEDULER: Need(500, 512),
    Role.SERVER: Need(1000, 2048),
    Role.ROBOT: Need(250, 256),
    Role.WORLD: Need(500, 768),
    Role.FOREMAN: Need(100, 192),
    Role.DISCOVERY: Need(100, 128),
    Role.ROUTER: Need(250, 256),
    Role.OTHER: Need(250, 256),
}
"""Requests, not limits: `docs/deploy.md` has the measurements. A server's model may need more."""
PROBE_NEED = Need(50, 192)
SHARED_MEMORY_MIB = 256
"""Shared memory of a container's processes for Fast DDS: 33 MB per process with large images, less without."""
TEMPORARY_MIB = 1024
"""Space for logs."""
CACHE_MIB = 4096
"""Space for compiled kernels of a server's models."""
IMAGES = {Role.SERVER: "server", Role.WORLD: "simulator"}
"""Role -> image; all others use the robots' image."""


def image(options: Options, process: Process) -> str:
    return f"{options.image}/{IMAGES.get(process.role, 'robot')}:{options.tag}"

"""Construction of the servers of a simulated factory from its schedule."""

from __future__ import annotations

import math
from collections import Counter

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.factory import Factory, RobotEntry
from ros2_rfm_serving.factory.settings import Settings
from ros2_rfm_serving.simulation.gpu import SimulatedGpu
from ros2_rfm_serving.simulation.simulated_server import SimulatedServer
from ros2_rfm_serving.simulation.timing import Timing, build_gpu
from ros2_rfm_serving.simulation.world import World
from ros2_rfm_serving.types import Placement, Schedule


class Build:
    """Builder of the servers of one simulated factory."""

    def __init__(self, factory: Factory, settings: Settings, timing: Timing, world: World) -> None:
        self._settings, self._timing, self._world = settings, timing, world
        robots = settings.robots
        self._rows = {r.name: robots[r.task].mean_rows for r in factory.robots if robots[r.task].horizon.policy}
        self._chunk_length = settings.chunk_steps

    def expect(self, robot: RobotEntry) -> None:
        """Add a robot that is not declared: models are as sure of its actions as of those of its task."""
        settings = self._settings.robots[robot.task]
        if settings.horizon.policy:
            self._rows[robot.name] = settings.mean_rows

    def host(self, placement: Placement) -> SimulatedServer:
        gpus, profile_s = self.machine(placement)
        return SimulatedServer(placement, self._settings.of(placement), gpus, self._world, profile_s)

    def machine(self, placement: Placement) -> tuple[list[SimulatedGpu], tuple[float, ...]]:
        """Return the server's GPU, or its share of one, and the remote one for overflow if there is any, with the server's own
        profile."""
        given = (placement, self._timing, self._world)
        gpus = [build_gpu(*given, self._chunk_length, self._rows)]
        if self._settings.of(placement).overflow:
            gpus.append(build_gpu(*given, self._chunk_length, self._rows, name=f"{placement.server} overflow"))
        of = (placement.model, placement.gpu_type, placement.batching, placement.batch_size)
        return gpus, self._timing.profile.batches_s(*of)

    def load_s(self, placement: Placement) -> float:
        """Return the time to load a placement's model; inf: not known."""
        footprint = self._timing.catalogue.footprint(placement.model, placement.gpu_type)
        return footprint.load_s if footprint else math.inf


def shares_of(schedule: Schedule) -> dict[str, int]:
    """Return the number of placements on the GPU of each server, as in `World`."""
    on_gpu = Counter(placement.gpu for placement in schedule.placements if placement.gpu)
    return {p.server: on_gpu[p.gpu] for p in schedule.placements if p.gpu}


def hosts_of(schedule: Schedule, build: Build) -> dict[str, SimulatedServer]:
    hosts = {p.server: build.host(p) for p in schedule.placements}
    for route in schedule.routes:
        for server in (route.server, route.standby):
            if server and server not in hosts:
                raise ConfigurationError(f"{route.robot}/{route.component} is routed to {server!r}, which has no placement")
    return hosts

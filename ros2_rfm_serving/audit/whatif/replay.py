"""Replay of a case in virtual time with the present cores. The same case and seed give the same figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ros2_rfm_serving.audit.whatif.case import Case, ServerCase
from ros2_rfm_serving.audit.whatif.figures import Figures, Log, figures
from ros2_rfm_serving.audit.whatif.gpu import Law, RecordedGpu
from ros2_rfm_serving.audit.whatif.network import RecordedWire
from ros2_rfm_serving.audit.whatif.robot import ReplayedRobot
from ros2_rfm_serving.errors import ModelError
from ros2_rfm_serving.factory.settings import ServerSettings
from ros2_rfm_serving.simulation.conditions import SimulationConditions
from ros2_rfm_serving.simulation.simulated_server import SimulatedServer
from ros2_rfm_serving.simulation.world import World
from ros2_rfm_serving.types import RequestId, Schedule
from ros2_rfm_serving.virtual_time.events import source

ServiceTime = Callable[[str, str, int], float]
"""Function from model, GPU type and rows to the time of a batch in s by a profile; NaN if unknown."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Result of one replay."""

    figures: Figures
    guessed: Mapping[str, tuple[int, ...]]
    """Server -> batch sizes that ran in the replay and not in the recording."""


def replay(case: Case, seed: int, service_s: ServiceTime | None = None) -> Outcome:
    """Return the outcome of a case. Raises: `ModelError` when the service time of a server is unknown."""
    return _Replay(case, seed, service_s).outcome()


class _Replay:
    def __init__(self, case: Case, seed: int, service_s: ServiceTime | None) -> None:
        self._case, self._service_s = case, service_s
        self._world = World(seed=seed, warm_up_s=case.warm_up_s, conditions=SimulationConditions())
        self._gpus = {name: self._gpu(server) for name, server in case.servers.items()}
        self._hosts = {name: self._host(server) for name, server in case.servers.items()}
        self._robots = {name: self._robot(name) for name in case.robots}

    def outcome(self) -> Outcome:
        events = self._world.events
        for server in self._case.servers.values():
            for from_s, until_s in server.outages:
                events.at(from_s, self._hosts[server.name].crash, until_s - from_s)
        for at_s, schedule in self._case.schedules:
            events.at(at_s, self._follow, schedule)
        for host in self._hosts.values():
            events.at(0.0, host.publish_status)
        for robot in self._robots.values():
            events.at(0.0, robot.begin)
        events.run(self._case.seconds)
        return Outcome(figures=self._figures(), guessed=self._guessed())

    def _figures(self) -> Figures:
        case, logs = self._case, [robot.log for robot in self._robots.values()]
        batches = [batch for gpu in self._gpus.values() for batch in gpu.ran]
        return figures(logs, case.slos_s, batches, case.warm_up_s, case.seconds)

    def _guessed(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(sorted(gpu.law.guessed)) for name, gpu in self._gpus.items() if gpu.law.guessed}

    def _follow(self, schedule: Schedule) -> None:
        for robot in self._robots.values():
            robot.follow(schedule)

    def _says(self, request: RequestId) -> tuple[str, ...]:
        return self._robots[request.robot].says(request.component, request.episode)

    def _gpu(self, server: ServerCase) -> RecordedGpu:
        law = Law(server, self._profile(server))
        if not math.isfinite(law.mean_s(1)):
            raise ModelError(f"{server.name}: nothing says how long {server.placement.model!r} takes: it ran no batch then")
        return RecordedGpu(server, law, self._says, self._world.events, source(self._world.seed, "service", server.name))

    def _profile(self, server: ServerCase) -> Callable[[int], float] | None:
        said, placement = self._service_s, server.placement
        if said is None or math.isnan(said(placement.model, placement.gpu_type, 1)):
            return None
        return lambda rows: said(placement.model, placement.gpu_type, rows)

    def _host(self, server: ServerCase) -> SimulatedServer:
        config, gpu = server.config, self._gpus[server.name]
        settings = ServerSettings(
            dispatch=config.dispatch,
            batching=config.batching,
            refetch_after_s=config.refetch_after_s,
            overflow=None,
            check_parity=False,
            image_size_px=(0, 0),
        )
        same = len(config.profile_s) == server.placement.batch_size
        known_s = config.profile_s if same else gpu.law.profile_s(server.placement.batch_size)
        return SimulatedServer(server.placement, settings, [gpu], self._world, known_s)

    def _robot(self, name: str) -> ReplayedRobot:
        case, world = self._case.robots[name], self._world
        asked = {route.server for _, schedule in self._case.schedules for route in schedule.routes if route.robot == name}
        intakes_s = [self._case.servers[server].intake_s for server in asked if server in self._case.servers]
        wire = RecordedWire(case.network, max(intakes_s, default=0.0), source(world.seed, "network", name))
        robot = ReplayedRobot(case, wire, self._hosts, Log(name), world.events, world.traffic)
        for host in self._hosts.values():
            host.clients[name] = robot
            host.listeners.append(robot)
        return robot

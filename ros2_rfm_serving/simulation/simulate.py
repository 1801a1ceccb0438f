"""Simulation of a whole factory in virtual time: the live cores of robots and servers exchange messages through an event queue."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.factory import Catalogue, Factory, RobotEntry
from ros2_rfm_serving.factory.settings import settings_of
from ros2_rfm_serving.factory.yaml_source import did_you_mean
from ros2_rfm_serving.profiles import Profile
from ros2_rfm_serving.simulation.build import Build, hosts_of, shares_of
from ros2_rfm_serving.simulation.conditions import NetworkConditions, SimulationConditions
from ros2_rfm_serving.simulation.goodput import ActionCounts, ComponentCounts, GoodputCounter
from ros2_rfm_serving.simulation.report import (
    Counters,
    Report,
    ServerReport,
    TaskReport,
    component_report,
    latency_figures,
)
from ros2_rfm_serving.simulation.robot import SimulatedRobot
from ros2_rfm_serving.simulation.simulated_server import SimulatedServer
from ros2_rfm_serving.simulation.timing import Timing
from ros2_rfm_serving.simulation.world import World
from ros2_rfm_serving.types import SYSTEM1, Route, Schedule
from ros2_rfm_serving.virtual_time.events import rarely_collecting

Tallies = Mapping[str, Mapping[str, ComponentCounts]]
"""task -> component -> its requests"""


def simulate(
    schedule: Schedule,
    factory: Factory,
    catalogue: Catalogue,
    profile: Profile | None = None,
    *,
    seconds: float,
    seed: int,
    warm_up_s: float = 5.0,
    conditions: SimulationConditions = SimulationConditions(),  # noqa: B008 - frozen
    progress: Callable[[float], None] | None = None,
) -> Report:
    """Run the schedule for `warm_up_s`, then for the measured `seconds`. The same seed gives the same report.

    profile: service times of models without a law in the catalogue, and the servers' knowledge of them at the start. progress:
    called with the virtual time about once per virtual second.

    Raises: `ConfigurationError` for conditions that name no robot or server of the factory; `ModelError` when the service time of a
    placed model is not known.
    """
    if not (seconds > 0 and warm_up_s >= 0):
        raise ConfigurationError(f"{seconds:g} s after {warm_up_s:g} s of warm-up", key="seconds", fix="measure for more than 0 s")
    timing, end_s = Timing(catalogue=catalogue, profile=profile or Profile({})), warm_up_s + seconds
    with rarely_collecting():
        simulation = Simulation(
            schedule, factory, timing, World(seed=seed, warm_up_s=warm_up_s, conditions=conditions.of(factory.planning))
        )
        simulation.world.events.run(end_s, progress)
        return simulation.report(seconds)


class Simulation:
    """One factory with its schedule."""

    def __init__(self, schedule: Schedule, factory: Factory, timing: Timing, world: World) -> None:
        self.world, self._schedule, self._factory = world, schedule, factory
        self._tallies: Tallies = {name: {c: ComponentCounts() for c in task.components} for name, task in factory.tasks.items()}
        self._actions = {name: ActionCounts() for name in factory.tasks}
        if world.conditions.network is None:
            world.roads.lay(factory)
        self._settings = settings_of(factory)
        self._build = Build(factory, self._settings, timing, world)
        world.shares.update(shares_of(schedule))
        self._hosts = hosts_of(schedule, self._build)
        self._robots = self._connected()
        self._served = Counter(robot.task for robot in factory.robots if robot.name in self._robots)
        _plan(self._hosts, self._robots, factory, timing.catalogue, world)

    def _connected(self) -> dict[str, SimulatedRobot]:
        """Return the robots with a route, connected to the servers from which they receive messages."""
        routes = routes_by_robot(self._schedule)
        return {
            robot.name: self._robot(robot, routes[robot.name])
            for robot in self._factory.robots
            if any(route.component == SYSTEM1 for route in routes.get(robot.name, ()))
        }

    def _robot(self, robot: RobotEntry, routes: Sequence[Route]) -> SimulatedRobot:
        task, settings = self._factory.tasks[robot.task], self._settings.robots[robot.task]
        ledger = GoodputCounter(task, self._tallies[robot.task], self._actions[robot.task], self.world.warm_up_s)
        mine = replace(self._schedule, routes=tuple(routes))
        client = SimulatedRobot(robot, task, settings, mine, self._hosts, ledger, self.world, self._network_of(robot.task))
        self._connect(client, mine)
        return client

    def _connect(self, client: SimulatedRobot, mine: Schedule) -> None:
        for server in sorted({r.server for r in mine.routes} | {r.standby for r in mine.routes if r.standby}):
            self._hosts[server].meet(client)

    def _network_of(self, task: str) -> NetworkConditions:
        given = self.world.conditions.network
        return NetworkConditions.declared(self._factory.network_of(task)) if given is None else given

    def report(self, seconds: float) -> Report:
        for robot in self._robots.values():
            robot.finish()
        for host in self._hosts.values():
            host.finish()
        declared = Counter(robot.task for robot in self._factory.robots)
        used = [name for name in self._factory.tasks if declared[name]]
        components = list(dict.fromkeys(c for name in used for c in self._tallies[name]))
        return Report(
            policy=self._schedule.policy,
            seconds=seconds,
            goodput=sum(tally.qualified for tally in self._actions.values()) / seconds,
            raw=sum(tally.raw for tally in self._actions.values()) / seconds,
            tasks={
                name: TaskReport(
                    num_robots=declared[name],
                    served=self._served[name],
                    goodput=self._actions[name].qualified / seconds,
                    raw=self._actions[name].raw / seconds,
                )
                for name in used
            },
            components={
                c: component_report([self._tallies[name][c] for name in used if c in self._tallies[name]]) for c in components
            },
            task_components={name: {c: component_report([t]) for c, t in self._tallies[name].items()} for name in used},
            servers=[_server_report(host, seconds) for host in self._hosts.values()],
            counters=self._counters(),
        )

    def _everybody(self) -> list[SimulatedRobot]:
        return list(self._robots.values())

    def _counters(self) -> Counters:
        traffic, brains = self.world.traffic, [robot.brain for robot in self._everybody()]
        return Counters(
            sent=traffic.sent,
            answered=traffic.answered,
            late=traffic.late,
            lost=traffic.lost,
            refused=traffic.refused,
            dropped=traffic.dropped,
            in_flight=traffic.travelling + sum(host.num_held for host in self._hosts.values()),
            timeouts=sum(brain.refused["request_timeout"] for brain in brains),
            failovers=sum(brain.failovers for brain in brains),
        )


def routes_by_robot(schedule: Schedule) -> Mapping[str, Sequence[Route]]:
    routes: dict[str, list[Route]] = defaultdict(list)
    for route in schedule.routes:
        routes[route.robot].append(route)
    return routes


def _plan(
    hosts: Mapping[str, SimulatedServer], robots: Mapping[str, SimulatedRobot], factory: Factory, catalogue: Catalogue, world: World
) -> None:
    """Plan the events that need no cause: status messages, faults, joining and leaving robots."""
    conditions, events = world.conditions, world.events
    names = [robot.name for robot in factory.robots]
    for what, given, known in (
        ("joins", conditions.joins, names),
        ("begins", conditions.begins, names),
        ("leaves", conditions.leaves, names),
        ("crashes", [crash.server for crash in conditions.crashes], hosts),
    ):
        for name in given:
            if name not in known:
                raise ConfigurationError(f"nothing is named {name!r}", key=f"conditions.{what}", fix=did_you_mean(name, known))
    for name, robot in robots.items():
        events.at(conditions.joins.get(name, 0.0), robot.join)
        if name in conditions.leaves:
            events.at(conditions.leaves[name], robot.leave)
    for host in hosts.values():
        events.at(0.0, host.publish_status)
    for crash in conditions.crashes:
        host = hosts[crash.server]
        footprint = catalogue.footprint(host.placement.model, host.placement.gpu_type)
        load_s = footprint.load_s if footprint else math.inf
        events.at(crash.at_s, host.crash, load_s if crash.restart_after_s is None else crash.restart_after_s)


def _server_report(host: SimulatedServer, seconds: float) -> ServerReport:
    mean_s, p50_s, p99_s = latency_figures(host.tally.latencies_s)
    return ServerReport(
        server=host.name,
        model=host.placement.model,
        utilisation=host.tally.busy_s / seconds,
        rate_hz=len(host.tally.latencies_s) / seconds,
        mean_s=mean_s,
        p50_s=p50_s,
        p99_s=p99_s,
    )

"""Simulation of a whole factory with its scheduler, which monitors robots and servers, and whose schedules all of them follow.

Guests join and leave among the simulated robots: they are admitted, served, moved with their servers' models, and released.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

from ros2_rfm_serving.factory import Catalogue, Factory, RobotEntry
from ros2_rfm_serving.faults import Direction
from ros2_rfm_serving.profiles import Profile
from ros2_rfm_serving.scheduler import RobotClaim
from ros2_rfm_serving.scheduler.estimation import RobotStatusSample, ServerStatusSample
from ros2_rfm_serving.simulation.build import shares_of
from ros2_rfm_serving.simulation.chunk_continuity import chunk_continuity_report
from ros2_rfm_serving.simulation.conditions import SimulationConditions
from ros2_rfm_serving.simulation.dynamic_robots import DynamicRobotFigures, DynamicRobots, Turnover
from ros2_rfm_serving.simulation.report import Report, Visits
from ros2_rfm_serving.simulation.robot import SimulatedRobot
from ros2_rfm_serving.simulation.scheduler import SimulatedScheduler
from ros2_rfm_serving.simulation.simulate import Simulation, routes_by_robot
from ros2_rfm_serving.simulation.timing import Timing
from ros2_rfm_serving.simulation.world import World
from ros2_rfm_serving.types import Schedule, ServerState
from ros2_rfm_serving.virtual_time.events import rarely_collecting

COLLECT_PERIOD_S = 0.5
"""Period at which a server checks which robots have left the graph."""


class ScheduledReport(NamedTuple):
    report: Report
    scheduler: SimulatedScheduler


def simulate_watched(
    factory: Factory,
    catalogue: Catalogue,
    profile: Profile,
    *,
    seconds: float,
    seed: int,
    warm_up_s: float = 5.0,
    conditions: SimulationConditions = SimulationConditions(),  # noqa: B008 - frozen
    watches: bool = True,
    policy: str = "best",
    work: float | None = None,
    turnover: Turnover | None = None,
    progress: Callable[[float], None] | None = None,
) -> ScheduledReport:
    """Simulate as `simulate`, with the schedules that the factory's own scheduler makes.

    watches: False: it receives no messages, and its first schedule lasts until a request changes it. work: for one plan
    (`SimulatedScheduler`). turnover: guests that join and leave; None: none do. Raises: as `simulate`, and `RfmError` when nothing
    can be served.
    """
    world = World(seed=seed, warm_up_s=warm_up_s, conditions=conditions.of(factory.planning))
    scheduler = SimulatedScheduler(factory, profile, catalogue, world.events, policy=policy, work=work)
    with rarely_collecting():
        floor = ScheduledFactory(scheduler, factory, Timing(catalogue=catalogue, profile=profile), world)
        if watches:
            scheduler.watch(floor.server_samples, floor.robot_samples, floor.lives)
        if turnover:
            floor.open_to(turnover)
        world.events.run(warm_up_s + seconds, progress)
        return ScheduledReport(floor.report(seconds), scheduler)


class ScheduledFactory(Simulation):
    """Robots and servers of a factory that follow successive schedules."""

    def __init__(self, scheduler: SimulatedScheduler, factory: Factory, timing: Timing, world: World) -> None:
        super().__init__(scheduler.schedules[0], factory, timing, world)
        self._scheduler, self._figures = scheduler, DynamicRobotFigures()
        self._gone: list[SimulatedRobot] = []
        self._open = False
        """Guests may join."""
        self._declare(scheduler.schedules[0])
        scheduler.published.append(lambda schedule, now_s: self.follow(schedule))
        world.events.at(COLLECT_PERIOD_S, self._collect)

    def open_to(self, turnover: Turnover) -> None:
        tasks = [robot.task for robot in self._factory.robots]
        self._open = True
        DynamicRobots(turnover, tasks, self._scheduler, self.world.seed, self._figures, comes=self.join, goes=self.leave)

    # --- joining and leaving ---

    def join(self, name: str, task: str) -> None:
        """Add a robot that was admitted."""
        robot = RobotEntry(name=name, task=task, index=0)
        self._build.expect(robot)
        self._robots[name] = client = self._robot(robot, routes_by_robot(self._schedule).get(name, ()))
        client.join()

    def leave(self, name: str, goodbye: bool) -> None:
        """Remove a robot, with or without a message; its name is free afterwards."""
        client = self._robots.pop(name)
        if goodbye:
            client.leave()
        else:
            client.vanish()
        for host in self._hosts.values():
            host.part(client)
        self._gone.append(client)

    def _collect(self) -> None:
        """Check periodically for robots that have left."""
        self.world.events.at(self.world.events.now_s + COLLECT_PERIOD_S, self._collect)
        for host in self._hosts.values():
            host.collect()

    # --- schedules of the scheduler ---

    def follow(self, schedule: Schedule) -> None:
        """Make another schedule active, for all robots and servers at once."""
        self._schedule = schedule
        self._place(schedule)
        self._declare(schedule)
        routes = routes_by_robot(schedule)
        for name, robot in self._robots.items():
            mine = replace(schedule, routes=tuple(routes.get(name, ())))
            self._connect(robot, mine)
            robot.follow(mine)

    def _place(self, schedule: Schedule) -> None:
        self.world.shares.clear()
        self.world.shares.update(shares_of(schedule))
        for placement in schedule.placements:
            host = self._hosts.get(placement.server)
            if host is None:
                host = self._hosts[placement.server] = self._build.host(placement)
                host.load(self._build.load_s(placement))
                self.world.events.at(self.world.events.now_s, host.publish_status)
            elif (host.placement.model, host.placement.batching) == (placement.model, placement.batching):
                host.follow(placement)
            else:
                host.become(placement, *self._build.machine(placement), self._build.load_s(placement))

    def _declare(self, schedule: Schedule) -> None:
        rates_hz: dict[str, dict[tuple[str, str], float]] = {name: {} for name in self._hosts}
        for route in schedule.routes:
            for server in (route.server, route.standby):
                if server:
                    rates_hz[server][route.robot, route.component] = route.max_rate_hz
        for name, host in self._hosts.items():
            host.declare(rates_hz[name])

    # --- messages to the scheduler ---

    def server_samples(self) -> Iterator[ServerStatusSample]:
        """Yield the status of all servers.

        GPUs that several placements share are included as long as one of these reports, as are servers that no schedule has used
        yet.
        """
        yield from self._host_samples()
        used = self._hosts.keys() | {host.placement.gpu for host in self._hosts.values()}
        speaking = {host.placement.gpu for host in self._hosts.values() if host.loads or host.snapshot}
        for name in self._factory.servers:
            if name in speaking or name not in used:
                yield ServerStatusSample(server=name, state=ServerState.READY if name in speaking else ServerState.LOADING)

    def _host_samples(self) -> Iterator[ServerStatusSample]:
        for name, host in self._hosts.items():
            if host.loads:
                yield ServerStatusSample(server=name, state=ServerState.LOADING, model=host.placement.model)
            elif snapshot := host.snapshot:
                inference, wait = snapshot.histograms["inference_s"], snapshot.histograms["queue_wait_s"]
                yield ServerStatusSample(
                    server=name,
                    state=ServerState.READY,
                    model=host.placement.model,
                    batch_size=snapshot.batch_size,
                    mean_batch_size=snapshot.mean_batch_size,
                    latency_p99_s=snapshot.latency_p99_s,
                    replies=sum(inference.counts),
                    inference_s=inference.sum,
                    queue_wait_s=wait.sum,
                    bounds_s=inference.bounds,
                    counts=tuple(inference.counts),
                )

    def robot_samples(self) -> Iterator[RobotStatusSample]:
        return (robot.status_sample() for robot in self._received())

    def lives(self) -> Iterator[RobotClaim]:
        return (robot.lives() for robot in self._received())

    def _received(self) -> Iterator[SimulatedRobot]:
        now_s = self.world.events.now_s
        return (robot for robot in self._robots.values() if robot.is_present and robot.wire.connected(Direction.UP, now_s))

    # --- the end ---

    def report(self, seconds: float) -> Report:
        report = super().report(seconds)
        return replace(report, visits=self._visits()) if self._open else report

    def _visits(self) -> Visits:
        everybody = self._everybody()
        used = dict.fromkeys(robot.task for robot in everybody)
        return Visits(
            guests=self._figures,
            schedules=len(self._scheduler.schedules),
            stays={task: chunk_continuity_report(robot.stay for robot in everybody if robot.task == task) for task in used},
        )

    def _everybody(self) -> list[SimulatedRobot]:
        return [*self._gone, *super()._everybody()]

"""What a schedule promises, looked at from outside: by the descriptor and the measured figures, not by the code that made it."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Container, Mapping
from dataclasses import replace

from ros2_rfm_serving.factory import Catalogue, Factory
from ros2_rfm_serving.factory.catalogue import CatalogueEntry
from ros2_rfm_serving.factory.task import ActionRateFloor, ExecutionMode
from ros2_rfm_serving.profiles import Profile
from ros2_rfm_serving.simulation import simulate
from ros2_rfm_serving.types import SYSTEM1, Placement, Route, Schedule

ROUNDING, FLOOR_ROUNDING = 1e-5, 1e-3


Load = dict[tuple[str, str], float]
"""(host, in or out) -> Mbit/s."""


def most_hz(declared: Factory, task: str, component: str) -> float:
    """Requests of a robot that no server keeps waiting."""
    part, cycle_s = declared.tasks[task].components[component], declared.tasks[task].cycle_period_s
    if declared.tasks[task].execution.mode is ExecutionMode.SYNC:
        coupled = [name for name, other in declared.tasks[task].components.items() if not other.freq_hz]
        cycle_s += declared.at_nearest().network_of(task).mean_s * sum(map(declared.tasks[task].calls_per_action, coupled))
    return part.freq_hz or declared.tasks[task].calls_per_action(component) / cycle_s


def on_links(declared: Factory, schedule: Schedule, lost: Collection[str] = ()) -> Load:
    """By routes alone, robot by robot; whose server is lost is at its standby."""
    homes = {task: name for name, host in declared.hosts.items() for task in host.robots}
    gpus = {p.server: p.gpu or p.server for p in schedule.placements}
    seats = declared.gpu_assignments
    load: Load = defaultdict(float)
    for route in schedule.routes:
        server = route.standby if route.server in lost else route.server
        here, home, network = seats[gpus[server]].host, homes.get(route.task), declared.network_of(route.task)
        hz = min(route.max_rate_hz, most_hz(declared, route.task, route.component))
        if here != home:
            load[here, "in"] += hz * network.observation_kb * 8 / 1000
            load[here, "out"] += hz * network.reply_kb * 8 / 1000
            if home:
                load[home, "out"] += hz * network.observation_kb * 8 / 1000
                load[home, "in"] += hz * network.reply_kb * 8 / 1000
    return load


def too_much(declared: Factory, load: Load) -> list[str]:
    """What no link takes."""
    share = declared.planning.link_share
    takes = {name: share * (host.bandwidth_mbit_s or math.inf) for name, host in declared.hosts.items()}
    return [f"{host} {way}: {n:.3f} of {takes[host]}" for (host, way), n in load.items() if n > takes[host] * (1 + ROUNDING)]


class Promises:
    """Of one schedule for these robots (robot -> task)."""

    def __init__(self, schedule: Schedule, robots: Mapping[str, str], factory: Factory, profile: Profile) -> None:
        self._schedule, self._robots, self._factory, self._profile = schedule, robots, factory, profile
        self._hosts = {placement.server: placement for placement in schedule.placements}
        self._on: dict[str, list[Route]] = defaultdict(list)
        self._of: dict[str, dict[str, Route]] = defaultdict(dict)
        for route in schedule.routes:
            self._on[route.server].append(route)
            assert route.component not in self._of[route.robot], "asked of one server alone"
            self._of[route.robot][route.component] = route

    def hold(self, owed_hz: Callable[[str, str], float], but: Container[str] = ()) -> None:
        """owed_hz: by robot and task, the action rate that the last plan of the whole factory lets it count on. but: servers whose
        SLOs and floors are known not to hold."""
        self._servers_are_the_factorys()
        self._everybody_is_served()
        for server in self._on:
            if server not in but:
                self._slos_hold(server)
        for robot, task in self._robots.items():
            declared = self._factory.tasks[task].min_action_rate_hz
            if isinstance(declared, float) and all(route.server not in but for route in self._of[robot].values()):
                self._floor_holds(robot, declared)
            given_hz = self._of[robot][SYSTEM1].predicted_rate_hz
            owed = owed_hz(robot, task)
            assert given_hz >= owed * (1 - ROUNDING), f"{robot}: {given_hz}, it counts on {owed}"
        for route in self._schedule.routes:
            if route.standby:
                self._standby_carries(route)
        self._links_carry()

    def class_floors_hold(self, but: Container[str]) -> None:
        """Of classes as a whole, which who comes and goes may break until the next plan; but: of those for which there is none."""
        for name, task in self._factory.tasks.items():
            robots = [robot for robot, mine in self._robots.items() if mine == name]
            if robots and name not in but and isinstance(floor := task.min_action_rate_hz, ActionRateFloor) and floor.per_class:
                assert sum(map(self._reached_hz, robots)) >= floor.per_class * (1 - FLOOR_ROUNDING), name

    # --- one by one ---

    def _servers_are_the_factorys(self) -> None:
        declared = self._factory.gpu_types
        assert len(self._hosts) == len(self._schedule.placements), "a server has one placement"
        for placement in self._hosts.values():
            assert declared[placement.gpu or placement.server] == placement.gpu_type
            assert len(self._on[placement.server]) <= placement.max_sessions
            assert not (placement.standby and self._on[placement.server]), "a reserved standby has no routes"

    def _everybody_is_served(self) -> None:
        assert set(self._of) == set(self._robots), set(self._of) ^ set(self._robots)
        for robot, task in self._robots.items():
            components = self._factory.tasks[task].components
            assert set(self._of[robot]) == set(components)
            for name, route in self._of[robot].items():
                assert self._hosts[route.server].model == components[name].model and route.task == task
                assert route.predicted_rate_hz <= route.max_rate_hz * (1 + ROUNDING)
                if freq_hz := components[name].freq_hz:
                    assert route.predicted_rate_hz == freq_hz

    def _slos_hold(self, server: str) -> None:
        load_hz, placement = self._load_hz(server), self._hosts[server]
        try:
            for route in self._on[server]:
                self._keeps(route, placement, load_hz)
        except AssertionError:
            if not self._may_run(placement):
                raise
            self._kept_in_virtual_time(placement)

    def _floor_holds(self, robot: str, floor_hz: float) -> None:
        """By measured figures, or by the queue of the robots that are there."""
        try:
            rate_hz = self._reached_hz(robot)
            assert rate_hz >= floor_hz * (1 - ROUNDING), f"{robot}: {rate_hz} of {floor_hz} actions/s"
        except AssertionError:
            placement = self._hosts[self._of[robot][SYSTEM1].server]
            if len(self._of[robot]) > 1 or not self._may_run(placement):
                raise
            rate_hz = self._kept_in_virtual_time(placement)[self._robots[robot]]
            assert rate_hz >= floor_hz * (1 - FLOOR_ROUNDING), f"{robot}: {rate_hz} of {floor_hz} actions/s, in virtual time"

    def _may_run(self, placement: Placement) -> bool:
        return placement.batching == "fixed" and all(route.component == SYSTEM1 for route in self._on[placement.server])

    def _kept_in_virtual_time(self, placement: Placement) -> dict[str, float]:
        """Whose robots all ask for actions has a queue that can be run: it says more than what was measured with other robots. By
        task, what one of its robots reaches."""
        mine = {route.robot: route for route in self._on[placement.server]}
        counts = Counter(self._robots[robot] for robot in mine)
        tasks = {}
        for name in counts:
            declared = self._factory.tasks[name]
            waits_s = max(self._waits_elsewhere_s(robot) for robot in mine if self._robots[robot] == name)
            period_ms = 1e3 * (declared.cycle_period_s + (0.0 if declared.execution.mode is ExecutionMode.ASYNC else waits_s))
            pipeline = declared.pipeline.model_copy(update={"action_period_ms": period_ms, "system2_to_system1_call_ratio": 0.0})
            horizon = declared.execution.horizon.model_copy(update={"mean_period_ms": None})
            execution = declared.execution.model_copy(update={"horizon": horizon})
            only = {"pipeline": pipeline, "execution": execution, "components": {SYSTEM1: declared.components[SYSTEM1]}}
            tasks[name] = declared.model_copy(update=only)
        fleet = [e.model_copy(update={"num_robots": counts[e.task]}) for e in self._factory.robot_fleet if counts[e.task]]
        plant = self._factory.model_copy(update={"tasks": tasks, "robot_fleet": tuple(fleet), "hosts": {}})
        routes = {name: [route for robot, route in mine.items() if self._robots[robot] == name] for name in counts}
        renamed = tuple(replace(routes[robot.task].pop(), robot=robot.name, standby="") for robot in plant.robots)
        schedule = replace(self._schedule, placements=(placement,), routes=renamed)
        catalogue = Catalogue(models={placement.model: CatalogueEntry(engine="emulated")})
        report = simulate(schedule, plant, catalogue, self._profile, seconds=60.0, seed=0)
        for name, parts in report.task_components.items():
            percentile = tasks[name].components[SYSTEM1].percentile or tasks[name].percentile
            kept = 100.0 * parts[SYSTEM1].slo_attainment
            assert kept >= percentile - 0.5, f"{kept} % of {name} in time on {placement.server}, {percentile} was promised"
        return {name: report.tasks[name].raw / counts[name] for name in counts}

    def _waits_elsewhere_s(self, robot: str) -> float:
        task = self._factory.tasks[self._robots[robot]]
        return sum(
            task.calls_per_action(name) * self._latency_s(self._hosts[route.server], self._load_hz(route.server), "mean")
            for name, route in self._of[robot].items()
            if name != SYSTEM1 and not task.components[name].freq_hz
        )

    def _standby_carries(self, route: Route) -> None:
        standby, server = self._hosts[route.standby], self._hosts[route.server]
        assert standby.model == server.model and route.standby != route.server
        if not self._on[route.standby] and _setup(standby) == _setup(server):
            return  # idle, and the same server under another name: robots keep there what they keep where they are
        load_hz = self._load_hz(route.server) + self._load_hz(route.standby)
        for one in (*self._on[route.server], *self._on[route.standby]):
            self._keeps(one, standby, load_hz)

    def _links_carry(self) -> None:
        """Now, and without each server that has a standby."""
        if self._factory.hosts:
            covered = {route.server for route in self._schedule.routes if route.standby}
            for lost in ((), *((server,) for server in covered)):
                assert not (much := too_much(self._factory, on_links(self._factory, self._schedule, lost))), (lost, much)

    # --- measured figures ---

    def _load_hz(self, server: str) -> float:
        return sum(route.predicted_rate_hz for route in self._on[server])

    def _latency_s(self, placement: Placement, load_hz: float, column: str) -> float:
        share = sum(p.gpu == placement.gpu for p in self._hosts.values()) if placement.gpu else 1
        key = (placement.model, placement.gpu_type, placement.batching, placement.batch_size)
        most_hz = self._profile.max_rate_hz(*key) / share
        assert load_hz <= most_hz * (1 + ROUNDING), f"{placement.server}: {load_hz} requests/s, {most_hz} were measured"
        return share * self._profile.latency_s(*key, min(load_hz, most_hz) * share, column)

    def _keeps(self, route: Route, placement: Placement, load_hz: float) -> None:
        task = self._factory.tasks[self._robots[route.robot]]
        component = task.components[route.component]
        if component.slo_ms:
            percentile = component.percentile or task.percentile
            column = next(f"p{p}" for p in (50, 90, 95, 99) if p >= percentile)
            latency_s = self._latency_s(placement, load_hz, column)
            assert latency_s <= component.slo_ms / 1e3 * (1 + ROUNDING), f"{route} on {placement.server}: {latency_s}"

    def _reached_hz(self, robot: str) -> float:
        """By its own closed loop, and what it may send."""
        task = self._factory.tasks[self._robots[robot]]
        waits_s = []
        for name, route in self._of[robot].items():
            if calls := task.calls_per_action(name) if not task.components[name].freq_hz else 0.0:
                waits_s.append(calls * self._latency_s(self._hosts[route.server], self._load_hz(route.server), "mean"))
        overlapped = task.execution.mode is ExecutionMode.ASYNC
        period_s = max(task.cycle_period_s, *waits_s) if overlapped else task.cycle_period_s + sum(waits_s)
        return min(1 / period_s, self._of[robot][SYSTEM1].max_rate_hz)


def _setup(placement: Placement) -> tuple[str, str, int]:
    return placement.gpu_type, placement.batching, placement.batch_size

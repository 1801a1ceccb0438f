"""What is to be scheduled, as numbers: task classes, their demands, the servers (ROSA §3.4.1)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

from ros2_rfm_serving.factory import Factory
from ros2_rfm_serving.factory.cluster import Stragglers
from ros2_rfm_serving.factory.fleet import Network
from ros2_rfm_serving.factory.settings import RobotSettings, chunk_steps, robot_settings
from ros2_rfm_serving.factory.task import ExecutionMode
from ros2_rfm_serving.profiles import SteppedService
from ros2_rfm_serving.scheduler import utility
from ros2_rfm_serving.scheduler.links import Links, on_host
from ros2_rfm_serving.scheduler.seen import AS_DECLARED, Seen
from ros2_rfm_serving.scheduler.slo import Slo, slo_of
from ros2_rfm_serving.types import SYSTEM1, Pipelining, Schedule
from ros2_rfm_serving.types.phase import is_paced

LEAST_SHARE, LEAST_HZ = 0.01, 0.01
"""Of f_max, and at most: the action rate below which a robot is not served. No plan lets some stand still for others, which may be
worth more; how slow is too slow for a task is its `min_action_rate_hz`."""


@dataclass(frozen=True, kw_only=True)
class Demand:
    """The requests of one component of one task class: every robot of the class sends them."""

    index: int
    """In `Problem.demands`."""
    task: int
    """In `Problem.classes`."""
    component: str
    model: str
    calls: float
    """Per action, of a goal-coupled component; 0 for an obligation (ROSA §3.4.1)."""
    fixed_hz: float
    """Of one robot, of an obligation; 0 for a goal-coupled component."""
    slo: Slo
    prompt: str = ""
    """What its requests ask, which a dispatch policy may go by."""
    rows: int = 0
    """That each robot of a pipelined session keeps on its server; 0: it is none."""

    def rate_hz(self, action_rate_hz: float) -> float:
        """Requests of one robot."""
        return self.calls * action_rate_hz + self.fixed_hz

    @property
    def goal_coupled(self) -> bool:
        return self.calls > 0

    @property
    def for_actions(self) -> bool:
        """Whether its replies are action chunks: requests of System 1. Other components may be called for every action, too."""
        return self.component == SYSTEM1


@dataclass(frozen=True, kw_only=True)
class Trusted:
    """How far servers let robots execute a chunk, where a horizon policy says. How far that is scatters: any number of rows below
    twice the mean is as likely as another, as in virtual time (`simulation/gpu.py`)."""

    mean_rows: int
    """Beside those that are executed until the chunk is there."""
    least_rows: int
    """With those."""
    declared_s: float
    """What they execute of a chunk if nobody says: robots with a cap below that are paced by it."""


@dataclass(frozen=True, kw_only=True)
class TaskClass:
    """K_c robots with the same task: they share the action rate f_c (ROSA §3.4.1)."""

    name: str
    num_robots: int
    cycle_s: float
    """t_act: execution time of what one prediction commands; with the round trips that a robot waits for where it does not overlap
    them."""
    value: float
    floor_hz: float
    """Of one robot: what was declared, or next to nothing, but never nothing."""
    overlapped: bool
    """Asynchronous execution: a cycle lasts the longer of execution and inference instead of their sum."""
    demands: tuple[Demand, ...]
    round_trip_s: float = 0.0
    """Of the network, mean, where execution overlaps it: part of every wait."""
    class_floor_hz: float = 0.0
    """Of all its robots together, where that is what was declared: the fewer they are, the higher is `floor_hz`."""
    network: Network = field(default_factory=Network)
    """Whose mean is in `cycle_s` or `round_trip_s`."""
    least_cycle_s: float = 0.0
    """What `cycle_s` is at the nearest host, where it reckons with a farther one; 0: the same."""
    step_s: float = 0.0
    """Control step of one that asks while it executes: it can ask at these times only."""
    chunk_s: float = math.inf
    """How long all lasts that such a one may execute of a chunk."""
    trusted: Trusted | None = None
    """None: robots always execute as much of a chunk."""
    pipelining: Pipelining | None = None
    """A pipelined session: one request per frame, whose phase does not give way at any cap."""
    frame_s: float = 0.0
    """That such a frame lasts; 0: it is none."""

    def __getstate__(self) -> dict[str, Any]:
        return _declared(self)

    def gives_way(self, period_s: float) -> bool:
        """Whether its phase does under a cap (`types/phase.py`): no frames do, nor chunks that are not to be trusted further."""
        trusts = self.trusted is None or not self.overlapped
        return not self.in_frames and (trusts or is_paced(period_s, self.trusted.declared_s if self.trusted else 0.0))

    @property
    def in_frames(self) -> bool:
        return self.pipelining is not None

    @property
    def execution_s(self) -> float:
        """t_act alone."""
        return self.cycle_s if self.overlapped else self.cycle_s - self.network.mean_s * sum(d.calls for d in self.demands)

    @property
    def max_rate_hz(self) -> float:
        """f_max: no latency at all (ROSA §3.4.2)."""
        return 1.0 / self.cycle_s

    @property
    def weight(self) -> float:
        """v_c K_c: what one action per second of every robot is worth (ROSA eq. 1)."""
        return self.value * self.num_robots

    def shared_by(self, num_robots: int) -> TaskClass:
        """With the floor of each of so many robots, where the class has one."""
        return replace(self, floor_hz=self.class_floor_hz / max(num_robots, 1)) if self.class_floor_hz else self

    @cached_property
    def coupled(self) -> tuple[Demand, ...]:
        return tuple(d for d in self.demands if d.goal_coupled)

    def closed_loop_hz(self, latency_s: Mapping[int, float]) -> float:
        """Highest action rate that the mean latencies (demand index -> s) allow (ROSA §3.4.2, eq. 4).

        Overlapped, each component must only keep up: 1 / max(t_act, calls x latency).
        """
        waits = [d.calls * (latency_s[d.index] + self.round_trip_s) for d in self.coupled]
        return 1.0 / (max(self.cycle_s, *waits) if self.overlapped else self.cycle_s + sum(waits))


def _declared(one: Any) -> dict[str, Any]:
    """For another process: without what was remembered, for more of that may be added while it is written."""
    return {field.name: getattr(one, field.name) for field in fields(one)}


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A factory as the solvers see it."""

    classes: tuple[TaskClass, ...]
    servers: Mapping[str, str]
    """Name -> GPU type, of the normal routes (reserved standbys are not among them)."""
    memory_gb: Mapping[tuple[str, str], float]
    """(model, GPU type) -> what the model takes there; only where it fits."""
    load_s: Mapping[tuple[str, str], float]
    gpu_memory_gb: Mapping[str, float] = field(default_factory=dict)
    """Declared GPU type -> what models that share one have room in; only where it is known."""
    sizes_b: Mapping[str, float] = field(default_factory=dict)
    """Model -> billions of parameters; only where they are known."""
    continuous: frozenset[str] = frozenset()
    """GPU types whose servers batch continuously what can be batched in both ways."""
    waiting: frozenset[str] = frozenset()
    """GPU types whose servers wait for one more in a batch where that pays (`types/patience.py`)."""
    steps: Mapping[tuple[str, str], SteppedService] = field(default_factory=dict)
    """(model, GPU type) -> what its solver steps take, where that is known."""
    dispatch: Mapping[str, str] = field(default_factory=dict)
    """GPU type -> in which order servers take those who wait (`dispatch/`)."""
    stragglers: Mapping[str, Stragglers] = field(default_factory=dict)
    """GPU type -> services that take longer than others, beside those that were measured."""
    seen: Seen = AS_DECLARED
    declared: Mapping[str, str] = field(default_factory=dict)
    """Name -> GPU type, of all servers, lost ones too; in `servers`, one that is slower or faster than others of its type has its
    own."""
    previous: Schedule | None = None
    """That is in force: what need not move stays where it is."""
    hosts: Mapping[str, str] = field(default_factory=dict)
    """Server -> the machine that it runs on; empty: they are all on one."""
    far_s: Mapping[str, float] = field(default_factory=dict)
    """Server -> round trip to its host, where they are not all equally far."""
    same_host: bool = False
    """A standby may be on the host of the server that it covers, where no other will do."""
    links: Links | None = None
    """Of hosts; None: they take whatever there is."""
    aim: str = utility.THROUGHPUT
    """`planning.objective`."""
    listed: tuple[tuple[str, str], ...] = ()
    """(task, component) of every demand in the order of the descriptor, in which results are shown; empty: that of the classes."""
    listed_models: tuple[str, ...] = ()
    """The models in the same order."""

    def __getstate__(self) -> dict[str, Any]:
        return _declared(self)

    @cached_property
    def demands(self) -> tuple[Demand, ...]:
        return tuple(d for task in self.classes for d in task.demands)

    @cached_property
    def gpus(self) -> Counter[str]:
        """GPU type -> number of servers."""
        return Counter(self.servers.values())

    @cached_property
    def parts(self) -> dict[tuple[int, int, int, int], TaskClass]:
        """Of its classes, as far as they are known (`prediction/parts.py`): (class, robots, first demand, index) -> part."""
        return {}

    @cached_property
    def models(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(d.model for d in self.demands))

    def shared_by(self, tasks: Iterable[str]) -> Problem:
        """With the floors of these robots, one task each. The same where no class has a floor to be shared."""
        if not any(task.class_floor_hz for task in self.classes):
            return self
        counts = Counter(tasks)
        return replace(self, classes=tuple(task.shared_by(counts[task.name]) for task in self.classes))

    def robots_of(self, demand: Demand) -> int:
        return self.classes[demand.task].num_robots

    def apart(self, server: str, other: str) -> bool:
        """No host has both. Of a server whose host nobody knows: yes."""
        return server not in self.hosts or self.hosts[server] != self.hosts.get(other)

    def nearest_first(self, servers: Iterable[str]) -> list[str]:
        """Those that are equally far in the order that they have."""
        return sorted(servers, key=lambda server: self.far_s.get(server, 0.0))

    def may_cover(self, standby: str, server: str) -> bool:
        return self.same_host or self.apart(server, standby)

    def tightened(self, hosts: Iterable[str]) -> Problem:
        """The links of these hosts count too: their servers are GPU types of their own, so that solvers tell them apart."""
        assert self.links
        tight = self.links.tight | frozenset(hosts)
        on = {server: host for server in self.servers if (host := self.links.hosts.get(server, "")) in tight}
        servers = {s: on_host(gpu_type, on[s]) if s in on else gpu_type for s, gpu_type in self.servers.items()}
        own = {(gpu_type, servers[server]) for server, gpu_type in self.servers.items() if servers[server] != gpu_type}

        def with_own(of: Mapping[tuple[str, str], float]) -> dict[tuple[str, str], float]:
            return {**of, **{(m, name): value for (m, gpu_type), value in of.items() for base, name in own if base == gpu_type}}

        links = replace(self.links, tight=tight)
        memory_gb, load_s = with_own(self.memory_gb), with_own(self.load_s)
        return replace(self, servers=servers, memory_gb=memory_gb, load_s=load_s, links=links)

    def most_hz(self) -> dict[tuple[str, str], float]:
        """(task, component) -> requests of one robot without any latency at all, at the nearest host."""
        return {(t.name, d.component): d.rate_hz(1.0 / (t.least_cycle_s or t.cycle_s)) for t in self.classes for d in t.demands}

    def throughput(self, rates_hz: tuple[float, ...]) -> float:
        """Weighted actions/s (ROSA eq. 1)."""
        return sum(task.weight * rate for task, rate in zip(self.classes, rates_hz, strict=True))

    def objective(self, rates_hz: tuple[float, ...]) -> float:
        """What plans are compared by, in weighted actions/s (`utility.py`)."""
        if self.aim == utility.THROUGHPUT:
            return self.throughput(rates_hz)
        return utility.objective(self.aim, *self._shares(rates_hz))

    def separable(self, rates_hz: tuple[float, ...]) -> float:
        """The same as a sum over robots, so that servers can be valued one by one. It is the sum of utilities for both other
        objectives, for the lowest share is no sum."""
        robots = zip(self.classes, rates_hz, strict=True)
        return sum(task.num_robots * self.robot_worth(task, rate) for task, rate in robots)

    def robot_worth(self, task: TaskClass, rate_hz: float) -> float:
        """Of one robot, as a part of `separable`."""
        if self.aim == utility.THROUGHPUT:
            return task.value * rate_hz
        return task.value * task.max_rate_hz * utility.at_share(rate_hz / task.max_rate_hz)

    def from_separable(self, value: float) -> float:
        """The highest objective of which that may be the sum."""
        if self.aim == utility.THROUGHPUT:
            return value
        total = sum(task.weight * task.max_rate_hz for task in self.classes)
        return utility.from_program(utility.PROPORTIONAL, total, value)

    def _shares(self, rates_hz: tuple[float, ...]) -> tuple[list[float], list[float]]:
        """Weights of the classes, and which share of their pace each goes at."""
        tops = [task.max_rate_hz for task in self.classes]
        weights = [task.weight * top for task, top in zip(self.classes, tops, strict=True)]
        return weights, [rate / top for rate, top in zip(rates_hz, tops, strict=True)]


def task_classes(factory: Factory, num_robots: Mapping[str, int], seen: Seen = AS_DECLARED) -> tuple[TaskClass, ...]:
    """Classes of the tasks that have robots, in the order of the descriptor; then those whose robots are all admitted later."""
    classes: list[TaskClass] = []
    index = 0
    for name in dict.fromkeys([*(entry.task for entry in factory.robot_fleet), *factory.tasks]):
        count = num_robots.get(name, 0)
        if count:
            demands = _demands(factory, name, len(classes), index, seen.calls.get(name, {}))
            index += len(demands)
            classes.append(_task_class(factory, name, count, demands, seen.cycles_s.get(name)))
    return tuple(classes)


def _task_class(factory: Factory, name: str, count: int, demands: tuple[Demand, ...], seen_s: float | None) -> TaskClass:
    """seen_s: execution time of what is executed of a chunk, where it is not as declared."""
    task, network = factory.tasks[name], factory.network_of(name)
    overlapped = task.execution.mode is ExecutionMode.ASYNC
    pipelining = task.pipelining if overlapped else None
    step_s = (settings := robot_settings(task)).action_period_s / settings.virtual_steps
    executes_s = seen_s or task.cycle_period_s
    cycle_s = executes_s + (0.0 if overlapped else network.mean_s * sum(d.calls for d in demands))
    return TaskClass(
        name=name,
        num_robots=count,
        cycle_s=cycle_s,
        round_trip_s=network.mean_s if overlapped else 0.0,
        network=network,
        value=task.value,
        class_floor_hz=task.class_floor_hz,
        floor_hz=task.floor_hz(count) or min(LEAST_SHARE / cycle_s, LEAST_HZ),
        overlapped=overlapped,
        demands=demands,
        step_s=step_s if overlapped else 0.0,
        trusted=_trusted(settings, step_s, executes_s) if settings.horizon.policy else None,
        pipelining=pipelining,
        frame_s=settings.action_period_s if pipelining else 0.0,
        chunk_s=step_s * chunk_steps(map(robot_settings, factory.tasks.values())) if overlapped else math.inf,
    )


def _trusted(settings: RobotSettings, step_s: float, executes_s: float) -> Trusted:
    """executes_s: of a chunk on average, as was seen."""
    rows = max(1, round(executes_s / step_s))
    return Trusted(mean_rows=rows, least_rows=settings.horizon.min_steps, declared_s=settings.action_period_s)


def _demands(factory: Factory, name: str, task_index: int, first: int, seen: Mapping[str, float]) -> tuple[Demand, ...]:
    """seen: calls per action, where they are not as declared."""
    task = factory.tasks[name]
    return tuple(
        Demand(
            index=first + i,
            task=task_index,
            component=part,
            model=component.model,
            calls=0.0 if component.freq_hz else seen.get(part, task.calls_per_action(part)),
            fixed_hz=component.freq_hz or 0.0,
            slo=slo_of(factory, name, part),
            prompt=component.prompt,
            rows=task.pipelining.depth if task.pipelining and part == SYSTEM1 else 0,
        )
        for i, (part, component) in enumerate(task.components.items())
    )

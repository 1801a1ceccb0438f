"""The scheduling problem as numbers: task classes, their demands, and servers (ROSA §3.4.1)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

from ros2_rfm_serving.factory import Factory
from ros2_rfm_serving.factory.cluster import StragglerConfig
from ros2_rfm_serving.factory.fleet import NetworkEntry
from ros2_rfm_serving.factory.settings import RobotSettingsEntry, chunk_steps, robot_settings
from ros2_rfm_serving.factory.task import ExecutionMode
from ros2_rfm_serving.profiles import SteppedService
from ros2_rfm_serving.scheduler import utility
from ros2_rfm_serving.scheduler.estimates import AS_DECLARED, FactoryEstimates
from ros2_rfm_serving.scheduler.link_load import NetworkLinkLoads, on_host
from ros2_rfm_serving.scheduler.slo import Slo, slo_of
from ros2_rfm_serving.types import SYSTEM1, PipelineConfig, Schedule
from ros2_rfm_serving.types.desynchronisation import is_paced

LEAST_SHARE, LEAST_HZ = 0.01, 0.01
"""Fraction of f_max, and upper limit in Hz: a robot below the lower of the two is not served. No plan lets some robots stop for
others that are worth more; a task's own lower limit is its `min_action_rate_hz`."""


@dataclass(frozen=True, kw_only=True)
class Demand:
    """Requests of one component of one task class; every robot of the class sends them."""

    index: int
    """Position in `PlanningProblem.demands`."""
    task: int
    """Position in `PlanningProblem.classes`."""
    component: str
    model: str
    calls: float
    """Calls per action of a goal-coupled component; 0 for an obligation (ROSA §3.4.1)."""
    fixed_hz: float
    """Request rate of one robot for an obligation; 0 for a goal-coupled component."""
    slo: Slo
    prompt: str = ""
    """Prompt of its requests, which a dispatch policy may use."""
    rows: int = 0
    """Rows that each robot of a pipelined session keeps on its server; 0: it is not pipelined."""

    def rate_hz(self, action_rate_hz: float) -> float:
        """Return the request rate of one robot."""
        return self.calls * action_rate_hz + self.fixed_hz

    @property
    def goal_coupled(self) -> bool:
        return self.calls > 0

    @property
    def for_actions(self) -> bool:
        """Return whether its replies are action chunks (System 1). Other components may be called for every action, too."""
        return self.component == SYSTEM1


@dataclass(frozen=True, kw_only=True)
class ConfidentSteps:
    """Distribution of the steps of a chunk that robots execute under a horizon policy: any number below twice the mean is equally
    likely, as in virtual time (`simulation/gpu.py`)."""

    mean_rows: int
    """Mean number of steps beside those that are executed until the chunk arrives."""
    least_rows: int
    """Lowest number of steps, including those."""
    declared_s: float
    """Executed part of a chunk without the policy: robots with a cap below that rate are paced by the cap."""


@dataclass(frozen=True, kw_only=True)
class TaskClass:
    """K_c robots with the same task, which share the action rate f_c (ROSA §3.4.1)."""

    name: str
    num_robots: int
    cycle_s: float
    """t_act: execution time of one prediction, with the round trips that a robot waits for unless execution overlaps them."""
    value: float
    floor_hz: float
    """Lowest rate of one robot: the declared one, or a small positive default."""
    overlapped: bool
    """Asynchronous execution: a cycle lasts the longer of execution and inference instead of their sum."""
    demands: tuple[Demand, ...]
    round_trip_s: float = 0.0
    """Mean round trip of the network where execution overlaps it; it is part of every wait."""
    class_floor_hz: float = 0.0
    """Declared floor of all its robots together: the fewer they are, the higher is `floor_hz`."""
    network: NetworkEntry = field(default_factory=NetworkEntry)
    """Network whose mean is in `cycle_s` or `round_trip_s`."""
    least_cycle_s: float = 0.0
    """`cycle_s` at the nearest host where it assumes a farther one; 0: the same."""
    step_s: float = 0.0
    """Control step of an asynchronous robot, which can send requests only at these times."""
    chunk_s: float = math.inf
    """Longest part of a chunk that an asynchronous robot may execute."""
    trusted: ConfidentSteps | None = None
    """None: robots always execute the same part of a chunk."""
    pipelining: PipelineConfig | None = None
    """Pipelined session: one request per frame, whose phase does not shift at any cap."""
    frame_s: float = 0.0
    """Duration of such a frame; 0: the task is not pipelined."""

    def __getstate__(self) -> dict[str, Any]:
        return _declared(self)

    def gives_way(self, period_s: float) -> bool:
        """Return whether its phase shifts under a cap (`types/desynchronisation.py`): not with frames, nor with chunks of limited
        trust."""
        trusts = self.trusted is None or not self.overlapped
        return not self.in_frames and (trusts or is_paced(period_s, self.trusted.declared_s if self.trusted else 0.0))

    @property
    def in_frames(self) -> bool:
        return self.pipelining is not None

    @property
    def execution_s(self) -> float:
        """Return t_act without round trips."""
        return self.cycle_s if self.overlapped else self.cycle_s - self.network.mean_s * sum(d.calls for d in self.demands)

    @property
    def max_rate_hz(self) -> float:
        """Return f_max: the action rate without any latency (ROSA §3.4.2)."""
        return 1.0 / self.cycle_s

    @property
    def weight(self) -> float:
        """Return v_c K_c: the worth of one action per second of every robot (ROSA eq. 1)."""
        return self.value * self.num_robots

    def shared_by(self, num_robots: int) -> TaskClass:
        """Return the class with the floor of each of this number of robots, where the class has a shared floor."""
        return replace(self, floor_hz=self.class_floor_hz / max(num_robots, 1)) if self.class_floor_hz else self

    @cached_property
    def coupled(self) -> tuple[Demand, ...]:
        return tuple(d for d in self.demands if d.goal_coupled)

    def closed_loop_hz(self, latency_s: Mapping[int, float]) -> float:
        """Return the highest action rate that the mean latencies (demand index -> s) allow (ROSA §3.4.2, eq. 4).

        With overlap, each component must only keep up: 1 / max(t_act, calls x latency).
        """
        waits = [d.calls * (latency_s[d.index] + self.round_trip_s) for d in self.coupled]
        return 1.0 / (max(self.cycle_s, *waits) if self.overlapped else self.cycle_s + sum(waits))


def _declared(one: Any) -> dict[str, Any]:
    """Return the state for another process without cached values, because more may be cached while it is written."""
    return {field.name: getattr(one, field.name) for field in fields(one)}


@dataclass(frozen=True, kw_only=True)
class PlanningProblem:
    """Factory as the solvers have it."""

    classes: tuple[TaskClass, ...]
    servers: Mapping[str, str]
    """Name -> GPU type, for servers of the normal routes (without reserved standbys)."""
    memory_gb: Mapping[tuple[str, str], float]
    """(model, GPU type) -> memory of the model there; only where it fits."""
    load_s: Mapping[tuple[str, str], float]
    gpu_memory_gb: Mapping[str, float] = field(default_factory=dict)
    """Declared GPU type -> memory that models share; only where it is known."""
    sizes_b: Mapping[str, float] = field(default_factory=dict)
    """Model -> billions of parameters; only where they are known."""
    continuous: frozenset[str] = frozenset()
    """GPU types whose servers use continuous batching for models that support both kinds."""
    waiting: frozenset[str] = frozenset()
    """GPU types whose servers delay a batch for another request where that is worth it (`types/batch_wait.py`)."""
    steps: Mapping[tuple[str, str], SteppedService] = field(default_factory=dict)
    """(model, GPU type) -> duration of its solver steps, where it is known."""
    dispatch: Mapping[str, str] = field(default_factory=dict)
    """GPU type -> dispatch policy of its servers (`dispatch/`)."""
    stragglers: Mapping[str, StragglerConfig] = field(default_factory=dict)
    """GPU type -> services that take longer than others, beside those that were measured."""
    seen: FactoryEstimates = AS_DECLARED
    declared: Mapping[str, str] = field(default_factory=dict)
    """Name -> GPU type of all servers, including lost ones; in `servers`, one with its own pace has its own type."""
    previous: Schedule | None = None
    """The active schedule; its robots and models stay where they need not move."""
    hosts: Mapping[str, str] = field(default_factory=dict)
    """Server -> its machine; empty: all are on one."""
    far_s: Mapping[str, float] = field(default_factory=dict)
    """Server -> round trip to its host, where the distances differ."""
    same_host: bool = False
    """Whether a standby may be on the host of the server that it covers if no other can cover it."""
    links: NetworkLinkLoads | None = None
    """Links of hosts; None: they are unlimited."""
    aim: str = utility.THROUGHPUT
    """Objective: `planning.objective` of the descriptor."""
    listed: tuple[tuple[str, str], ...] = ()
    """(task, component) of every demand in the order of the descriptor, in which results are shown; empty: that of the classes."""
    listed_models: tuple[str, ...] = ()
    """Models in the same order."""

    def __getstate__(self) -> dict[str, Any]:
        return _declared(self)

    @cached_property
    def demands(self) -> tuple[Demand, ...]:
        return tuple(d for task in self.classes for d in task.demands)

    @cached_property
    def gpus(self) -> Counter[str]:
        """Return GPU type -> number of servers."""
        return Counter(self.servers.values())

    @cached_property
    def parts(self) -> dict[tuple[int, int, int, int], TaskClass]:
        """Return the cache of parts of its classes (`prediction/parts.py`): (class, robots, first demand, index) -> part."""
        return {}

    @cached_property
    def models(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(d.model for d in self.demands))

    def shared_by(self, tasks: Iterable[str]) -> PlanningProblem:
        """Return the problem with the floors of these robots, one task each; it is the same where no class has a shared floor."""
        if not any(task.class_floor_hz for task in self.classes):
            return self
        counts = Counter(tasks)
        return replace(self, classes=tuple(task.shared_by(counts[task.name]) for task in self.classes))

    def robots_of(self, demand: Demand) -> int:
        return self.classes[demand.task].num_robots

    def apart(self, server: str, other: str) -> bool:
        """Return whether no host has both; a server without a known host counts as apart."""
        return server not in self.hosts or self.hosts[server] != self.hosts.get(other)

    def nearest_first(self, servers: Iterable[str]) -> list[str]:
        """Sort by distance; servers at equal distance keep their order."""
        return sorted(servers, key=lambda server: self.far_s.get(server, 0.0))

    def may_cover(self, standby: str, server: str) -> bool:
        return self.same_host or self.apart(server, standby)

    def tightened(self, hosts: Iterable[str]) -> PlanningProblem:
        """Return the problem in which the links of these hosts count too: their servers get GPU types of their own."""
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
        """Return (task, component) -> request rate of one robot without any latency, at the nearest host."""
        return {(t.name, d.component): d.rate_hz(1.0 / (t.least_cycle_s or t.cycle_s)) for t in self.classes for d in t.demands}

    def throughput(self, rates_hz: tuple[float, ...]) -> float:
        """Return the weighted actions/s (ROSA eq. 1)."""
        return sum(task.weight * rate for task, rate in zip(self.classes, rates_hz, strict=True))

    def objective(self, rates_hz: tuple[float, ...]) -> float:
        """Return the objective of plans in weighted actions/s (`utility.py`)."""
        if self.aim == utility.THROUGHPUT:
            return self.throughput(rates_hz)
        return utility.objective(self.aim, *self._shares(rates_hz))

    def separable(self, rates_hz: tuple[float, ...]) -> float:
        """Return the objective as a sum over robots, so that servers can be valued one by one. For both other objectives it is the
        sum of utilities, because the lowest share is not a sum."""
        robots = zip(self.classes, rates_hz, strict=True)
        return sum(task.num_robots * self.robot_worth(task, rate) for task, rate in robots)

    def robot_worth(self, task: TaskClass, rate_hz: float) -> float:
        """Return the part of one robot in `separable`."""
        if self.aim == utility.THROUGHPUT:
            return task.value * rate_hz
        return task.value * task.max_rate_hz * utility.at_share(rate_hz / task.max_rate_hz)

    def from_separable(self, value: float) -> float:
        """Return the highest objective that may have this sum."""
        if self.aim == utility.THROUGHPUT:
            return value
        total = sum(task.weight * task.max_rate_hz for task in self.classes)
        return utility.from_program(utility.PROPORTIONAL, total, value)

    def _shares(self, rates_hz: tuple[float, ...]) -> tuple[list[float], list[float]]:
        """Return the weights of the classes, and the share of its highest rate that each one has."""
        tops = [task.max_rate_hz for task in self.classes]
        weights = [task.weight * top for task, top in zip(self.classes, tops, strict=True)]
        return weights, [rate / top for rate, top in zip(rates_hz, tops, strict=True)]


def task_classes(factory: Factory, num_robots: Mapping[str, int], seen: FactoryEstimates = AS_DECLARED) -> tuple[TaskClass, ...]:
    """Return the classes of tasks with robots, in the order of the descriptor; tasks without declared robots come last."""
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
    """Return the class of a task. seen_s: observed execution time of the executed part of a chunk; None: as declared."""
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


def _trusted(settings: RobotSettingsEntry, step_s: float, executes_s: float) -> ConfidentSteps:
    """Return the distribution of executed steps. executes_s: observed mean execution time of a chunk."""
    rows = max(1, round(executes_s / step_s))
    return ConfidentSteps(mean_rows=rows, least_rows=settings.horizon.min_steps, declared_s=settings.action_period_s)


def _demands(factory: Factory, name: str, task_index: int, first: int, seen: Mapping[str, float]) -> tuple[Demand, ...]:
    """Return the demands of a task. seen: observed calls per action, where they differ from the declared."""
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

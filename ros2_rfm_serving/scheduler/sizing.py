"""Number of GPUs for given robots, or of robots for given GPUs: by the scheduler, and by two closed formulas beside it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from ros2_rfm_serving.errors import ScheduleError
from ros2_rfm_serving.factory import Factory
from ros2_rfm_serving.profiles import Profile
from ros2_rfm_serving.scheduler import Solution
from ros2_rfm_serving.scheduler.prediction.curves import Curves
from ros2_rfm_serving.scheduler.slo import Slo, slo_of
from ros2_rfm_serving.types import SYSTEM1

COMFORT = 0.8
"""Share of the unloaded closed-loop rate that is required of a task without a floor."""
MOST = {"servers": 4096, "robots": 65536}
"""Upper ends of searches."""
ENOUGH = 1 - 1e-6
ROUNDING = 1e-9
UTILISATION = 0.8
"""Utilisation of a server that Remote-RTC §4 P10 allows."""


@dataclass(frozen=True)
class Required:
    """Action rate that every robot of a task must reach."""

    rate_hz: float
    source: str


def required_rates(factory: Factory, profile: Profile, rate_hz: float | None) -> dict[str, Required]:
    """Return `rate_hz` for every task; without it the task's floor, or a share of the closed-loop rate on an unloaded server.

    Raises: `ScheduleError` for a rate that no number of servers can give.
    """
    rates = {}
    for entry in factory.robot_fleet:
        task = factory.tasks[entry.task]
        most_hz = unloaded_closed_loop_hz(entry.task, factory, profile)
        floor_hz = task.floor_hz(entry.num_robots)
        if rate_hz is not None:
            needs = Required(rate_hz, "--rate")
        elif floor_hz:
            needs = Required(floor_hz, "min_action_rate_hz")
        else:
            needs = Required(COMFORT * most_hz, f"{COMFORT:.0%} of the unloaded closed loop")
        if needs.rate_hz > most_hz:
            raise ScheduleError(
                f"{needs.source} asks for {needs.rate_hz:g} actions/s; a robot of {entry.task!r} reaches {most_hz:.2f} on idle "
                "servers, with any number of them; ask for less"
            )
        rates[entry.task] = needs
    return rates


def unloaded_closed_loop_hz(name: str, factory: Factory, profile: Profile) -> float:
    """Return 1 / (t_act + latencies and round trips) on idle servers, or 1 / their maximum if asynchronous (ROSA §3.4.2, eq. 4)."""
    task, round_trip_s = factory.tasks[name], factory.network_of(name).mean_s
    waits_s = [
        task.calls_per_action(name) * (unloaded_s(component.model, factory, profile) + round_trip_s)
        for name, component in task.components.items()
        if not component.freq_hz
    ]
    overlapped = task.execution.mode.value == "async"
    return 1.0 / (max(task.cycle_period_s, *waits_s) if overlapped else task.cycle_period_s + sum(waits_s))


def unloaded_s(model: str, factory: Factory, profile: Profile) -> float:
    """Return the lowest mean latency of a model on the declared GPU types. Raises: `ScheduleError` without measurements."""
    types = dict.fromkeys(group.gpu_type for group in factory.server_cluster)
    profile = profile.batched(factory.continuous)
    sizes = [(gpu, *size) for gpu in types if model in profile.models_on(gpu) for size in profile.batch_sizes(model, gpu)]
    means = [float(profile.curve_arrays(model, *size)[1][0]) for size in sizes]
    if not means:
        raise ScheduleError(f"no latency profile of {model!r} on {', '.join(types)}; run `rfm profile` there")
    return min(means)


def demanding(factory: Factory, required: dict[str, Required]) -> Factory:
    """Return the factory with the required rates as floors, so that the scheduler gives them to every robot."""
    floors = {name: factory.tasks[name].model_copy(update={"min_action_rate_hz": r.rate_hz}) for name, r in required.items()}
    return factory.model_copy(update={"tasks": {**factory.tasks, **floors}})


def reached(solution: Solution, required: dict[str, Required]) -> bool:
    """Return whether every SLO is met and every robot has its rate."""
    return solution.feasible and all(solution.tasks[name].slowest_rate_hz >= r.rate_hz * ENOUGH for name, r in required.items())


@dataclass
class ThresholdSearch:
    """Search for the number from which on (or up to which) a predicate holds; every trial is remembered."""

    holds: Callable[[int], bool]
    least: int
    most: int
    rising: bool
    """True: it holds from some number on (servers); False: up to some number (robots)."""
    trials: dict[int, bool] = field(default_factory=dict)

    def run(self, start: int) -> int | None:
        """Return the lowest (rising) or highest number at which it holds, by doubling from `start` and bisection; None: at none."""
        yes, no = self._bracket(min(max(start, self.least), self.most))
        if yes is None:
            return None
        while no is not None and abs(yes - no) > 1:
            middle = (yes + no) // 2
            yes, no = (middle, no) if self._try(middle) else (yes, middle)
        return yes

    def monotone(self, answer: int | None) -> bool:
        """Try two more numbers on the far side of the answer, and return whether all trials are monotone."""
        if answer is not None:
            for beyond in (1, 2):
                probe = answer - beyond if self.rising else answer + beyond
                if self.least <= probe <= self.most:
                    self._try(probe)
        at = [holds for _, holds in sorted(self.trials.items(), reverse=not self.rising)]
        return at == sorted(at)

    def best(self) -> int | None:
        """Return the lowest (rising) or highest number at which it was found to hold."""
        found = [number for number, holds in self.trials.items() if holds]
        return (min(found) if self.rising else max(found)) if found else None

    def _bracket(self, number: int) -> tuple[int | None, int | None]:
        """Return (holds, does not hold), as near as doubling brings them; None where an end of the range was reached."""
        holds = self._try(number)
        up = holds != self.rising
        other: int | None = None
        while other is None:
            limit = self.most if up else self.least
            if number == limit:
                break
            following = min(2 * number, limit) if up else max(number // 2, limit)
            if self._try(following) != holds:
                other = following
            else:
                number = following
        return (number, other) if holds else (other, number)

    def _try(self, number: int) -> bool:
        if number not in self.trials:
            self.trials[number] = self.holds(number)
        return self.trials[number]


@dataclass(frozen=True, kw_only=True)
class ModelLoad:
    """Demand of a fleet for one model and capacity of one GPU, by the two formulas."""

    model: str
    num_robots: int
    rate_hz: float
    """Request rate of all robots."""
    service_s: float
    """t: server time of one request alone."""
    slack_s: float
    """H dt / 2 - RTT, H dt being the execution time of a chunk; inf where no robot waits for chunks of this model."""
    slo_rate_hz: float
    """Highest rate of one GPU within the tightest SLO, at the best batch size."""

    @property
    def remote_rtc_servers(self) -> float:
        """Return the GPUs for N_max = min(0.8 / (r t), (H dt / 2 - RTT) / t) clients each (Remote-RTC §4 P10); inf: N_max < 1."""
        each_hz = self.rate_hz / self.num_robots
        clients = min(UTILISATION / (each_hz * self.service_s), self.slack_s / self.service_s)
        return math.ceil(self.num_robots / math.floor(clients)) if clients >= 1 else math.inf

    @property
    def rosa_servers(self) -> float:
        """Return the GPUs by ROSA §3.4.2: robots x rate / highest rate at the SLO, rounded up; inf: no rate meets the SLO."""
        return math.ceil(self.rate_hz / self.slo_rate_hz - ROUNDING) if self.slo_rate_hz else math.inf


@dataclass(frozen=True, kw_only=True)
class _Use:
    """Use of a model by one component of one task."""

    task: str
    num_robots: int
    rate_hz: float
    """Request rate of one robot."""
    chunk_s: float
    """Execution time of a chunk; inf: the component makes none."""
    slo: Slo


def model_loads(factory: Factory, profile: Profile, required: dict[str, Required], rtt_s: float) -> list[ModelLoad]:
    """Return the load of each model on the GPU type of the first group, at the required rates."""
    users: dict[str, list[_Use]] = defaultdict(list)
    models, gpu_type = (
        {c.model for task in factory.tasks.values() for c in task.components.values()},
        factory.server_cluster[0].gpu_type,
    )
    curves = Curves(profile.batched(factory.continuous), models, (gpu_type,), [(model, gpu_type) for model in models])
    for entry in factory.robot_fleet:
        for name, component in factory.tasks[entry.task].components.items():
            use = _use(factory, entry.task, name, entry.num_robots, required[entry.task].rate_hz)
            users[component.model].append(use)
    return [
        ModelLoad(
            model=model,
            num_robots=sum({use.task: use.num_robots for use in uses}.values()),
            rate_hz=sum(use.num_robots * use.rate_hz for use in uses),
            service_s=unloaded_s(model, factory, profile),
            slack_s=min(use.chunk_s for use in uses) / 2 - rtt_s,
            slo_rate_hz=_slo_rate_hz(model, uses, curves),
        )
        for model, uses in users.items()
    ]


def _use(factory: Factory, task: str, name: str, num_robots: int, action_rate_hz: float) -> _Use:
    declared = factory.tasks[task]
    component = declared.components[name]
    return _Use(
        task=task,
        num_robots=num_robots,
        rate_hz=component.freq_hz or declared.calls_per_action(name) * action_rate_hz,
        chunk_s=declared.cycle_period_s if name == SYSTEM1 else math.inf,
        slo=slo_of(factory, task, name),
    )


def _slo_rate_hz(model: str, uses: list[_Use], curves: Curves) -> float:
    return max(min(curves.capacity_hz(config, use.slo) for use in uses) for config in curves.of(model))

"""Random small factories, and the best schedule of each by trying every one: independent of the scheduler's own code.

A schedule gives every server a model and a batch size, every robot's demand a server, and every class a common action rate. Tried
are all models on all servers and all ways to spread the robots; batch sizes follow, server by server: of those that meet every SLO
at a given load the one with the lowest mean latency is never worse.
"""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ros2_rfm_serving.factory import Factory, parse_factory
from ros2_rfm_serving.profiles import Profile, ProfileRow

Floats = npt.NDArray[np.float64]
Config = tuple[str, str, int]
"""(model, GPU type, batch size)"""


@dataclass(frozen=True)
class SmallFactory:
    factory: Factory
    rows: tuple[ProfileRow, ...]

    @property
    def profile(self) -> Profile:
        return Profile.of(self.rows)


MOST_SPREADS = 3000
"""Of robots over servers that a factory may allow, before equal ones are recognised: what can be tried in a test."""


def small_factory(seed: int) -> SmallFactory:
    """Up to 6 servers of up to 2 types, 3 classes, 3 models; random profiles."""
    rng = random.Random(seed)
    while True:
        small = _drawn(rng)
        if _num_spreads(small.factory) <= MOST_SPREADS:
            return small


def _drawn(rng: random.Random) -> SmallFactory:
    models = [f"m{i}" for i in range(rng.randint(1, 3))]
    types = ["A", "B"][: rng.choice([1, 1, 2])]
    rows = [row for model in models for gpu in types for row in profile_rows(rng, model, gpu)]
    servers = rng.randint(len(models), 6)
    counts = [servers] if len(types) == 1 else [1 + servers // 2, max(1, servers - 1 - servers // 2)]
    robots = [rng.randint(1, 6 // n) for n in [rng.randint(1, 3)] for _ in range(n)]
    cluster = [{"num_servers": n, "gpu_type": t} for n, t in zip(counts, types, strict=True)]
    fleet = [{"task": f"t{i}", "num_robots": n} for i, n in enumerate(robots)]
    text = f"server_cluster: {cluster}\nplanning: {{objective: throughput}}\nrobot_fleet: {fleet}\n"
    for i in range(len(robots)):
        text += f"t{i}: {task_section(rng, models)}\n"
    return SmallFactory(parse_factory(text.replace("'", '"')), tuple(rows))


def _num_spreads(factory: Factory) -> int:
    tasks, demands = raw_tasks(factory)
    used = sorted({d.model for d in demands})
    total = 0
    for models in _model_choices(list(factory.gpu_types.values()), used):
        total += math.prod(
            math.comb(tasks[d.task].robots + n - 1, n - 1) for d in demands for n in [sum(m == d.model for _, m in models)]
        )
    return total


def profile_rows(rng: random.Random, model: str, gpu: str) -> Iterator[ProfileRow]:
    base, row = rng.uniform(10, 60), rng.uniform(2, 15)
    scale = rng.uniform(0.6, 1.8) if gpu == "B" else 1.0
    for batch in rng.sample([1, 2, 4], rng.randint(1, 3)):
        service = scale * (base + row * batch)
        top = 1e3 * batch / service
        mean = service * rng.uniform(1.0, 1.3)
        points = rng.randint(4, 7) - 1
        for i in range(1, points + 1):
            mean *= rng.uniform(1.0, 1.35)
            if i == 1 and abs(mean / (6 * service / points) - 1) < 0.15:
                top *= 0.7  # else a full batch takes as long as one request, and robots' own queue judges: no curve's business
            tail = rng.uniform(1.1, 2.0)
            p50, p90, p95, p99 = mean, mean * (1 + 0.6 * (tail - 1)), mean * (1 + 0.8 * (tail - 1)), mean * tail
            yield ProfileRow(model, gpu, "fixed", batch, top * i / 6, mean, p50, p90, p95, p99, "fleet")


def task_section(rng: random.Random, models: list[str], *, planner: bool = True) -> dict[str, object]:
    """planner: it may have a System 2."""
    components: dict[str, object] = {"system1": {"model": rng.choice(models), "slo_ms": round(rng.uniform(120, 600))}}
    pipeline: dict[str, object] = {"action_period_ms": round(rng.uniform(40, 300))}
    if planner and rng.random() < 0.4:
        components["system2"] = {"model": rng.choice(models), "slo_ms": round(rng.uniform(200, 800))}
        pipeline["system2_to_system1_call_ratio"] = rng.choice([0.1, 0.5])
    if rng.random() < 0.5:
        components["monitor"] = {
            "model": rng.choice(models),
            "slo_ms": round(rng.uniform(200, 800)),
            "freq_hz": round(rng.uniform(0.5, 6), 2),
        }
    task: dict[str, object] = {"pipeline": pipeline, "components": components, "value": round(rng.uniform(0.5, 3), 2)}
    if rng.random() < 0.2:
        task["min_action_rate_hz"] = round(rng.uniform(0.2, 1.0), 2)
    if rng.random() < 0.25:
        task["execution"] = {"mode": "async"}
    return task


# --- the raw profile, read by this file's own code ---


class RawCurves:
    def __init__(self, rows: tuple[ProfileRow, ...]) -> None:
        points: dict[Config, list[tuple[float, float, float]]] = {}
        for row in sorted(rows, key=lambda row: row.rate_hz):
            mine = points.setdefault((row.model, row.gpu_type, row.batch_size), [(0.0, 0.0, 0.0)])
            mean, p99 = max(row.mean_ms / 1e3, mine[-1][1]), max(row.p99_ms / 1e3, mine[-1][2])
            mine.append((row.rate_hz, mean, p99))  # a latency never falls with the rate
        self._curves = {config: np.array(mine[1:]).T for config, mine in points.items()}

    def latencies_s(self, config: Config, load: Floats) -> tuple[Floats, Floats]:
        """(mean, p99); infinite beyond what was measured"""
        rate, mean, p99 = self._curves[config]
        beyond = load > rate[-1] * (1 + 1e-9)
        return np.where(beyond, np.inf, np.interp(load, rate, mean)), np.where(beyond, np.inf, np.interp(load, rate, p99))

    def configs(self, gpu: str, model: str) -> list[Config]:
        return [config for config in self._curves if config[:2] == (model, gpu)]

    def rates_hz(self, config: Config) -> Floats:
        """Measured."""
        rates: Floats = self._curves[config][0]
        return rates

    def limit_hz(self, config: Config, slo_s: float) -> float:
        """Highest load within an SLO; 0: none is."""
        rate, _, p99 = self._curves[config]
        within = np.flatnonzero(p99 <= slo_s * (1 + 1e-9))
        if not len(within):
            return 0.0
        last = int(within[-1])
        if last == len(rate) - 1:
            return float(rate[-1])
        return float(rate[last] + (rate[last + 1] - rate[last]) * (slo_s - p99[last]) / (p99[last + 1] - p99[last]))

    def best_mean_s(self, gpu: str, model: str, load: Floats, slo_s: float) -> Floats:
        """Of the batch sizes that meet the SLO at each load; infinite where none does."""
        best = np.full(load.shape, np.inf)
        for config in self._curves:
            if config[:2] == (model, gpu):
                mean, p99 = self.latencies_s(config, load)
                best = np.minimum(best, np.where(p99 <= slo_s * (1 + 1e-9), mean, np.inf))
        return best


@dataclass(frozen=True)
class RawDemand:
    task: int
    component: str
    model: str
    calls: float
    fixed_hz: float
    slo_s: float


@dataclass(frozen=True)
class RawTask:
    robots: int
    cycle_s: float
    value: float
    floor_hz: float
    overlapped: bool


def raw_tasks(factory: Factory) -> tuple[list[RawTask], list[RawDemand]]:
    tasks, demands = [], []
    for entry in factory.robot_fleet:
        task = factory.tasks[entry.task]
        ratio = task.pipeline.system2_to_system1_call_ratio
        floor = task.min_action_rate_hz
        assert floor is None or isinstance(floor, float)
        for name, component in task.components.items():
            calls = {"system1": 1.0, "system2": ratio}.get(name, 0.0)
            slo_s = component.slo_ms / 1e3 if component.slo_ms else math.inf
            demands.append(RawDemand(len(tasks), name, component.model, calls, component.freq_hz or 0.0, slo_s))
        overlapped, cycle_s = task.execution.mode.value == "async", task.pipeline.action_period_ms / 1e3
        least_hz = min(0.01, 0.01 / cycle_s)  # who has no floor does not stand still either
        tasks.append(RawTask(entry.num_robots, cycle_s, task.value, floor or least_hz, overlapped))
    return tasks, demands


Hosting = tuple[tuple[str, str, tuple[int, ...]], ...]
"""Per server: GPU type, model, number of robots of each demand."""


def violations(curves: RawCurves, tasks: list[RawTask], demands: list[RawDemand], hosting: Hosting, rates: Floats) -> Floats:
    """rates: [N, C] -> [N], how far the worst constraint is broken; 0 and below: feasible."""
    slowest = [np.zeros(len(rates)) for _ in demands]
    worst = np.max([task.floor_hz - rates[:, c] for c, task in enumerate(tasks)], axis=0)
    for gpu, model, counts in hosting:
        mine = [(count, d) for count, d in zip(counts, range(len(demands)), strict=True) if count]
        if mine:
            load = sum(n * (demands[d].calls * rates[:, demands[d].task] + demands[d].fixed_hz) for n, d in mine)
            mean = curves.best_mean_s(gpu, model, np.asarray(load), min(demands[d].slo_s for _, d in mine))
            worst = np.maximum(worst, np.where(np.isinf(mean), 1.0, -1.0))
            for _, d in mine:
                slowest[d] = np.maximum(slowest[d], mean)
    for c, task in enumerate(tasks):
        waits = [demand.calls * slowest[d] for d, demand in enumerate(demands) if demand.task == c and demand.calls]
        cycle = np.maximum(task.cycle_s, np.max(waits, axis=0)) if task.overlapped else task.cycle_s + np.sum(waits, axis=0)
        with np.errstate(invalid="ignore"):
            worst = np.maximum(worst, np.where(np.isinf(cycle), 1.0, rates[:, c] * cycle - 1))
    return worst


def best_by_trying(small: SmallFactory, at_least: float) -> float:
    """The highest weighted throughput of all schedules that beat `at_least`; `at_least` when none does."""
    curves = RawCurves(small.rows)
    tasks, demands = raw_tasks(small.factory)
    best = at_least
    for hosting in _hostings(tasks, demands, list(small.factory.gpu_types.values())):
        best = max(best, _best_rates(curves, tasks, demands, hosting, best))
    return best


def _model_choices(gpus: list[str], used: list[str]) -> Iterator[list[tuple[str, str]]]:
    """(GPU type, model) of every server, equal servers being interchangeable; every model somewhere."""
    per_type = [
        [[(gpu, model) for model in models] for models in itertools.combinations_with_replacement(used, count)]
        for gpu, count in Counter(gpus).items()
    ]
    for choice in itertools.product(*per_type):
        servers = [server for group in choice for server in group]
        if {model for _, model in servers} >= set(used):
            yield servers


def _hostings(tasks: list[RawTask], demands: list[RawDemand], gpus: list[str]) -> Iterator[Hosting]:
    for servers in _model_choices(gpus, sorted({d.model for d in demands})):
        ways = [list(_ways(tasks[d.task].robots, [model == d.model for _, model in servers])) for d in demands]
        seen = set()
        for spread in itertools.product(*ways):
            hosting = tuple(sorted((*server, tuple(way[s] for way in spread)) for s, server in enumerate(servers)))
            if hosting not in seen:
                seen.add(hosting)
                yield hosting


def _ways(robots: int, allowed: list[bool]) -> Iterator[tuple[int, ...]]:
    if not allowed:
        if robots == 0:
            yield ()
        return
    for here in range(robots + 1 if allowed[0] else 1):
        for rest in _ways(robots - here, allowed[1:]):
            yield (here, *rest)


def _best_rates(curves: RawCurves, tasks: list[RawTask], demands: list[RawDemand], hosting: Hosting, incumbent: float) -> float:
    """By ever finer grids; hostings whose classes, each alone, cannot beat the incumbent are left early."""
    weights = np.array([t.value * t.robots for t in tasks])
    low = np.array([t.floor_hz for t in tasks])
    if violations(curves, tasks, demands, hosting, low[None])[0] > 1e-9:
        return -math.inf
    high = np.array([_highest(curves, tasks, demands, hosting, low, c) for c in range(len(tasks))])
    if weights @ high <= incumbent * (1 + 1e-9):
        return -math.inf
    points = 400 if len(tasks) == 1 else 60 if len(tasks) == 2 else 18
    start, end, best = low, high, -math.inf
    for _ in range(7):
        axes = [np.linspace(a, b, points) for a, b in zip(start, end, strict=True)]
        grid = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, len(tasks))
        values = np.where(violations(curves, tasks, demands, hosting, grid) <= 1e-9, grid @ weights, -np.inf)
        at = int(np.argmax(values))
        best = max(best, float(values[at]))
        if not np.isfinite(values[at]):
            break
        step = 2.5 * (end - start) / (points - 1)
        start, end = np.maximum(low, grid[at] - step), np.minimum(high, grid[at] + step)
    return best


def _highest(curves: RawCurves, tasks: list[RawTask], demands: list[RawDemand], hosting: Hosting, low: Floats, c: int) -> float:
    """No rate of class c is feasible above this, whatever the others do."""
    inside, outside = low[c], max(1 / tasks[c].cycle_s, low[c])
    for _ in range(2):
        candidates = np.repeat(low[None], 40, axis=0)
        candidates[:, c] = np.linspace(inside, outside, 40)
        broken = np.flatnonzero(violations(curves, tasks, demands, hosting, candidates) > 1e-9)
        if not len(broken):
            return float(outside)
        inside, outside = candidates[max(broken[0] - 1, 0), c], candidates[broken[0], c]
    return float(outside)

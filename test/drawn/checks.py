"""What must hold of the plan of a drawn factory: on its schedule, in virtual time, and beside plans of factories much like it."""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ros2_rfm_serving.factory import Catalogue, Factory
from ros2_rfm_serving.profiles import Profile
from ros2_rfm_serving.scheduler import Solution, plan_factory, to_schedule
from ros2_rfm_serving.simulation import Report, simulate
from ros2_rfm_serving.types import Schedule

from .factories import ACTIONS_S, PACES, Drawn, memory_gb

SAME = 1e-3
"""Of an objective, relatively: what order, names and a looser SLO may change."""
STARTS, SECONDS, WARM_UP_S = 3, 20.0, 5.0
CHANCE = 3.0
"""Standard deviations. Late requests come in clusters: each counts as half a draw."""
RATES = 0.05
FEWEST = 20
"""Requests by which an SLO is judged: robots at 0.01 actions/s ask once, while all start, which a note of the plan says."""
NEIGHBOURS = 2
"""Factories with a robot less, and with a looser SLO, for each that is drawn."""
BATCHES = (1, 2, 4, 8, 16)
SERVED_S = {
    "nvidia/GR00T-N1.6-3B": {1: 0.0472, 2: 0.0587, 4: 0.0915, 8: 0.1375, 16: 0.2295},
    "physical-intelligence/pi0.5": {1: 0.0518, 2: 0.0654, 4: 0.0926, 8: 0.147, 16: 0.2558},
}
"""Model -> batch size -> seconds of a batch, by the laws of the catalogue."""


@dataclass(frozen=True)
class Violation:
    seed: int
    kind: str
    what: str

    def __str__(self) -> str:
        return f"{self.seed} {self.kind}: {self.what}"


@dataclass(frozen=True)
class Checks:
    shipped: Path
    profile: Profile
    catalogue: Catalogue
    starts: int = STARTS
    seconds: float = SECONDS

    def of(self, drawn: Drawn, kinds: frozenset[str] = frozenset()) -> list[Violation]:
        """kinds: of `serves`, `virtual_time`, `order`, `monotonic`; empty: all."""
        solution = self._plan(drawn)
        found: list[tuple[str, str]] = []
        if solution.feasible and solution.servers:
            factory = drawn.factory()
            schedule = to_schedule(solution, factory.robots, epoch=1)
            found += self._serves(factory, schedule) if not kinds or "serves" in kinds else ()
            found += self._virtual_time(factory, schedule, solution) if not kinds or "virtual_time" in kinds else ()
        found += self._order(drawn, solution) if not kinds or "order" in kinds else ()
        found += self._monotonic(drawn, solution) if not kinds or "monotonic" in kinds else ()
        return [Violation(drawn.seed, kind, what) for kind, what in found]

    def _plan(self, drawn: Drawn) -> Solution:
        return plan_factory(drawn.factory(), self.profile, self.catalogue, explained=False)

    # --- capacity and memory ---

    def _serves(self, factory: Factory, schedule: Schedule) -> Iterator[tuple[str, str]]:
        declared = factory.gpu_types
        placed = {placement.server: placement for placement in schedule.placements}
        routed = Counter((route.robot, route.component) for route in schedule.routes)
        wanted = {(robot.name, component) for robot in factory.robots for component in factory.tasks[robot.task].components}
        if set(routed) != wanted or set(routed.values()) != {1}:
            yield "capacity", f"routes serve {len(routed)} of {len(wanted)} streams, or one of them twice"
        tasks = {robot.name: robot.task for robot in factory.robots}
        load_hz: dict[str, float] = defaultdict(float)
        for route in schedule.routes:
            model = factory.tasks[tasks[route.robot]].components[route.component].model
            if route.server not in placed or placed[route.server].model != model or placed[route.server].standby:
                yield "capacity", f"{route.robot} asks {route.server} for {model}, which does not serve it"
            load_hz[route.server] += route.predicted_rate_hz
            if route.standby == route.server:
                yield "capacity", f"{route.robot} would turn from {route.server} to itself"
        used_gb: dict[str, float] = defaultdict(float)
        models_gb, gpus_gb = memory_gb(self.shipped)
        for placement in schedule.placements:
            gpu = placement.gpu or placement.server
            used_gb[gpu] += models_gb[placement.model]
            if declared.get(gpu) != placement.gpu_type:
                yield "capacity", f"{placement.server} is a {declared.get(gpu)}, planned as a {placement.gpu_type}"
            most_hz = _most_hz(placement.model, placement.gpu_type, placement.batching, placement.batch_size)
            if load_hz[placement.server] > most_hz * 1.01:
                yield "capacity", f"{placement.server}: {load_hz[placement.server]:.2f} requests/s of {most_hz:.2f} at the most"
        for gpu, gb in used_gb.items():
            if gb > gpus_gb[declared[gpu]] * (1 + 1e-9):
                yield "memory", f"{gpu}: {gb:.1f} GB of {gpus_gb[declared[gpu]]:.0f}"

    # --- promises ---

    def _virtual_time(self, factory: Factory, schedule: Schedule, solution: Solution) -> Iterator[tuple[str, str]]:
        reports = [self._simulated(factory, schedule, seed) for seed in range(self.starts)]
        for name, task in factory.tasks.items():
            for component, of in task.components.items():
                if of.slo_ms is None:
                    continue
                each = [report.task_components[name][component] for report in reports]
                count = sum(found.count for found in each if found.count)
                if count < FEWEST:
                    continue
                kept = sum(found.slo_attainment * found.count for found in each if found.count) / count
                promised = (of.percentile or task.percentile) / 100
                chance = CHANCE * math.sqrt(2.0 * promised * (1 - promised) / count)
                if kept < promised - chance:
                    starts = ", ".join(f"{100 * found.slo_attainment:.1f}" for found in each)
                    share = f"{100 * kept:.2f} % of {100 * promised:.0f} % in {count} ({starts})"
                    yield "slo", f"{name} {component}: {share}; {_where(factory)}"
            num_robots = solution.tasks[name].num_robots
            raw_hz = sum(report.tasks[name].raw for report in reports) / len(reports)
            planned_hz = num_robots * solution.tasks[name].expected_rate_hz
            counted = CHANCE * math.sqrt(num_robots) / (self.seconds * math.sqrt(len(reports)))
            if abs(raw_hz - planned_hz) > RATES * planned_hz + counted:
                yield "rate", f"{name}: {raw_hz:.3f} actions/s in virtual time, {planned_hz:.3f} expected; {_where(factory)}"
            floor_hz = task.floor_hz(num_robots) or 0.0
            if solution.tasks[name].slowest_rate_hz < floor_hz * (1 - 1e-6):
                yield "floor", f"{name}: {solution.tasks[name].slowest_rate_hz:.4f} actions/s of {floor_hz:.4f}"

    def _simulated(self, factory: Factory, schedule: Schedule, seed: int) -> Report:
        return simulate(schedule, factory, self.catalogue, self.profile, seconds=self.seconds, seed=seed, warm_up_s=WARM_UP_S)

    # --- against others ---

    def _order(self, drawn: Drawn, solution: Solution) -> Iterator[tuple[str, str]]:
        for kind, other in (("order", drawn.reordered()), ("names", drawn.renamed())):
            again = self._plan(other)
            if again.feasible != solution.feasible:
                yield kind, f"feasible {solution.feasible}, then {again.feasible}"
            elif solution.feasible and abs(again.objective - solution.objective) > SAME * solution.objective:
                yield kind, f"objective {solution.objective:.4f}, then {again.objective:.4f}"

    def _monotonic(self, drawn: Drawn, solution: Solution) -> Iterator[tuple[str, str]]:
        if not solution.feasible:
            return
        rng = random.Random(drawn.seed)
        for task in rng.sample(drawn.tasks, min(NEIGHBOURS, len(drawn.tasks))):
            fewer = drawn.without_a_robot(task)
            if fewer and not (found := self._plan(fewer)).feasible:
                yield "robot", f"infeasible with one robot of {task} less: {found.problems[:1]}"
        slos = [(task, component) for task in drawn.tasks for component in drawn.descriptor[task]["components"]]
        for task, component in rng.sample(slos, min(NEIGHBOURS, len(slos))):
            looser = self._plan(drawn.with_looser_slo(task, component))
            if not looser.feasible or looser.objective < (1 - SAME) * solution.objective:
                what = f"{solution.objective:.4f}, {looser.objective:.4f} with a looser SLO of {task} {component}"
                yield "looser", f"{what}, feasible {looser.feasible}"
        group, cluster = rng.choice(list(enumerate(drawn.descriptor["server_cluster"])))
        more = self._plan(drawn.with_another_gpu(group))
        if not more.feasible or more.objective < (1 - SAME) * solution.objective:
            what = f"{solution.objective:.4f}, {more.objective:.4f} with one more {cluster['gpu_type']}"
            yield "gpu", f"{what}, feasible {more.feasible}"


def _where(factory: Factory) -> str:
    return ", ".join(
        f"{group.num_servers} x {group.gpu_type} {group.dispatch} {group.batching}" for group in factory.server_cluster
    )


def _most_hz(model: str, gpu_type: str, batching: str, batch_size: int) -> float:
    """Requests/s of a server that is never idle; inf: of models that all who ask share."""
    if model not in ACTIONS_S:
        return math.inf
    sizes = BATCHES if batching == "continuous" else (batch_size,)
    return max(size / (SERVED_S[model][size] * PACES[gpu_type]) for size in sizes) * (1.25 if batching == "continuous" else 1.0)

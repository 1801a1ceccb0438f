"""The active placement as a starting point: robots stay on their servers, and new robots go to existing ones."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ros2_rfm_serving.scheduler.policies.groups import typical_hz
from ros2_rfm_serving.scheduler.prediction.curves import Curves, ServerConfiguration
from ros2_rfm_serving.scheduler.prediction.parts import Seats, SplitClass, seated
from ros2_rfm_serving.scheduler.prediction.rates import HostedServer
from ros2_rfm_serving.scheduler.problem import Demand, PlanningProblem, TaskClass


@dataclass(frozen=True)
class InPlace:
    """Servers, with the demands of the problem, and the seats of their robots."""

    problem: PlanningProblem
    names: tuple[str, ...]
    hosts: tuple[HostedServer, ...]
    robots: tuple[tuple[Seats, ...], ...]
    """Seats of the robots of each class."""

    def parts_of(self, large: bool) -> Iterator[SplitClass]:
        """Yield the parts of the classes, and (unless `large`) the finer ones where servers differ by the parts that they serve."""
        parts = seated(self.problem, self.hosts, self.robots)
        yield parts
        finer = parts if large else seated(self.problem, self.hosts, self.robots, parts.hosts)
        if len(finer.of) > len(parts.of):
            yield finer


def in_place(problem: PlanningProblem, curves: Curves) -> InPlace | None:
    """Return the active placement; None: there is none, or it cannot serve some robots."""
    return _InPlace(problem, curves).found()


class _InPlace:
    def __init__(self, problem: PlanningProblem, curves: Curves) -> None:
        self._problem, self._curves = problem, curves
        placements = problem.previous.placements if problem.previous else ()
        own = [p for p in placements if p.server in problem.servers and not p.gpu]
        configs = {p.server: ServerConfiguration(p.model, problem.servers[p.server], p.batching, p.batch_size) for p in own}
        self._configs = {server: c for server, c in configs.items() if c in curves.configs.get((c.model, c.gpu_type), ())}
        self._robots: dict[str, Counter[int]] = {server: Counter() for server in self._configs}
        """Server -> demand -> robots."""
        self._load_hz: dict[str, float] = defaultdict(float)

    def found(self) -> InPlace | None:
        before: dict[str, dict[str, dict[str, str]]] = defaultdict(lambda: defaultdict(dict))
        for route in self._problem.previous.routes if self._problem.previous else ():
            before[route.task][route.robot][route.component] = route.server
        kept = [self._stay(task, before[task.name]) for task in self._problem.classes]
        servers = [self._come(task, mine) for task, mine in zip(self._problem.classes, kept, strict=True)]
        if not servers or not all(server for robots in servers for robot in robots for server in robot):
            return None
        used = [server for server, robots in self._robots.items() if robots]
        hosts = tuple(HostedServer(self._configs[server], tuple(sorted(self._robots[server].items()))) for server in used)
        at = {server: i for i, server in enumerate(used)}
        seats = tuple(tuple(tuple(at[server] for server in robot) for robot in robots) for robots in servers)
        return InPlace(self._problem, tuple(used), hosts, seats)

    def _stay(self, task: TaskClass, robots: Mapping[str, Mapping[str, str]]) -> list[list[str]]:
        """Return the server of each demand for as many robots as there are now; empty: the robot lost that server."""
        found = []
        for servers in list(robots.values())[: task.num_robots]:
            mine = [self._known(demand, servers.get(demand.component, "")) for demand in task.demands]
            for demand, server in zip(task.demands, mine, strict=True):
                self._seat(demand, server)
            found.append(mine)
        return found

    def _come(self, task: TaskClass, kept: Sequence[Sequence[str]]) -> list[list[str]]:
        """Return the servers, with new robots and those that lost a server; empty: no server hosts what they need."""
        everybody = [*kept, *([""] * len(task.demands) for _ in range(task.num_robots - len(kept)))]
        found = []
        for servers in everybody:
            mine = list(servers)
            for i, demand in enumerate(task.demands):
                if not mine[i]:
                    mine[i] = self._emptiest(demand)
                    self._seat(demand, mine[i])
            found.append(mine)
        return found

    def _known(self, demand: Demand, server: str) -> str:
        return server if server in self._configs and self._configs[server].model == demand.model else ""

    def _seat(self, demand: Demand, server: str) -> None:
        if server:
            self._robots[server][demand.index] += 1
            self._load_hz[server] += typical_hz(self._problem, demand.index) / self._curves.max_rate_hz(self._configs[server])

    def _emptiest(self, demand: Demand) -> str:
        """Return the emptiest server with such robots, or else the emptiest one with the model."""
        alike = [server for server, config in self._configs.items() if config.model == demand.model]
        beside = [server for server in alike if self._robots[server][demand.index]] or alike
        return min(beside, key=lambda server: self._load_hz[server], default="")

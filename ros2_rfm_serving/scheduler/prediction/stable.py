"""What need not move does not: a new plan names its servers so that models stay loaded and robots stay where they are.

A plan says how many servers host what; which of the equal ones is which is free. It is settled by an assignment that keeps the most
actions which moving would cost (`adaptation.Migration` counts them alike).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from ortools.graph.python import linear_sum_assignment

from ros2_rfm_serving.scheduler.prediction.rates import Host
from ros2_rfm_serving.scheduler.problem import Problem
from ros2_rfm_serving.types import Schedule

MOVE_S = 0.5
"""What a robot loses that turns to another server: a session is opened, and a request asked again. Between two emulated servers of
one busy machine the chunk after a move came 5 ms late (median of eight; 128 ms at worst), and no control period was without an
action: most of the half second is for ways that are longer, and for robots that have to find their phase anew beside others."""
GRAIN = 1e3
"""Parts of an action that are told apart."""
SAME_MODEL, SAME_BATCH = 2, 1
"""Parts of an action that an idle server's model is worth, and any one's batch size."""


def names(problem: Problem, previous: Schedule, hosts: Sequence[Host], free: Mapping[str, Sequence[str]]) -> list[str]:
    """Of these hosts. free: GPU type -> servers that may host them."""
    found = [""] * len(hosts)
    before = _Before(problem, previous)
    for gpu_type, servers in free.items():
        mine = [i for i, host in enumerate(hosts) if host.config.gpu_type == gpu_type]
        for i, server in zip(mine, _assigned([[before.kept(hosts[i], s) for s in servers] for i in mine]), strict=True):
            found[i] = servers[server]
    return found


class _Before:
    def __init__(self, problem: Problem, previous: Schedule) -> None:
        self._problem = problem
        self._placements = {p.server: p for p in previous.placements}
        self._robots: dict[str, Counter[tuple[str, str]]] = defaultdict(Counter)
        """Server -> (task, component) -> robots."""
        self._rates_hz: dict[str, float] = defaultdict(float)
        for route in previous.routes:
            self._robots[route.server][route.task, route.component] += 1
            self._rates_hz[route.server] += route.predicted_rate_hz

    def kept(self, host: Host, server: str) -> int:
        """Actions that are not lost if this host is that server, in parts."""
        placement = self._placements.get(server)
        if placement is None or placement.model != host.config.model:
            return 0
        loading = self._problem.load_s.get((placement.model, host.config.gpu_type), 0.0) * self._rates_hz[server]
        staying = MOVE_S * sum(self._staying_hz(kind, count, server) for kind, count in self._kinds(host).items())
        return SAME_MODEL + SAME_BATCH * (placement.batch_size == host.config.batch_size) + round(GRAIN * (loading + staying))

    def _kinds(self, host: Host) -> Counter[tuple[str, str]]:
        """(task, component) -> robots, whatever parts their classes are in."""
        kinds: Counter[tuple[str, str]] = Counter()
        for index, count in host.robots:
            demand = self._problem.demands[index]
            kinds[self._problem.classes[demand.task].name, demand.component] += count
        return kinds

    def _staying_hz(self, kind: tuple[str, str], count: int, server: str) -> float:
        robots = self._robots[server]
        return min(count, robots[kind]) / max(robots.total(), 1) * self._rates_hz[server]


def _assigned(worths: Sequence[Sequence[int]]) -> list[int]:
    """Of each row, a column of its own: the sum of what they are worth is the highest; of equal ones, the first."""
    if not worths:
        return []
    solver, size = linear_sum_assignment.SimpleLinearSumAssignment(), len(worths[0])
    for row in range(size):
        for column in range(size):
            worth = worths[row][column] if row < len(worths) else 0
            solver.add_arc_with_cost(row, column, -worth)
    assert solver.solve() == solver.OPTIMAL, "every row may have every column"
    return [solver.right_mate(row) for row in range(len(worths))]

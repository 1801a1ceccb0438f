"""Losses of a change to another plan, and the choice of servers that loses least by moving only what has to move.

A plan says how many servers host what; the choice among equal ones is free, and robots are assigned later (`routes.py`). So the
loss of a placement is counted by kinds of robots, as if all that can stay do, the quickest first; `migration` counts it robot by
robot for the resulting schedule.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from ortools.graph.python import linear_sum_assignment, min_cost_flow

from ros2_rfm_serving.scheduler.prediction.rates import HostedServer
from ros2_rfm_serving.scheduler.problem import PlanningProblem
from ros2_rfm_serving.scheduler.solution import ServerSolution, Solution
from ros2_rfm_serving.types import SYSTEM1, Schedule

Array = npt.NDArray[Any]
Kind = tuple[str, str]
"""(task, component)."""

MOVE_S = 0.5
"""Loss of a robot that switches to another server: a session is opened, and a request repeated. Between two emulated servers of one
busy machine the chunk after a move came 5 ms late (median of eight; 128 ms at worst), and no control period was without an action:
most of the half second is for longer ways, and for robots that have to find their phase again beside others."""
HORIZON_S = 600.0
"""Expected lifetime of a schedule: the loss of a move occurs once in that time."""
MIN_GAIN = 1e-3
"""Relative gain below which predictions do not differ."""
GRAIN = 1e3
"""Resolution of the integer costs, in parts of an action."""
SAME_MODEL, SAME_BATCH = 2, 1
"""Bonus for an equal model on an idle server, and for an equal batch size on any, in parts of an action."""
PAIR_WORK = 1e-7
"""Work of computing the loss of one server in the place of another one, in units of `Budget`."""


class MatchedServer(NamedTuple):
    """Server, as far as moves distinguish it from others."""

    model: str
    gpu_type: str
    robots: tuple[int, ...]
    """Robots of each kind."""
    stopped_hz: float = 0.0
    """Weighted actions/s of all robots with requests to it, which stand while it loads."""
    acting_hz: tuple[tuple[float, ...], ...] = ()
    """Weighted action rates of its current robots, per kind, the highest first."""


def names(
    problem: PlanningProblem, previous: Schedule, hosts: Sequence[HostedServer], free: Mapping[str, Sequence[str]]
) -> list[str]:
    """Return names for these hosts with which least is lost. free: GPU type -> servers that may host them."""
    found = [""] * len(hosts)
    before = _Before(problem, previous)
    placements = {p.server: p for p in previous.placements}
    for gpu_type, servers in free.items():
        mine = [i for i, host in enumerate(hosts) if host.config.gpu_type == gpu_type]
        if not mine:
            continue
        lost = before.lost([before.seat(problem, hosts[i]) for i in mine], [before.seats[server] for server in servers])
        worth = -np.rint(GRAIN * lost).astype(np.int64)
        for row, i in enumerate(mine):
            for column, server in enumerate(servers):
                if (there := placements.get(server)) and there.model == hosts[i].config.model:
                    worth[row, column] += SAME_MODEL + SAME_BATCH * (there.batch_size == hosts[i].config.batch_size)
        for i, column in zip(mine, _assigned(worth), strict=True):
            found[i] = servers[column]
    return found


class PlacementMatching:
    """Losses by the change from the active schedule to placements of one factory."""

    def __init__(self, problem: PlanningProblem) -> None:
        self._before = _Before(problem, problem.previous) if problem.previous else None
        self._known: dict[frozenset[tuple[MatchedServer, int]], float] = {}
        self._work = 0.0

    def spent(self) -> float:
        """Return the work since the last call, in units of `Budget`."""
        work, self._work = self._work, 0.0
        return work

    def lost_hz(self, problem: PlanningProblem, hosts: Sequence[HostedServer], names: Sequence[str] = ()) -> float:
        """Return the weighted actions/s that the change to these hosts costsuntil the next expected one; 0: no schedule is active.

        problem: whose demands the hosts have, for classes may be in parts. names: of the hosts, where they are not free.
        """
        if self._before is None or not hosts:
            return 0.0
        seats = [self._before.seat(problem, host) for host in hosts]
        if names:
            return self._before.lost_in_all(seats, [self._before.seats[name] for name in names]) / HORIZON_S
        key = frozenset(Counter(seats).items())
        if key not in self._known:
            self._work += PAIR_WORK * len(key) * self._before.num_kinds
            self._known[key] = self._before.least_lost(Counter(seats)) / HORIZON_S
        return self._known[key]

    def lost_by_hz(self, solution: Solution) -> float:
        """Return the same for a plan whose servers have their names."""
        if self._before is None or not solution.servers:
            return 0.0
        seats = [self._before.seat_of(server) for server in solution.servers]
        return self._before.lost_in_all(seats, [self._before.seats[server.server] for server in solution.servers]) / HORIZON_S


class _Before:
    """Active schedule, as seats."""

    def __init__(self, problem: PlanningProblem, previous: Schedule) -> None:
        values = {task.name: task.value for task in problem.classes}
        acting = {r.robot: values.get(r.task, 0.0) * r.predicted_rate_hz for r in previous.routes if r.component == SYSTEM1}
        robots: dict[str, dict[Kind, list[float]]] = defaultdict(lambda: defaultdict(list))
        asking: dict[str, dict[str, None]] = defaultdict(dict)
        for route in previous.routes:
            robots[route.server][route.task, route.component].append(round(acting.get(route.robot, 0.0), 9))
            asking[route.server][route.robot] = None
        kinds = dict.fromkeys((task.name, d.component) for task in problem.classes for d in task.demands)
        self._index = {kind: i for i, kind in enumerate(kinds)}
        self._tasks: dict[str, list[int]] = defaultdict(list)
        """Task -> its kinds."""
        for (task, _), i in self._index.items():
            self._tasks[task].append(i)
        self._shares = np.array([MOVE_S / len(self._tasks[task]) for task, _ in self._index])
        """Value of one kind of a robot that stays, as a share of its actions in a second."""
        self._load_s = problem.load_s
        models = {p.server: p.model for p in previous.placements}
        nobody = ((),) * len(self._index)
        self.seats: dict[str, MatchedServer] = defaultdict(lambda: MatchedServer("", "", (0,) * len(self._index), 0.0, nobody))
        """Seat of each server."""
        for server in {**problem.servers, **models}:
            stopped_hz = sum(acting.get(robot, 0.0) for robot in asking[server])
            acting_hz = tuple(tuple(sorted(robots[server].get(kind, ()), reverse=True)) for kind in self._index)
            counts = tuple(map(len, acting_hz))
            gpu_type = problem.servers.get(server, "")
            self.seats[server] = MatchedServer(models.get(server, ""), gpu_type, counts, round(stopped_hz, 9), acting_hz)
        self._free = Counter(self.seats[server] for server in problem.servers)
        self._all = np.sum([seat.robots for seat in self.seats.values()], axis=0)
        self._all_hz = np.sum([[sum(hz) for hz in seat.acting_hz] for seat in self.seats.values()], axis=0)
        self.num_kinds = len(self._free)
        """Number of kinds of servers that may be used."""

    def seat(self, problem: PlanningProblem, host: HostedServer) -> MatchedServer:
        robots: Counter[Kind] = Counter()
        for index, count in host.robots:
            demand = problem.demands[index]
            robots[problem.classes[demand.task].name, demand.component] += count
        return MatchedServer(host.config.model, host.config.gpu_type, self._counted(robots))

    def seat_of(self, server: ServerSolution) -> MatchedServer:
        robots: Counter[Kind] = Counter()
        for stream in server.streams:
            robots[stream.task, stream.component] += stream.num_robots
        return MatchedServer(server.model, server.gpu_type, self._counted(robots))

    def _counted(self, robots: Mapping[Kind, int]) -> tuple[int, ...]:
        return tuple(robots.get(kind, 0) for kind in self._index)

    def lost(self, seats: Sequence[MatchedServer], there: Sequence[MatchedServer]) -> Array:
        """Return the actions that each of these seats loses in the place of each of `there`; below 0: for those that it keeps."""
        lost: Array = self._loading(seats, there) - self._staying(self._kept(seats, there), there)
        return lost

    def lost_in_all(self, seats: Sequence[MatchedServer], there: Sequence[MatchedServer]) -> float:
        """Return the lost actions, where each seat has the place of one."""
        loading, kept = self._loading(seats, there), self._kept(seats, there)
        return self._summed(float(np.trace(loading)), np.trace(kept), np.trace(_kept_hz(kept, there)), seats)

    def least_lost(self, seats: Mapping[MatchedServer, int]) -> float:
        """Return the lost actions, where the servers have the places with which they lose least. seats: number of each."""
        rows, columns = list(seats), list(self._free)
        loading, kept = self._loading(rows, columns), self._kept(rows, columns)
        cost = np.rint(GRAIN * (loading - self._staying(kept, columns))).astype(np.int64)
        fits = np.array([[row.gpu_type == column.gpu_type for column in columns] for row in rows])
        number = _transported(cost, fits, np.array([seats[row] for row in rows]), np.array([self._free[c] for c in columns]))
        everybody = [row for row in rows for _ in range(seats[row])]
        kept_hz = np.tensordot(number, _kept_hz(kept, columns), axes=2)
        return self._summed(float((number * loading).sum()), np.tensordot(number, kept, axes=2), kept_hz, everybody)

    def _loading(self, seats: Sequence[MatchedServer], there: Sequence[MatchedServer]) -> Array:
        """Return the actions lost while models load."""
        load_s = np.array([self._load_s.get((seat.model, seat.gpu_type), 0.0) for seat in seats])
        stopped_hz = np.array([seat.stopped_hz for seat in there])
        return np.where(_alike(seats, there), 0.0, load_s[:, None] * stopped_hz)

    def _kept(self, seats: Sequence[MatchedServer], there: Sequence[MatchedServer]) -> Array:
        """Return the robots of each kind that stay."""
        least = np.minimum(np.array([s.robots for s in seats])[:, None], np.array([s.robots for s in there])[None])
        return np.where(_alike(seats, there)[..., None], least, 0)

    def _staying(self, kept: Array, there: Sequence[MatchedServer]) -> Array:
        """Return the actions that the staying robots are worth."""
        worth: Array = _kept_hz(kept, there) @ self._shares
        return worth

    def _summed(self, loading: float, kept: Array, kept_hz: Array, seats: Iterable[MatchedServer]) -> float:
        """Return the total loss. kept: robots of each kind. kept_hz: their rates. As many robots of a task move as of its kind with
        the most moves, each with the mean rate of those that do not stay."""
        missing = np.minimum(self._all, np.sum([seat.robots for seat in seats], axis=0)) - kept
        gone = self._all - kept
        gone_hz = np.divide(self._all_hz - kept_hz, gone, out=np.zeros(len(gone)), where=gone > 0)
        most = {task: max(mine, key=lambda i: int(missing[i])) for task, mine in self._tasks.items()}
        return loading + MOVE_S * sum(float(missing[i] * gone_hz[i]) for i in most.values() if missing[i] > 0)


def _kept_hz(kept: Array, there: Sequence[MatchedServer]) -> Array:
    """Return [seats, there, kinds] the rates of the staying robots, whose number is known: the quickest ones."""
    most = max((num for seat in there for num in seat.robots), default=0)
    sums = np.zeros((len(there), kept.shape[-1], most + 1))
    for place, seat in enumerate(there):
        for kind, acting_hz in enumerate(seat.acting_hz):
            sums[place, kind, 1 : len(acting_hz) + 1] = np.cumsum(acting_hz)
    places, kinds = np.ogrid[: len(there), : kept.shape[-1]]
    found: Array = sums[places, kinds, kept]
    return found


def _alike(seats: Sequence[MatchedServer], there: Sequence[MatchedServer]) -> Array:
    return np.array([[one.model == other.model for other in there] for one in seats])


def _assigned(worth: Array) -> list[int]:
    """Return a different column for each row, so that the sum of their worth is the highest; the first of equal ones."""
    solver, (num_rows, size) = linear_sum_assignment.SimpleLinearSumAssignment(), worth.shape
    for row in range(size):
        for column in range(size):
            solver.add_arc_with_cost(row, column, -int(worth[row, column]) if row < num_rows else 0)
    assert solver.solve() == solver.OPTIMAL, "every row may have every column"
    return [solver.right_mate(row) for row in range(num_rows)]


def _transported(cost: Array, fits: Array, rows: Array, columns: Array) -> Array:
    """Return how many of each row go to each column at the least cost. rows, columns: number of each."""
    solver, (num_rows, num_columns) = min_cost_flow.SimpleMinCostFlow(), cost.shape
    sink = num_rows + num_columns
    r, c = np.nonzero(fits)
    arcs = solver.add_arcs_with_capacity_and_unit_cost(r, num_rows + c, np.minimum(rows[r], columns[c]), cost[r, c])
    places = num_rows + np.arange(num_columns)
    solver.add_arcs_with_capacity_and_unit_cost(places, np.full(num_columns, sink), columns, np.zeros(num_columns, np.int64))
    solver.set_nodes_supplies(np.arange(num_rows), rows)
    solver.set_node_supply(sink, -int(rows.sum()))
    assert solver.solve() == solver.OPTIMAL, "there are no more servers than places"
    number = np.zeros(cost.shape, np.int64)
    number[r, c] = solver.flows(arcs)
    return number

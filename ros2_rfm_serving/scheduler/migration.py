"""What it takes to go over from the schedule in force to another one, and what that gains."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from ros2_rfm_serving.scheduler.adaptation import Fleet
from ros2_rfm_serving.scheduler.planned import Doing, Planned
from ros2_rfm_serving.scheduler.policies.comparison import CLEARLY
from ros2_rfm_serving.scheduler.prediction.stable import HORIZON_S, MIN_GAIN, MOVE_S
from ros2_rfm_serving.scheduler.repair import bare
from ros2_rfm_serving.types import SYSTEM1, Schedule


@dataclass(frozen=True, kw_only=True)
class Migration:
    """What a move to another schedule costs and gains."""

    moved_servers: tuple[str, ...]
    """They load another model."""
    moved_robots: tuple[str, ...]
    """At least one of their routes changes its server."""
    lost_actions: float
    """While the new models load, of the robots that were on those servers; and of each that moves, while it does."""
    gained_actions: float
    """Until the horizon; none where it is within the rounding of what is predicted."""

    @property
    def worth_it(self) -> bool:
        return self.gained_actions > self.lost_actions


def migration(fleet: Fleet, other: Schedule, doing: Doing | None = None, *, horizon_s: float = HORIZON_S) -> Migration:
    """What it takes to go over to `other`, planned for the same robots."""
    old = {p.server: p for p in fleet.schedule.placements}
    moved = tuple(p for p in other.placements if p.server not in old or old[p.server].model != p.model)
    servers = {(r.robot, r.component): r.server for r in fleet.schedule.routes}
    robots = {r.robot for r in other.routes if servers.get((r.robot, r.component)) != r.server}
    lost = 0.0
    for placement in moved:
        stopped = {r.robot for r in fleet.schedule.routes if r.server == placement.server}
        load_s = fleet.problem.load_s.get((placement.model, placement.gpu_type), 0.0)
        lost += load_s * fleet.actions_hz(among=stopped)
    lost += MOVE_S * fleet.actions_hz(among=robots)
    now_hz, then_hz, least = _doing(fleet, other, doing)
    gain_hz = then_hz - now_hz
    return Migration(
        moved_servers=tuple(p.server for p in moved),
        moved_robots=tuple(sorted(robots)),
        lost_actions=lost,
        gained_actions=gain_hz * horizon_s if gain_hz > least * now_hz else 0.0,
    )


def gives_up(fleet: Fleet, planned: Fleet, doing: Doing | None = None) -> bool:
    """A plan for the same robots gets less done than the schedule in force, and covers the loss of no more servers. doing: where
    robots' own queues say what is done."""
    if fleet.schedule.policy != planned.schedule.policy or dict(fleet.tasks) != dict(planned.tasks):
        return False
    now_hz, then_hz, least = _doing(fleet, planned.schedule, doing)
    return then_hz < (1.0 - least) * now_hz and len(bare(planned)) >= len(bare(fleet))


def covers_again(fleet: Fleet, planned: Planned, move: Migration) -> bool:
    """A plan for the same robots covers the loss of more servers than the schedule in force, and costs no more actions until the
    horizon than are given up for reserved standbys anyway, or than predictions tell apart."""
    if dict(fleet.tasks) != dict(planned.fleet.tasks) or len(bare(planned.fleet)) >= len(bare(fleet)):
        return False
    now_hz, then_hz, least = _doing(fleet, planned.fleet.schedule, planned.doing)
    reserved = planned.factory.standby.num_servers / len(planned.factory.gpu_types)
    return (now_hz - then_hz) * HORIZON_S + move.lost_actions <= max(least, reserved) * now_hz * HORIZON_S


def _doing(fleet: Fleet, other: Schedule, doing: Doing | None) -> tuple[float, float, float]:
    """The objective of both, and the relative difference below which they do not differ: a plan that is fairer, and for which
    another class gives up actions, is better if the objective says so."""
    if doing:
        return (*doing, CLEARLY)
    then_hz = {route.robot: route.predicted_rate_hz for route in other.routes if route.component == SYSTEM1}
    return fleet.objective_hz(reached_hz(fleet)), fleet.objective_hz(then_hz), MIN_GAIN


def reached_hz(fleet: Fleet) -> dict[str, float]:
    """Robot -> its action rate under the schedule in force, where robots become slower than expected by their own servers: not
    faster, which another schedule lets them."""
    means_s = {name: host.mean_s(0.0, fleet.curves) for name, host in fleet.hosts.items()}
    tasks = {task.name: task for task in fleet.problem.classes}
    demands = {(task.name, d.component): d for task in fleet.problem.classes for d in task.demands}
    waits_s: dict[str, dict[int, float]] = defaultdict(dict)
    for route in fleet.schedule.routes:
        if (demand := demands[fleet.tasks[route.robot], route.component]).goal_coupled:
            waits_s[route.robot][demand.index] = means_s[route.server]
    return {
        route.robot: min(route.predicted_rate_hz, tasks[fleet.tasks[route.robot]].closed_loop_hz(waits_s[route.robot]))
        for route in fleet.schedule.routes
        if route.component == SYSTEM1
    }

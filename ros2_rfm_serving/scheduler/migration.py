"""Cost and gain of a change from the active schedule to another one."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from ros2_rfm_serving.scheduler.active_fleet import ActiveFleet
from ros2_rfm_serving.scheduler.degraded_mode import bare
from ros2_rfm_serving.scheduler.plan_job import ExpectedActions, PlanResult
from ros2_rfm_serving.scheduler.policies.comparison import CLEARLY
from ros2_rfm_serving.scheduler.prediction.placement_matching import HORIZON_S, MIN_GAIN, MOVE_S
from ros2_rfm_serving.types import SYSTEM1, Schedule


@dataclass(frozen=True, kw_only=True)
class Migration:
    """Cost and gain of a change to another schedule."""

    moved_servers: tuple[str, ...]
    """Servers that load another model."""
    moved_robots: tuple[str, ...]
    """Robots with at least one route that changes its server."""
    lost_actions: float
    """Actions lost on those servers while the new models load, and of each moving robot while it moves."""
    gained_actions: float
    """Actions gained until the horizon; 0 where the gain is within the rounding of predictions."""

    @property
    def worth_it(self) -> bool:
        return self.gained_actions > self.lost_actions


def migration(
    fleet: ActiveFleet, other: Schedule, doing: ExpectedActions | None = None, *, horizon_s: float = HORIZON_S
) -> Migration:
    """Return the cost and gain of a change to `other`, which was planned for the same robots."""
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


def gives_up(fleet: ActiveFleet, planned: ActiveFleet, doing: ExpectedActions | None = None) -> bool:
    """Return whether a plan for the same robots achieves less than the active schedule and covers the loss of no more servers.
    doing: simulated throughputs, where queues of robots decide."""
    if fleet.schedule.policy != planned.schedule.policy or dict(fleet.tasks) != dict(planned.tasks):
        return False
    now_hz, then_hz, least = _doing(fleet, planned.schedule, doing)
    return then_hz < (1.0 - least) * now_hz and len(bare(planned)) >= len(bare(fleet))


def covers_again(fleet: ActiveFleet, planned: PlanResult, move: Migration) -> bool:
    """Return whether a plan for the same robots covers the loss of more servers, and costs until the horizon no more actions than
    reserved standbys give up anyway, or than predictions can distinguish."""
    if dict(fleet.tasks) != dict(planned.fleet.tasks) or len(bare(planned.fleet)) >= len(bare(fleet)):
        return False
    now_hz, then_hz, least = _doing(fleet, planned.fleet.schedule, planned.doing)
    reserved = planned.factory.standby.num_servers / len(planned.factory.gpu_types)
    return (now_hz - then_hz) * HORIZON_S + move.lost_actions <= max(least, reserved) * now_hz * HORIZON_S


def _doing(fleet: ActiveFleet, other: Schedule, doing: ExpectedActions | None) -> tuple[float, float, float]:
    """Return the objectives of both, and the relative difference below which they are equal: a fairer plan, for which another class
    gives up actions, is better if the objective is higher."""
    if doing:
        return (*doing, CLEARLY)
    then_hz = {route.robot: route.predicted_rate_hz for route in other.routes if route.component == SYSTEM1}
    return fleet.objective_hz(reached_hz(fleet)), fleet.objective_hz(then_hz), MIN_GAIN


def reached_hz(fleet: ActiveFleet) -> dict[str, float]:
    """Return robot -> its action rate under the active schedule, where its servers make it slower than expected; never faster,
    which only another schedule allows."""
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

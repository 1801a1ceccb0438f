"""Why a robot is served where it is, and what the next best would cost."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.factory import Catalogue, Factory, parse_factory
from ros2_rfm_serving.profiles import load_profiles
from ros2_rfm_serving.scheduler import ActiveFleet, PlanJob, plan, rebuilt
from ros2_rfm_serving.scheduler.explain_route import RouteExplanation, _Why, choices
from ros2_rfm_serving.scheduler.slo import Slo
from ros2_rfm_serving.simulation.profiled_factories import profiled_factory
from test.unit.scheduler.test_adaptation import PROFILE, factory, fleet


def of(running: ActiveFleet, component: str) -> RouteExplanation:
    return next(choice for choice in choices(running, "carry_1") if choice.component == component)


def crowded(declared: Factory) -> ActiveFleet:
    """All robots on one server of System 1, the others idle."""
    running = fleet(declared)
    (one, *others) = [p for p in running.schedule.placements if p.model == "policy"]
    assert others
    moved = {other.server for other in others}
    routes = tuple(replace(r, server=one.server, standby="") if r.server in moved else r for r in running.schedule.routes)
    return rebuilt(declared, replace(running.schedule, routes=routes), declared.robots, PROFILE, None)


def test_a_server_that_is_as_good_costs_nothing_and_one_that_is_full_costs_actions() -> None:
    running = fleet(factory(robots=6))
    found = of(running, "system1")
    mine = [r.robot for r in running.schedule.routes if r.server == found.server]
    assert found.alternatives and all(one.cost_hz >= -1e-6 and not one.by_curves for one in found.alternatives)
    assert "carry_1" in mine and [one.cost_hz for one in found.alternatives] == sorted(one.cost_hz for one in found.alternatives)
    assert "requests/s that keep every SLO" in found.why_server and "actions/s" in found.why_rate
    better = of(crowded(factory(robots=6)), "system1").alternatives[0]
    assert better.cost_hz < -0.05 and better.what.startswith("on server_"), "nobody planned this one"


def test_a_standby_of_its_own_server_is_as_good_a_place_as_any_other() -> None:
    """Two servers that stand by for each other, with three robots and two: the same the other way round."""
    running = fleet(
        parse_factory("""
server_cluster: {num_servers: 2, gpu_type: GPU}
robot_fleet: [{task: carry, num_robots: 5}]
carry:
  pipeline: {action_period_ms: 400}
  components: {system1: {model: policy, slo_ms: 45}}
""")
    )
    counts = Counter(route.server for route in running.schedule.routes)
    mover = next(route for route in running.schedule.routes if counts[route.server] == 3)
    assert mover.standby and mover.standby != mover.server
    (choice,) = choices(running, mover.robot)
    assert {one.what: one.cost_hz for one in choice.alternatives}[f"on {mover.standby}"] == pytest.approx(0.0, abs=1e-6)


def test_what_would_break_a_floor_is_not_possible() -> None:
    running = fleet(factory(robots=9, servers=4, floor="min_action_rate_hz: 2.0"))
    costs = {one.what: one.cost_hz for one in of(running, "system1").alternatives}
    slower = {what for what, cost in costs.items() if cost == math.inf or cost > 0.1}
    assert slower, costs


def test_what_robots_own_queue_keeps_is_not_said_to_be_too_much(repository: Path) -> None:
    """A plan that goes further than the curves: costs are against what it gets done, not against what those allow."""
    folder = repository / "config" / "profiles"
    shipped = load_profiles(folder), Catalogue.load(folder / "models.yaml")
    declared = profiled_factory(4, network=True)
    running = plan(PlanJob(factory=declared, robots=tuple(declared.robots), policy="best"), *shipped, work=0.0).fleet
    assert running.beyond_hz
    raised = next(r for r in running.schedule.routes if r.server in running.beyond_hz)
    (found, *_) = [choice for choice in choices(running, raised.robot) if choice.component == raised.component]
    assert "requests/s, with which its robots' own queue keeps every SLO (by the curve up to " in found.why_server
    assert _Why(running, raised.robot)._best_hz > 0.99 * running.actions_hz()


def test_an_obligation_has_the_rate_that_it_declares() -> None:
    found = of(fleet(factory()), "monitor")
    assert found.why_rate == "declared: 10 Hz" and found.rate_hz == 10.0 and found.to_json()["component"] == "monitor"


def test_servers_that_batch_continuously_have_no_batch_size() -> None:
    running = fleet(factory(robots=6))
    assert "batching continuously:" in of(running, "monitor").why_server
    assert "in batches of " in of(running, "system1").why_server


def test_a_robot_s_rate_is_explained_by_its_own_servers() -> None:
    """Those of its class that sit elsewhere go at another rate (`parts`)."""
    declared = factory(robots=6)
    running = crowded(declared)
    alone = next(name for name, host in running.hosts.items() if host.config.model == "policy" and not host.sessions)
    first = ("carry_1", "system1")
    routes = tuple(replace(r, server=alone) if (r.robot, r.component) == first else r for r in running.schedule.routes)
    moved = rebuilt(declared, replace(running.schedule, routes=routes), declared.robots, PROFILE, None)
    why = [choices(moved, robot)[-1].why_rate for robot in ("carry_1", "carry_2")]
    quick_hz, slow_hz = (float(text.split()[-2]) for text in why)
    assert quick_hz > slow_hz and alone not in why[1]
    batches = next(one for one in of(moved, "system1").alternatives if one.what == f"{alone} in batches of 8")
    others = next(one for one in choices(moved, "carry_2")[-1].alternatives if "in batches of 8" in one.what)
    assert 0 < batches.cost_hz < 0.25 < others.cost_hz, "it costs one robot's actions, not all robots' of the class"


def test_models_that_share_a_gpu_have_their_part_of_it() -> None:
    """`best` too lets models share where only that serves everybody."""
    declared = factory(robots=1, servers=1, slo_ms=200, watch_hz=1)
    shared = fleet(declared)
    assert {p.gpu for p in shared.schedule.placements} == {"server_1"}
    found = of(shared, "system1")
    host, curves = shared.hosts[found.server], shared.curves
    assert host.config.slices == 2 and host.mean_s(0.0, curves) >= 2 * curves.mean(replace(host.config, slices=1)).y[0]
    assert f"of the {curves.capacity_hz(host.config, Slo(0.2)):.1f} requests/s" in found.why_server


def test_a_robot_that_is_not_served_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match="no robot 'carry_7' is served"):
        choices(fleet(factory()), "carry_7")

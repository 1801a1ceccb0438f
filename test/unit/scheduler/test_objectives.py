"""What plans are compared by: `planning.objective`."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.factory import Catalogue, load_factory, parse_factory
from ros2_rfm_serving.factory.cluster import Planning
from ros2_rfm_serving.profiles import Profile
from ros2_rfm_serving.reports.plan_tables import summary
from ros2_rfm_serving.scheduler import ActiveFleet, Solution, programs, utility
from ros2_rfm_serving.scheduler.migration import gives_up, migration
from ros2_rfm_serving.scheduler.plan_service import fleet_of
from ros2_rfm_serving.scheduler.planning import plan_factory
from ros2_rfm_serving.simulation.random_factories import Size, random_factory
from test.unit.scheduler.drawn_factories import inputs

SHARED = """
server_cluster: {{num_servers: 1, gpu_type: NVIDIA H200}}
planning: {{{objective}}}
robot_fleet: [{{task: dear, num_robots: 10}}, {{task: cheap, num_robots: 10}}]
dear: {{value: 3, pipeline: {{action_period_ms: 100}}, components: {{system1: {{model: nvidia/GR00T-N1.6-3B, slo_ms: 200}}}}}}
cheap: {{pipeline: {{action_period_ms: 100}}, components: {{system1: {{model: nvidia/GR00T-N1.6-3B, slo_ms: 200}}}}}}
"""
SHARES = st.lists(st.tuples(st.floats(0.01, 100.0), st.floats(0.0, 1.0)), min_size=1, max_size=5)


@pytest.fixture(scope="module")
def known(repository: Path) -> tuple[Profile, Catalogue]:
    return inputs(repository)


def planned(known: tuple[Profile, Catalogue], objective: str) -> Solution:
    said = f"objective: {objective}" if objective else ""
    return plan_factory(parse_factory(SHARED.format(objective=said)), *known, explained=False)


# --- utilities ---


@given(low=st.floats(0.0, 1.0), high=st.floats(0.0, 1.0))
def test_a_utility_is_concave_and_has_an_inverse(low: float, high: float) -> None:
    middle = utility.at_share((low + high) / 2)
    assert middle >= (utility.at_share(low) + utility.at_share(high)) / 2 - 1e-9
    assert utility.share_at(utility.at_share(low)) == pytest.approx(low, abs=1e-9)


def test_an_action_counts_twice_as_much_at_half_the_pace() -> None:
    slopes = [slope for _, slope in utility.STEPS]
    assert slopes == [64.0, 32.0, 16.0, 8.0, 4.0, 2.0, 1.0] and sum(width for width, _ in utility.STEPS) == 1.0


@given(SHARES, st.sampled_from(["throughput", "proportional", "max_min"]))
def test_an_objective_is_no_more_than_the_throughput_and_equal_where_all_shares_are(
    classes: list[tuple[float, float]], aim: str
) -> None:
    weights, shares = [weight for weight, _ in classes], [share for _, share in classes]
    found, throughput = (utility.objective(name, weights, shares) for name in (aim, "throughput"))
    assert found <= throughput + 1e-9
    alike = [shares[0]] * len(weights)
    assert utility.objective(aim, weights, alike) == pytest.approx(shares[0] * sum(weights), abs=1e-9)


@given(SHARES, st.sampled_from(["throughput", "proportional", "max_min"]))
def test_a_program_has_the_objective_of_its_rates(classes: list[tuple[float, float]], aim: str) -> None:
    """With every rate held where it is."""
    solver, weights = programs.linear(), [weight for weight, _ in classes]
    rates = [(solver.NumVar(2.0 * share, 2.0 * share, ""), 2.0, weight) for weight, share in classes]
    utility.maximize(solver, aim, rates)
    assert solver.Solve() == solver.OPTIMAL
    found = utility.from_program(aim, sum(weights), solver.Objective().Value())
    assert found == pytest.approx(utility.objective(aim, weights, [share for _, share in classes]), rel=1e-6, abs=1e-6)


# --- plans ---


def test_the_sum_alone_lets_a_class_stand_and_the_default_does_not(known: tuple[Profile, Catalogue]) -> None:
    summed, default = planned(known, "throughput"), planned(known, "")
    assert summed.feasible and summed.tasks["cheap"].action_rate_hz < 0.06
    assert default.feasible and default.tasks["cheap"].action_rate_hz > 0.5
    assert default.tasks["dear"].action_rate_hz >= default.tasks["cheap"].action_rate_hz * (1 - 1e-9)
    assert default.objective > 0.99 * planned(known, "max_min").throughput, "all at one share are a plan, too"
    assert default.objective <= default.throughput <= summed.throughput * (1 + 1e-9)


def test_a_class_whose_actions_are_worth_more_goes_faster_where_queues_let_it(known: tuple[Profile, Catalogue]) -> None:
    """With an SLO of 200 ms they do not: only queues in which all robots wait alike keep it at that load."""
    factory = parse_factory(SHARED.format(objective="").replace("slo_ms: 200", "slo_ms: 300"))
    roomy = plan_factory(factory, *known, explained=False)
    assert roomy.feasible and roomy.tasks["dear"].action_rate_hz > 1.5 * roomy.tasks["cheap"].action_rate_hz


def test_the_lowest_share_is_as_high_as_it_can_be(known: tuple[Profile, Catalogue]) -> None:
    lowest = planned(known, "max_min")
    rates = [task.action_rate_hz for task in lowest.tasks.values()]
    assert lowest.feasible and min(rates) > 0.95 * max(rates), "both have the same pace, and need the same server"
    assert min(rates) > planned(known, "").tasks["cheap"].action_rate_hz


def test_of_one_class_all_objectives_are_the_throughput(known: tuple[Profile, Catalogue]) -> None:
    text = """
server_cluster: {{num_servers: 1, gpu_type: NVIDIA H200}}
planning: {{objective: {aim}}}
robot_fleet: [{{task: pick, num_robots: 6}}]
pick: {{pipeline: {{action_period_ms: 150}}, components: {{system1: {{model: nvidia/GR00T-N1.6-3B, slo_ms: 150}}}}}}
"""
    plans = [plan_factory(parse_factory(text.format(aim=aim)), *known) for aim in ("throughput", "proportional", "max_min")]
    assert len({round(plan.objective, 6) for plan in plans}) == 1 and plans[1].objective == pytest.approx(plans[1].throughput)


@pytest.mark.parametrize("aim", ["throughput", "proportional", "max_min"])
def test_no_plan_is_above_the_bound_of_its_objective(aim: str) -> None:
    for seed in range(3):
        case = random_factory(Size(servers=4, robots=16, classes=3, models=2), seed)
        factory = case.factory.model_copy(update={"planning": Planning(objective=aim)})
        plan = plan_factory(factory, case.profile, explained=False, work=0.05)
        assert plan.feasible and plan.objective <= plan.bound * (1 + 1e-6), seed


def test_the_papers_factories_have_the_papers_objective(repository: Path) -> None:
    for file in sorted((repository / "config" / "rosa").glob("*.yaml")):
        assert load_factory(file).planning.objective == "throughput", file.name


def test_another_word_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ConfigurationError, match=r"objective[\s\S]*proportional"):
        parse_factory(SHARED.format(objective="objective: fair"))


# --- what the bound says little of ---


def test_no_gap_is_printed_of_shared_gpus(known: tuple[Profile, Catalogue]) -> None:
    text = SHARED.format(objective="").replace(
        "cheap: {pipeline: {action_period_ms: 100}, components: {system1: {model: nvidia/GR00T-N1.6-3B",
        "cheap: {pipeline: {action_period_ms: 100}, components: {system1: {model: physical-intelligence/pi0.5",
    )
    plan = plan_factory(
        parse_factory(text.replace("num_robots: 10", "num_robots: 1").replace("slo_ms: 200", "slo_ms: 900")), *known
    )
    assert plan.feasible and plan.shares_gpus and not plan.bounded
    assert math.isnan(plan.shown_gap) and plan.to_json()["gap"] is None


def test_no_gap_is_printed_of_the_lowest_share(known: tuple[Profile, Catalogue]) -> None:
    lowest = planned(known, "max_min")
    assert lowest.feasible and not lowest.bounded and math.isnan(lowest.shown_gap) and lowest.to_json()["gap"] is None
    assert lowest.by_lowest and not planned(known, "").by_lowest


CROWDED = """
server_cluster: {num_servers: 1, gpu_type: NVIDIA H200, batching: continuous}
robot_fleet: [{task: pick, num_robots: 12}]
pick:
  pipeline: {action_period_ms: 300}
  percentile: 95
  execution: {mode: async}
  components: {system1: {model: nvidia/GR00T-N1.6-3B, slo_ms: 100.2}}
"""


@pytest.mark.parametrize(
    ("text", "loose"),
    [(CROWDED, "keep SLOs by their own queue"), (SHARED.format(objective=""), "own queue is slower than the curves")],
)
def test_no_gap_is_printed_where_robots_queues_decide(known: tuple[Profile, Catalogue], text: str, loose: str) -> None:
    """Whether they let a plan go beyond the curves, or hold it below them: the bound knows only the curves."""
    plan = plan_factory(parse_factory(text), *known, explained=False)
    assert plan.feasible and plan.objective < 0.9 * plan.bound and not plan.bounded
    assert math.isnan(plan.shown_gap) and plan.to_json()["gap"] is None
    printed = summary(plan).plain
    assert "(gap" not in printed and "loose bound" in printed and loose in printed


def test_a_gap_is_printed_where_the_curves_decide() -> None:
    case = random_factory(Size(servers=4, robots=16, classes=3, models=2), 0)
    plan = plan_factory(case.factory, case.profile, explained=False)
    assert plan.bounded and 0.0 <= plan.shown_gap < 0.1 and "(gap" in summary(plan).plain


# --- changes between plans ---


def in_force(known: tuple[Profile, Catalogue], solution: Solution, objective: str) -> ActiveFleet:
    factory = parse_factory(SHARED.format(objective=f"objective: {objective}"))
    return fleet_of(factory, solution, factory.robots, *known, epoch=1)


def test_a_fair_plan_replaces_one_that_lets_a_class_stand_and_is_not_undone(known: tuple[Profile, Catalogue]) -> None:
    """Although it gets less done by the sum; where that is the objective it is the other way round."""
    summed, fair = planned(known, "throughput"), planned(known, "proportional")
    for objective, better, worse in (("proportional", fair, summed), ("throughput", summed, fair), ("max_min", fair, summed)):
        good, bad = in_force(known, better, objective), in_force(known, worse, objective)
        assert migration(bad, good.schedule).worth_it and not gives_up(bad, good), objective
        assert not migration(good, bad.schedule).worth_it and gives_up(good, bad), objective


def test_what_robots_without_a_rate_would_do_is_missing(known: tuple[Profile, Catalogue]) -> None:
    fleet = in_force(known, planned(known, "proportional"), "proportional")
    rates = {robot.name: 1.0 for robot in fleet.robots}
    all_of_them = fleet.objective_hz(rates)
    assert 0 < fleet.objective_hz({name: hz for name, hz in rates.items() if name.startswith("dear")}) < all_of_them

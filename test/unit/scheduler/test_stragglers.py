"""Plans for services that take longer than others (`planning.stragglers`)."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.factory import Catalogue, Factory, parse_factory
from ros2_rfm_serving.factory.cluster import Planning, StragglerConfig
from ros2_rfm_serving.profiles import Profile, ProfileRow, load_profiles, with_stragglers
from ros2_rfm_serving.scheduler import plan_factory, to_schedule
from ros2_rfm_serving.scheduler.estimates import AS_DECLARED
from ros2_rfm_serving.simulation import SimulationConditions, simulate, simulate_watched
from ros2_rfm_serving.simulation import conditions as given
from ros2_rfm_serving.simulation.profiled_factories import profiled_factory
from ros2_rfm_serving.simulation.scheduler import SimulatedScheduler

SLOW = StragglerConfig(share=0.02, factor=4.0)


@pytest.fixture(scope="module")
def shipped(repository: Path) -> tuple[Profile, Catalogue]:
    folder = repository / "config" / "profiles"
    return load_profiles(folder), Catalogue.load(folder / "models.yaml")


def promising(percentile: float, declared: StragglerConfig | None, seed: int = 58) -> Factory:
    factory = profiled_factory(seed, network=False)
    tasks = {name: task.model_copy(update={"percentile": percentile}) for name, task in factory.tasks.items()}
    return factory.model_copy(update={"tasks": tasks, "planning": Planning(stragglers=declared)})


@pytest.mark.parametrize("declared", [SLOW, None])
def test_a_plan_that_counts_stragglers_keeps_its_slo_among_them_and_one_that_does_not_misses_it(
    shipped: tuple[Profile, Catalogue], declared: StragglerConfig | None
) -> None:
    factory = promising(95, declared)
    schedule = to_schedule(plan_factory(factory, *shipped, explained=False), factory.robots, epoch=1)
    slow = SimulationConditions(stragglers=given.StragglerConditions.declared(SLOW))
    report = simulate(schedule, factory, shipped[1], shipped[0], seconds=12, seed=0, conditions=slow)
    system1 = report.components["system1"]
    least = 0.95 - 3 * math.sqrt(0.95 * 0.05 / system1.count)
    assert (system1.slo_attainment >= least) == bool(declared)


def test_what_nobody_could_keep_says_what_could_be(shipped: tuple[Profile, Catalogue]) -> None:
    """Of 100 requests two take four times as long whatever a plan does."""
    solution = plan_factory(promising(99, SLOW), *shipped, explained=False)
    text = "; ".join(solution.problems)
    assert not solution.servers and "0.02 of all services take 4 times as long" in text and "a percentile below 98" in text


def test_percentiles_are_those_of_a_mixture() -> None:
    """Of requests that share a server, each of which takes longer for itself alone; between few measured percentiles."""
    rng = np.random.default_rng(0)
    alone_s = rng.gamma(4.0, 0.05, 400_000)
    row = [1e3 * float(np.mean(alone_s)), *(1e3 * float(np.percentile(alone_s, p)) for p in (50, 90, 95, 99))]
    profile = Profile.of([ProfileRow("llm", "GPU", "continuous", 1, rate_hz, *row) for rate_hz in (1.0, 2.0)])
    drawn_s = alone_s * np.where(rng.random(len(alone_s)) < 0.1, 3.0, 1.0)
    rates, mean_s, columns = with_stragglers(profile, 0.1, 3.0).curve_arrays("llm", "GPU", "continuous", 1)
    assert rates.tolist() == pytest.approx([1 / 1.2, 2 / 1.2]) and mean_s[0] == pytest.approx(np.mean(drawn_s), rel=0.01)
    for p in (90, 95, 99):
        assert 0.95 < columns[f"p{p}"][0] / np.percentile(drawn_s, p) < 1.25


def test_whoever_comes_while_a_batch_straggles_waits_for_it() -> None:
    """The rarer requests are, the fewer do."""
    rows = [ProfileRow("vla", "GPU", "fixed", 1, rate_hz, 50.0, 50.0, 50.0, 50.0, 50.0) for rate_hz in (0.2, 20.0)]
    rates, mean_s, columns = with_stragglers(Profile.of(rows), 0.02, 4.0).curve_arrays("vla", "GPU", "fixed", 1)
    assert rates.tolist() == pytest.approx([0.2 / 1.06, 20 / 1.06]) and columns["p99"][0] == pytest.approx(0.2)
    assert mean_s[0] == pytest.approx(0.053, rel=0.01) and mean_s[1] > 0.055
    assert columns["p95"][0] == pytest.approx(0.05, rel=0.01) and columns["p95"][1] > 0.06


def test_in_virtual_time_services_straggle_as_declared_and_nobody_takes_it_for_drift(shipped: tuple[Profile, Catalogue]) -> None:
    often = StragglerConfig(share=0.1, factor=3.0)
    factory = parse_factory("""
server_cluster: {num_servers: 2, gpu_type: NVIDIA H200}
planning: {stragglers: {share: 0.1, factor: 3.0}}
robot_fleet: [{task: pick, num_robots: 6}]
pick: {percentile: 80, pipeline: {action_period_ms: 300}, components: {system1: {model: nvidia/GR00T-N1.6-3B, slo_ms: 300}}}
""")
    assert factory.planning.stragglers == often
    report, scheduler = simulate_watched(factory, shipped[1], shipped[0], seconds=20, seed=1, work=0.05)
    assert scheduler.lookout.watch.seen == AS_DECLARED and len(scheduler.schedules) == 1
    usual = simulate_watched(
        factory,
        shipped[1],
        shipped[0],
        seconds=20,
        seed=1,
        work=0.05,
        conditions=SimulationConditions(stragglers=given.StragglerConditions()),
    )
    assert report.components["system1"].p99_s > 1.5 * usual.report.components["system1"].p99_s


@pytest.mark.patient
def test_stragglers_that_nobody_declared_are_found_and_planned_for(shipped: tuple[Profile, Catalogue]) -> None:
    """99 % of these SLOs nobody can keep then: as many as can be."""
    factory = promising(99, None)

    def kept(*, watches: bool) -> tuple[float, SimulatedScheduler]:
        slow = SimulationConditions(stragglers=given.StragglerConditions.declared(SLOW))
        made = {"seconds": 20, "seed": 0, "warm_up_s": 60.0, "conditions": slow, "watches": watches, "work": 0.1}
        report, scheduler = simulate_watched(factory, shipped[1], shipped[0], **made)
        return report.components["system1"].slo_attainment, scheduler

    (seeing, scheduler), (blind, _) = kept(watches=True), kept(watches=False)
    found = scheduler.lookout.watch.seen.stragglers
    assert set(found) == set(factory.servers) and len(set(found.values())) == 1 and not scheduler.lookout.watch.seen.paces
    assert found["server_1"].share == pytest.approx(0.02, abs=0.012) and found["server_1"].factor == pytest.approx(4.0, abs=0.8)
    assert blind < 0.9 < 0.93 < seeing


def test_a_share_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="share"):
        parse_factory("""
server_cluster: {num_servers: 1, gpu_type: CPU}
planning: {stragglers: {share: 2, factor: 4}}
robot_fleet: [{task: pick, num_robots: 1}]
pick: {pipeline: {action_period_ms: 300}, components: {system1: {model: rfm/metaworld-flow, prompt: go}}}
""")

"""An SLO is called impossible by what was measured, and by the law of that: not by the lowest load that happened to be measured,
nor by the next higher percentile."""

from __future__ import annotations

from pathlib import Path

import pytest

from ros2_rfm_serving.factory import Catalogue, Factory, parse_factory
from ros2_rfm_serving.profiles import Profile, load_profiles
from ros2_rfm_serving.scheduler import plan_factory, to_schedule
from ros2_rfm_serving.scheduler.prediction.curves import Curves, ServerConfiguration
from ros2_rfm_serving.simulation import simulate

CHECKING = "Qwen2.5-VL-3B-Instruct"
H200 = "NVIDIA H200"


@pytest.fixture(scope="module")
def shipped(repository: Path) -> tuple[Profile, Catalogue]:
    folder = repository / "config" / "profiles"
    return load_profiles(folder), Catalogue.load(folder / "models.yaml")


def factory(percentile: float, slo_ms: float) -> Factory:
    """One robot that asks for safety once in three seconds: the lowest load that was measured is 16.75 Hz."""
    return parse_factory(f"""
server_cluster: {{num_servers: 2, gpu_type: {H200}}}
standby: {{peers: false}}
robot_fleet: [{{task: carry, num_robots: 1}}]
carry:
  percentile: {percentile}
  pipeline: {{action_period_ms: 300}}
  components:
    system1: {{model: nvidia/GR00T-N1.6-3B, slo_ms: 400}}
    safety: {{model: {CHECKING}, slo_ms: {slo_ms}, freq_hz: 0.3}}
""")


@pytest.mark.parametrize(("percentile", "slo_ms"), [(75, 210), (90, 225), (91, 228), (96, 240), (99, 235)])
def test_what_a_robot_alone_keeps_is_planned(percentile: float, slo_ms: float, shipped: tuple[Profile, Catalogue]) -> None:
    declared = factory(percentile, slo_ms)
    plan = plan_factory(declared, *shipped, explained=False)
    assert plan.feasible, plan.problems
    report = simulate(to_schedule(plan, declared.robots, epoch=1), declared, shipped[1], shipped[0], seconds=600, seed=0)
    assert report.components["safety"].slo_attainment >= percentile / 100


def test_what_it_does_not_keep_is_said_to_be_so_by_what_was_measured(shipped: tuple[Profile, Catalogue]) -> None:
    plan = plan_factory(factory(90, 200), *shipped, explained=False)
    assert "unloaded by what was measured; by that the SLO of 200 ms cannot be met" in plan.problems[0]


def test_below_the_lowest_measured_load_latency_follows_the_law_of_what_was_measured(shipped: tuple[Profile, Catalogue]) -> None:
    curves = Curves(shipped[0], [CHECKING], [H200], [(CHECKING, H200)])
    (config,) = curves.of(CHECKING)
    footprint = shipped[1].footprint(CHECKING, H200)
    assert footprint and footprint.service
    alone_s, measured_hz = footprint.service.law().mean_s(1), 16.75
    assert curves.mean(config).at(0.0) == pytest.approx(alone_s, rel=0.01)
    rows = shipped[0].column(CHECKING, H200, "continuous", 1, "p90")
    tail = curves.quantile(config, 90)
    assert tail.at(0.0) < tail.at(5.0) < tail.at(measured_hz) == rows[1][0]
    assert tail.highest_hz(tail.at(5.0)) == pytest.approx(5.0) and curves.mean(_alike(config)).at(0.0) == 2 * curves.mean(
        config
    ).at(0.0)


def _alike(config: ServerConfiguration) -> ServerConfiguration:
    """The same with half of a GPU."""
    return ServerConfiguration(config.model, config.gpu_type, config.batching, config.batch_size, slices=2)

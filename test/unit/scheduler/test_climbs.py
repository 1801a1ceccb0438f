"""Classes that caps hold down, though their robots' queues would let them act more often."""

from __future__ import annotations

from pathlib import Path

from ros2_rfm_serving.factory import Catalogue, parse_factory
from ros2_rfm_serving.profiles import load_profiles
from ros2_rfm_serving.scheduler import fleet_of, plan_factory, to_schedule
from ros2_rfm_serving.scheduler.explain_route import choices
from ros2_rfm_serving.simulation import simulate

FACTORY = """
server_cluster: {num_servers: 6, gpu_type: NVIDIA H200, dispatch: fifo}
planning: {objective: throughput}
robot_fleet: [{task: sort, num_robots: 11}, {task: carry, num_robots: 9}, {task: look, num_robots: 3}]
sort:
  value: 1.3
  percentile: 97
  pipeline: {action_period_ms: 320}
  components:
    system1: {model: nvidia/GR00T-N1.6-3B, slo_ms: 91.1}
    safety: {model: Qwen2.5-VL-7B-Instruct, slo_ms: 1421.4, freq_hz: 3.41}
    monitor: {model: Qwen2.5-VL-7B-Instruct, slo_ms: 2094.6, freq_hz: 0.33}
carry:
  value: 3.18
  percentile: 75
  pipeline: {action_period_ms: 411, system2_to_system1_call_ratio: 0.1}
  components:
    system1: {model: nvidia/GR00T-N1.6-3B, slo_ms: 76.2}
    system2: {model: Qwen2.5-VL-7B-Instruct, slo_ms: 1271.1}
    safety: {model: Qwen2.5-VL-7B-Instruct, slo_ms: 1746.7, freq_hz: 3.59}
look:
  value: 2.57
  percentile: 97
  pipeline: {action_period_ms: 262, system2_to_system1_call_ratio: 1.0}
  components:
    system1: {model: physical-intelligence/pi0.5, slo_ms: 96.2}
    system2: {model: Qwen2.5-VL-7B-Instruct, slo_ms: 1334.5}
    safety: {model: Qwen2.5-VL-3B-Instruct, slo_ms: 344.6, freq_hz: 0.81}
  execution: {mode: async}
"""
"""With caps in the proportion that the curves have them in, robots of `sort` acted once in 100 s: they meet others as slow again
and again, and their server kept no SLO at the higher loads that were looked at."""


def test_a_class_at_its_lowest_rate_is_tried_at_higher_ones_alone(repository: Path) -> None:
    folder, declared = repository / "config" / "profiles", parse_factory(FACTORY)
    profile, catalogue = load_profiles(folder), Catalogue.load(folder / "models.yaml")
    plan = plan_factory(declared, profile, catalogue, explained=False)
    assert plan.feasible and plan.tasks["sort"].slowest_rate_hz > 0.5 and plan.objective > 59, plan.tasks
    fleet = fleet_of(declared, plan, declared.robots, profile, catalogue, epoch=1)
    costs = [one for choice in choices(fleet, "carry_9") for one in choice.alternatives]
    assert costs and all(one.by_curves for one in costs), "what the queues say of them nobody has looked at"
    report = simulate(to_schedule(plan, declared.robots, epoch=1), declared, catalogue, profile, seconds=30, seed=0)
    for task, of in report.task_components.items():
        assert all(found.slo_attainment >= declared.tasks[task].percentile / 100 for found in of.values()), task
    assert report.tasks["sort"].raw > 0.9 * 11 * plan.tasks["sort"].action_rate_hz

"""Fewer GPUs than models: they share some in time slices, and what is called impossible is."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from ros2_rfm_serving.factory import Catalogue, Factory, parse_factory
from ros2_rfm_serving.profiles import Profile, load_profiles
from ros2_rfm_serving.scheduler import plan_factory, to_schedule
from ros2_rfm_serving.scheduler.build_problem import curves_of, problem_of
from ros2_rfm_serving.scheduler.policies.time_slices import sliced
from ros2_rfm_serving.simulation import simulate

H200_GB = 141.0


@pytest.fixture(scope="module")
def shipped(repository: Path) -> tuple[Profile, Catalogue]:
    folder = repository / "config" / "profiles"
    return load_profiles(folder), Catalogue.load(folder / "models.yaml")


def factory(robots: int, servers: int, *, slo_ms: float = 400, more: str = "") -> Factory:
    return parse_factory(f"""
server_cluster: {{num_servers: {servers}, gpu_type: NVIDIA H200}}
standby: {{peers: false}}
robot_fleet: [{{task: carry, num_robots: {robots}}}{", {task: stack, num_robots: 1}" if more else ""}]
carry:
  pipeline: {{action_period_ms: 300, system2_to_system1_call_ratio: 0.05}}
  components:
    system1: {{model: nvidia/GR00T-N1.6-3B, slo_ms: {slo_ms}}}
    system2: {{model: Qwen2.5-VL-7B-Instruct, slo_ms: 4000}}
    safety: {{model: Qwen2.5-VL-3B-Instruct, slo_ms: 2000, freq_hz: 0.2}}
{more}
""")


OTHER = """
stack:
  pipeline: {action_period_ms: 300}
  components: {system1: {model: physical-intelligence/pi0.5, slo_ms: 900}}
"""


@pytest.mark.parametrize("objective", ["proportional", "throughput", "max_min"])
def test_too_few_gpus_are_planned_by_each_objective(shipped: tuple[Profile, Catalogue], objective: str) -> None:
    """The search for the lowest share ended with a ValueError: no server of its own is left for any model."""
    text = f"""
server_cluster: {{num_servers: 1, gpu_type: NVIDIA H200}}
planning: {{objective: {objective}}}
robot_fleet: [{{task: carry, num_robots: 1}}, {{task: stack, num_robots: 1}}]
carry: {{pipeline: {{action_period_ms: 300}}, components: {{system1: {{model: nvidia/GR00T-N1.6-3B, slo_ms: 900}}}}}}
{OTHER}
"""
    plan = plan_factory(parse_factory(text), *shipped, explained=False)
    assert plan.feasible and plan.shares_gpus


@pytest.mark.parametrize(("robots", "servers", "more"), [(3, 2, ""), (2, 1, ""), (2, 2, OTHER)])
def test_models_share_gpus_where_there_are_fewer_and_keep_every_slo(
    robots: int, servers: int, more: str, shipped: tuple[Profile, Catalogue]
) -> None:
    declared = factory(robots, servers, more=more)
    plan = plan_factory(declared, *shipped, explained=False)
    assert plan.feasible and plan.objective <= plan.bound, plan.problems
    names = [server.server for server in plan.servers]
    assert len(set(names)) == len(names) and len({server.gpu or server.server for server in plan.servers}) <= servers
    report = simulate(to_schedule(plan, declared.robots, epoch=1), declared, shipped[1], shipped[0], seconds=60, seed=0)
    assert all(found.slo_attainment >= 0.99 for of in report.task_components.values() for found in of.values())


def test_that_no_schedule_can_is_said_only_where_shared_gpus_cannot_either(shipped: tuple[Profile, Catalogue]) -> None:
    wanted = plan_factory(factory(2, 1, slo_ms=130), *shipped, explained=False)
    assert not wanted.feasible and math.isfinite(wanted.bound)
    assert "the bound does not rule one out" in wanted.problems[0] and "or share GPUs in time slices" in wanted.problems[1]
    hopeless = plan_factory(factory(900, 1), *shipped, explained=False)
    assert hopeless.problems[0].startswith("no schedule can") and hopeless.bound == -math.inf


def test_models_that_share_a_gpu_have_room_on_it_together(shipped: tuple[Profile, Catalogue]) -> None:
    declared = factory(2, 1)
    problem = problem_of(declared, Counter(robot.task for robot in declared.robots), *shipped)
    needed_gb = sum(problem.memory_gb[model, "NVIDIA H200"] for model in problem.models)
    assert needed_gb <= problem.gpu_memory_gb["NVIDIA H200"] == H200_GB
    assert any(sliced(problem, curves := curves_of(problem, shipped[0])))
    assert not any(sliced(replace(problem, gpu_memory_gb={"NVIDIA H200": needed_gb - 1}), curves))

"""Small factories in virtual time, as the tests of `simulation/` use them."""

from __future__ import annotations

import math
from dataclasses import replace

from ros2_rfm_serving.factory import Catalogue, Factory, parse_factory
from ros2_rfm_serving.simulation import (
    Report,
    SimulationConditions,
    simulate,
)
from ros2_rfm_serving.types import Placement, Route, Schedule

T_ACT_S, SERVICE_S, PLAN_S, CHECK_S = 0.2, 0.05, 0.5, 0.1


def models(jitter: float = 0.0) -> Catalogue:
    """vla: 40 + 10 b ms, of which 12 + 6 b are perception and the rest 4 steps; planner alone 500 ms; judge alone 100 ms."""

    def gpu(**service: object) -> dict[str, object]:
        return {
            "GPU": {"memory_gb": 1, "load_s": 3, "source": "test", "derivation": "test", "service": {"jitter": jitter, **service}}
        }

    steps = {"num_steps": 4, "perception_base_ms": 12, "perception_per_row_ms": 6, "sizes": [1, 2, 3, 4, 6, 8]}
    vla = gpu(batching="fixed", base_ms=40, per_row_ms=10, batch_sizes=[1, 2, 4, 8], steps=steps)
    planner = gpu(batching="continuous", base_ms=450, per_request_ms=50, max_concurrent=4)
    judge = gpu(batching="continuous", base_ms=90, per_request_ms=10)
    return Catalogue.model_validate(
        {
            "models": {
                "vla": {"engine": "emulated", "gpus": vla},
                "planner": {"engine": "emulated", "output": "plan", "gpus": planner},
                "judge": {"engine": "emulated", "output": "judgement", "gpus": judge},
            }
        }
    )


def factory(
    num_robots: int = 1,
    *,
    plans: float = 0.0,
    safety: bool = False,
    mode: str = "sync",
    slo_ms: float = 400,
    servers: str = "dispatch: fifo",
) -> Factory:
    """`servers`: keys of the cluster."""
    components = [f"system1: {{model: vla, prompt: go, slo_ms: {slo_ms:g}}}"]
    if plans:
        components.append("system2: {model: planner, prompt: plan, slo_ms: 2000}")
    if safety:
        components.append("safety: {model: judge, prompt: safe, slo_ms: 300, freq_hz: 2}")
    lines = "\n".join(f"    {line}" for line in components)
    return parse_factory(f"""
server_cluster: {{num_servers: 4, gpu_type: GPU, {servers}}}
robot_fleet: [{{task: pick, num_robots: {num_robots}}}]
pick:
  execution: {{mode: {mode}}}
  pipeline: {{action_period_ms: {1e3 * T_ACT_S:g}, system2_to_system1_call_ratio: {plans:g}}}
  components:
{lines}
""")


SERVERS = {"system1": ("s1", "vla"), "system2": ("s2", "planner"), "safety": ("s3", "judge")}


def schedule(
    plant: Factory,
    *,
    batch_size: int = 1,
    batching: str = "fixed",
    rate_hz: float = math.inf,
    standby: bool = False,
    gpu: str = "",
    epoch: int = 1,
) -> Schedule:
    """`batching` is System 1's. Everything of a component on one server; with `standby`, a second one for System 1."""
    (task,) = plant.tasks.values()
    placements, routes = [], []
    for component, spec in task.components.items():
        server, model = SERVERS[component]
        size, way = (batch_size, batching) if component == "system1" else (1, "continuous")
        place = Placement(
            server=server,
            model=model,
            components=(component,),
            gpu_type="GPU",
            batching=way,
            batch_size=size,
            max_sessions=100,
            predicted_p99_s=0.0,
            gpu=gpu,
        )
        placements.append(place)
        spare = "spare" if standby and component == "system1" else ""
        if spare:
            placements.append(replace(place, server=spare, standby=True, gpu=""))
        for robot in plant.robots:
            pace = rate_hz if component == "system1" else spec.freq_hz or math.inf
            slo_s = (spec.slo_ms or 0.0) / 1e3
            routes.append(Route(robot=robot.name, component=component, server=server, max_rate_hz=pace, slo_s=slo_s, standby=spare))
    return Schedule(epoch=epoch, placements=tuple(placements), routes=tuple(routes), predicted_actions_hz=0.0, policy="test")


def run(
    plant: Factory, plan: Schedule | None = None, *, seconds: float = 60.0, seed: int = 1, jitter: float = 0.0, **conditions: object
) -> Report:
    given_conditions = SimulationConditions(**conditions)  # type: ignore[arg-type]
    return simulate(plan or schedule(plant), plant, models(jitter), seconds=seconds, seed=seed, conditions=given_conditions)


def balanced(report: Report) -> bool:
    c = report.counters
    return c.sent == c.answered + c.late + c.lost + c.refused + c.dropped + c.in_flight

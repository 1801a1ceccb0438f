"""A small factory as a recording would have it: some robots of 20 Hz before servers whose batches take 60 ms and 10 ms per row."""

from __future__ import annotations

from random import Random

from ros2_rfm_serving.audit.whatif.case import Batch, Carried, Case, RobotCase, ServerCase, Ticked, TimedEvent
from ros2_rfm_serving.robot import RobotConfig, TaskGoal
from ros2_rfm_serving.robot.events import TaskStarted
from ros2_rfm_serving.server import ServerConfig
from ros2_rfm_serving.types import SYSTEM1, Conditioning, ModelContract, OutputKind, Placement, Route, Schedule

SECONDS, RATE_HZ = 20.0, 20.0
CONTRACT = ModelContract(
    model="emulated smolvla",
    model_hash="",
    output=OutputKind.ACTION_CHUNK,
    action_names=("x",),
    chunk_length=32,
    max_inference_delay_steps=32,
    conditionings=tuple(Conditioning),
    emulated=True,
)


def batch_s(rows: int) -> float:
    return 0.06 + 0.01 * rows


def robot(name: str, *, commands: tuple[TimedEvent, ...] | None = None, network: tuple[Carried, ...] | None = None) -> RobotCase:
    begins_s = 0.05 * Random(name).random()
    ticks = tuple(Ticked(begins_s + i / RATE_HZ, 0.002, 0.05, 0.05, True) for i in range(int(SECONDS * RATE_HZ)))
    goal = TaskGoal(task="push", instruction="push it", time_budget_s=60.0, reset=False)
    return RobotCase(
        config=RobotConfig(name=name, action_names=("x",), cameras=("top",), state_size=1, control_rate_hz=RATE_HZ),
        task="push",
        ticks=ticks,
        commands=(TimedEvent(0.2, TaskStarted(goal)),) if commands is None else commands,
        network=tuple(Carried(0.5 * i, 0.01) for i in range(40)) if network is None else network,
    )


def server(name: str = "server_1", *, batch_size: int = 4, rows: tuple[int, ...] = (1, 2, 3, 4)) -> ServerCase:
    placement = Placement(
        server=name,
        model="smolvla",
        components=(SYSTEM1,),
        gpu_type="any",
        batching="fixed",
        batch_size=batch_size,
        max_sessions=64,
        predicted_p99_s=0.2,
    )
    batches = tuple(Batch(0.1 * i, rows[i % len(rows)], rows[i % len(rows)], batch_s(rows[i % len(rows)])) for i in range(100))
    config = ServerConfig(name=name, batch_size=batch_size, max_sessions=64, dispatch="fifo")
    return ServerCase(placement=placement, config=config, contract=CONTRACT, batches=batches)


def case(num_robots: int = 4, **of_server: object) -> Case:
    robots = {name: robot(name) for name in (f"push_{i + 1}" for i in range(num_robots))}
    one = server(**of_server)  # type: ignore[arg-type]
    routes = tuple(
        Route(robot=name, component=SYSTEM1, server=one.name, max_rate_hz=20.0, slo_s=0.3, task="push") for name in robots
    )
    schedule = Schedule(epoch=1, placements=(one.placement,), routes=routes, predicted_actions_hz=0.0, policy="best", scheduler=7)
    return Case(seconds=SECONDS, warm_up_s=2.0, robots=robots, servers={one.name: one}, schedules=((0.0, schedule),))

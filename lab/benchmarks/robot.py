"""`rfm bench robot`: cost of one control period of the decision core, with a stub's replies in virtual time, without ROS."""

from __future__ import annotations

import json
import time
from collections import deque
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np
import typer
from rich.table import Table

from ros2_rfm_serving.errors import RfmError
from ros2_rfm_serving.operate.inputs import console, write_text

if TYPE_CHECKING:
    from ros2_rfm_serving.robot import RobotConfig, RobotCore
    from ros2_rfm_serving.robot.limits import MotionLimits
    from ros2_rfm_serving.types import ActionChunk, ObservationRequest

SERVER, ROBOT, MODEL_HASH = "stub", "bench", "stub"
STATUS_PERIOD_S = 0.5
WARM_UP = 500
"""Ticks before each round's first."""


class Load(NamedTuple):
    """Load of the robot, which is the same in all modes."""

    num_actions: int
    chunk_length: int
    control_rate_hz: float
    execution_horizon: int
    delay_steps: int

    @property
    def action_names(self) -> tuple[str, ...]:
        return tuple(f"joint_{i}" for i in range(self.num_actions))


class Round(NamedTuple):
    p50_us: float
    p99_us: float
    ticks_per_s: float
    """Rate on one core, including replies."""
    executed: float
    """Share of the ticks that commanded an action: a waiting robot costs less."""
    requests: int


LIMITED = "prefix, all limits"
"""Position commands within limits of value, velocity and acceleration."""
RECORDED = "prefix, all limits, recorded"
"""The same with a subscriber of its audit log."""
MODES = ("synchronous", "naive asynchronous", "prefix", LIMITED, RECORDED, "guided")


def robot(
    ticks: Annotated[int, typer.Option(min=1000, help="Of every round")] = 20_000,
    rounds: Annotated[int, typer.Option(min=1, help="Interleaved repetitions: their spread is reported")] = 5,
    actions: Annotated[int, typer.Option(min=1, help="Columns of an action")] = 14,
    chunk: Annotated[int, typer.Option(min=2, help="Actions of a chunk")] = 50,
    rate_hz: Annotated[float, typer.Option(min=1, help="Control periods per second")] = 50.0,
    horizon: Annotated[int, typer.Option(min=1, help="Actions of a chunk to execute")] = 25,
    delay_steps: Annotated[int, typer.Option(min=0, help="Control periods from a request to its chunk")] = 4,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the figures there")] = None,
) -> None:
    """Time per tick of the robot's brain on one core, without images, by the way it asks for chunks.

    Example:  rfm bench robot --rounds 3
    """
    if horizon + delay_steps >= chunk:
        raise typer.BadParameter(f"{horizon} actions and a delay of {delay_steps} do not fit a chunk of {chunk}")
    load = Load(actions, chunk, rate_hz, horizon, delay_steps)
    results: dict[str, list[Round]] = {mode: [] for mode in MODES}
    for _ in range(rounds):
        for mode in MODES:
            results[mode].append(_measure(mode, load, ticks))
    console.print(f"{actions} actions, chunk {chunk}, {horizon} executed, delay {delay_steps} periods of {1e3 / rate_hz:g} ms")
    console.print(_table(results))
    if json_file:
        figures = {mode: [one._asdict() for one in ones] for mode, ones in results.items()}
        write_text(json_file, json.dumps({"load": load._asdict(), "rounds": figures}, indent=1) + "\n")


def _measure(mode: str, load: Load, ticks: int) -> Round:
    from ros2_rfm_serving.audit.robots.recorded import RecordedBrain
    from ros2_rfm_serving.robot import Sensors

    period_s, state = 1.0 / load.control_rate_hz, np.zeros(load.num_actions, np.float32)
    brain, stub = _brain(mode, load), _Stub(load)
    times_s, executed, requests, now_s, status_s, positions = [], 0, 0, 0.0, -1.0, state
    started_s, journal = 0.0, brain.event_log.journal if isinstance(brain, RecordedBrain) else None
    for i in range(WARM_UP + ticks):
        if i == WARM_UP:
            started_s = time.perf_counter()
        now_s += period_s
        if now_s - status_s >= STATUS_PERIOD_S:
            brain.on_server_status(SERVER, True, now_s)
            status_s = now_s
        for chunk in stub.due(now_s):
            brain.on_reply(chunk, now_s)
        sensors = Sensors(state=state, state_s=now_s, images=(), images_s=now_s, positions=positions)
        before_s = time.perf_counter()
        tick = brain.tick(sensors, now_s)
        if journal is not None:  # as a robot does once its command is sent: the records are encoded for a page
            journal.tend(now_s)
        times_s.append(time.perf_counter() - before_s)
        positions = positions if tick.command is None else tick.command
        executed += i >= WARM_UP and tick.command is not None
        requests += i >= WARM_UP and len(tick.requests)
        stub.take(brain, tick, now_s)
    took_s = time.perf_counter() - started_s
    if requests == 0 or executed < 0.2 * ticks:
        raise RfmError(f"{mode}: only {executed} of {ticks} ticks acted: {brain.state.name} {brain.reason}, {dict(brain.refused)}")
    p50_s, p99_s = np.quantile(times_s[WARM_UP:], (0.5, 0.99))
    return Round(1e6 * float(p50_s), 1e6 * float(p99_s), ticks / took_s, executed / ticks, requests)


def _brain(mode: str, load: Load) -> RobotCore:
    from ros2_rfm_serving.robot import RobotConfig, RobotCore, TaskGoal
    from ros2_rfm_serving.robot.config import CommandType
    from ros2_rfm_serving.robot.limits import MotionLimits
    from ros2_rfm_serving.types import SYSTEM1, Conditioning, Placement, Route, Schedule

    prefixes = dict.fromkeys(("prefix", LIMITED, RECORDED), Conditioning.PREFIX)
    conditionings, limited = {**prefixes, "guided": Conditioning.GUIDED}, mode in (LIMITED, RECORDED)
    make = _recorded if mode == RECORDED else RobotCore
    brain = make(
        RobotConfig(
            name=ROBOT,
            action_names=load.action_names,
            cameras=(),
            state_size=load.num_actions,
            control_rate_hz=load.control_rate_hz,
            execution_horizon=load.execution_horizon,
            synchronous=mode == "synchronous",
            conditioning=conditionings.get(mode, Conditioning.NONE),
            command_type=CommandType.POSITION if limited else CommandType.DELTA,
            limits=_limits(load.num_actions) if limited else MotionLimits(),
        )
    )
    placement = Placement(
        server=SERVER,
        model="stub",
        components=(SYSTEM1,),
        gpu_type="",
        batching="fixed",
        batch_size=1,
        max_sessions=1,
        predicted_p99_s=0.0,
    )
    route = Route(robot=ROBOT, component=SYSTEM1, server=SERVER, max_rate_hz=2.0 * load.control_rate_hz, slo_s=0.0)
    brain.on_schedule(Schedule(epoch=1, placements=(placement,), routes=(route,), predicted_actions_hz=0.0, policy="bench"), 0.0)
    brain.on_server_status(SERVER, True, 0.0)
    brain.start(TaskGoal(task="bench", instruction="go on", time_budget_s=1e9, reset=False), 0.0)
    return brain


def _recorded(config: RobotConfig) -> RobotCore:
    from ros2_rfm_serving.audit.journal import Journal
    from ros2_rfm_serving.audit.robots.recorded import RecordedBrain

    journal = Journal(f"robot/{config.name}", "robot", send=lambda page: None, stamp_s=lambda: 0.0, draw=lambda: 1)
    brain = RecordedBrain(config, journal)
    journal.listeners(1, -1.0)
    journal.tend(0.0)
    return brain


def _limits(num_actions: int) -> MotionLimits:
    from ros2_rfm_serving.robot.limits import MotionLimits

    low, high, fast = (-1.0,) * num_actions, (1.0,) * num_actions, (2.0,) * num_actions
    return MotionLimits(lower=low, upper=high, max_velocity=fast, max_acceleration=tuple(5.0 * v for v in fast))


class _Stub:
    """Stub that answers every request `delay_steps` periods later, always with the same chunk."""

    def __init__(self, load: Load) -> None:
        self._load, self._delay_s = load, (load.delay_steps - 0.5) / load.control_rate_hz
        self._under_way: deque[tuple[float, ObservationRequest]] = deque()
        steps = np.linspace(0.0, 0.1, load.chunk_length, dtype=np.float32)
        self._rows = np.repeat(steps[:, None], load.num_actions, axis=1)

    def take(self, brain: RobotCore, tick: Any, now_s: float) -> None:
        for server, opening in tick.opens:
            brain.on_session_opened(opening.component, server, self._grant(), now_s)
        for reset in tick.resets:
            brain.on_episode_reset(reset, True)
        self._under_way += [(now_s + self._delay_s, request) for _, request in tick.requests]

    def due(self, now_s: float) -> list[ActionChunk]:
        chunks = []
        while self._under_way and self._under_way[0][0] <= now_s:
            chunks.append(self._chunk(self._under_way.popleft()[1]))
        return chunks

    def _grant(self) -> Any:
        from ros2_rfm_serving.types import Conditioning, ModelContract, OutputKind, SessionGrant

        contract = ModelContract(
            model="stub",
            model_hash=MODEL_HASH,
            output=OutputKind.ACTION_CHUNK,
            action_names=self._load.action_names,
            state_size=self._load.num_actions,
            chunk_length=self._load.chunk_length,
            max_inference_delay_steps=self._load.chunk_length - 1,
            conditionings=tuple(Conditioning),
        )
        return SessionGrant(session_epoch=1, contract=contract)

    def _chunk(self, request: ObservationRequest) -> ActionChunk:
        from ros2_rfm_serving.types import ActionChunk, ServingStats, empty

        return ActionChunk(
            id=request.id,
            stamp_ns=request.stamp_ns,
            server=SERVER,
            model_hash=MODEL_HASH,
            action_names=self._load.action_names,
            chunk_model=self._rows,
            chunk_robot=self._rows,
            confidence=empty(0),
            execution_horizon=0,
            inference_delay_steps=request.inference_delay_steps,
            served=ServingStats(queue_wait_s=0.0, inference_s=0.0, batch_size=1, superseded=0, server_load=0.0),
        )


def _table(results: dict[str, list[Round]]) -> Table:
    table = Table(title="the brain alone: median (least to most) of the rounds", title_justify="left")
    table.add_column("asks")
    for heading in ("p50 per tick (us)", "p99 per tick (us)", "ticks/s on one core", "ticks that acted", "requests"):
        table.add_column(heading, justify="right")
    for mode, rounds in results.items():
        table.add_row(
            mode,
            _spread([one.p50_us for one in rounds], ".1f"),
            _spread([one.p99_us for one in rounds], ".1f"),
            _spread([one.ticks_per_s for one in rounds], ",.0f"),
            f"{median(one.executed for one in rounds):.0%}",
            f"{median(one.requests for one in rounds):.0f}",
        )
    return table


def _spread(values: list[float], form: str) -> str:
    return f"{median(values):{form}} ({min(values):{form}} to {max(values):{form}})"

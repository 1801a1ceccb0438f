"""A robot's decision core and its model servers around a simulated arm, in lockstep: the cost of an inference delay in control
steps.

No wall-clock time passes here: the core receives an answer the declared number of control steps after its request. The same core,
server and engine run over the network; this loop is the reference without a machine's own delays. In a pipelined session each frame
takes that long: it answers the request in its last stage (AURAS §4.3).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ros2_rfm_serving.dispatch import CONTINUOUS
from ros2_rfm_serving.engines.base import Engine
from ros2_rfm_serving.robot import RobotConfig, RobotCore, Sensors, TaskGoal
from ros2_rfm_serving.robot.columns import ActionColumns
from ros2_rfm_serving.robot.motion.smoothness import Smoothness
from ros2_rfm_serving.server import ModelServer, ServerConfig
from ros2_rfm_serving.types import (
    SYSTEM1,
    Array,
    EncodedImage,
    Image,
    ObservationRequest,
    Placement,
    Reply,
    Route,
    Schedule,
    SessionRequest,
)
from ros2_rfm_serving.worlds.base import FRAME_EVERY
from ros2_rfm_serving.worlds.metaworld import MetaworldArm

ROBOT = "robot_1"


@dataclass(frozen=True, kw_only=True)
class Trial:
    """Result of one episode."""

    seed: int
    success: bool
    steps: int
    """Control steps to success, or until the episode was given up; they include those before the first chunk."""
    idle_steps: int
    """Steps without an action to execute, after the first chunk."""
    first_chunk_steps: int
    seam_jump: float
    """Largest change of the commanded displacement at a chunk's seam, over the translation's columns."""
    mean_squared_jerk: float
    """Mean over the translation's columns."""


class Loop:
    """One episode with a server per component; `step` is one control period."""

    def __init__(
        self, engines: Mapping[str, Engine], config: RobotConfig, delay_steps: int, schedule: Schedule | None = None
    ) -> None:
        """engines: per component. schedule: with a placement for each; None: every component is requested as often as possible."""
        self.brain = RobotCore(config)
        schedule = schedule or schedule_of(engines)
        self._servers = {
            placement.server: ModelServer(_config_of(placement, config), engines[placement.components[0]])
            for placement in schedule.placements
        }
        self._config, self._delay_steps = config, delay_steps
        self._waiting: list[tuple[int, str, ObservationRequest]] = []
        self._tick = 0
        self.fresh = False
        """Whether a chunk arrived of which no step is executed yet."""
        self.brain.on_schedule(schedule, self.now_s)

    @property
    def now_s(self) -> float:
        return self._tick / self._config.control_rate_hz

    def step(self, state: Array, images: dict[str, Image], period: Callable[[Array | None], None]) -> None:
        """Deliver due answers, tick the core, and pass the command to `period`."""
        self._tick += 1
        now_s = self.now_s
        due, self._waiting = [w for w in self._waiting if w[0] <= self._tick], [w for w in self._waiting if w[0] > self._tick]
        for _, server, request in due:
            self._answer(server, request)
        for server in self._servers:
            self.brain.on_server_status(server, True, now_s)
        encoded = tuple(
            EncodedImage(camera=name, format="rgb8", data=pixels.tobytes(), height_px=pixels.shape[0], width_px=pixels.shape[1])
            for name, pixels in images.items()
        )
        sensors = Sensors(state=state, state_s=now_s, images=encoded, images_s=now_s)
        tick = self.brain.tick(sensors, now_s)
        for server, opening in tick.opens:
            self._open(server, opening)
        for server, request in tick.requests:
            if self._delay_steps:
                self._waiting.append((self._tick + self._delay_steps, server, request))
            else:
                self._answer(server, request)
        command = tick.command
        if command is None and not self._delay_steps:  # the world stood still while the answer was computed
            command = self.brain.tick(sensors, now_s).command
        period(command)

    def _open(self, server: str, opening: SessionRequest) -> None:
        self.brain.on_session_opened(opening.component, server, self._servers[server].open_session(opening), self.now_s)

    def _answer(self, server: str, request: ObservationRequest) -> None:
        self._servers[server].submit(request, self.now_s)
        for reply in _served(self._servers[server], lambda: self.now_s):
            self.fresh = self.brain.on_reply(reply, self.now_s) or self.fresh


def _config_of(placement: Placement, config: RobotConfig) -> ServerConfig:
    """Return the server's configuration. Rows of a pipelined session advance step by step, and one row is left for others."""
    if config.pipelining is None or SYSTEM1 not in placement.components:
        return ServerConfig(name=placement.server)
    return ServerConfig(name=placement.server, batching=CONTINUOUS, batch_size=config.pipelining.depth + 1)


def _served(server: ModelServer, clock: Callable[[], float]) -> list[Reply]:
    """Return all replies that are ready: those of a batch, or of the stages of a frame."""
    replies, moved = server.loop.step(clock), server.loop.is_iteration_level()
    while moved:
        moved, ended = server.loop.round(server.loop.begin(clock()), clock)
        replies += server.loop.complete_all(ended, clock())
    return replies


def run_trials(
    arm: MetaworldArm,
    engine: Engine,
    config: RobotConfig,
    instruction: str,
    seeds: Sequence[int],
    *,
    delay_steps: int,
    max_steps: int = 300,
    noise: float = 0.0,
    progress: Callable[[Trial], None] = lambda trial: None,
) -> list[Trial]:
    """Run one trial per seed.

    delay_steps: from a request to its answer. A synchronous robot stands still meanwhile, and its steps count.
    noise: standard deviation of the disturbance of every executed action, full scale 1.
    """
    trials = []
    for seed in seeds:
        trials.append(_trial(arm, engine, config, instruction, seed, delay_steps, max_steps, noise))
        progress(trials[-1])
    return trials


def _trial(
    arm: MetaworldArm,
    engine: Engine,
    config: RobotConfig,
    instruction: str,
    seed: int,
    delay_steps: int,
    max_steps: int,
    noise: float,
) -> Trial:
    arm.reset(seed)
    rng = np.random.default_rng([seed, 1])
    loop = Loop({SYSTEM1: engine}, config, delay_steps)
    images, steps, idle_steps, first_chunk_steps = arm.render(), 0, 0, 0
    loop.step(arm.state, images, lambda command: None)  # this step opens the session
    run = loop.brain.start(TaskGoal(task="task", instruction=instruction, time_budget_s=1e6, reset=False), loop.now_s)

    held, smooth = np.zeros(4, np.float32), Smoothness(ActionColumns.of(config), 4)

    def period(command: Array | None) -> None:
        nonlocal idle_steps, first_chunk_steps
        if command is None:
            smooth.held()
            idle_steps += bool(run.executed_steps)
            first_chunk_steps += not run.executed_steps
        else:
            smooth.commanded(command, at_seam=loop.fresh)
            loop.fresh, held[3] = False, command[3]  # the gripper keeps its effort while the arm stands
        arm.step((held if command is None else command) + rng.normal(0.0, noise, 4))

    while steps < max_steps and not arm.success:
        loop.step(arm.state, images, period)
        steps += 1
        if steps % FRAME_EVERY == 0:
            images = arm.render()
    return Trial(
        seed=seed,
        success=arm.success,
        steps=steps,
        idle_steps=idle_steps,
        first_chunk_steps=first_chunk_steps,
        seam_jump=float(smooth.seam_jump[:3].max()),
        mean_squared_jerk=float(smooth.mean_squared_jerk[:3].mean()),
    )


def schedule_of(engines: Mapping[str, Engine], rates_hz: Mapping[str, float] = {}) -> Schedule:
    """Return a schedule with a server per component. rates_hz: of components that are not requested as often as possible."""
    placements = tuple(
        Placement(
            server=f"server_{component}",
            model=engine.contract.model,
            components=(component,),
            gpu_type="CPU",
            batching="fixed",
            batch_size=1,
            max_sessions=1,
            predicted_p99_s=0.0,
        )
        for component, engine in engines.items()
    )
    routes = tuple(
        Route(
            robot=ROBOT, component=name, server=f"server_{name}", max_rate_hz=rates_hz.get(name, float("inf")), slo_s=float("inf")
        )
        for name in engines
    )
    return Schedule(epoch=1, placements=placements, routes=routes, predicted_actions_hz=0.0, policy="lockstep")

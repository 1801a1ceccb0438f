"""What moves the robot: actions of the queue, steps between them, limits, and the fallback ladder when there is no action."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from functools import partial

import numpy as np

from ros2_rfm_serving.robot.config import CommandType, RobotConfig
from ros2_rfm_serving.robot.limits import Limits
from ros2_rfm_serving.robot.motion.action_queue import ActionQueue
from ros2_rfm_serving.robot.motion.fallback import FallbackLadder
from ros2_rfm_serving.robot.motion.shaping import CommandShaper, Interpolator
from ros2_rfm_serving.robot.motion.smoothness import Smoothness
from ros2_rfm_serving.types import Array, Chunk, ExecutionReport

_SHAPE = ("limits", "fallback", "safe_pose", "safe_pose_gain")
"""Of a configuration: what ladder and limits consist of."""


class Motor:
    """Every command leaves through here, within limits. `queue` holds what is to be executed."""

    def __init__(self, config: RobotConfig, refused: Counter[str]) -> None:
        """Raises: `ConfigurationError` when limits or ladder do not fit the robot."""
        self.queue = ActionQueue(len(config.action_names), replace=config.replace_queue, compatibility=config.compatibility)
        self.ladder = FallbackLadder(config)
        self.smoothness = Smoothness(config.command_type, len(config.action_names))
        self.staleness_s = math.nan
        """Age of the observation behind the last executed action."""
        self.step_ends_s = -math.inf
        """Until then the last action is being executed."""
        self.chunk_began_s = math.inf
        """When the first action of the newest chunk began to be executed; inf: none has."""
        self._began_s = -math.inf
        """When the last action began to be executed."""
        self._config, self._refused = config, refused
        self._period_s = 1.0 / config.control_rate_hz
        self._step_s = 1.0 / config.step_rate_hz
        self._parts = config.interpolation
        self._interpolator = Interpolator(config.interpolation)
        self._shaper = _shaper(config)
        self._observed_s = -math.inf
        """When the observation behind the step under way was taken."""
        self._at_seam = False
        """The next action is the first of a chunk."""
        self._eased_steps = 0
        """Of this chunk: steps that went only part of the way from the last command to the action."""
        self._last: Array | None = None
        """The last command."""
        self._at_rest = True
        """Nothing was commanded in the last period: what follows sets out from standing."""

    def prepared(self, config: RobotConfig) -> Callable[[], None]:
        """What makes other limits, another ladder and another pace count from the next command on; the motion goes on.

        Raises: `ConfigurationError` when they do not fit the robot, or where it is; then nothing has changed.
        """
        if all(getattr(config, name) == getattr(self._config, name) for name in _SHAPE):
            return partial(setattr, self, "_config", config)
        ladder, shaper = FallbackLadder(config), _shaper(config)
        if shaper is not None:
            shaper.go_on_from(self._shaper.last if self._shaper else self._last, self._shaper)

        def apply() -> None:
            ladder.go_on_from(self.ladder)
            self.ladder, self._shaper, self._config = ladder, shaper, config
            unfit = shaper.unfit(self.queue.rows) if shaper else np.zeros(self.queue.depth, bool)
            self.queue.refuse(unfit)

        return apply

    # --- chunks ---

    def take(self, chunk: Chunk, mark: int, observed_s: float, *, real_delay: int) -> str:
        """A chunk for the queue. Returns the counter under which it is refused; empty: it was merged."""
        robot, model = chunk.chunk_robot, chunk.chunk_model
        if robot.ndim != 2 or robot.shape[1] != len(self._config.action_names) or not len(robot) or model.shape != robot.shape:
            return "bad_shape"
        if not (np.isfinite(robot).all() and np.isfinite(model).all()):
            return "non_finite"
        self.queue.merge(model, robot, mark, observed_s, real_delay=real_delay, horizon=chunk.execution_horizon)
        self._at_seam = True
        if self._shaper:
            self.queue.refuse(self._shaper.unfit(self.queue.rows))
        return ""

    def report(self, rows_left: int, last_wait_s: float, now_s: float) -> ExecutionReport:
        """rows_left: that are going to be executed."""
        executed = self.queue.executed_of_chunk
        ends_s = self._began_s + self._step_s + rows_left * self._step_s
        return ExecutionReport(
            executed_steps=executed,
            executing_s=now_s - self.chunk_began_s if executed else 0.0,
            remaining_s=ends_s - now_s if math.isfinite(ends_s) else 0.0,
            last_wait_s=last_wait_s,
        )

    def drop_stale_step(self, now_s: float) -> None:
        """Nor is the rest of one."""
        if self._interpolator.pending and self._observed_s < now_s - self._config.max_action_age_s:
            self._interpolator.clear()
            self._refused["stale_action"] += 1

    def drop_stale(self, now_s: float) -> None:
        """No action is executed whose observation is too old (Remote-RTC §9.2); what comes from a newer one stays."""
        queue, oldest_s = self.queue, now_s - self._config.max_action_age_s
        if queue.depth and queue.observed_s < oldest_s:
            self._refused["stale_action"] += queue.drop_older()
            if queue.depth and queue.observed_s < oldest_s:
                self._refused["stale_action"] += queue.depth
                queue.clear()

    def discard(self) -> None:
        """Nothing of what was planned is executed any more."""
        self.queue.clear()
        self._interpolator.clear()

    # --- control periods ---

    def is_between_steps(self, now_s: float) -> bool:
        """The last action is over, the next may begin."""
        return not self._interpolator.pending and (self._config.tick_is_step or now_s >= self.step_ends_s)

    def go_on(self) -> Array | None:
        """[A] the next part of a step under way; None: nothing is to be said until its end."""
        part = self._interpolator.next()
        return None if part is None else self._shaped(part)

    def step(self, positions: Array | None, now_s: float) -> Array | None:
        """[A] the next action of the queue, or the first part of the way to it; None: it must not be executed.
        positions: [A] measured, where a robot that stands sets out from if nobody knows what it was commanded before."""
        observed_s = self.queue.observed_s
        action, _ = self.queue.pop()
        if not self._config.tick_is_step:
            self.step_ends_s = now_s + self._step_s
        self._began_s = now_s
        if self.queue.executed_of_chunk == 1:
            self.chunk_began_s = now_s
        if action is None:
            self._refused["out_of_limits"] += 1
            return None
        self._observed_s, self.staleness_s = observed_s, now_s - observed_s
        self._set_out(positions)
        action = self._eased(action)
        if self._parts > 1:
            if self._config.tick_is_step:  # ticks jitter: the next step begins with its tick
                self.step_ends_s = now_s + (self._parts - 0.5) * self._period_s
            assert self._shaper is not None
            self._interpolator.aim(self._shaper.last, action)
            part = self._interpolator.next()
            assert part is not None
            action = part
        return self._shaped(action)

    def _eased(self, action: Array) -> Array:
        """[A] Over the first steps of a chunk an ever larger part of the way from the last command to the action, so that nothing
        jumps at the seam, however much the robot's view of things has changed. A robot that stands sets out as it is told."""
        steps = self._config.blend_steps
        if self._at_seam:
            self._eased_steps = 0
        if self._at_rest or self._last is None or self._eased_steps >= steps:
            return action
        self._eased_steps += 1
        return self._last + (action - self._last) * np.float32(self._eased_steps / (steps + 1))

    def fall_back(self, positions: Array | None, now_s: float, *, to_pose: bool = False) -> Array | None:
        """[A] what the ladder says for this period; None: nothing."""
        self._interpolator.clear()
        command = self.ladder.command(self._known(positions), now_s, to_pose=to_pose)
        if command is not None:
            self._set_out(positions)
            command = self._limited(command)
        elif not self._at_rest:
            self._stand()
        self.ladder.went(command)
        self.smoothness.held(command)
        return command

    def stands(self, now_s: float) -> bool:
        """The end of the ladder has been reached, and braking within the limits is over."""
        braked = self._config.command_type is not CommandType.VELOCITY or self._shaper is None or self._shaper.at_rest
        return braked and self.ladder.stands(now_s)

    def stop_command(self) -> Array | None:
        """[A] what makes the robot stand, whatever it did; None: saying nothing does. No ladder is gone down after that."""
        self._interpolator.clear()
        self._stand()
        self.ladder.rest()
        return self.ladder.stop_command()

    def hand_over(self) -> Array | None:
        """[A] what makes the robot stand, so that somebody else may move it."""
        command = self.stop_command()
        self._forget_start()
        return command

    def begin(self) -> None:
        """A new episode. A robot that stood may have been moved since."""
        self._interpolator.clear()
        self.step_ends_s, self.staleness_s = -math.inf, math.nan
        self._began_s, self.chunk_began_s = -math.inf, math.inf
        self.smoothness.begin()
        if not self.ladder.moved:
            self._forget_start()

    def _stand(self) -> None:
        if self._shaper:
            self._shaper.start(self._shaper.last)
        self._at_rest = True

    def _forget_start(self) -> None:
        if self._shaper:
            self._shaper.start(None)
        self._at_rest = True

    def _set_out(self, positions: Array | None) -> None:
        if self._at_rest and self._shaper and self._shaper.last is None:
            self._shaper.start(self._known(positions))

    def _known(self, positions: Array | None) -> Array | None:
        """What was measured, if it can be used."""
        fits = positions is not None and np.shape(positions) == (len(self._config.action_names),) and np.isfinite(positions).all()
        return positions if fits else None

    def _shaped(self, command: Array) -> Array:
        command = self._limited(command)
        self.ladder.commanded(command)
        self.smoothness.commanded(command, at_seam=self._at_seam)
        self._at_seam = False
        return command

    def _limited(self, command: Array) -> Array:
        self._at_rest = False
        self._last = self._shaper.shape(command) if self._shaper else command
        return self._last


def _shaper(config: RobotConfig) -> CommandShaper | None:
    """None: nothing limits this robot's commands. Raises: `ConfigurationError`."""
    if config.limits == Limits() and config.interpolation == 1:
        return None
    return CommandShaper(config.limits, config.command_type, len(config.action_names), 1.0 / config.control_rate_hz)

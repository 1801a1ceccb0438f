"""The fallback ladder: what is commanded when there is no action that may be executed (Remote-RTC §9.2, P9)."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.robot.config import CommandType, Motion, RobotConfig, Rung
from ros2_rfm_serving.types import Array

AT_REST_AFTER_S = 0.5
"""A robot that has been on the last rung for so long stands; nothing needs to be commanded any more while it has no task."""
POSE_TOLERANCE = 0.02
"""A pose is reached when every measured position is as close as this to it, in its units."""


def check_ladder(config: RobotConfig) -> None:
    """Raises: `ConfigurationError` when the ladder would not stop this robot."""
    ladder, kind = config.fallback, config.command_type
    if not ladder:
        raise _wrong(config, "is empty", "name at least one of " + ", ".join(motion.value for motion in Motion))
    for rung, after in pairwise(ladder):
        if not 0 < rung.duration_s < math.inf:
            raise _wrong(config, f"`{rung.motion.value}` has no end before `{after.motion.value}`", "write it as `motion:seconds`")
    for rung in ladder:
        _check_rung(config, rung)
    last = ladder[-1].motion
    if kind is CommandType.VELOCITY and last is not Motion.ZERO:
        raise _wrong(config, f"ends with `{last.value}`: a velocity command lasts until the next one", "end the ladder with `zero`")
    if last is Motion.REPEAT_LAST:
        raise _wrong(config, "ends with `repeat_last`, which stops nothing", "end it with `hold`, `zero` or `safe_pose`")
    if last is Motion.RAMP_DOWN and ladder[-1].duration_s == math.inf:
        raise _wrong(config, "`ramp_down` has no duration", "write it as `ramp_down:seconds`")


def _check_rung(config: RobotConfig, rung: Rung) -> None:
    kind = config.command_type
    if rung.motion is Motion.ZERO and kind is CommandType.POSITION:
        raise _wrong(config, "`zero` is a pose for position commands, not a stop", "use `hold` or `ramp_down:seconds`")
    if rung.motion is Motion.HOLD and kind is CommandType.VELOCITY:
        raise _wrong(config, "`hold` commands nothing, and the robot would keep its velocity", "use `zero`")
    if rung.motion is Motion.SAFE_POSE:
        if len(config.safe_pose) != len(config.action_names):
            problem = f"`safe_pose` has {len(config.safe_pose)} values for {len(config.action_names)} actions"
            raise _wrong(config, problem, "give one per action, in the units of the measured positions")
        if kind is CommandType.POSITION and not config.limits.max_velocity:
            raise _wrong(config, "`safe_pose` without `limits.max_velocity` would be a jump", "give a velocity per action")
        if kind is not CommandType.POSITION and not (config.limits.lower and config.limits.upper):
            raise _wrong(config, "`safe_pose` without `limits.lower` and `limits.upper` has no end", "give both per action")


def _wrong(config: RobotConfig, problem: str, fix: str) -> ConfigurationError:
    rungs = (f"{motion.value}:{s:g}" if s < math.inf else motion.value for motion, s in config.fallback)
    written = ", ".join(rungs)
    return ConfigurationError(f"[{written}] for {config.command_type.value} commands: {problem}", key="fallback", fix=fix)


class FallbackLadder:
    """Steps down the rungs from the moment an action is missing until one is there again."""

    def __init__(self, config: RobotConfig) -> None:
        check_ladder(config)
        self._rungs, self._kind, self._gain = config.fallback, config.command_type, config.safe_pose_gain
        self.has_pose = any(rung.motion is Motion.SAFE_POSE for rung in self._rungs)
        self._pose_rungs = (Rung(Motion.SAFE_POSE),) if self.has_pose else self._rungs
        self._pose = np.array(config.safe_pose, np.float32)
        self._max_step = np.array(config.limits.max_velocity, np.float32) / config.control_rate_hz
        self._period_s = 1.0 / config.control_rate_hz
        self._stop = np.zeros(len(config.action_names), np.float32) if self._kind is CommandType.VELOCITY else None
        self._before: Array | None = None
        self._last: Array | None = None
        self._step = np.zeros(1, np.float32)
        """[A] what the last two commands differ by: the motion that position commands run on with"""
        self._active: tuple[Rung, ...] | None = None
        self._began_s = math.inf
        self._reached = False

    @property
    def moved(self) -> bool:
        """Something was commanded since it last stood."""
        return self._last is not None

    def stop_command(self) -> Array | None:
        """What makes the robot stand if it is the last thing that it is told; None: nothing needs to be said."""
        return self._stop

    def commanded(self, command: Array) -> None:
        """An action was executed: the ladder begins anew from there."""
        self._before, self._last, self._active = self._last, command, None

    def rest(self) -> None:
        """The robot stands: nothing more is to be said."""
        self._before = self._last = self._active = None

    def command(self, positions: Array | None, now_s: float, *, to_pose: bool = False) -> Array | None:
        """[A] for this control period; None: nothing. positions: [A] measured, for the safe pose."""
        rungs = self._pose_rungs if to_pose else self._rungs
        if self._active is not rungs:
            self._active, self._began_s, self._reached = rungs, now_s, False
            if self._last is not None and self._before is not None:
                self._step = self._last - self._before
            else:
                self._step = np.zeros(1, np.float32)
        elapsed_s = now_s - self._began_s
        for rung in rungs[:-1]:
            if elapsed_s < rung.duration_s:
                return self._on(rung, elapsed_s, positions)
            elapsed_s -= rung.duration_s
        last = rungs[-1]
        return self._on(last, elapsed_s, positions)

    def stands(self, now_s: float, *, to_pose: bool = False) -> bool:
        """The last rung has been reached, and the pose where there is one: the robot is in its safe state."""
        if self._active is None:
            return False
        if to_pose and self.has_pose:
            return self._active is self._pose_rungs and self._reached
        before_s = sum(rung.duration_s for rung in self._active[:-1])
        last = self._active[-1]
        lasts_s = last.duration_s if last.duration_s < math.inf else AT_REST_AFTER_S
        return now_s - self._began_s >= before_s + lasts_s

    def _on(self, rung: Rung, elapsed_s: float, positions: Array | None) -> Array | None:
        if rung.motion is Motion.ZERO:
            return np.zeros_like(self._last) if self._last is not None else self._stop
        if rung.motion is Motion.SAFE_POSE:
            return self._towards_pose(positions)
        if rung.motion is Motion.HOLD or self._last is None:
            return self._stop
        if rung.motion is Motion.REPEAT_LAST:
            return self._last
        return self._slower(self._last, max(0.0, 1.0 - elapsed_s / rung.duration_s))

    def _slower(self, last: Array, share: float) -> Array:
        """The last motion at a share of its speed. Position commands run on by what they moved in the last period, ever less."""
        if self._kind is not CommandType.POSITION:
            return last * np.float32(share)
        self._last = last + self._step * np.float32(share)
        return self._last

    def _towards_pose(self, positions: Array | None) -> Array | None:
        """Position commands go there in steps of the velocity limit; the others are driven by what is left to go."""
        if self._kind is CommandType.POSITION:
            start = self._last if self._last is not None else positions
            if start is None:
                return self._stop
            self._last = start + np.clip(self._pose - start, -self._max_step, self._max_step)
            self._reached = bool(np.allclose(self._last, self._pose, atol=1e-4))
            return self._last
        if positions is None:
            return self._stop
        error = self._pose - positions
        self._reached = bool((np.abs(error) < POSE_TOLERANCE).all())
        return error * np.float32(self._gain)

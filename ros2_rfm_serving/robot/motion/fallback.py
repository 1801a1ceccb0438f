"""The fallback ladder: what is commanded when there is no action that may be executed (Remote-RTC §9.2, P9)."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise

import numpy as np

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.robot.config import CommandType, Motion, RobotConfig, Rung
from ros2_rfm_serving.robot.limits import Limits
from ros2_rfm_serving.types import Array

AT_REST_AFTER_S = 0.5
"""A robot that has been on the last rung for so long stands; nothing needs to be commanded any more while it has no task."""
STANDS_AFTER_S = 10.0
"""A robot that has not reached its safe pose within this is not going to: it stays where it is."""
POSE_TOLERANCE = 0.02
"""A pose is reached when every measured position is as close as this to it, in its units."""

POSITION, VELOCITY, DELTA = CommandType.POSITION, CommandType.VELOCITY, CommandType.DELTA
ZERO, HOLD, REPEAT_LAST, SAFE_POSE = Motion.ZERO, Motion.HOLD, Motion.REPEAT_LAST, Motion.SAFE_POSE
NO_STEP: Array = np.zeros(1, np.float32)
_SLOWS = {Motion.REPEAT_LAST: 0, Motion.RAMP_DOWN: 1}
"""Rungs that go on with the last motion, the faster ones first; all others end it."""


def check_ladder(config: RobotConfig) -> None:
    """Raises: `ConfigurationError` when the ladder would not stop this robot."""
    ladder, kind = config.fallback, config.command_type
    config.limits.check(len(config.action_names))
    if not ladder:
        raise _wrong(config, "is empty", "name at least one of " + ", ".join(motion.value for motion in Motion))
    for rung, after in pairwise(ladder):
        if not 0 < rung.duration_s < math.inf:
            raise _wrong(config, f"`{rung.motion.value}` has no end before `{after.motion.value}`", "write it as `motion:seconds`")
    for rung in ladder:
        _check_rung(config, rung)
    if not _may_stand(config):
        problem = f"zero is outside of them: {kind.value} commands could not stop the robot"
        raise ConfigurationError(problem, key="limits", fix="make every lower <= 0 <= upper")
    for rung, after in pairwise(ladder):
        if _SLOWS.get(after.motion, 2) < _SLOWS.get(rung.motion, 2):
            problem = f"`{after.motion.value}` after `{rung.motion.value}` would make it move again"
            raise _wrong(config, problem, "begin with `repeat_last`, then `ramp_down`")
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
        if kind is CommandType.POSITION and not _is_within(config.safe_pose, config.limits):
            raise _wrong(config, "`safe_pose` is outside of the limits", "give a pose that may be commanded")
        if kind is not CommandType.POSITION and not (config.limits.lower and config.limits.upper):
            raise _wrong(config, "`safe_pose` without `limits.lower` and `limits.upper` has no end", "give both per action")


def _may_stand(config: RobotConfig) -> bool:
    """Zero, where the ladder commands it, is within the limits."""
    limits = config.limits
    zeroes = any(rung.motion in (Motion.ZERO, Motion.RAMP_DOWN) for rung in config.fallback)
    if config.command_type is CommandType.POSITION or not zeroes:
        return True
    return all(low <= 0 for low in limits.lower) and all(high >= 0 for high in limits.upper)


def _is_within(pose: tuple[float, ...], limits: Limits) -> bool:
    lower, upper = limits.lower or (-math.inf,) * len(pose), limits.upper or (math.inf,) * len(pose)
    return all(low <= value <= high for low, value, high in zip(lower, pose, upper, strict=True))


def _wrong(config: RobotConfig, problem: str, fix: str) -> ConfigurationError:
    rungs = (f"{motion.value}:{s:g}" if s < math.inf else motion.value for motion, s in config.fallback)
    written = ", ".join(rungs)
    return ConfigurationError(f"[{written}] for {config.command_type.value} commands: {problem}", key="fallback", fix=fix)


class FallbackLadder:
    """Steps down the rungs from the moment an action is missing until one is there again."""

    def __init__(self, config: RobotConfig) -> None:
        check_ladder(config)
        self._rungs, self._kind, self._gain = config.fallback, config.command_type, config.safe_pose_gain
        self.has_pose = any(rung.motion is SAFE_POSE for rung in self._rungs)
        self._pose_rungs = (Rung(SAFE_POSE),) if self.has_pose else self._rungs
        self._pose = np.array(config.safe_pose, np.float32)
        self._still = np.zeros(len(config.action_names), np.float32)
        self._still.flags.writeable = False  # it is handed out as a command again and again
        self._stop = self._still if self._kind is VELOCITY else None
        self._now: Array | None = None
        """[A] what the robot was last told; None: it stands"""
        self._last: Array | None = None
        """[A] where this ladder sets out from; of position commands, the last one"""
        self._before: Array | None = None
        """[A] the command before that, of the same motion; None: there is none to run on with"""
        self._will_set_out, self._sets_out = True, False
        """The next action, and the one under way, are the first since it stood or was on a rung. How fast it goes there says
        how far away it was, not how the policy moves."""
        self._step = NO_STEP
        """[A] what the last two commands before this rung differ by: the motion that position commands run on with"""
        self._to_pose: bool | None = None
        """Which rungs are gone down: those to the pose, or the ladder's; None: none are."""
        self._rung: Rung | None = None
        self.entered: Counter[Motion] = Counter()
        """How often each motion was begun."""
        self._began_s = math.inf
        self._reached = False

    @property
    def moved(self) -> bool:
        """Something was commanded since it last stood."""
        return self._now is not None

    def motion(self) -> Motion | None:
        """Of the rung that it is on; None: on none."""
        return self._rung.motion if self._to_pose is not None and self._rung is not None else None

    def go_on_from(self, before: FallbackLadder) -> None:
        """Takes the place of another one: a robot that is going down that begins this one anew, from where it is."""
        self._now, self._last, self._before = before._now, before._last, before._before
        self._will_set_out, self._sets_out = before._will_set_out, before._sets_out
        self.entered = before.entered

    def stop_command(self) -> Array | None:
        """What makes the robot stand if it is the last thing that it is told; None: nothing needs to be said."""
        return self._stop

    def commanded(self, command: Array, begins: bool = True) -> None:
        """An action was executed, or one more part of it: the ladder begins anew from there. The way to the first one, in however
        many parts, is no motion to run on with: of one action after each stall it would make an ever larger one."""
        if begins:
            self._sets_out, self._will_set_out = self._will_set_out, False
        self._before = None if self._sets_out else self._last
        self._last = self._now = command
        self._to_pose = self._rung = None

    def forget_motion(self) -> None:
        """It sets out anew: how it moved before says nothing about how it runs on."""
        self._before, self._will_set_out = None, True

    def stood(self) -> None:
        """Nothing was said for so long that it stands where it was told to be: a motion that has ended is not taken up again.
        A velocity lasts until the next word."""
        if self._kind is VELOCITY:
            return
        self._step = NO_STEP
        self.forget_motion()
        if self._kind is DELTA and self._now is not None:
            self._now = self._last = self._still

    def rest(self) -> None:
        """The robot stands: nothing more is to be said."""
        self._before = self._last = self._now = self._to_pose = self._rung = None
        self._will_set_out = True

    def command(self, positions: Array | None, now_s: float, to_pose: bool = False) -> Array | None:
        """[A] for this control period; None: nothing. positions: [A] measured, for the safe pose."""
        if self._now is None and not to_pose:
            self._to_pose = None
            return self._stop  # it stands: no rung makes it move
        to_pose = to_pose and self.has_pose
        rungs = self._pose_rungs if to_pose else self._rungs
        if self._to_pose is not to_pose:
            self._to_pose, self._began_s, self._reached, self._rung = to_pose, now_s, False, None
            self._last, self._will_set_out = self._now, True
        elapsed_s = now_s - self._began_s
        for rung in rungs[:-1] if len(rungs) > 1 else ():
            if elapsed_s < rung.duration_s:
                return self._on(rung, elapsed_s, positions)
            elapsed_s -= rung.duration_s
        return self._on(rungs[-1], elapsed_s, positions)

    def went(self, command: Array | None) -> None:
        """What became of `command`'s answer within the limits; None: nothing was commanded."""
        if self._to_pose is None:
            return
        if self._kind is POSITION:
            self._now = self._now if command is None else command
            self._before, self._last = self._last, self._now
        elif command is not None or self._now is not None:
            self._now = command if command is not None else self._still

    def stands(self, now_s: float, *, to_pose: bool = False) -> bool:
        """The last rung has been reached, and the pose where there is one: the robot is in its safe state."""
        to_pose = to_pose and self.has_pose
        rungs = self._pose_rungs if to_pose else self._rungs
        if self._to_pose is not to_pose:
            return False
        last = rungs[-1]
        lasts_s = last.duration_s if last.duration_s < math.inf else AT_REST_AFTER_S
        if last.motion is SAFE_POSE:
            if to_pose and self._reached:
                return True
            lasts_s = AT_REST_AFTER_S if self._reached else STANDS_AFTER_S
        return now_s - self._began_s >= sum(rung.duration_s for rung in rungs[:-1]) + lasts_s

    def _on(self, rung: Rung, elapsed_s: float, positions: Array | None) -> Array | None:
        if self._rung is not rung:
            self._rung = rung
            self.entered[rung.motion] += 1
            known = self._last is not None and self._before is not None
            self._step = self._last - self._before if known else NO_STEP  # type: ignore[operator]
        if rung.motion is ZERO:
            return self._still if self._last is not None else self._stop
        if rung.motion is SAFE_POSE:
            return self._towards_pose(positions)
        if rung.motion is HOLD or self._last is None:
            return self._stop
        if rung.motion is REPEAT_LAST:
            return self._last
        return self._slower(self._last, max(0.0, 1.0 - elapsed_s / rung.duration_s))

    def _slower(self, last: Array, share: float) -> Array:
        """The last motion at a share of its speed. Position commands run on by what they moved in the last period, ever less."""
        if self._kind is not POSITION:
            return last * np.float32(share)
        moved: Array = last + self._step * np.float32(share)
        return moved

    def _towards_pose(self, positions: Array | None) -> Array | None:
        """Position commands are the pose itself, as fast as the limits allow; the others are driven by what is left to go."""
        if positions is None:
            return self._stop
        if self._kind is POSITION:
            self._reached = self._now is not None and bool(np.allclose(self._now, self._pose, atol=1e-4))
            return self._pose
        error = self._pose - positions
        self._reached = bool((np.abs(error) < POSE_TOLERANCE).all())
        return error * np.float32(self._gain)

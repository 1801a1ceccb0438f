"""Fallback ladder: the commands while there is no action that may be executed (Remote-RTC §9.2, P9)."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise
from typing import ClassVar

import numpy as np

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.robot.columns import ZEROED, ActionColumns, Mask
from ros2_rfm_serving.robot.config import CommandType, Motion, RobotConfig, Rung
from ros2_rfm_serving.types import Array
from ros2_rfm_serving.types.state import kept

AT_REST_AFTER_S = 0.5
"""Time on the last rung after which a robot stands; nothing needs to be commanded any more while it has no task."""
STOPPED_AFTER_S = 10.0
"""Time after which a robot that has not reached its safe pose is not going to: it stays where it is."""
POSE_TOLERANCE = 0.02
"""Distance of each measured position from the pose, in its units, within which the pose counts as reached."""

ZERO, HOLD, REPEAT_LAST, SAFE_POSE = Motion.ZERO, Motion.HOLD, Motion.REPEAT_LAST, Motion.SAFE_POSE
NO_STEP: Array = np.zeros(1, np.float32)
_SLOWS = {Motion.REPEAT_LAST: 0, Motion.RAMP_DOWN: 1}
"""Rungs that continue the last motion, the faster ones first; all others end it."""


def check_ladder(config: RobotConfig) -> None:
    """Raise `ConfigurationError` when the ladder would not stop this robot."""
    ladder, columns = config.fallback, ActionColumns.of(config)
    if not ladder:
        raise _wrong(config, "is empty", "name at least one of " + ", ".join(motion.value for motion in Motion))
    for rung, after in pairwise(ladder):
        if not 0 < rung.duration_s < math.inf:
            raise _wrong(config, f"`{rung.motion.value}` has no end before `{after.motion.value}`", "write it as `motion:seconds`")
    for rung in ladder:
        _check_rung(config, columns, rung)
    if not _can_stop(config, columns):
        problem = f"zero is outside of them: {columns.label} commands could not stop the robot"
        raise ConfigurationError(problem, key="limits", fix="make every lower <= 0 <= upper")
    for rung, after in pairwise(ladder):
        if _SLOWS.get(after.motion, 2) < _SLOWS.get(rung.motion, 2):
            problem = f"`{after.motion.value}` after `{rung.motion.value}` would make it move again"
            raise _wrong(config, problem, "begin with `repeat_last`, then `ramp_down`")
    last = ladder[-1].motion
    if columns.has_lasting and last is not Motion.ZERO:
        lasting = "a velocity" if columns.has({CommandType.VELOCITY}) else "an effort"
        problem = f"ends with `{last.value}`: {lasting} command lasts until the next one"
        raise _wrong(config, problem, "end the ladder with `zero`")
    if last is Motion.REPEAT_LAST:
        raise _wrong(config, "ends with `repeat_last`, which stops nothing", "end it with `hold`, `zero` or `safe_pose`")
    if last is Motion.RAMP_DOWN and ladder[-1].duration_s == math.inf:
        raise _wrong(config, "`ramp_down` has no duration", "write it as `ramp_down:seconds`")


def _check_rung(config: RobotConfig, columns: ActionColumns, rung: Rung) -> None:
    if rung.motion is Motion.ZERO and not columns.has(ZEROED):
        raise _wrong(config, f"`zero` is a pose for {columns.label} commands, not a stop", "use `hold` or `ramp_down:seconds`")
    if rung.motion is Motion.HOLD and columns.has_lasting:
        moves = "its velocity" if columns.has({CommandType.VELOCITY}) else "its effort"
        raise _wrong(config, f"`hold` commands nothing, and the robot would keep {moves}", "use `zero`")
    if rung.motion is Motion.SAFE_POSE:
        _check_pose(config, columns)


def _check_pose(config: RobotConfig, columns: ActionColumns) -> None:
    if len(config.safe_pose) != len(columns):
        problem = f"`safe_pose` has {len(config.safe_pose)} values for {len(columns)} actions"
        raise _wrong(config, problem, "give one per action, in the units of the measured positions")
    pose, limits = np.array(config.safe_pose, np.float64), config.limits
    if not columns.has({CommandType.POSITION, CommandType.VELOCITY, CommandType.DELTA}):
        raise _wrong(config, f"nothing drives {columns.label} commands to a `safe_pose`", "use `zero`, or `hold`")
    if bool((np.isnan(pose) & columns.is_zeroed).any()):
        problem = f"`safe_pose` has a column without a value that keeps no command ({columns.label})"
        raise _wrong(config, problem, "write .nan only for columns of positions, which then keep their last command")
    if columns.has_position and not limits.max_velocity:
        raise _wrong(config, "`safe_pose` without `limits.max_velocity` would be a jump", "give a velocity per action")
    lower, upper = np.array(columns.lower), np.array(columns.upper)
    outside = columns.is_position & ~columns.wraps & ((pose < lower) | (pose > upper))
    if bool(outside.any()):
        raise _wrong(config, "`safe_pose` is outside of the limits", "give a pose that may be commanded")
    if bool(columns.is_driven.any()) and not (limits.lower and limits.upper):
        raise _wrong(config, "`safe_pose` without `limits.lower` and `limits.upper` has no end", "give both per action")


def _can_stop(config: RobotConfig, columns: ActionColumns) -> bool:
    """Return whether zero, where the ladder or a stop commands it, is within the limits."""
    zeroes = any(rung.motion in (Motion.ZERO, Motion.RAMP_DOWN) for rung in config.fallback)
    if not zeroes and not (columns.mixed and columns.has_lasting):
        return True
    outside = (np.array(columns.lower) > 0.0) | (np.array(columns.upper) < 0.0)
    return not bool((columns.is_zeroed & outside).any())


def _wrong(config: RobotConfig, problem: str, fix: str) -> ConfigurationError:
    rungs = (f"{motion.value}:{s:g}" if s < math.inf else motion.value for motion, s in config.fallback)
    written, label = ", ".join(rungs), ActionColumns.of(config).label
    return ConfigurationError(f"[{written}] for {label} commands: {problem}", key="fallback", fix=fix)


class FallbackLadder:
    """Descent of the rungs from the moment an action is missing until there is one again.

    Each column follows its type: one that a stop sets to zero gets less or zero, a position runs on or stays, and a binary column
    keeps its last command on every rung.
    """

    KEPT: ClassVar = kept(
        held_command="_kept_last",
        current_command="_now",
        start_command="_last",
        previous_command="_before",
        next_starts_from_rest="_will_set_out",
        starts_from_rest="_sets_out",
        last_change="_step",
        is_to_pose="_to_pose",
        num_begun="entered",
        began_s="_began_s",
        has_reached_pose="_reached",
        rung="_rung_number",
    )

    def __init__(self, config: RobotConfig) -> None:
        check_ladder(config)
        self._columns = ActionColumns.of(config)
        self._rungs, self._gain = config.fallback, config.safe_pose_gain
        self.has_pose = any(rung.motion is SAFE_POSE for rung in self._rungs)
        self._pose_rungs = (Rung(SAFE_POSE),) if self.has_pose else self._rungs
        self._pose = np.array(config.safe_pose, np.float32)
        self._keeps = self._columns.mixed or bool(np.isnan(self._pose).any())
        """True when some columns have to keep a command while others get another one."""
        self._still = np.zeros(len(config.action_names), np.float32)
        self._still.flags.writeable = False  # the same array is returned as a command many times
        self._kept_last: Array | None = None
        """[A] the last command since another process moved the robot, which holds the values of columns that a stop keeps; None:
        there is none, or no column is kept beside others that need a command to stop."""
        self._now: Array | None = None
        """[A] the robot's last command; None: it stands."""
        self._last: Array | None = None
        """[A] the start of this ladder; for position commands, the last command."""
        self._before: Array | None = None
        """[A] the command before that, of the same motion; None: there is no motion to continue."""
        self._will_set_out, self._sets_out = True, False
        """True when the next action, and the one under way, are the first since the robot stood or was on a rung. The speed of such
        an action results from the distance to it, not from the policy."""
        self._step = NO_STEP
        """[A] difference of the last two commands before this rung: the motion that position commands continue."""
        self._to_pose: bool | None = None
        """Rungs in use: those to the pose, or the ladder's; None: none."""
        self._rung_number = -1
        """Index of the current rung; -1: there is none."""
        self.entered: Counter[Motion] = Counter()
        """Number of times that each motion was begun."""
        self._began_s = math.inf
        self._reached = False

    @property
    def moved(self) -> bool:
        """Return whether something was commanded since the robot last stood."""
        return self._now is not None

    def motion(self) -> Motion | None:
        """Return the motion of the current rung; None: there is none."""
        if self._to_pose is None or self._rung_number < 0:
            return None
        return self._rungs_down(self._to_pose)[self._rung_number].motion

    def _rungs_down(self, to_pose: bool) -> tuple[Rung, ...]:
        return self._pose_rungs if to_pose else self._rungs

    def go_on_from(self, before: FallbackLadder) -> None:
        """Replace another ladder. A robot on a rung of that begins this one from the top, at its current position."""
        self._now, self._last, self._before = before._now, before._last, before._before
        self._kept_last = before._kept_last
        self._will_set_out, self._sets_out = before._will_set_out, before._sets_out
        self.entered = before.entered

    def stop_command(self) -> Array | None:
        """Return [A] the command that stops the robot if it is the last one; None: no command is needed, or the values that columns
        have to keep are unknown, because nothing has been commanded since another process moved the robot."""
        if not self._columns.has_lasting:
            return None
        if not self._columns.mixed:
            return self._still
        return None if self._kept_last is None else self._columns.stopped(self._kept_last)

    def commanded(self, command: Array, begins: bool = True) -> None:
        """Note that an action or a part of one was executed: the next descent begins there. The way to the first action, in however
        many parts, is no motion to continue: after repeated stalls it would grow with each."""
        if begins:
            self._sets_out, self._will_set_out = self._will_set_out, False
        self._before = None if self._sets_out else self._last
        self._last = self._now = command
        if self._keeps:
            self._kept_last = command
        self._end_descent()

    def _end_descent(self) -> None:
        self._to_pose, self._rung_number = None, -1

    def _keep(self, command: Array) -> None:
        if self._keeps:
            self._kept_last = command

    def handed_over(self) -> None:
        """Note that another process moves the robot, so that its last command no longer holds it."""
        self._kept_last = None

    def forget_motion(self) -> None:
        """Forget the last motion, because the robot sets out again: the former motion does not predict the next one."""
        self._before, self._will_set_out = None, True

    def stood(self) -> None:
        """Note that the robot stands after a long time without commands, so that the last motion is not resumed. A velocity lasts
        until the next command."""
        columns = self._columns
        if columns.has_lasting and not columns.mixed:
            return
        self._step = NO_STEP
        self.forget_motion()
        if columns.has_delta and self._now is not None and self._last is not None:
            self._now, self._last = self._made_once(self._now), self._made_once(self._last)

    def _made_once(self, command: Array) -> Array:
        """Return [A] the command without its displacements, which have been made."""
        if not self._columns.mixed:
            return self._still
        made: Array = np.where(self._columns.is_delta, np.float32(0.0), command)
        return made

    def rest(self) -> None:
        """Note that the robot stands and needs no further commands."""
        self._before = self._last = self._now = None
        self._end_descent()
        self._will_set_out = True

    def command(self, positions: Array | None, now_s: float, to_pose: bool = False) -> Array | None:
        """Return [A] the command of this control period; None: nothing is commanded. positions: [A] measured, for the safe pose."""
        if self._now is None and not to_pose:
            self._end_descent()
            return self._stands_on()  # no rung makes it move
        to_pose = to_pose and self.has_pose
        rungs = self._rungs_down(to_pose)
        if self._to_pose is not to_pose:
            self._to_pose, self._began_s, self._reached, self._rung_number = to_pose, now_s, False, -1
            self._last, self._will_set_out = self._now, True
        elapsed_s = now_s - self._began_s
        last = len(rungs) - 1
        for number in range(last):
            if elapsed_s < rungs[number].duration_s:
                return self._on(rungs[number], number, elapsed_s, positions)
            elapsed_s -= rungs[number].duration_s
        return self._on(rungs[last], last, elapsed_s, positions)

    def _stands_on(self) -> Array | None:
        """Return [A] the command of a robot that stands. One that also keeps columns has had its command: after an operator has
        moved the robot, a repetition would move it back."""
        return self._still if self._columns.has_lasting and not self._columns.mixed else None

    def went(self, command: Array | None) -> None:
        """Note the command that went out for the result of `command`, within the limits; None: nothing was commanded."""
        if command is not None:
            self._keep(command)
        if self._to_pose is None:
            return
        columns = self._columns
        if columns.mixed:
            self._mixed_went(command)
        elif not columns.has_kept:
            if command is not None or self._now is not None:
                self._now = command if command is not None else self._still
        else:
            self._now = self._now if command is None else command
            self._before, self._last = self._last, self._now

    def _mixed_went(self, command: Array | None) -> None:
        """Note the command of mixed columns. Positions continue from the last command, all others from the start of the ladder."""
        now = self._now if command is None else command
        if now is None:
            return
        self._now = self._columns.stopped(now) if command is None else now
        if self._last is None:
            self._last = self._columns.stopped(now)
        self._before, self._last = self._last, np.where(self._columns.is_kept, now, self._last).astype(np.float32, copy=False)

    def is_stopped(self, now_s: float, *, to_pose: bool = False) -> bool:
        """Return whether the robot is in its safe state: on the last rung for long enough, and in its pose if it has one."""
        to_pose = to_pose and self.has_pose
        rungs = self._rungs_down(to_pose)
        if self._to_pose is not to_pose:
            return False
        last = rungs[-1]
        lasts_s = last.duration_s if last.duration_s < math.inf else AT_REST_AFTER_S
        if last.motion is SAFE_POSE:
            if to_pose and self._reached:
                return True
            lasts_s = AT_REST_AFTER_S if self._reached else STOPPED_AFTER_S
        return now_s - self._began_s >= sum(rung.duration_s for rung in rungs[:-1]) + lasts_s

    def _on(self, rung: Rung, number: int, elapsed_s: float, positions: Array | None) -> Array | None:
        if self._rung_number != number:
            self._rung_number = number
            self.entered[rung.motion] += 1
            known = self._last is not None and self._before is not None
            self._step = self._columns.change(self._last, self._before) if known else NO_STEP  # type: ignore[arg-type]
        if rung.motion is ZERO:
            return self._stop_here()
        if rung.motion is SAFE_POSE:
            return self._towards_pose(positions)
        if rung.motion is HOLD or self._last is None:
            return None if rung.motion is HOLD else self.stop_command()
        if rung.motion is REPEAT_LAST:
            return self._last
        return self._slower(self._last, max(0.0, 1.0 - elapsed_s / rung.duration_s))

    def _stop_here(self) -> Array | None:
        """Return [A] zero where that stops, the last command where that holds; None: neither is known or needed."""
        if self._last is None:
            return self.stop_command()
        return self._columns.stopped(self._last) if self._columns.mixed else self._still

    def _slower(self, last: Array, share: float) -> Array:
        """Return [A] the last motion at a share of its speed. Position commands continue with ever less of their last change."""
        columns = self._columns
        if not columns.mixed and not columns.has_position:
            return last if columns.has_binary else last * np.float32(share)
        moved: Array = last + self._step * np.float32(share)
        if columns.has_wraps:
            moved = columns.inside(moved)
        if columns.mixed:
            kept = np.where(columns.is_position, moved, last)
            moved = np.where(columns.is_zeroed, last * np.float32(share), kept).astype(np.float32, copy=False)
        return moved

    def _towards_pose(self, positions: Array | None) -> Array | None:
        """Return [A] the command towards the pose: the pose itself for position commands, as fast as the limits allow; the
        remaining distance times the gain for the others."""
        columns = self._columns
        if positions is None:
            return self._stop_here() if columns.mixed and columns.has_lasting else self.stop_command()
        now, pose = self._now, self._pose
        keeps = columns.is_binary | np.isnan(pose)
        if not columns.mixed and not keeps.any():
            return self._alike_towards_pose(positions)
        held = now if now is not None else self._kept_last
        if held is None and keeps.any():
            return self.stop_command()  # the values that those columns have to keep are unknown
        left = columns.distance(pose, positions)
        there = np.abs(left) < POSE_TOLERANCE
        if columns.has_position:
            told = np.full(len(pose), np.nan, np.float32) if now is None else now
            there = np.where(columns.is_position, _is_close(columns.change(told, pose), pose), there)
        self._reached = bool((there | keeps | (columns.is_zeroed & ~columns.is_driven)).all())
        command = np.where(columns.is_driven, left * np.float32(self._gain), np.where(columns.is_position, pose, np.float32(0.0)))
        return np.where(keeps, command if held is None else held, command).astype(np.float32, copy=False)

    def _alike_towards_pose(self, positions: Array) -> Array | None:
        """Return [A] the command towards the pose if all columns are of one type and driven."""
        columns = self._columns
        if columns.has_position:
            self._reached = self._now is not None and bool(_is_close(columns.change(self._now, self._pose), self._pose).all())
            return self._pose
        error = columns.distance(self._pose, positions)
        self._reached = bool((np.abs(error) < POSE_TOLERANCE).all())
        return error * np.float32(self._gain)


def _is_close(difference: Array, pose: Array) -> Mask:
    """Return [A] whether each command is at the pose, except for rounding."""
    close: Mask = np.abs(difference) <= 1e-4 + 1e-5 * np.abs(pose)
    return close

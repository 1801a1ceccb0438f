"""Shaping of actions into commands: they are refused, clamped, slowed down and interpolated."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.robot.columns import ActionColumns, as_columns, rounded_down
from ros2_rfm_serving.robot.config import CommandType, RobotConfig
from ros2_rfm_serving.robot.limits import MotionLimits
from ros2_rfm_serving.types import Array
from ros2_rfm_serving.types.state import kept

Values = npt.NDArray[np.float64]

_UNLIMITED = 1e30
"""Stand-in for no limit: beyond any robot, but finite, so that sums and quotients are finite too."""
_SHORTEST_S = 1e-6
"""Least time between two commands that counts; a command that follows at once may move by next to nothing."""
MOST_DOUBT = 0.5
"""Share of the longest first step by which a reading may differ from the start of an arm, for both to count."""
DOUBTFUL_COMMANDS = 2
"""Commands from rest for which both count: the first one sets a speed, the second one changes it."""


class CommandShaper:
    """Limiter that keeps the commands of one robot within its limits, whatever is requested and however often.

    The limits of velocity and acceleration are per second and count from the last command; after a pause in which the robot stood
    still, call `start`. Position commands never come closer to a limit than their braking distance, whatever time lies between the
    following commands. A continuous joint has no limit to brake before, and goes the shortest way. Binary columns are only kept
    between their limits.
    """

    KEPT: ClassVar = kept(
        last_command="_last",
        velocity="_velocity",
        target="_target",
        position_uncertainty="_doubt",
        num_uncertain_commands="_doubtful",
        inner_shaper="_ahead",
        average="_average",
    )

    def __init__(self, limits: MotionLimits, kind: CommandType | ActionColumns, num_actions: int, period_s: float) -> None:
        """Check the limits. kind: the columns, or the type of all of them. Raises: `ConfigurationError` when the limits are not
        those of `num_actions` columns."""
        limits.check(num_actions)
        columns = as_columns(kind, num_actions)
        self._columns = columns
        self._num_actions = num_actions
        lower, upper = -_column(tuple(-value for value in limits.lower), num_actions), _column(limits.upper, num_actions)
        # Actions and commands are float32: an action at its limit may lie an ulp beyond it, but a command must not.
        self._refused_below = np.minimum(lower, lower.astype(np.float32)) - limits.tolerance
        self._refused_above = np.maximum(upper, upper.astype(np.float32)) + limits.tolerance
        self._lower, self._upper = -rounded_down(-lower), rounded_down(upper)
        if columns.has_wraps:
            self._refused_below, self._refused_above, self._lower, self._upper = (
                np.where(columns.wraps, sign * _UNLIMITED, bound)
                for sign, bound in (
                    (-1.0, self._refused_below),
                    (1.0, self._refused_above),
                    (-1.0, self._lower),
                    (1.0, self._upper),
                )
            )
        self._period_s = period_s
        self._max_velocity = np.where(columns.is_position, _column(limits.max_velocity, num_actions), _UNLIMITED)
        self._max_acceleration = np.where(columns.is_binary, _UNLIMITED, _column(limits.max_acceleration, num_actions))
        limited = (self._max_velocity < _UNLIMITED) | (self._max_acceleration < _UNLIMITED)
        self._bounded = bool(limited.any())
        self._needs_position = bool((limited & columns.is_position).any())
        self._free = columns.wraps & ~limited
        """[A] continuous joints that are commanded as the policy's actions are."""
        self._ahead: CommandShaper | None = None
        """Shaper of the commands that are averaged where the jerk is limited; None: it is not."""
        self._average: MovingAverage | None = None
        if limits.max_jerk:
            self._ahead = CommandShaper(replace(limits, max_jerk=()), columns, num_actions, period_s)
            self._average = MovingAverage(limits, columns, period_s)
        self._tolerance = limits.tolerance
        self._reach = self._max_velocity * period_s + limits.tolerance
        self.start(None)

    @classmethod
    def of(cls, config: RobotConfig) -> CommandShaper | None:
        """Return the shaper of a robot; None: nothing limits its commands. Raises: `ConfigurationError` for unfit limits."""
        if config.limits == MotionLimits() and config.interpolation == 1:
            return None
        return cls(config.limits, ActionColumns.of(config), len(config.action_names), 1.0 / config.control_rate_hz)

    @property
    def last(self) -> Array | None:
        """Return [A] the last command, or the start position; NaN where neither is known; None: in no column."""
        return None if self._last is None else self._last.astype(np.float32)

    @property
    def before_average(self) -> Array | None:
        """Return [A] the last command before the jerk was limited, from which motions are planned: `last` lags behind it. Without
        such a limit it is `last`."""
        return self.last if self._ahead is None else self._ahead.last

    @property
    def needs_position(self) -> bool:
        """Return whether its limits count from the robot's position."""
        return self._needs_position

    def is_in_reach(self, position: Array) -> bool:
        """Return whether the limits begin within one control period's way, and `tolerance`, of this position: beyond it any command
        is a jump."""
        outside = np.maximum(self._lower - position, position - self._upper)
        return bool(((outside <= self._reach) | ~self._columns.is_position).all())

    def is_near(self, position: Array, before: Array, elapsed_s: float) -> bool:
        """Return whether the arm may have moved this far between two readings: at most twice as fast as it may be commanded,
        because a hand moves it faster."""
        way = 2.0 * self._max_velocity * max(elapsed_s, self._period_s)
        near = np.abs(self._columns.distance(position, before)) <= way + self._tolerance
        return bool((near | ~self._columns.is_position).all())

    @property
    def moves(self) -> bool:
        """Return whether the last position commands moved, by more than float32 rounds."""
        if self._last is None:
            return False
        rounding = 4.0 * np.spacing(np.abs(self._last).astype(np.float32))
        return bool((np.abs(self._velocity) * self._period_s > rounding).any())

    @property
    def at_rest(self) -> bool:
        """Return whether the last command was zero where zero stops the robot, or there was none."""
        if self._last is None:
            return True
        return not (self._last[self._columns.is_zeroed] if self._columns.mixed else self._last).any()

    def start(self, position: Array | None, *others: Array, at_rest: bool = True) -> None:
        """Forget the former commands.

        position: [A] of a robot at rest, from which position commands set out; None: unknown, so that the first command goes out
        unchanged. A position outside the limits counts as the nearest one inside. others: [A] other possible positions of the arm,
        such as its reading; where one is near, the first commands are within the limits from there, too. at_rest: False where only
        its positions stand, and all other columns continue from their last command.
        """
        rest = self._rest(position)
        if rest is not None and not at_rest and self._last is not None:
            rest = np.where(self._columns.is_zeroed, self._last, rest)
        self._last: Values | None = None if rest is None else np.clip(rest, self._lower, self._upper)
        self._velocity = np.zeros(self._num_actions)
        """[A] velocity of position commands, per second."""
        self._target = self._last
        self._doubt: Values = np.zeros(self._num_actions)
        """[A] possible distance of the arm from its start."""
        self._doubtful = 0
        """Number of commands for which that counts."""
        self._keep_in_mind(others)
        if self._ahead is not None and self._average is not None:
            self._ahead.start(position, *others, at_rest=at_rest)
            self._average.begin(self._ahead._last, self._velocity)

    def _keep_in_mind(self, others: tuple[Array, ...]) -> None:
        """Note how far the arm may be from its start."""
        if self._last is None:
            return
        step = np.minimum(self._max_velocity * self._period_s, self._max_acceleration * self._period_s**2)
        for other in others:
            away = np.abs(self._columns.distance(other, self._last))
            near = self._columns.is_position & (away <= MOST_DOUBT * step)
            self._doubt = np.maximum(self._doubt, np.where(near, away, 0.0))
            self._doubtful = DOUBTFUL_COMMANDS

    def stand(self) -> None:
        """Note that nothing is commanded any more, so that each column that a stop sets to zero is zero.

        The destination of positions stays known until `start`.
        """
        if not self._columns.has_position:
            self.start(None)
        elif self._last is not None and self._columns.mixed:
            zeroed, target = self._columns.is_zeroed, self._target
            self._last = np.where(zeroed, 0.0, self._last)
            self._target = None if target is None else np.where(zeroed, 0.0, target)
            if self._ahead is not None and self._average is not None:
                self._ahead.stand()
                self._average.stand()

    def _rest(self, position: Array | None) -> Values | None:
        """Return [A] the start of a robot at rest; NaN in columns where it is unknown, None where it is unknown in all."""
        columns, num = self._columns, self._num_actions
        if not columns.mixed and not columns.has_position:
            return None if columns.has_binary else np.zeros(num)
        fits = position is not None and np.shape(position) == (num,)
        measured = np.asarray(position, np.float64) if fits else np.full(num, np.nan)
        if not columns.mixed:
            return measured if fits and bool(np.isfinite(measured).all()) else None
        known = columns.is_position & np.isfinite(measured)
        return np.where(columns.is_zeroed, 0.0, np.where(known, measured, np.nan))

    def go_on_from(self, last: Array | None, before: CommandShaper | None) -> None:
        """Replace another shaper (None: there was none) after the command `last`, without a jump.

        Raises: `ConfigurationError` when position commands would have to jump to be within these limits. Velocities and
        displacements are within them at once: the operator wants the robot to be slower.
        """
        if last is None:
            return
        inside = np.clip(np.asarray(last, np.float64), self._lower, self._upper)
        if ((np.abs(inside - last) > 0.0) & self._columns.is_kept).any():
            problem = f"the last command, [{', '.join(f'{value:g}' for value in last)}], lies outside of them"
            raise ConfigurationError(problem, key="limits", fix="move the robot inside first")
        self._last = self._target = inside
        if before is not None and before._target is not None:
            self._target = np.clip(before._target, self._lower, self._upper)
            self._velocity = np.clip(before._velocity, -self._max_velocity, self._max_velocity)
        if self._ahead is not None and self._average is not None:
            self._ahead._last = self._ahead._target = np.clip(self._average.begin(inside, self._velocity), self._lower, self._upper)
            self._ahead._velocity = self._velocity

    def resume(self, last: Values, velocity: Values, target: Values) -> None:
        """Continue position commands under way. last: [A] the last command. velocity: [A] their velocity, per second. target: [A]
        the goal."""
        self._last, self._velocity, self._target = last, velocity, target

    @property
    def exact(self) -> Values:
        """Return [A] the last command, not rounded to float32."""
        assert self._last is not None, "nothing was commanded"
        return self._last

    def problem(self, action: Array) -> str:
        """Return why this action must not be executed, as the name of a counter; empty: it may."""
        if np.shape(action) != (self._num_actions,):
            return "bad_shape"
        if not np.isfinite(action).all():
            return "non_finite"
        if (action < self._refused_below).any() or (action > self._refused_above).any():
            return "out_of_limits"
        return ""

    def unfit(self, rows: Array) -> npt.NDArray[np.bool_]:
        """Return [n] which of n finite actions, [n, A], `problem` would refuse."""
        return np.asarray(((rows < self._refused_below) | (rows > self._refused_above)).any(axis=1))

    def shape(self, target: Array | Values, elapsed_s: float = math.inf) -> Array:
        """Return [A] the command on the way to `target`, for which `problem` is empty. elapsed_s: since the last command; more than
        one control period counts as one, as a pause must not become a jump."""
        dt_s = min(max(elapsed_s, _SHORTEST_S), self._period_s)
        columns = self._columns
        if self._ahead is not None and self._average is not None:
            target = self._average.next(self._ahead.shape(target, elapsed_s))
        wanted: Values = columns.inside(np.clip(target.astype(np.float64), self._lower, self._upper))
        if self._last is None:
            self._target = wanted
        elif self._bounded:
            if columns.mixed:
                wanted = self._move_and_turn(wanted, dt_s)
            else:
                wanted = self._move(wanted, dt_s) if columns.has_position else self._turn(wanted, dt_s)
        self._last = wanted
        return wanted.astype(np.float32)

    def _move_and_turn(self, wanted: Values, dt_s: float) -> Values:
        """Return [A] the limited command of mixed columns, each by its type. Columns without a last command begin with their
        target."""
        assert self._last is not None and self._target is not None
        self._last = np.where(np.isnan(self._last), wanted, self._last)
        self._target = np.where(np.isnan(self._target), wanted, self._target)
        turned = self._turn(wanted, dt_s)
        positions = self._columns.is_position
        shaped: Values = np.where(positions, self._move(wanted, dt_s), turned) if self._columns.has_position else turned
        self._velocity = np.where(positions, self._velocity, 0.0)
        return shaped

    def _turn(self, wanted: Values, dt_s: float) -> Values:
        """Return [A] the limited command of columns other than positions, whose change is bounded by the acceleration."""
        assert self._last is not None
        max_change = self._max_acceleration * dt_s
        return np.clip(wanted, self._last - max_change, self._last + max_change)

    def _move(self, wanted: Values, dt_s: float) -> Values:
        """Return [A] the limited position command: as fast as the motion of its target plus a limited approach to it, and slow
        enough to brake at the limits."""
        assert self._last is not None and self._target is not None
        columns = self._columns
        high, max_change = self._max_velocity * dt_s, self._max_acceleration * dt_s**2
        if self._doubtful:
            self._doubtful -= 1
            high, max_change = np.maximum(high - self._doubt, 0.0), np.maximum(max_change - self._doubt, 0.0)
        low = -high
        feed, behind = columns.change(wanted, self._target), columns.change(self._target, self._last)
        near, below, above = self._approach(np.array([np.abs(behind), self._last - self._lower, self._upper - self._last]), dt_s)
        step = np.minimum(np.maximum(feed, low), high) + np.sign(behind) * near
        drift = self._velocity * dt_s
        low = np.maximum(np.maximum(low, drift - max_change), -below)
        high = np.minimum(np.minimum(high, drift + max_change), above)
        moved: Values = self._last + np.minimum(np.maximum(step, low), high)
        moved = np.minimum(np.maximum(moved, self._lower), self._upper)
        self._velocity, self._target = (moved - self._last) / dt_s, wanted
        if columns.has_wraps:
            moved = np.where(self._free, wanted, columns.written(moved, self._last, wanted))
        return moved

    def _approach(self, room: Values, dt_s: float) -> Values:
        """Return the largest step from which braking still ends within `room`.

        A velocity v for dt, and braking after that however the time is cut, travel v dt + v^2 / 2a at most; the solution for v sets
        this equal to the room, and avoids a difference of large numbers.
        """
        room = np.maximum(room, 0.0)
        velocity = 2.0 * room / (dt_s + np.sqrt(dt_s**2 + 2.0 * room / self._max_acceleration))
        return velocity * dt_s


class MovingAverage:
    """Limiter of the jerk: the mean of the last commands of a motion that keeps all other limits.

    The mean keeps those limits as well, for each is a convex set, and its acceleration changes by no more than the change of the
    newest and of the oldest command in it: over 2 a / j seconds that is at most j per second. Control periods of equal length are
    assumed; where they vary, the shaper that follows still keeps velocities and accelerations.
    """

    KEPT: ClassVar = kept(commands="_rows", newest_command="_newest")

    def __init__(self, limits: MotionLimits, columns: ActionColumns, period_s: float) -> None:
        self._columns, self._period_s = columns, period_s
        num = len(columns)
        jerk = np.where(columns.is_binary, np.inf, _column(limits.max_jerk, num))
        acceleration = _column(limits.max_acceleration, num)
        limited = jerk < _UNLIMITED
        lengths = np.where(limited, np.ceil(2.0 * acceleration / np.where(limited, jerk, 1.0) / period_s - 1e-9), 1.0)
        self._lengths = np.maximum(lengths, 1.0)
        rows = int(self._lengths.max(initial=1.0))
        self._weights = np.where(np.arange(rows)[:, None] < self._lengths, 1.0 / self._lengths, 0.0)
        """[rows, A] weights of the last commands, newest first."""
        self._rows: Values | None = None
        """[rows, A] the last commands, newest first, without jumps at the borders of continuous joints; None: there are none."""
        self._newest: Values | None = None
        """[A] the newest command, in its written numbers."""

    def begin(self, last: Values | None, velocity: Values) -> Values:
        """Return [A] the next command of a motion with this velocity whose mean is `last`; None as `last`: no command is known."""
        if last is None:
            self._rows = self._newest = None
            return velocity
        known = np.nan_to_num(last)
        steps = 0.5 * (self._lengths - 1.0) - np.arange(len(self._weights))[:, None]
        self._rows = known + velocity * self._period_s * steps
        newest: Values = np.where(np.isnan(last), np.nan, self._rows[0])
        self._newest = newest
        return newest

    def stand(self) -> None:
        """Note that nothing is commanded any more, so that each column that a stop sets to zero is zero."""
        if self._rows is not None and self._newest is not None:
            self._rows = np.where(self._columns.is_zeroed, 0.0, self._rows)
            self._newest = np.where(self._columns.is_zeroed, 0.0, self._newest)

    def next(self, command: Array) -> Array:
        """Return [A] the mean, with this command as the newest."""
        if self._rows is None or self._newest is None:
            self._rows = np.repeat(command[None].astype(np.float64), len(self._weights), axis=0)
        else:
            unknown = np.isnan(self._newest)
            newest = np.where(unknown, command, self._rows[0] + self._columns.change(command, self._newest))
            self._rows = np.concatenate([newest[None], self._rows[:-1]])
            self._rows[:, unknown] = command[unknown]
        self._newest = command.astype(np.float64)
        mean: Array = (command + ((self._rows - self._rows[0]) * self._weights).sum(axis=0)).astype(np.float32)
        return mean


class Interpolator:
    """Straight line from one command to the next, in equal parts: the control rate is a multiple of the policy's."""

    KEPT: ClassVar = kept("pending", start_command="_from", target="_target")

    def __init__(self, steps: int, columns: ActionColumns | None = None) -> None:
        """Begin without a target. columns: None where each is a plain number."""
        assert steps >= 1
        self._steps = steps
        self.describe(columns)
        self._from = self._target = np.empty(0, np.float32)
        self.clear()

    def describe(self, columns: ActionColumns | None) -> None:
        """Use another description of the same columns, such as other limits of a continuous joint."""
        plain = columns is None or not (columns.mixed or columns.has_wraps or columns.has_binary)
        self._columns = None if plain else columns

    def clear(self) -> None:
        """Forget the target."""
        self.pending = 0
        """Number of parts until the target is reached."""

    def aim(self, last: Array | None, target: Array) -> None:
        """Set a target, `steps` calls of `next` away. last: [A] the command before; None: each call returns the target."""
        self._from, self._target, self.pending = target if last is None else last, target, self._steps

    def next(self, parts: int = 1) -> Array | None:
        """Return [A] the end of the next part, or of several; None: the target has been reached."""
        if not self.pending:
            return None
        self.pending = max(0, self.pending - parts)
        if not self.pending:
            return self._target
        rest = np.float32(self.pending / self._steps)
        if self._columns is None:
            return self._target + (self._from - self._target) * rest
        return self._between(self._columns, rest)

    def _between(self, columns: ActionColumns, rest: np.float32) -> Array:
        """Return [A] a point on the line. A column without a start is at its target at once."""
        start = np.where(np.isnan(self._from), self._target, self._from)
        part = self._target + columns.change(start, self._target) * rest
        between: Array = np.where(columns.is_binary, start, columns.written(part, start, self._target)).astype(np.float32)
        return between


def _column(values: tuple[float, ...], num_actions: int) -> Values:
    return np.minimum(np.array(values, np.float64), _UNLIMITED) if values else np.full(num_actions, _UNLIMITED)

"""From the action that the policy wants to the command that goes out: refused, clamped, slowed down, interpolated."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.robot.config import CommandType, RobotConfig
from ros2_rfm_serving.robot.limits import Limits
from ros2_rfm_serving.types import Array

Values = npt.NDArray[np.float64]

_UNLIMITED = 1e30
"""Beyond any robot, and finite, so that sums and quotients of it are."""
_SHORTEST_S = 1e-6
"""Between two commands: what follows at once may move by next to nothing."""


class CommandShaper:
    """Keeps the commands of one robot within its limits, whatever it is asked for, and however often.

    The limits of velocity and acceleration are per second and count from the command before; after a pause in which the robot
    stood still, call `start`. Position commands never come closer to a limit than the distance in which they can still brake
    before it, whatever time lies between the commands that follow.
    """

    def __init__(self, limits: Limits, command_type: CommandType, num_actions: int, period_s: float) -> None:
        """Raises: `ConfigurationError` when the limits are not those of `num_actions` columns."""
        limits.check(num_actions)
        self._moves = command_type is CommandType.POSITION
        self._num_actions = num_actions
        lower, upper = -_column(tuple(-value for value in limits.lower), num_actions), _column(limits.upper, num_actions)
        # Actions and commands are float32: an action at its limit may lie an ulp beyond it, a command must not.
        self._refused_below = np.minimum(lower, lower.astype(np.float32)) - limits.tolerance
        self._refused_above = np.maximum(upper, upper.astype(np.float32)) + limits.tolerance
        self._lower, self._upper = -_rounded_down(-lower), _rounded_down(upper)
        self._period_s = period_s
        self._max_velocity = _column(limits.max_velocity, num_actions)
        self._max_acceleration = _column(limits.max_acceleration, num_actions)
        self._bounded = bool(limits.max_acceleration or (self._moves and limits.max_velocity))
        self._tolerance = limits.tolerance
        self._reach = self._max_velocity * period_s + limits.tolerance
        self.start(None)

    @classmethod
    def of(cls, config: RobotConfig) -> CommandShaper | None:
        """None: nothing limits this robot's commands. Raises: `ConfigurationError`."""
        if config.limits == Limits() and config.interpolation == 1:
            return None
        return cls(config.limits, config.command_type, len(config.action_names), 1.0 / config.control_rate_hz)

    @property
    def last(self) -> Array | None:
        """[A] the last command, or the position to start from; None: neither is known."""
        return None if self._last is None else self._last.astype(np.float32)

    @property
    def needs_position(self) -> bool:
        """Its limits count from where the robot is."""
        return self._moves and self._bounded

    def is_in_reach(self, position: Array) -> bool:
        """The limits begin within one control period's way, and `tolerance`, of this position: from further out any command
        would be a jump."""
        outside = np.maximum(self._lower - position, position - self._upper)
        return bool((outside <= self._reach).all())

    def is_near(self, position: Array, before: Array, elapsed_s: float) -> bool:
        """So far it may have come from one reading to the next: twice as fast as it may be commanded to, as hands are quicker."""
        way = 2.0 * self._max_velocity * max(elapsed_s, self._period_s)
        return bool((np.abs(position - before) <= way + self._tolerance).all())

    @property
    def moves(self) -> bool:
        """The last position commands went somewhere, by more than float32 rounds."""
        if self._last is None:
            return False
        rounding = 4.0 * np.spacing(np.abs(self._last).astype(np.float32))
        return bool((np.abs(self._velocity) * self._period_s > rounding).any())

    @property
    def at_rest(self) -> bool:
        """The last command was zero, or none has been given."""
        return self._last is None or not self._last.any()

    def start(self, position: Array | None) -> None:
        """Forgets the commands before. position: [A] measured, of a robot at rest, which position commands set out from;
        None: not known, the first command goes out as it is. A position outside the limits counts as the nearest one inside."""
        rest = position if self._moves else np.zeros(self._num_actions)
        known = rest is not None and np.shape(rest) == (self._num_actions,) and bool(np.isfinite(rest).all())
        self._last: Values | None = np.clip(np.asarray(rest, np.float64), self._lower, self._upper) if known else None
        self._velocity = np.zeros(self._num_actions)
        """Of position commands, per second."""
        self._target = self._last

    def go_on_from(self, last: Array | None, before: CommandShaper | None) -> None:
        """Takes the place of another one (None: there was none) after the command `last`, without a jump.

        Raises: `ConfigurationError` when position commands would have to jump to be within these limits. Velocities and
        displacements are within them at once: somebody wants the robot to be slower.
        """
        if last is None:
            return
        inside = np.clip(np.asarray(last, np.float64), self._lower, self._upper)
        if self._moves and (np.abs(inside - last) > 0.0).any():
            problem = f"the last command, [{', '.join(f'{value:g}' for value in last)}], lies outside of them"
            raise ConfigurationError(problem, key="limits", fix="move the robot inside first")
        self._last = self._target = inside
        if before is not None and before._target is not None:
            self._target = np.clip(before._target, self._lower, self._upper)
            self._velocity = np.clip(before._velocity, -self._max_velocity, self._max_velocity)

    def resume(self, last: Values, velocity: Values, target: Values) -> None:
        """Go on from position commands under way. last: [A] the last command. velocity: [A] at which they moved, per second.
        target: [A] what was wanted then."""
        self._last, self._velocity, self._target = last, velocity, target

    @property
    def exact(self) -> Values:
        """[A] the last command, not rounded to float32."""
        assert self._last is not None, "nothing was commanded"
        return self._last

    def problem(self, action: Array) -> str:
        """Why this action must not be executed, as the name of a counter; empty: it may."""
        if np.shape(action) != (self._num_actions,):
            return "bad_shape"
        if not np.isfinite(action).all():
            return "non_finite"
        if (action < self._refused_below).any() or (action > self._refused_above).any():
            return "out_of_limits"
        return ""

    def unfit(self, rows: Array) -> npt.NDArray[np.bool_]:
        """[n] which of n finite actions, [n, A], `problem` would refuse."""
        return np.asarray(((rows < self._refused_below) | (rows > self._refused_above)).any(axis=1))

    def shape(self, target: Array | Values, elapsed_s: float = math.inf) -> Array:
        """[A] the command on the way to `target`, which `problem` found nothing wrong with. elapsed_s: since the last command; more
        than one control period counts as one, as a pause must not become a jump."""
        dt_s = min(max(elapsed_s, _SHORTEST_S), self._period_s)
        wanted: Values = np.clip(target.astype(np.float64), self._lower, self._upper)
        if self._last is None:
            self._target = wanted
        elif self._bounded:
            wanted = self._move(wanted, dt_s) if self._moves else self._turn(wanted, dt_s)
        self._last = wanted
        return wanted.astype(np.float32)

    def _turn(self, wanted: Values, dt_s: float) -> Values:
        """Velocity and delta commands: no faster from one to another than the acceleration allows."""
        assert self._last is not None
        max_change = self._max_acceleration * dt_s
        return np.clip(wanted, self._last - max_change, self._last + max_change)

    def _move(self, wanted: Values, dt_s: float) -> Values:
        """Position commands: as fast as their own motion and a limited approach to it, and slow enough to brake at the limits."""
        assert self._last is not None and self._target is not None
        low, high = -self._max_velocity * dt_s, self._max_velocity * dt_s
        feed, behind = wanted - self._target, self._target - self._last
        near, below, above = self._approach(np.array([np.abs(behind), self._last - self._lower, self._upper - self._last]), dt_s)
        step = np.minimum(np.maximum(feed, low), high) + np.sign(behind) * near
        drift, max_change = self._velocity * dt_s, self._max_acceleration * dt_s**2
        low = np.maximum(np.maximum(low, drift - max_change), -below)
        high = np.minimum(np.minimum(high, drift + max_change), above)
        moved: Values = self._last + np.minimum(np.maximum(step, low), high)
        moved = np.minimum(np.maximum(moved, self._lower), self._upper)
        self._velocity, self._target = (moved - self._last) / dt_s, wanted
        return moved

    def _approach(self, room: Values, dt_s: float) -> Values:
        """Largest step from which braking still ends within `room`.

        A velocity v for dt, and braking after that however the time is cut, travel v dt + v^2 / 2a at most; solved for v where that
        is the room, and without a difference of large numbers.
        """
        room = np.maximum(room, 0.0)
        velocity = 2.0 * room / (dt_s + np.sqrt(dt_s**2 + 2.0 * room / self._max_acceleration))
        return velocity * dt_s


class Interpolator:
    """A straight line from one command to the next, in equal parts: the control rate is a multiple of the policy's."""

    def __init__(self, steps: int) -> None:
        assert steps >= 1
        self._steps = steps
        self._from = self._target = np.empty(0, np.float32)
        self.clear()

    def clear(self) -> None:
        """Forgets the target."""
        self.pending = 0
        """Parts that are left until the target is reached."""

    def aim(self, last: Array | None, target: Array) -> None:
        """A new target, `steps` calls of `next` away. last: [A] the command before; None: the target at once, every time."""
        self._from, self._target, self.pending = target if last is None else last, target, self._steps

    def next(self, parts: int = 1) -> Array | None:
        """[A] the end of the next part, or of several; None: the target has been reached."""
        if not self.pending:
            return None
        self.pending = max(0, self.pending - parts)
        if not self.pending:
            return self._target
        rest = np.float32(self.pending / self._steps)
        return self._target + (self._from - self._target) * rest


def _rounded_down(bound: Values) -> Values:
    """To the next float32."""
    nearest = bound.astype(np.float32)
    return np.where(nearest > bound, np.nextafter(nearest, np.float32(-np.inf)), nearest).astype(np.float64)


def _column(values: tuple[float, ...], num_actions: int) -> Values:
    return np.minimum(np.array(values, np.float64), _UNLIMITED) if values else np.full(num_actions, _UNLIMITED)

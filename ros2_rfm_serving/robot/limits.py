"""Limits of commands: values, velocities, accelerations and jerks."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import numpy as np

from ros2_rfm_serving.errors import ConfigurationError

MAX_LAG_S = 1.0
"""Longest delay that a jerk limit may cause."""


@dataclass(frozen=True, kw_only=True)
class MotionLimits:
    """Limits per action column, in the command's units; an empty tuple: no limit of that kind; an infinite entry: none there."""

    lower: tuple[float, ...] = ()
    upper: tuple[float, ...] = ()
    tolerance: float = 0.0
    """A value beyond its limit by no more than this is clamped; one further out is refused, and the whole action with it."""
    max_velocity: tuple[float, ...] = ()
    """Velocity of position commands, per second; a faster command is slowed down."""
    max_acceleration: tuple[float, ...] = ()
    """Acceleration of position commands, per second squared; change per second of velocity and delta commands."""
    max_jerk: tuple[float, ...] = ()
    """Jerk of position commands, per second cubed; per second squared of all others. It needs an acceleration in the same column.
    Commands lag behind by max_acceleration / max_jerk seconds."""

    def __post_init__(self) -> None:
        _check_finite("tolerance", (self.tolerance,), least=0.0)
        for key in ("max_velocity", "max_acceleration", "max_jerk"):
            _check_rates(key, getattr(self, key))
        for key in ("lower", "upper"):
            if any(math.isnan(value) for value in getattr(self, key)):
                raise _wrong(key, getattr(self, key), "not a number", "give a number, or an infinity for no limit")
        lengths = {key: len(values) for key, values in self._columns().items() if values}
        if len(set(lengths.values())) > 1:
            raise ConfigurationError(f"lengths differ: {lengths}", key="limits", fix="give one value per action column in each")
        if self.lower and self.upper:
            for low, high in zip(self.lower, self.upper, strict=True):
                if not np.float32(low) < np.float32(high):
                    raise _wrong("lower", self.lower, f"{low:g} is not below its upper limit {high:g}", "make every lower < upper")

        for acceleration, jerk in zip(self.max_acceleration or (math.inf,) * len(self.max_jerk), self.max_jerk, strict=False):
            if math.isfinite(jerk) and not math.isfinite(acceleration):
                raise _wrong("max_jerk", self.max_jerk, "a jerk without an acceleration", "give limits.max_acceleration there, too")
            if math.isfinite(jerk) and acceleration / jerk > MAX_LAG_S:
                problem = f"commands would lag behind by {acceleration / jerk:g} s, which is max_acceleration / max_jerk"
                raise _wrong("max_jerk", self.max_jerk, problem, f"give a larger jerk, for at most {MAX_LAG_S:g} s")

    def check(self, num_actions: int) -> None:
        """Raise `ConfigurationError` unless each kind of limit is empty or has `num_actions` values."""
        for key, values in self._columns().items():
            if values and len(values) != num_actions:
                raise _wrong(key, values, f"{len(values)} values for {num_actions} actions", "give one per action, in their order")

    def _columns(self) -> dict[str, tuple[float, ...]]:
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name != "tolerance"}


def _check_rates(key: str, values: tuple[float, ...]) -> None:
    if any(math.isnan(value) or value <= 0.0 for value in values):
        raise _wrong(key, values, "a rate must be above zero", "give positive numbers, or an infinity for no limit")


def _check_finite(key: str, values: tuple[float, ...], *, least: float) -> None:
    if any(not math.isfinite(value) or value < least for value in values):
        raise _wrong(key, values, f"must be finite and at least {least:g}", "give a small number of the command's units, or 0")


def _wrong(key: str, values: tuple[float, ...], problem: str, fix: str) -> ConfigurationError:
    return ConfigurationError(f"{problem} ({', '.join(f'{value:g}' for value in values)})", key=f"limits.{key}", fix=fix)

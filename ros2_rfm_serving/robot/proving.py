"""Trial operation of a robot: slower than declared, or a dry run that commands nothing and records what it would have commanded."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.robot.columns import ActionColumns
from ros2_rfm_serving.robot.config import CommandType
from ros2_rfm_serving.robot.limits import MotionLimits
from ros2_rfm_serving.types import Array


def slowed(limits: MotionLimits, columns: ActionColumns, scale: float) -> MotionLimits:
    """Return limits with the rates of change of positions scaled down. scale: share of the declared rates, in (0, 1].

    Limits of velocities and displacements stay: `command_scale` reduces these commands, and with them how fast they change.

    Raises: `ConfigurationError` for commands that no limit slows down: positions without a velocity limit, and efforts.
    """
    if scale == 1.0:
        return limits
    if CommandType.EFFORT in columns.types:
        problem = f"is {scale:g}, and smaller efforts ({columns.named({CommandType.EFFORT})}) may let the robot fall"
        raise ConfigurationError(problem, key="speed_scale", fix="set it to 1, and lower limits.upper instead")
    velocities = limits.max_velocity or (math.inf,) * len(columns)
    unlimited = [
        name
        for name, position, most in zip(columns.names, columns.is_position, velocities, strict=False)
        if position and not math.isfinite(most)
    ]
    if unlimited:
        problem = f"is {scale:g}, and nothing limits the velocity of {', '.join(unlimited)}, whose commands are positions"
        raise ConfigurationError(problem, key="speed_scale", fix="give limits.max_velocity for it")
    rates = {
        name: tuple(
            scale * most if position else most for most, position in zip(getattr(limits, name), columns.is_position, strict=False)
        )
        for name in ("max_velocity", "max_acceleration", "max_jerk")
    }
    return replace(limits, **rates)  # type: ignore[arg-type]


def command_scale(columns: ActionColumns, scale: float) -> Array | None:
    """Return [A] the factor of each command: the scale for velocities and displacements; None: no command is scaled."""
    if scale == 1.0 or not columns.is_driven.any():
        return None
    return np.where(columns.is_driven, scale, 1.0).astype(np.float32)


@dataclass
class DryRun:
    """Record of the commands that a robot would have received. All arrays are [A], in the units of the policy."""

    names: tuple[str, ...]
    count: int = 0
    lowest: npt.NDArray[np.float64] = field(init=False)
    highest: npt.NDArray[np.float64] = field(init=False)
    largest_step: npt.NDArray[np.float64] = field(init=False)
    """Largest change from one command to the next."""
    _last: npt.NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
        self.lowest = np.full(len(self.names), np.inf)
        self.highest = np.full(len(self.names), -np.inf)
        self.largest_step = np.zeros(len(self.names))

    def add(self, command: npt.ArrayLike) -> None:
        """Note one command, [A]."""
        values = np.asarray(command, np.float64)
        self.lowest, self.highest = np.minimum(self.lowest, values), np.maximum(self.highest, values)
        if self._last is not None:
            self.largest_step = np.maximum(self.largest_step, np.abs(values - self._last))
        self._last = values
        self.count += 1

    def values(self) -> dict[str, object]:
        """Return the report for `/diagnostics`: per action its lowest, highest and largest step, in one text."""
        report: dict[str, object] = {"dry_run_commands": self.count}
        if self.count:
            columns = zip(self.names, self.lowest, self.highest, self.largest_step, strict=True)
            report |= {f"dry_run {name}": f"{low:.6g} {high:.6g} {step:.6g}" for name, low, high, step in columns}
        return report

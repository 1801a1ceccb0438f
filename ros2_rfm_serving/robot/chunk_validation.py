"""Checks of a whole chunk before its first action is executed, and the reaction to a failed check."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, fields

from ros2_rfm_serving.errors import ConfigurationError


class ChunkValidatorMode(enum.Enum):
    """Reaction to a failed check."""

    OFF = "off"
    WARN = "warn"
    """Count the chunk as `gate_<check>`, and execute it."""
    REFUSE = "refuse"
    """Count the chunk, and drop it whole."""


@dataclass(frozen=True, kw_only=True)
class ChunkValidatorConfig:
    """Reaction and threshold of each check; thresholds are per action column, and an empty tuple checks nothing."""

    jump: ChunkValidatorMode = ChunkValidatorMode.OFF
    """Change from the last command to the first action."""
    max_jump: tuple[float, ...] = ()
    """Largest change, in the action's units."""
    velocity: ChunkValidatorMode = ChunkValidatorMode.OFF
    """Velocity between the actions, for positions; the actions themselves, for velocities."""
    max_velocity: tuple[float, ...] = ()
    """Largest velocity, per second."""
    acceleration: ChunkValidatorMode = ChunkValidatorMode.OFF
    max_acceleration: tuple[float, ...] = ()
    """Largest acceleration, per second squared."""
    jerk: ChunkValidatorMode = ChunkValidatorMode.OFF
    max_jerk: tuple[float, ...] = ()
    """Largest jerk, per second cubed."""
    workspace: ChunkValidatorMode = ChunkValidatorMode.OFF
    """Actions outside of these limits."""
    workspace_lower: tuple[float, ...] = ()
    workspace_upper: tuple[float, ...] = ()
    clamped: ChunkValidatorMode = ChunkValidatorMode.REFUSE
    """Too many values of the first hundred chunks are clearly beyond the limits, to be clamped or refused: the units are wrong."""
    max_clamped: float = 0.5
    """Largest share of such values, [0, 1]."""
    statistics: ChunkValidatorMode = ChunkValidatorMode.OFF
    """Values too far from the actions that the model was trained on."""
    action_mean: tuple[float, ...] = ()
    action_std: tuple[float, ...] = ()
    """Empty: the model provides both when its session opens; a model without them is not checked, which is counted."""
    max_deviations: float = 8.0
    """Largest deviation, in standard deviations."""

    def check(self, num_actions: int) -> None:
        """Check this configuration for a robot with `num_actions` actions.

        Raises: `ConfigurationError` when an active check has no threshold, or a field does not have one number per action.
        """
        needs = {
            "jump": ("max_jump",),
            "velocity": ("max_velocity",),
            "acceleration": ("max_acceleration",),
            "jerk": ("max_jerk",),
            "workspace": ("workspace_lower", "workspace_upper"),
        }
        for check, names in needs.items():
            if getattr(self, check) is not ChunkValidatorMode.OFF and not all(getattr(self, name) for name in names):
                problem = f"`gate.{check}` is on, and has nothing to compare with"
                raise ConfigurationError(
                    problem, key=f"gate.{names[0]}", fix=f"give {' and '.join(names)} per action, or set it off"
                )
        if bool(self.action_mean) != bool(self.action_std):
            problem = "of `gate.action_mean` and `gate.action_std` only one is given"
            raise ConfigurationError(problem, key="gate.action_std", fix="give both, or neither to use the model's own")
        self._check_values()
        for field in fields(self):
            values = getattr(self, field.name)
            if isinstance(values, tuple) and values and len(values) != num_actions:
                problem = f"{len(values)} values for {num_actions} actions ({', '.join(map(str, values))})"
                raise ConfigurationError(problem, key=f"gate.{field.name}", fix="give one per action, in their order")

    def _check_values(self) -> None:
        """Raise `ConfigurationError` for NaN and for negative thresholds, which nothing or everything exceeds."""
        signed = {"workspace_lower", "workspace_upper", "action_mean"}
        for field in fields(self):
            values = getattr(self, field.name)
            given = values if isinstance(values, tuple) else (values,) if isinstance(values, float) else ()
            if any(math.isnan(value) or (value < 0.0 and field.name not in signed) for value in given):
                wanted = "numbers" if field.name in signed else "numbers of at least 0"
                problem = f"not {wanted} ({', '.join(f'{value:g}' for value in given)})"
                raise ConfigurationError(problem, key=f"gate.{field.name}", fix=f"give {wanted}, or an infinity for no limit")
        if any(low >= high for low, high in zip(self.workspace_lower, self.workspace_upper, strict=False)):
            problem = f"{self.workspace_lower} is not below `gate.workspace_upper`, {self.workspace_upper}"
            raise ConfigurationError(problem, key="gate.workspace_lower", fix="make every lower < upper")

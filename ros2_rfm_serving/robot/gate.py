"""What is looked for in a whole chunk before its first row moves anything, and what follows."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, fields

from ros2_rfm_serving.errors import ConfigurationError


class GateMode(enum.Enum):
    """What follows when a check finds something."""

    OFF = "off"
    WARN = "warn"
    """It is counted as `gate_<check>`, and executed."""
    REFUSE = "refuse"
    """It is counted, and dropped whole."""


@dataclass(frozen=True, kw_only=True)
class GateConfig:
    """Per check what follows, and from where on it finds something; per action column, an empty tuple checks nothing."""

    jump: GateMode = GateMode.OFF
    """From the last command to the first row."""
    max_jump: tuple[float, ...] = ()
    """In the action's units."""
    velocity: GateMode = GateMode.OFF
    """Between its rows, of positions; of the rows themselves, of velocities."""
    max_velocity: tuple[float, ...] = ()
    """Per second."""
    acceleration: GateMode = GateMode.OFF
    max_acceleration: tuple[float, ...] = ()
    """Per second squared."""
    jerk: GateMode = GateMode.OFF
    max_jerk: tuple[float, ...] = ()
    """Per second cubed."""
    workspace: GateMode = GateMode.OFF
    """Any row outside of these."""
    workspace_lower: tuple[float, ...] = ()
    workspace_upper: tuple[float, ...] = ()
    clamped: GateMode = GateMode.REFUSE
    """Too many of the first hundred chunks' values are clearly beyond the limits, to be clamped or refused: the units are wrong."""
    max_clamped: float = 0.5
    """Share of the values, [0, 1]."""
    statistics: GateMode = GateMode.OFF
    """Any value too far from the actions that the model was trained on."""
    action_mean: tuple[float, ...] = ()
    action_std: tuple[float, ...] = ()
    """Empty: as the model itself says when its session opens; one that does not say is not checked, which is counted."""
    max_deviations: float = 8.0
    """Standard deviations."""

    def check(self, num_actions: int) -> None:
        """Raises: `ConfigurationError` when a check is on that has nothing to compare with, or not one number per action."""
        needs = {
            "jump": ("max_jump",),
            "velocity": ("max_velocity",),
            "acceleration": ("max_acceleration",),
            "jerk": ("max_jerk",),
            "workspace": ("workspace_lower", "workspace_upper"),
        }
        for check, names in needs.items():
            if getattr(self, check) is not GateMode.OFF and not all(getattr(self, name) for name in names):
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
        """Nothing is beyond what is no number, and everything beyond what is below zero."""
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

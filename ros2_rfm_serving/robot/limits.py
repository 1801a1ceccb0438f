"""What a command may be: values, velocities, accelerations."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Per action column, in the command's units; an empty tuple: no limit of that kind."""

    lower: tuple[float, ...] = ()
    upper: tuple[float, ...] = ()
    tolerance: float = 0.0
    """A value beyond its limit by no more than this is clamped; one further out is refused, and the whole action with it."""
    max_velocity: tuple[float, ...] = ()
    """Of position commands, per second: a faster one is slowed down."""
    max_acceleration: tuple[float, ...] = ()
    """Per second squared of position commands; change per second of velocity and delta commands."""

"""Whether a robot passes a policy's steps as fast as they were demonstrated, and what to do where it does not."""

from __future__ import annotations

TOLERANCE = 0.05
"""Relative difference between two rates that is no other one."""
MOST_PARTS = 1000
"""Commands per step of a policy, at most."""


def other_rate(step_rate_hz: float, demonstrated_hz: float) -> str:
    """Return how a robot's steps per second differ from the demonstrations'; empty: they do not, or one is not known (0)."""
    if step_rate_hz and demonstrated_hz and abs(step_rate_hz / demonstrated_hz - 1.0) > TOLERANCE:
        return f"the robot runs at {step_rate_hz:g} Hz, the demonstrations ran at {demonstrated_hz:g} Hz"
    return ""


def rate_fix(control_rate_hz: float, demonstrated_hz: float, *, interpolates: bool, accept: str) -> str:
    """Return what bridges that.

    interpolates: the robot's commands have something between two of them. accept: the key that lets it move faster or slower than
    was demonstrated.
    """
    parts = round(control_rate_hz / demonstrated_hz)
    bridges = 1 < parts <= MOST_PARTS and not other_rate(control_rate_hz / parts, demonstrated_hz)
    fix = f"set `control_rate_hz: {demonstrated_hz:g}`"
    if interpolates:
        fix = f"set `interpolation: {parts}`" if bridges else f"{fix}, or a multiple of it with `interpolation`"
    return f"{fix}; `{accept}: true` accepts it"

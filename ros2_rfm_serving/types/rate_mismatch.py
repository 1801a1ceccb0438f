"""Comparison of a robot's rate of policy steps with the rate of the demonstrations, and the fix where they differ."""

from __future__ import annotations

TOLERANCE = 0.05
"""Largest relative difference between two rates that count as equal."""
MAX_SUBSTEPS = 1000
"""Maximum number of commands per step of a policy."""


def rate_mismatch_text(step_rate_hz: float, demonstrated_hz: float) -> str:
    """Return how a robot's steps per second differ from the demonstrations'; empty: they are equal, or one is not known (0)."""
    if step_rate_hz and demonstrated_hz and abs(step_rate_hz / demonstrated_hz - 1.0) > TOLERANCE:
        return f"the robot runs at {step_rate_hz:g} Hz, the demonstrations ran at {demonstrated_hz:g} Hz"
    return ""


def rate_mismatch_fix(control_rate_hz: float, demonstrated_hz: float, *, interpolates: bool, accept: str) -> str:
    """Return the change of the configuration that removes the difference.

    interpolates: commands are interpolated between steps of the policy. accept: the key that allows a motion faster or slower than
    the demonstrations.
    """
    parts = round(control_rate_hz / demonstrated_hz)
    bridges = 1 < parts <= MAX_SUBSTEPS and not rate_mismatch_text(control_rate_hz / parts, demonstrated_hz)
    fix = f"set `control_rate_hz: {demonstrated_hz:g}`"
    if interpolates:
        fix = f"set `interpolation: {parts}`" if bridges else f"{fix}, or a multiple of it with `interpolation`"
    return f"{fix}; `{accept}: true` accepts it"

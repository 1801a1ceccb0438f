"""Conversion of an action chunk to the intended path of the end effector."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ros2_rfm_serving.monitoring.kinematics import Arm

Points = npt.NDArray[np.float64]
"""[T, 3], m"""
CARTESIAN = re.compile(r"(?P<delta>delta_)?(?:\w+_)?(?P<axis>[xyz])")
UNKNOWN_RGB = (0.6, 0.6, 0.6)
"""Colour of an action with unknown confidence."""


def path(
    names: Sequence[str], rows: npt.NDArray[np.float32], here: Points | None, held: int, *, delta_scale_m: float, arm: Arm | None
) -> Points | None:
    """Return the path of a chunk's rows [T, A] in robot space; None: its actions do not determine the end effector.

    here: position [3] when the chunk arrives, from which displacements count; None: unknown, so that displacements give no path.
    held: rows that were executed meanwhile.
    """
    if columns := _cartesian(names):
        wanted = rows[:, list(columns.values())].astype(np.float64)
        if not all(name.startswith("delta_") for name in columns):
            return wanted
        if here is None:
            return None
        reached = np.cumsum(wanted * delta_scale_m, axis=0)
        return here + reached - (reached[min(held, len(reached)) - 1] if held and len(reached) else 0.0)
    if arm is not None and arm.moving and set(arm.moving) <= set(names):
        found = [arm.position(dict(zip(names, map(float, row), strict=True))) for row in rows]
        return np.array(found).reshape(-1, 3)
    return None


def _cartesian(names: Sequence[str]) -> dict[str, int]:
    """Return name -> column of x, y and z; empty: not all three exist in one kind."""
    found: dict[tuple[bool, str], tuple[str, int]] = {}
    for column, name in enumerate(names):
        if match := CARTESIAN.fullmatch(name):
            found.setdefault((bool(match["delta"]), match["axis"]), (name, column))
    for delta in (True, False):
        if all((delta, axis) in found for axis in "xyz"):
            return dict(found[delta, axis] for axis in "xyz")
    return {}


def colour(confidence: float) -> tuple[float, float, float]:
    """Return (red, green, blue), from red for no confidence to green; grey if it is unknown."""
    if not 0.0 <= confidence <= 1.0:
        return UNKNOWN_RGB
    return (min(1.0, 2.0 * (1.0 - confidence)), min(1.0, 2.0 * confidence), 0.1)

"""Meaning of the numbers of a command for the receiver, and the commands that stop the robot there."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.robot.columns import KEPT, LASTING, ActionColumns
from ros2_rfm_serving.robot.config import CommandType
from ros2_rfm_serving.types import Array


def published(
    command: Array | npt.NDArray[np.float64], scale: tuple[float, ...], offset: tuple[float, ...]
) -> npt.NDArray[np.float64]:
    """Return [A] the published numbers of a command, `scale * command + offset`; empty: 1 and 0. A minus zero becomes a zero."""
    values: npt.NDArray[np.float64] = np.array(scale or 1.0) * command + np.array(offset or 0.0)
    return values


def counted_on(
    values: npt.NDArray[np.float64], before: npt.NDArray[np.float64], turns: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Return [A] the same angles, as the numbers nearest to `before`. turns: [A] one turn; 0: the column has none."""
    way, turn = values - before, np.where(turns > 0.0, turns, 1.0)
    nearest: npt.NDArray[np.float64] = np.where(turns > 0.0, before + way - turn * np.round(way / turn), values)
    return nearest


def check_stop(
    columns: ActionColumns, meaning: CommandType | None, offset: tuple[float, ...], what: str, *, zeroes: bool = False
) -> None:
    """Check that a command exists that stops the robot.

    meaning: of the numbers for the receiver; None: that of the commands. what: the source of `meaning`, for users. zeroes: True
    when displacements of zero are commanded.

    Raises: `ConfigurationError` when no number that could be sent stops the robot.
    """
    if meaning is not None:
        _check_meaning(columns, meaning, what)
    stopping = LASTING | ({CommandType.DELTA} if zeroes or (columns.mixed and columns.has_lasting) else set())
    moved = [
        (name, kind, value)
        for name, kind, value in zip(columns.names, columns.types, offset, strict=False)
        if kind in stopping and value
    ]
    if moved:
        told = ", ".join(f"{value:g}" for value in offset) if not columns.mixed else ", ".join(f"{v:g} ({n})" for n, _, v in moved)
        problem = f"a stop, zero, would be published as the {moved[0][1].value} {told}"
        plural = {"velocity": "velocities", "effort": "efforts", "delta": "displacements"}[moved[0][1].value]
        raise ConfigurationError(problem, key="command_offset", fix=f"leave it out where commands are {plural}")


def _check_meaning(columns: ActionColumns, meaning: CommandType, what: str) -> None:
    """Raise `ConfigurationError` when the receiver reads other types. Kept values, such as a gripper's, may be positions there."""
    fits = KEPT if meaning is CommandType.POSITION else {meaning}
    others = frozenset(columns.types) - fits
    if not others:
        return
    problem = f"{what} takes each number as a {meaning.value}: {columns.label} commands would not stop the robot there"
    if columns.mixed:
        fix = f"name another sink, such as array, or set the type of {columns.named(others)} to {meaning.value}"
        raise ConfigurationError(problem, key="sink", fix=fix)
    fix = f"set command_type: {meaning.value}" + (
        " and end the fallback with `zero`" if meaning is CommandType.VELOCITY else ", or name another sink"
    )
    raise ConfigurationError(problem, key="command_type", fix=fix)

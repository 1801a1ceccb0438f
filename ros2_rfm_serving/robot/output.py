"""What the numbers of a command mean where they arrive, and so what stops the robot there."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.robot.config import CommandType
from ros2_rfm_serving.types import Array


def published(
    command: Array | npt.NDArray[np.float64], scale: tuple[float, ...], offset: tuple[float, ...]
) -> npt.NDArray[np.float64]:
    """[A] what goes out for a command: `scale * command + offset`; empty: 1 and 0. The sum turns a minus zero into a zero."""
    values: npt.NDArray[np.float64] = np.array(scale or 1.0) * command + np.array(offset or 0.0)
    return values


def check_stop(command_type: CommandType, meaning: CommandType | None, offset: tuple[float, ...], what: str) -> None:
    """Raises: `ConfigurationError` when nothing that the robot could be told there makes it stand.

    meaning: of the numbers where they arrive; None: they are what the commands are. what: that says so, for people.
    """
    if meaning is not None and meaning is not command_type:
        problem = f"{what} takes each number as a {meaning.value}: {command_type.value} commands would not stop the robot there"
        fix = f"set command_type: {meaning.value}" + (
            " and end the fallback with `zero`" if meaning is CommandType.VELOCITY else ", or name another sink"
        )
        raise ConfigurationError(problem, key="command_type", fix=fix)
    if command_type is CommandType.VELOCITY and any(offset):
        moved = ", ".join(f"{value:g}" for value in offset)
        problem = f"a stop, zero, would be published as the velocity {moved}"
        raise ConfigurationError(problem, key="command_offset", fix="leave it out where commands are velocities")

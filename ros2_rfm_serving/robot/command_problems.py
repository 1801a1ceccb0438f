"""Diagnoses of a robot's actions and commands, with values and units, for users. No decision follows from them."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from ros2_rfm_serving.robot.columns import ActionColumns
from ros2_rfm_serving.robot.config import CommandType, RobotConfig
from ros2_rfm_serving.types import ActionChunk, Array

Values = npt.NDArray[np.float64]

LARGEST_ANGLE_RAD = 2.0 * math.pi
"""Largest limit of an arm's joint whose limits are angles in radians."""
SMALLEST_DEGREES = 45.0
"""Smallest limit, of all joints, that suggests degrees, where the joints are measured within one turn in radians."""
STILL_WINDOW_S = 3.0
"""Window in which commands and measurements are compared."""
MOVED = 0.05
"""Smallest commanded motion in that window, in the units of the actions, that counts; less may be lost in friction."""
OFFSET = 0.2
"""Smallest distance between a constant commanded position and the measured one that counts as commanded motion."""
STILL = 0.02
"""Share of the commanded motion; a joint that stands moves less."""
STILL_STATE = 1e-6
"""Range of each number of a state in that window below which the robot stands, where no positions of the actions are measured."""


def start_problem(obstacle: str, positions: Array | None, config: RobotConfig) -> str:
    """Return why position commands do not begin, with the fix; empty: `obstacle` has another cause.

    obstacle: name of the counter. positions: [A] measured, in the units of the actions; None: unknown.
    """
    if obstacle == "position_unsteady":
        return "the measured position jumps by more than `limits.max_velocity` allows: check the driver"
    if obstacle == "position_unknown":
        return "the measured position is unknown: name the joints in `action_joints`, or the places in the state in `action_state`"
    if obstacle != "position_out_of_limits" or positions is None:
        return ""
    lower, upper = _bounds(config)
    outside = np.maximum(lower - positions, positions - upper)
    action = int(np.argmax(np.where(ActionColumns.of(config).is_position, outside, -math.inf)))
    return (
        f"{config.action_names[action]!r} is measured at {positions[action]:.4g}, outside of its limits "
        f"{lower[action]:.4g} to {upper[action]:.4g}: correct the unit (`unit_scale`) or the limits, or move the robot back by hand"
    )


def chunk_problem(chunk: ActionChunk, config: RobotConfig) -> str:
    """Return the problem of the actions of a chunk, with the worst value and its limits; empty: there is no problem."""
    names, rows = config.action_names, np.asarray(chunk.chunk_robot)
    if chunk.action_names != names:
        return f"its actions are {', '.join(chunk.action_names)}, and the robot's are {', '.join(names)}"
    if rows.ndim != 2 or rows.shape[1] != len(names) or not len(rows):
        return f"its actions have the shape {rows.shape}, and the robot has {len(names)} actions"
    if len(wrong := np.argwhere(~np.isfinite(rows))):
        row, column = wrong[0]
        return f"{rows[row, column]} for {names[column]} in action {row + 1} of {len(rows)}"
    return _beyond_limits(rows, config)


def _beyond_limits(rows: Array, config: RobotConfig) -> str:
    """Return the problem of the worst value beyond its limits; empty: there is none. rows: [T, A], finite."""
    lower, upper = _bounds(config)
    outside = np.maximum(lower - rows, rows - upper)
    row, column = np.unravel_index(int(np.argmax(outside)), outside.shape)
    if outside[row, column] <= config.limits.tolerance:
        return ""
    num = int((outside[:, column] > 0.0).sum())
    often = f"in each of {len(rows)} actions" if num == len(rows) else f"in {num} of {len(rows)} actions"
    value, name = rows[row, column], config.action_names[column]
    degrees = abs(value) > LARGEST_ANGLE_RAD >= max(abs(lower[column]), abs(upper[column]))
    unit = ": are these degrees?" if degrees else ""
    return f"{value:.4g} for {name}, which may be {lower[column]:.4g} to {upper[column]:.4g}, {often} of a chunk{unit}"


def _bounds(config: RobotConfig) -> tuple[Array, Array]:
    """Return ([A], [A]), the lower and upper limits of commands; infinite: no limit."""
    shape = (len(config.action_names),)
    lower = np.broadcast_to(np.asarray(config.limits.lower or -math.inf), shape)
    return lower, np.broadcast_to(np.asarray(config.limits.upper or math.inf), shape)


def limits_problem(positions: Array | None, config: RobotConfig) -> str:
    """Return why the limits of position commands look like degrees while the joints are in radians; empty: they do not.

    positions: [A] measured, in the units of the actions; None: unknown.
    """
    is_position = ActionColumns.of(config).is_position
    lower, upper = _bounds(config)
    limited = is_position & np.isfinite(lower) & np.isfinite(upper)
    if positions is None or limited.sum() < 2:
        return ""
    ends = np.maximum(np.abs(lower), np.abs(upper))
    if (ends[limited] < SMALLEST_DEGREES).any() or not (np.abs(positions[limited]) <= LARGEST_ANGLE_RAD).all():
        return ""
    first = int(np.flatnonzero(limited)[0])
    return (
        f"the limits of {config.action_names[first]} are {lower[first]:g} to {upper[first]:g}, and it is measured at "
        f"{positions[first]:.3g}, as are all joints within one turn in radians: `limits` seems to be in degrees"
    )


class Stillness:
    """Detector of commands that move nothing. `problem` describes them after each window, and is empty otherwise."""

    def __init__(self, config: RobotConfig) -> None:
        self._config, self._columns = config, ActionColumns.of(config)
        self.problem = ""
        self.restart()

    def restart(self) -> None:
        """Begin a window, because the commands so far belong to another motion."""
        self._commands: list[Array] = []
        self._measured: list[Array] = []
        self._begun_s = math.inf

    def end(self) -> None:
        """Clear the problem, because no commands go out any more."""
        self.problem = ""
        self.restart()

    def note(self, command: Array, measured: Array, now_s: float) -> None:
        """Note what one control period commands.

        command: [A]. measured: [A] positions in the units of the actions, or, where they are unknown, [S] the state.
        """
        if self._measured and measured.shape != self._measured[0].shape:
            self.restart()
        self._commands.append(command)
        self._measured.append(measured)
        self._begun_s = min(self._begun_s, now_s)
        if now_s - self._begun_s >= STILL_WINDOW_S:
            self.problem = self._found(now_s - self._begun_s)
            self.restart()

    def _found(self, window_s: float) -> str:
        commands, measured = np.array(self._commands, np.float64), np.array(self._measured, np.float64)
        ranges, are_positions = np.ptp(measured, axis=0), measured.shape == commands.shape
        wanted = self._commanded(commands, measured if are_positions else None, window_s)
        moving = wanted > MOVED
        if not moving.any():
            return ""
        stands = bool((ranges[moving] <= STILL * wanted[moving]).all()) if are_positions else bool((ranges <= STILL_STATE).all())
        if not stands:
            return ""
        column = int(np.argmax(wanted))
        name, how_far = self._config.action_names[column], wanted[column]
        moved = f"it was measured to move by {ranges[column]:.2g}" if are_positions else "no number of the state changed"
        return f"commands go out, and nothing moves: {name} was to move by {how_far:.3g} in {window_s:.0f} s, and {moved}"

    def _commanded(self, commands: Values, measured: Values | None, window_s: float) -> Values:
        """Return [A] the motion that was commanded to each column in the window; 0 for binary columns and efforts."""
        columns = self._columns
        wanted = np.where(columns.is_position, np.ptp(commands, axis=0), 0.0)
        if measured is not None:
            offset = np.abs((commands - measured).mean(axis=0))
            wanted = np.where(columns.is_position & (offset > OFFSET), np.maximum(wanted, offset), wanted)
        kinds = np.array([kind.value for kind in columns.types])
        travel = np.abs(commands).sum(axis=0)
        wanted = np.where(kinds == CommandType.VELOCITY.value, travel * window_s / len(commands), wanted)
        return np.where(kinds == CommandType.DELTA.value, travel, wanted)

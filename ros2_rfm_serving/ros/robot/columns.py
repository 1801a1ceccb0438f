"""Description of a robot's action columns, from its ROS parameters."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable
from fnmatch import fnmatchcase

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.robot.columns import ALIASES, FULL_TURN, ActionColumns
from ros2_rfm_serving.robot.config import CommandType
from ros2_rfm_serving.robot.limits import MotionLimits
from ros2_rfm_serving.ros.node.parameters import Values

NAMES = {**{kind.value: kind for kind in CommandType}, **ALIASES}
"""Names of command types that users may write."""


def action_columns(values: Values, actions: tuple[str, ...]) -> ActionColumns:
    """Return the action columns. Raises: `ConfigurationError`, which names the parameter and the column."""
    types, turns, limits = _types(values, actions), _turns(values, actions), read_limits(values)
    try:
        return ActionColumns.made(types[0], actions, types=types, turns=turns, limits=limits)
    except ConfigurationError as error:
        if error.key != "continuous_joints":
            raise
        raise values.wrong(error.key, error.problem, error.fix) from None  # with the value


def read_limits(values: Values) -> MotionLimits:
    """Return the limits. Raises: `ConfigurationError`."""
    return MotionLimits(
        lower=values.numbers("limits.lower"),
        upper=values.numbers("limits.upper"),
        tolerance=values.number("limits.tolerance"),
        max_velocity=values.numbers("limits.max_velocity"),
        max_acceleration=values.numbers("limits.max_acceleration"),
        max_jerk=values.numbers("limits.max_jerk"),
    )


def check_velocities(values: Values, columns: ActionColumns, limits: MotionLimits) -> None:
    """Raise `ConfigurationError` for a velocity limit of columns whose commands are velocities or efforts themselves."""
    limited = [
        (name, kind)
        for name, kind, most in zip(columns.names, columns.types, limits.max_velocity, strict=False)
        if kind in (CommandType.VELOCITY, CommandType.EFFORT) and (math.isfinite(most) or not columns.mixed)
    ]
    if not limited:
        return
    what = "velocities" if limited[0][1] is CommandType.VELOCITY else "efforts"
    where = f" in {', '.join(name for name, _ in limited)}" if columns.mixed else ""
    other = "; write .inf in these columns" if columns.mixed else ""
    raise values.wrong("limits.max_velocity", f"commands are {what} themselves{where}", f"use limits.lower and limits.upper{other}")


def _types(values: Values, actions: tuple[str, ...]) -> tuple[CommandType, ...]:
    """Return one type per action, from a list of all types, or from `command_type` and a list of exceptions."""
    given = values.texts("command_types")
    if given and not any("=" in part for part in given):
        if len(given) != len(actions):
            fix = f"give one per action ({', '.join(actions)}), or action=type where one differs from command_type"
            raise values.wrong("command_types", f"{len(given)} types for {len(actions)} actions", fix)
        return tuple(_type(values, action, text) for action, text in zip(actions, given, strict=True))
    found = dict.fromkeys(actions, NAMES[values.text("command_type")])
    exceptions = values.pairs("command_types")
    for wanted in sorted(exceptions, key=_is_exact):  # exact names win over patterns
        kind = _type(values, wanted, exceptions[wanted])
        found |= dict.fromkeys(_matching(values, "command_types", wanted, actions), kind)
    return tuple(found[action] for action in actions)


def _type(values: Values, action: str, text: str) -> CommandType:
    if text in NAMES:
        return NAMES[text]
    close = difflib.get_close_matches(text, NAMES, 1)
    meant = f", did you mean {close[0]!r}?" if close else ""
    raise values.wrong("command_types", f"{action} has the unknown type {text!r}{meant}", f"one of {', '.join(NAMES)}")


def _turns(values: Values, actions: tuple[str, ...]) -> tuple[float, ...]:
    """Return the size of a turn per action; 0: it does not wrap.
    A column is found by its action, and by the joint that it moves."""
    given = values.texts("continuous_joints")
    if not given:
        return ()
    found = dict.fromkeys(actions, 0.0)
    for entry in sorted(given, key=_is_exact):
        name, equals, turn = entry.partition("=")
        size = values.parsed("continuous_joints", turn) if equals else FULL_TURN
        if not size > 0.0:
            raise values.wrong("continuous_joints", f"{name} has a turn of {size:g}", "give the size of one turn, above zero")
        for action in _joints(values, name.strip(), actions):
            found[action] = size
    return tuple(found[action] for action in actions)


def _joints(values: Values, wanted: str, actions: tuple[str, ...]) -> list[str]:
    """Return the actions with this name, or that move a joint with this name."""
    names = {action: {action} for action in actions}
    for parameter in ("action_joints", "sink_joints"):
        for action, joint in zip(actions, values.texts(parameter), strict=False):
            names[action].add(joint)
    found = [action for action, known in names.items() if any(fnmatchcase(name, wanted) for name in known)]
    return found or _matching(values, "continuous_joints", wanted, sorted(set().union(*names.values())))


def _matching(values: Values, parameter: str, wanted: str, names: Iterable[str]) -> list[str]:
    """Return the names that match a pattern. Raises: `ConfigurationError` when there is none."""
    names = list(names)
    if found := [name for name in names if fnmatchcase(name, wanted)]:
        return found
    close = difflib.get_close_matches(wanted, names, 1)
    meant = f", did you mean {close[0]!r}?" if close else ""
    raise values.wrong(parameter, f"there is no {wanted!r}{meant}", f"name one of {', '.join(names)}")


def _is_exact(entry: str) -> bool:
    return not any(letter in entry for letter in "*?[")

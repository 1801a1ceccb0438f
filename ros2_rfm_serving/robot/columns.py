"""Description of the columns of an action: how each is commanded, which value stops it, and whether its values wrap.

All code that handles commands uses this description: limits, interpolation, blending, the fallback ladder, the gate, the smoothness
metrics, the check of the output, and the simulated bodies.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.robot.config import CommandType, RobotConfig
from ros2_rfm_serving.robot.limits import MotionLimits
from ros2_rfm_serving.types import Array

Mask = npt.NDArray[np.bool_]
Values = npt.NDArray[Any]
"""[..., A] of any floating type."""

FULL_TURN = 2.0 * math.pi
KNOWN_TURNS = (FULL_TURN, 360.0)
"""Limits that span one of these suggest a continuous joint: radians and degrees."""
SPAN_TOLERANCE = 0.008
"""Relative tolerance of the span, because limits are written with two or three digits, such as 3.14."""
MOST_TURNS = 1.1
"""Largest span of limits, in turns, of a joint that wraps. A joint with wider limits counts its turns: wrapping its command from
one limit to the other would turn it all the way back."""
WINDOW_TOLERANCE = 0.05
"""Turns by which a policy may be beyond the border of its own representation."""

KEPT = frozenset({CommandType.POSITION, CommandType.BINARY})
"""Types whose last command stays in force and holds the robot: a stop keeps it."""
ZEROED = frozenset({CommandType.VELOCITY, CommandType.EFFORT, CommandType.DELTA})
"""Types that a stop sets to zero."""
LASTING = frozenset({CommandType.VELOCITY, CommandType.EFFORT})
"""Types whose last command stays in force and moves the robot: only zero stops them."""
ALIASES = {"gripper": CommandType.BINARY}
"""Other names of command types, for users."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ActionColumns:
    """The description of all columns of one robot's actions. Masks are [A]."""

    kind: CommandType
    """Type of all columns where they are alike, and of a robot without columns; otherwise the type of the first one."""
    names: tuple[str, ...]
    types: tuple[CommandType, ...]
    turns: tuple[float, ...]
    """[A] one turn of a continuous joint, in the action's units; 0: the column does not wrap."""
    lower: tuple[float, ...]
    """[A] smallest value that is commanded; -inf: none."""
    upper: tuple[float, ...]
    is_position: Mask = field(init=False)
    is_binary: Mask = field(init=False)
    is_kept: Mask = field(init=False)
    """Columns whose last command is kept by a stop."""
    is_zeroed: Mask = field(init=False)
    """Columns that are set to zero by a stop."""
    is_delta: Mask = field(init=False)
    is_driven: Mask = field(init=False)
    """Columns of velocities and displacements; the remaining distance drives them towards a safe pose."""
    wraps: Mask = field(init=False)
    """Columns whose commands are positions of a continuous joint."""
    mixed: bool = field(init=False)
    has_position: bool = field(init=False)
    has_binary: bool = field(init=False)
    has_delta: bool = field(init=False)
    has_kept: bool = field(init=False)
    has_lasting: bool = field(init=False)
    """True when the last command keeps some column moving."""
    has_turns: bool = field(init=False)
    has_wraps: bool = field(init=False)
    _turn: Values = field(init=False)
    """[A] one turn; 1 where the column does not wrap, so that it can be a divisor."""
    _turns: Mask = field(init=False)
    _low: Values = field(init=False)
    _high: Values = field(init=False)
    """[A] the limits, rounded towards each other to float32, the type of commands."""

    def __post_init__(self) -> None:
        """Compute the masks. Raises: `ConfigurationError` for a continuous joint whose turn, type or limits cannot wrap."""
        kinds, turns = frozenset(self.types) or frozenset({self.kind}), np.array(self.turns, np.float64)
        masks = {
            "is_position": self._mask({CommandType.POSITION}),
            "is_binary": self._mask({CommandType.BINARY}),
            "is_kept": self._mask(KEPT),
            "is_zeroed": self._mask(ZEROED),
            "is_delta": self._mask({CommandType.DELTA}),
            "is_driven": self._mask({CommandType.VELOCITY, CommandType.DELTA}),
            "wraps": self._mask({CommandType.POSITION}) & (turns > 0.0),
            "_turns": turns > 0.0,
            "_turn": np.where(turns > 0.0, turns, 1.0),
            "_low": -rounded_down(-np.array(self.lower, np.float64)),
            "_high": rounded_down(np.array(self.upper, np.float64)),
        }
        flags = {
            "mixed": len(kinds) > 1,
            "has_position": CommandType.POSITION in kinds,
            "has_binary": CommandType.BINARY in kinds,
            "has_delta": CommandType.DELTA in kinds,
            "has_kept": bool(kinds & KEPT),
            "has_lasting": bool(kinds & LASTING),
            "has_turns": bool((turns > 0.0).any()),
            "has_wraps": bool(masks["wraps"].any()),
        }
        for name, value in (masks | flags).items():
            object.__setattr__(self, name, value)
        self._check_turns()

    @classmethod
    def of(cls, config: RobotConfig) -> ActionColumns:
        """Return the columns of a robot. Raises: `ConfigurationError` when types or turns do not match the actions."""
        return cls.made(
            config.command_type, config.action_names, types=config.command_types, turns=config.turns, limits=config.limits
        )

    @classmethod
    def made(
        cls,
        kind: CommandType,
        names: tuple[str, ...],
        *,
        types: tuple[CommandType, ...] = (),
        turns: tuple[float, ...] = (),
        limits: MotionLimits | None = None,
    ) -> ActionColumns:
        """Return the columns with these names. types, turns: per column; empty: all are `kind`, and none wraps.

        Raises: `ConfigurationError` when the number of types, turns or limits is not that of the names, or a turn is impossible.
        """
        for key, given in (("command_types", types), ("continuous_joints", turns)):
            if given and len(given) != len(names):
                raise ConfigurationError(f"{len(given)} values for {len(names)} actions", key=key, fix="give one per action")
        limits = limits or MotionLimits()
        limits.check(len(names))
        num = len(names)
        return cls(
            kind=types[0] if types else kind,
            names=names,
            types=types or (kind,) * num,
            turns=turns or (0.0,) * num,
            lower=limits.lower or (-math.inf,) * num,
            upper=limits.upper or (math.inf,) * num,
        )

    def __len__(self) -> int:
        return len(self.types)

    @property
    def label(self) -> str:
        """Return the types, for users: `velocity`, or `velocity (j1, j2) and binary (grip)`."""
        if not self.mixed:
            return self.kind.value
        return " and ".join(f"{kind.value} ({self.named({kind})})" for kind in dict.fromkeys(self.types))

    def named(self, kinds: Iterable[CommandType]) -> str:
        """Return the names of the columns of these types, for users."""
        wanted = frozenset(kinds)
        return ", ".join(name for name, kind in zip(self.names, self.types, strict=True) if kind in wanted)

    def has(self, kinds: Iterable[CommandType]) -> bool:
        """Return whether some column is of one of these types; a robot without columns has its `kind`."""
        return bool((frozenset(self.types) or frozenset({self.kind})) & frozenset(kinds))

    # --- differences ---

    def distance(self, positions: Values, others: Values) -> Values:
        """Return [..., A] the distance of measured positions from others, the shortest way round continuous joints of any type."""
        difference: Values = positions - others
        return self._shortest(difference, self._turns) if self.has_turns else difference

    def change(self, commands: Values, before: Values) -> Values:
        """Return [..., A] the change between two commands, the shortest way for positions of a continuous joint."""
        difference: Values = commands - before
        return self._shortest(difference, self.wraps) if self.has_wraps else difference

    def _shortest(self, difference: Values, where: Mask) -> Values:
        shortest: Values = np.where(where, difference - self._turn * np.round(difference / self._turn), difference)
        return shortest.astype(difference.dtype, copy=False)

    def unwrapped(self, rows: Values) -> Values:
        """Return [n, A] the rows of a chunk, without the jumps at the borders of continuous joints."""
        if not self.has_wraps or len(rows) < 2:
            return rows
        made = rows.copy()
        for column in np.flatnonzero(self.wraps):
            made[:, column] = np.unwrap(rows[:, column], period=self._turn[column])
        return made

    # --- how commands of continuous joints are written ---

    def inside(self, commands: Values) -> Values:
        """Return [A] the same positions within the limits of continuous joints, as their driver needs them."""
        if not self.has_wraps:
            return commands
        lower, upper = self._low, self._high
        above = np.where(self.wraps & (commands > upper), np.ceil((commands - upper) / self._turn), 0.0)
        below = np.where(self.wraps & (commands < lower), np.ceil((lower - commands) / self._turn), 0.0)
        moved = commands + (below - above) * self._turn
        made: Values = np.where(self.wraps, np.minimum(np.maximum(moved, lower), upper), commands)
        return made.astype(commands.dtype, copy=False)

    def written(self, commands: Values, start: Values, target: Values) -> Values:
        """Return [A] commands on the way from `start` to `target`, in the numbers that the policy and the driver use.

        Limits define these numbers. Without limits the two ends define them: where the way crosses the border between -pi and pi,
        or between 0 and 2 pi, the numbers cross it too. All others, such as counts of turns, continue from the command before.
        """
        if not self.has_wraps:
            return commands
        turn, low, high = self._turn, np.minimum(start, target), np.maximum(start, target)
        slack = WINDOW_TOLERANCE * turn
        crosses = self.wraps & (high - low > 0.5 * turn)
        centred = crosses & (low >= -0.5 * turn - slack) & (high <= 0.5 * turn + slack)
        from_zero = crosses & ~centred & (low >= -slack) & (high <= turn + slack)
        made = np.where(centred, commands - turn * np.round(commands / turn), commands)
        made = np.where(from_zero, commands - turn * np.floor(commands / turn), made)
        return self.inside(made.astype(commands.dtype, copy=False))

    # --- stops ---

    def stopped(self, last: Array) -> Array:
        """Return [A] float32: the command that stops the robot after the command `last`."""
        made: Array = np.where(self.is_kept, last, np.float32(0.0)).astype(np.float32, copy=False)
        return made

    # --- checks ---

    def _mask(self, kinds: Iterable[CommandType]) -> Mask:
        wanted = frozenset(kinds)
        return np.array([kind in wanted for kind in self.types], bool)

    def _check_turns(self) -> None:
        for name, kind, turn, low, high in zip(self.names, self.types, self.turns, self.lower, self.upper, strict=True):
            if not turn:
                continue
            if not 0.0 < turn < math.inf:
                raise _wrong(f"{name}: a turn of {turn:g}", "give the size of one turn above zero, or none for 2 pi")
            if kind is CommandType.BINARY:
                raise _wrong(f"{name} is a binary column, which is no angle", "leave it out")
            if kind is not CommandType.POSITION or (low == -math.inf and high == math.inf):
                continue
            if not high - low >= (1.0 - SPAN_TOLERANCE) * turn:
                problem = f"{name} has limits from {low:g} to {high:g}, less than its turn of {turn:.5g}: it cannot go round"
                raise _wrong(problem, "leave it out, or give it limits of a whole turn or of -.inf and .inf")
            if high - low > MOST_TURNS * turn and math.isfinite(high - low):
                problem = f"{name} has limits from {low:g} to {high:g}, more than its turn of {turn:.5g}: it does not go round"
                fix = "leave it out if it may not pass these limits; else give it limits of one turn, or of -.inf and .inf"
                others = (full for full in KNOWN_TURNS if abs(high - low - full) <= SPAN_TOLERANCE * full)
                fix = next((f"write {name}={full:g} if these are degrees; else {fix}" for full in others), fix)
                raise _wrong(problem, fix)
            if math.inf in (-low, high):
                raise _wrong(f"{name} has one limit, and a joint that goes round has none or two", "give both, or neither")


def as_columns(kind: CommandType | ActionColumns, num_actions: int) -> ActionColumns:
    """Return the given columns, or `num_actions` columns of the given type."""
    if isinstance(kind, ActionColumns):
        return kind
    return ActionColumns.made(kind, tuple(f"action_{index}" for index in range(num_actions)))


def rounded_down(bound: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the largest float32 that is not above the bound."""
    nearest = bound.astype(np.float32)
    return np.where(nearest > bound, np.nextafter(nearest, np.float32(-np.inf)), nearest).astype(np.float64)


def suggestions(columns: ActionColumns, limits: MotionLimits) -> Iterator[str]:
    """Yield advice for users about a description that is valid."""
    yield from _without_speed_limit(columns, limits)
    for key, rates in (("max_velocity", limits.max_velocity), ("max_acceleration", limits.max_acceleration)):
        idle = [
            name
            for name, kind, rate in zip(columns.names, columns.types, rates, strict=False)
            if kind is CommandType.BINARY and math.isfinite(rate)
        ]
        if idle:
            yield f"limits.{key} of {', '.join(idle)} does not count: a binary column is never slowed down; write .inf there"
    for name, kind, turn, low, high in zip(columns.names, columns.types, columns.turns, columns.lower, columns.upper, strict=True):
        if kind is not CommandType.POSITION or turn:
            continue
        for full in KNOWN_TURNS:
            if abs(high - low - full) <= SPAN_TOLERANCE * full:
                units = "2 pi" if full == FULL_TURN else f"{full:g}"
                entry = name if full == FULL_TURN else f"{name}={full:g}"
                yield (
                    f"the limits of {name}, {low:g} to {high:g}, span one turn ({units}): if the joint goes round without end, "
                    f"write continuous_joints: [{entry}], or it turns the long way round at its border"
                )


def _without_speed_limit(columns: ActionColumns, limits: MotionLimits) -> Iterator[str]:
    rates = limits.max_velocity or (math.inf,) * len(columns)
    unlimited = [
        name
        for name, kind, rate in zip(columns.names, columns.types, rates, strict=True)
        if kind is CommandType.POSITION and math.isinf(rate)
    ]
    if unlimited:
        yield (
            f"commands of {', '.join(unlimited)} are positions without a speed limit: a far target is commanded in one period; "
            "give limits.max_velocity per action"
        )


def _wrong(problem: str, fix: str) -> ConfigurationError:
    return ConfigurationError(problem, key="continuous_joints", fix=fix)

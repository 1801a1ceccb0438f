"""Gate for whole chunks: a check warns about a chunk, or refuses it, before its first action is executed.

Limits clamp row by row, and so turn nonsense into slow nonsense. The gate checks all remaining rows of a chunk together. Positions
are differentiated once to be velocities; velocities, efforts and displacements count as they are, the latter per step. A continuous
joint goes the shortest way from row to row. A binary column may change at any row: only its limits count.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from ros2_rfm_serving.robot.chunk_validation import ChunkValidatorConfig, ChunkValidatorMode
from ros2_rfm_serving.robot.columns import ActionColumns, as_columns
from ros2_rfm_serving.robot.config import CommandType, RobotConfig
from ros2_rfm_serving.robot.limits import MotionLimits
from ros2_rfm_serving.types import Array
from ros2_rfm_serving.types.state import kept

FIRST_CHUNKS = 100
"""Number of chunks whose values are used to judge the units of a model."""
JUDGED_AFTER = 3
"""Chunks before the first judgement, because a single one may begin in a corner."""
MARGIN = 0.1
"""Share of a column's range that is tolerated: a policy that was trained up to its limits is often slightly beyond them."""

ROUNDING = 1e-9

Values = npt.NDArray[np.float64]
NO_VALUES: Values = np.empty((0, 0))


class ChunkValidator:
    """Gate of one robot. Call `validate` once per chunk, with the rows that would be executed."""

    KEPT: ClassVar = kept(
        num_chunks="_chunks", num_values="_values", num_clamped="_clamped", training_mean="_mean", training_std="_std"
    )

    def __init__(
        self,
        config: ChunkValidatorConfig,
        limits: MotionLimits,
        num_actions: int,
        step_s: float,
        *,
        order: int = 1,
        columns: ActionColumns | None = None,
    ) -> None:
        """Check the configuration. order: without `columns`, how often an action has to be differentiated to be a velocity: 1 for
        positions, 0 for velocities. Raises: `ConfigurationError` when the thresholds do not fit the actions."""
        config.check(num_actions)
        self._config, self._step_s = config, step_s
        kind = CommandType.POSITION if order else CommandType.VELOCITY
        self._columns = as_columns(kind, num_actions) if columns is None else columns
        infinite = np.full(num_actions, np.inf)
        lower = np.array(limits.lower) if limits.lower else -infinite
        upper = np.array(limits.upper) if limits.upper else infinite
        margin = np.where(np.isfinite(upper - lower), MARGIN * (upper - lower), 0.0)
        self._lower, self._upper = lower - margin, upper + margin
        self._chunks = self._values = self._clamped = 0
        self.units = ""
        """Problem with the units of the model's actions, for users; empty: there is none."""
        self._mean, self._std = np.array(config.action_mean), np.array(config.action_std)

    def restored(self) -> None:
        """Judge the units by the restored counts."""
        self._judge_units()

    @classmethod
    def of(cls, config: RobotConfig) -> ChunkValidator:
        """Return the gate of a robot. Raises: `ConfigurationError` when the thresholds do not fit its actions."""
        columns, step_s = ActionColumns.of(config), 1.0 / config.step_rate_hz
        return cls(config.gate, config.limits, len(config.action_names), step_s, columns=columns)

    def go_on_from(self, before: ChunkValidator) -> None:
        """Replace another gate with the same limits, and keep its evidence about the units."""
        self._chunks, self._values, self._clamped = before._chunks, before._values, before._clamped
        self._judge_units()

    def trained(self, mean: tuple[float, ...], std: tuple[float, ...]) -> str:
        """Use the statistics of the model's training actions unless the robot's configuration has its own. Return the counter for
        `statistics` without values to compare with; empty: it has values, or is off."""
        if not self._config.action_mean:
            given = np.array([mean, std], np.float64) if len(mean) == len(std) == len(self._lower) else np.empty((2, 0))
            fits = bool(np.isfinite(given).all() and (given[1] >= 0.0).all())
            self._mean, self._std = given if fits else np.empty((2, 0))
        wanted = self._config.statistics is not ChunkValidatorMode.OFF
        return "gate_statistics_unknown" if wanted and not len(self._mean) else ""

    def validate(self, rows: Array, before: Array | None) -> tuple[str, tuple[str, ...]]:
        """Return (the counter under which the chunk is refused, or an empty string; the counters of warnings).

        rows: [n, A] that are left, finite. before: [A] the last command, or the robot's position; None: unknown.
        """
        refused, warned = "", []
        for check in self._found(rows, before):
            verdict = getattr(self._config, check)
            if verdict is ChunkValidatorMode.REFUSE and not refused:
                refused = f"gate_{check}"
            elif verdict is ChunkValidatorMode.WARN:
                warned.append(f"gate_{check}")
        return refused, tuple(warned)

    def _found(self, rows: Array, before: Array | None) -> Iterator[str]:
        """Yield the names of the checks that fail."""
        if not len(rows):
            return
        config, values = self._config, np.asarray(rows, np.float64) if rows.size else NO_VALUES
        self._count(values)
        if self.units:
            yield "clamped"
        if not values.size:
            return
        columns = self._columns
        if before is not None and config.max_jump and self._beyond(columns.change(values[0], before), config.max_jump):
            yield "jump"
        for check, most, order in (
            ("velocity", config.max_velocity, 0),
            ("acceleration", config.max_acceleration, 1),
            ("jerk", config.max_jerk, 2),
        ):
            if most and self._changes_beyond(values, order, most):
                yield check
        if config.workspace_lower and config.workspace_upper and self._leaves_workspace(values):
            yield "workspace"
        if len(self._mean) and self._beyond(columns.change(values, self._mean), tuple(config.max_deviations * self._std)):
            yield "statistics"

    def _changes_beyond(self, values: Values, order: int, most: tuple[float, ...]) -> bool:
        """Return whether a derivative of the velocities, `order` times, is too large. Positions need one more."""
        columns, values = self._columns, self._columns.unwrapped(values)
        found = False
        for is_it, extra in ((columns.is_position, 1), (columns.is_zeroed, 0)):
            if is_it.any():
                num = order + extra
                changes = np.diff(values, num, axis=0) / self._step_s**num
                found |= bool((is_it & (np.abs(changes) > np.array(most) + ROUNDING)).any())
        return found

    def _leaves_workspace(self, values: Values) -> bool:
        lower, upper = np.array(self._config.workspace_lower), np.array(self._config.workspace_upper)
        if self._columns.has_wraps:  # numbers nearest to the middle of a continuous joint
            middle = 0.5 * (lower + upper)
            nearest = middle + self._columns.change(values, np.where(np.isfinite(middle), middle, 0.0))
            values = np.where(self._columns.wraps & np.isfinite(middle), nearest, values)
        return bool(((values < lower - ROUNDING) | (values > upper + ROUNDING)).any())

    def _beyond(self, values: Values, most: tuple[float, ...]) -> bool:
        """Return whether a column that is not binary is further away than `most`."""
        return bool((~self._columns.is_binary & (np.abs(values) > np.array(most) + ROUNDING)).any())

    def _count(self, values: Values) -> None:
        if self._chunks >= FIRST_CHUNKS:
            return
        self._chunks += 1
        if values.size:
            self._values += values.size
            self._clamped += int(((values < self._lower) | (values > self._upper)).sum())
        self._judge_units()

    def _judge_units(self) -> None:
        self.units = ""
        if self._chunks >= JUDGED_AFTER and self._clamped > self._config.max_clamped * self._values:
            share = 100.0 * self._clamped / max(1, self._values)
            self.units = f"{share:.0f} % of the first {self._chunks} chunks' values are beyond the limits: the units are wrong"

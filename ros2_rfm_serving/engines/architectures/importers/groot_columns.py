"""Scaling of a GR00T's columns, key by key, each with the statistics of that key alone.

The arithmetic is that of NVIDIA/Isaac-GR00T: N1.5's `Normalizer` (gr00t/data/transform/state_action.py at 357f9827), which computes
in float32, and that of N1.6 and N1.7 in gr00t/data/utils.py at 066d1674, in float64.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ros2_rfm_serving.engines.architectures.manifest import Affine, StateInput
from ros2_rfm_serving.errors import ModelError

Precision = Literal["float32", "float64"]
Numbers = NDArray[np.floating[Any]]
MODES = ("min_max", "q99", "mean_std", "binary", "sin_cos", "none")
"""Modes with which the data configs of N1.5 scale a key; `none` leaves it unscaled."""


class Key(NamedTuple):
    """Columns of one key: arrays [lines, columns]; those of one line hold for every action of a chunk."""

    name: str
    offset: Numbers
    scale: Numbers
    ranged: NDArray[np.bool_]
    """True for ranges, [columns]."""
    constant: NDArray[np.bool_]
    unscaled: NDArray[np.bool_]
    """Flags `constant` and `unscaled` of `Affine`, [lines, columns]."""
    mode: str
    clipped: bool
    """True if normalised values are clipped to [-1, 1] like the others."""

    @property
    def num_columns(self) -> int:
        return int(self.offset.shape[1])


class Statistics:
    """Validated statistics of one key of a file. Raises: `ModelError` that names file, key and statistic."""

    def __init__(self, file: Path, where: str, told: Any, precision: Precision, *, close: bool) -> None:
        """Check that there are statistics.
        where: the key's place in the file. close: whether bounds that are nearly equal count as equal (N1.6 and later)."""
        self._file, self._where, self._precision, self._close = file, where, precision, close
        if not isinstance(told, Mapping):
            raise ModelError(f"{file}: {where}: statistics are expected, it is {told!r}")
        self._told = told

    def scaled(self, name: str, mode: str, bounds: tuple[str, str] = ("min", "max")) -> Key:
        """Return the scaling of the key. bounds: the statistics that become -1 and 1."""
        if mode in ("min_max", "q99"):
            return self._ranges(name, mode, bounds)
        if mode == "mean_std":
            return self._deviations(name)
        columns = self._array(bounds[0]).shape[1]
        return self._plain(name, mode, columns)

    def _ranges(self, name: str, mode: str, bounds: tuple[str, str]) -> Key:
        low, high = self._pair(*bounds)
        width = high - low
        if (width < 0).any():
            raise ModelError(f"{self._file}: {self._where}: {bounds[1]} is below {bounds[0]}")
        still = np.isclose(high, low) if self._close else width == 0
        none, ranged = np.zeros_like(still), np.ones(low.shape[1], bool)
        if mode == "q99" and not self._close:  # N1.5 gives 0 to such columns of min_max, and leaves those of q99 unscaled
            return Key(name, low, width, ranged, none, still, mode, True)
        return Key(name, low, width, ranged, still, none, mode, self._close)

    def _deviations(self, name: str) -> Key:
        """Leave columns without a deviation unscaled; N1.5 gives their mean on the way back, later releases leave them again."""
        mean, std = self._pair("mean", "std")
        if (std < 0).any():
            raise ModelError(f"{self._file}: {self._where}: std is below 0")
        none, still = np.zeros_like(std, bool), std == 0
        if self._close:
            mean, std, still = np.where(still, 0, mean), np.where(still, 1, std), none
        return Key(name, mean, std, np.zeros(mean.shape[1], bool), none, still, "mean_std", False)

    def _plain(self, name: str, mode: str, columns: int) -> Key:
        zero, none = np.zeros((1, columns), self._precision), np.zeros((1, columns), bool)
        return Key(name, zero, zero + 1, none[0], none, none, mode, False)

    def _pair(self, one: str, other: str) -> tuple[Numbers, Numbers]:
        first, second = self._array(one), self._array(other)
        if first.shape != second.shape:
            raise ModelError(f"{self._file}: {self._where}: {one} has {_size(first)}, {other} has {_size(second)}")
        return first, second

    def _array(self, name: str) -> Numbers:
        """Return the numbers under `name`, [lines, columns]."""
        if name not in self._told:
            raise ModelError(f"{self._file}: {self._where}.{name} is missing")
        try:
            values = np.atleast_2d(np.array(self._told[name], self._precision))
        except (TypeError, ValueError) as error:
            raise ModelError(f"{self._file}: {self._where}.{name}: numbers are expected: {error}") from error
        if values.ndim != 2 or not np.isfinite(values).all():
            raise ModelError(f"{self._file}: {self._where}.{name}: finite numbers are expected, a list or a list of lists")
        return values


def _size(values: Numbers) -> str:
    return " x ".join(map(str, values.shape if values.shape[0] > 1 else values.shape[1:])) + " numbers"


def require_one_line(file: Path, where: str, keys: Sequence[Key]) -> None:
    """Check that statistics do not differ by step, as a state has one step. Raises: `ModelError`."""
    if several := next((key for key in keys if len(key.offset) > 1), None):
        raise ModelError(f"{file}: {where}.{several.name}: a list of numbers is expected, it has {len(several.offset)} lists")


def joined(keys: Sequence[Key], precision: Precision, where: str) -> Affine:
    """Return the scaling of all columns, key after key. where: file and key, for the error.

    Raises: `ModelError` if chunks have several lengths.
    """
    if not keys:
        return Affine()
    keys = [doubled(key) if key.mode == "sin_cos" else key for key in keys]
    lengths = sorted({len(key.offset) for key in keys} - {1})
    if len(lengths) > 1:
        raise ModelError(f"{where}: chunks of {lengths} actions")
    lines = lengths[0] if lengths else 1

    def over(values: Sequence[NDArray[Any]]) -> NDArray[Any]:
        return np.concatenate([np.broadcast_to(each, (lines, each.shape[1])) for each in values], axis=1).ravel()

    def flags(name: str) -> tuple[bool, ...]:
        found = tuple(own for key in keys for own in [key.mode == name] * key.num_columns)
        return found if any(found) else ()

    constant, unscaled = over([key.constant for key in keys]), over([key.unscaled for key in keys])
    unclipped = tuple(not key.clipped for key in keys for _ in range(key.num_columns))
    return Affine(
        offset=tuple(over([key.offset for key in keys]).tolist()),
        scale=tuple(over([key.scale for key in keys]).tolist()),
        ranged=tuple(bool(own) for key in keys for own in key.ranged),
        constant=tuple(constant.tolist()) if constant.any() else (),
        unscaled=tuple(unscaled.tolist()) if unscaled.any() else (),
        binary=flags("binary"),
        unclipped=unclipped if any(unclipped) else (),
        precision=precision,
        lines=lines,
    )


def doubled(key: Key) -> Key:
    """Return a key of which the network reads the sines, then the cosines."""
    return key._replace(
        offset=np.concatenate([key.offset, key.offset], axis=1),
        scale=np.concatenate([key.scale, key.scale], axis=1),
        constant=np.concatenate([key.constant, key.constant], axis=1),
        unscaled=np.concatenate([key.unscaled, key.unscaled], axis=1),
        ranged=np.concatenate([key.ranged, key.ranged]),
    )


def inputs_of(keys: Sequence[Key]) -> tuple[StateInput, ...]:
    """Return the network's inputs from a robot's state; empty if it reads that state unchanged."""
    if all(key.mode != "sin_cos" for key in keys):
        return ()
    found: list[StateInput] = []
    first = 0
    for key in keys:
        columns = range(first, first + key.num_columns)
        functions: tuple[Literal["value", "sin", "cos"], ...] = ("sin", "cos") if key.mode == "sin_cos" else ("value",)
        found += [StateInput(column=column, function=function) for function in functions for column in columns]
        first += key.num_columns
    return tuple(found)

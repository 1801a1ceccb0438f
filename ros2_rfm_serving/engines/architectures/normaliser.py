"""Scaling of states and actions between robot space and model space, with a checkpoint's statistics."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ros2_rfm_serving.engines.architectures.manifest import Affine
from ros2_rfm_serving.types import Array

Numbers = NDArray[np.floating[Any]]
"""Array in the precision of the statistics."""
HALF = 0.5
"""Threshold of a binary column."""


class Normaliser:
    """Scaling by an `Affine` of `columns` columns, in the precision that it names."""

    def __init__(self, affine: Affine, columns: int) -> None:
        lines, self._dtype = affine.lines, np.dtype(affine.precision)
        self._offset = np.array(affine.offset or [0.0] * lines * columns, self._dtype).reshape(lines, columns)
        self._scale = np.array(affine.scale or [1.0] * lines * columns, self._dtype).reshape(lines, columns)
        ranged = _flags(affine.ranged, columns)
        self._gain, self._shift = np.where(ranged, 2, 1).astype(np.float32), np.where(ranged, -1, 0).astype(np.float32)
        constant, self._unscaled = (
            _flags(flags, lines * columns).reshape(lines, columns) for flags in (affine.constant, affine.unscaled)
        )
        self._varies = (self._scale != 0) & ~constant & ~self._unscaled
        self._binary = _flags(affine.binary, columns)
        self._limit, self._limit_back = (_limits(clip, affine.unclipped, columns) for clip in (affine.clip, affine.clip_back))

    def normalized(self, values: Array) -> Numbers:
        """Return normalised values in the precision of the statistics.
        values: [A], or [N, A] with a line of statistics for each of N."""
        lines = self._lines_of(values)
        offset, scale, varies = self._offset[lines], self._scale[lines], self._varies[lines]
        moved = self._gain * (values.astype(self._dtype) - offset)
        normal: Numbers = np.divide(moved, scale, out=np.zeros_like(moved), where=varies)
        np.add(normal, self._shift, out=normal, where=varies)
        np.copyto(normal, values, where=self._unscaled[lines])
        if self._limit is not None:
            np.clip(normal, -self._limit, self._limit, out=normal)
        return np.where(self._binary, values > HALF, normal) if self._binary.any() else normal

    def denormalized(self, normal: Array) -> Array:
        """Return values in robot space, float32. normal: [..., A] or [..., N, A]."""
        lines = self._lines_of(normal)
        kept = normal if self._limit_back is None else np.clip(normal, -self._limit_back, self._limit_back)
        values: Numbers = (kept - self._shift) / self._gain * self._scale[lines] + self._offset[lines]
        values = np.where(self._binary, normal > HALF, values) if self._binary.any() else values
        return values.astype(np.float32, copy=False)

    def _lines_of(self, values: Array) -> NDArray[np.intp] | int:
        """Return the line that scales each action of [..., N, A], the last line for later ones; with one line, its index 0."""
        last = len(self._scale) - 1
        return np.arange(values.shape[-2]).clip(max=last) if last else 0


def _flags(flags: tuple[bool, ...], count: int) -> NDArray[np.bool_]:
    return np.array(flags or [False] * count, bool)


def _limits(clip: float | None, unclipped: tuple[bool, ...], columns: int) -> Array | None:
    """Return the largest distance of each column from 0; None if there is no limit."""
    if clip is None:
        return None
    return np.where(_flags(unclipped, columns), np.inf, clip).astype(np.float32)

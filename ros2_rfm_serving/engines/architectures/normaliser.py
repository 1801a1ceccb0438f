"""Scaling of states and actions between robot space and model space, with a checkpoint's statistics."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ros2_rfm_serving.engines.architectures.manifest import Affine
from ros2_rfm_serving.types import Array

Numbers = NDArray[np.floating[Any]]
"""In the precision of the statistics."""


class Normaliser:
    """Executes an `Affine` of `columns` columns, in the precision that it names."""

    def __init__(self, affine: Affine, columns: int) -> None:
        lines, self._dtype = affine.lines, np.dtype(affine.precision)
        self._offset = np.array(affine.offset or [0.0] * lines * columns, self._dtype).reshape(lines, columns)
        self._scale = np.array(affine.scale or [1.0] * lines * columns, self._dtype).reshape(lines, columns)
        ranged = np.array(affine.ranged or [False] * columns, bool)
        self._gain, self._shift = np.where(ranged, 2, 1).astype(np.float32), np.where(ranged, -1, 0).astype(np.float32)
        self._varies = (self._scale != 0) & ~np.array(affine.constant or [False] * columns, bool)
        self._clip, self._clip_back = affine.clip, affine.clip_back

    def normalized(self, values: Array) -> Numbers:
        """Return values of [A], or of [N, A] of which each is in a line of its own, in the precision of the statistics."""
        lines = self._lines_of(values)
        offset, scale, varies = self._offset[lines], self._scale[lines], self._varies[lines]
        moved = self._gain * (values.astype(self._dtype) - offset)
        normal: Numbers = np.divide(moved, scale, out=np.zeros_like(moved), where=varies)
        np.add(normal, self._shift, out=normal, where=varies)
        return normal if self._clip is None else normal.clip(-self._clip, self._clip)

    def denormalized(self, normal: Array) -> Array:
        """Return the values of [..., A] or [..., N, A], in float32."""
        lines = self._lines_of(normal)
        kept = normal if self._clip_back is None else normal.clip(-self._clip_back, self._clip_back)
        values: Numbers = (kept - self._shift) / self._gain * self._scale[lines] + self._offset[lines]
        return values.astype(np.float32, copy=False)

    def _lines_of(self, values: Array) -> NDArray[np.intp] | int:
        """Return which line scales each action of [..., N, A], the last for those behind it; of one line, that line."""
        last = len(self._scale) - 1
        return np.arange(values.shape[-2]).clip(max=last) if last else 0

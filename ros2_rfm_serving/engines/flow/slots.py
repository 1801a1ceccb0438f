"""Memory of rows in flight: a slot each, allocated once. Slots in use are the first ones, so that a batch is a slice of them.

N: slots; B: rows; T: chunk length; W: columns; K: solver steps.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ros2_rfm_serving.engines.flow.graphs import Tensors
from ros2_rfm_serving.engines.flow.guidance import Target
from ros2_rfm_serving.engines.flow.sampling import Held
from ros2_rfm_serving.errors import ModelError

Index = slice | Sequence[int]


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What rows read: a context and what goes with its observation."""

    held: Held
    context: Tensors
    """Each [B, ...]"""

    def row(self, i: int) -> Seen:
        held, target = self.held, self.held.target
        own = slice(i, i + 1)
        return Seen(
            held=Held(
                prefix=held.prefix[own],
                fixed=held.fixed[own],
                free=held.free[own],
                target=None if target is None else _cut(target, own, target.through_model is not None),
            ),
            context=tuple(tensor[own] for tensor in self.context),
        )

    def copy(self) -> Seen:
        """With memory of its own: a row keeps its batch no longer."""
        return replace(self, held=copy.deepcopy(self.held), context=tuple(tensor.clone() for tensor in self.context))


class Slots:
    def __init__(self, num_slots: int, x: Tensor, seen: Seen, num_steps: int) -> None:
        """Like these rows, of which there is at least one."""
        with torch.inference_mode(False):  # or guidance could not be differentiated
            self.x = _memory(num_slots, x)
            self.updates = x.new_zeros(num_slots, num_steps, *x.shape[1:])
            self.context = tuple(_memory(num_slots, tensor) for tensor in seen.context)
            self._held = tuple(_memory(num_slots, tensor) for tensor in (seen.held.prefix, seen.held.fixed, seen.held.free))
            self._target = Target(
                actions=_memory(num_slots, x),
                weights=x.new_zeros(num_slots, x.shape[1], 1),
                max_weight=np.zeros((num_slots, 1, 1)),
                through_model=torch.zeros(num_slots, 1, 1, dtype=torch.bool, device=x.device),
            )
        self.step = np.zeros(num_slots, np.int64)
        """Solver steps that are done"""
        self._guided, self._jacobian = np.zeros(num_slots, bool), np.zeros(num_slots, bool)
        through = self._target.through_model
        assert through is not None
        self._tensors = (self.x, self.updates, *self.context, *self._held, self._target.actions, self._target.weights, through)
        self._arrays: tuple[Any, ...] = (self.step, self._guided, self._jacobian, self._target.max_weight)
        self._batches: dict[tuple[int, int, bool, bool], tuple[Held, Tensors]] = {}

    def enter(self, at: int, x: Tensor, seen: Seen | None) -> None:
        """Rows into free slots from `at` on. seen: None for rows that read something before their first step."""
        rows = slice(at, at + len(x))
        if seen is not None:
            self.read(rows, seen)
        self.x[rows], self.step[rows] = x, 0

    def read(self, rows: Index, seen: Seen) -> None:
        """From here on. seen: of one row for all of them, or of as many. Raises: `ModelError`."""
        shapes, known = _shapes(seen.context), _shapes(self.context)
        if shapes != known:
            raise ModelError(f"this request's context has the shapes {shapes}, those of the rows in flight {known}")
        held, target = seen.held, seen.held.target
        for own, given in zip((*self._held, *self.context), (held.prefix, held.fixed, held.free, *seen.context), strict=True):
            own[rows] = given
        self._guided[rows], self._jacobian[rows] = target is not None, False
        if target is None:
            self._target.weights[rows] = 0.0
            return
        self._target.actions[rows], self._target.weights[rows] = target.actions, target.weights
        self._target.max_weight[rows] = target.max_weight
        assert self._target.through_model is not None
        self._target.through_model[rows] = False if target.through_model is None else target.through_model
        if target.through_model is not None:
            self._jacobian[rows] = target.through_model.flatten().cpu().numpy()

    def swap(self, one: int, other: int) -> None:
        pair, swapped = [one, other], [other, one]
        for values in (*self._tensors, *self._arrays):
            values[pair] = values[swapped]

    def move(self, source: int, target: int) -> None:
        for values in (*self._tensors, *self._arrays):
            values[target] = values[source]

    def asks_jacobian(self, rows: slice) -> bool:
        return bool(self._jacobian[rows].any())

    def batch(self, rows: slice) -> tuple[Held, Tensors]:
        """Views, which stay the same for the same slots."""
        guided, jacobian = bool(self._guided[rows].any()), self.asks_jacobian(rows)
        key = (rows.start, rows.stop, guided, jacobian)
        if key not in self._batches:
            target = _cut(self._target, rows, jacobian) if guided else None
            prefix, fixed, free = (tensor[rows] for tensor in self._held)
            self._batches[key] = Held(prefix=prefix, fixed=fixed, free=free, target=target), tuple(t[rows] for t in self.context)
        return self._batches[key]

    def held(self, rows: Index) -> Held:
        prefix, fixed, free = (tensor[rows] for tensor in self._held)
        return Held(prefix=prefix, fixed=fixed, free=free, target=None)


def _cut(target: Target, rows: slice, jacobian: bool) -> Target:
    through = target.through_model[rows] if jacobian and target.through_model is not None else None
    return Target(
        actions=target.actions[rows], weights=target.weights[rows], max_weight=target.max_weight[rows], through_model=through
    )


def _memory(num_slots: int, like: Tensor) -> Tensor:
    """[N, ...] of zeros, a row laid out as those of `like`: kernels round alike then."""
    order = sorted(range(1, like.dim()), key=like.stride, reverse=True)
    memory = like.new_zeros(num_slots, *(like.shape[dim] for dim in order))
    return memory.permute(0, *(1 + order.index(dim) for dim in range(1, like.dim())))


def _shapes(tensors: Tensors) -> list[list[int]]:
    """Of one row."""
    return [list(tensor.shape[1:]) for tensor in tensors]

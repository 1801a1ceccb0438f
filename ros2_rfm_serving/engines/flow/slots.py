"""Memory of rows in flight: a slot each, allocated once. Slots in use are the first ones, so that a batch is a slice of them.

N: slots; B: rows; T: chunk length; W: columns; K: solver steps.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ros2_rfm_serving.engines.flow.aside import Event
from ros2_rfm_serving.engines.flow.graphs import Tensors
from ros2_rfm_serving.engines.flow.guidance import Target
from ros2_rfm_serving.engines.flow.sampling import Held
from ros2_rfm_serving.errors import ModelError


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What rows read: a context and what goes with its observation."""

    held: Held
    context: Tensors
    """Each [B, ...]"""
    there: Event | None = None
    """When the context is; None: for whoever asks for something of it."""

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
            there=self.there,
        )

    def with_its_own(self, context: Tensors) -> Seen:
        """This in place of its context, and memory of its own: a row keeps its batch no longer."""
        return replace(self, held=copy.deepcopy(self.held), context=context)


class Batch(NamedTuple):
    """Views of some slots."""

    x: Tensor
    """[B, T, W]"""
    held: Held
    context: Tensors
    own_x: Tensor
    """The first of `x`: those that a step changes"""
    own_updates: Tensor
    """[K, ...] as that"""


class Slots:
    def __init__(self, num_slots: int, x: Tensor, seen: Seen, num_steps: int) -> None:
        """Like these rows, of which there is at least one."""
        with torch.inference_mode(False):  # or guidance could not be differentiated
            self.x = _memory(num_slots, x)
            self._updates = x.new_zeros(num_steps, num_slots, *x.shape[1:])
            self._context = tuple(_memory(num_slots, tensor) for tensor in seen.context)
            self._held = tuple(_memory(num_slots, tensor) for tensor in (seen.held.prefix, seen.held.fixed, seen.held.free))
            self._through = torch.zeros(num_slots, 1, 1, dtype=torch.bool, device=x.device)
            self._target = Target(
                actions=_memory(num_slots, x),
                weights=x.new_zeros(num_slots, x.shape[1], 1),
                max_weight=np.zeros((num_slots, 1, 1)),
                through_model=self._through,
            )
        self._guided, self._jacobian = set[int](), set[int]()
        """Slots whose rows ask for it"""
        self._tensors = (self.x, self._updates.transpose(0, 1), *self._context, *self._held)
        self._target_tensors = (self._target.actions, self._target.weights, self._through)
        self._batches: dict[tuple[int, int, int, bool, bool], Batch] = {}

    def enter(self, at: int, x: Tensor, seen: Seen | None) -> None:
        """Rows into free slots from `at` on. seen: None for rows that read something before their first step."""
        rows = range(at, at + len(x))
        if seen is not None:
            self.read(rows, seen)
        self.x[rows.start : rows.stop] = x

    def require(self, seen: Seen) -> None:
        """Raises: `ModelError` for what no slot can hold."""
        shapes, known = _shapes(seen.context), _shapes(self._context)
        if shapes != known:
            raise ModelError(f"this request's context has the shapes {shapes}, those of the rows in flight {known}")

    def read(self, rows: Sequence[int], seen: Seen) -> None:
        """From here on. seen: of one row for all of them, or of as many. Raises: `ModelError`."""
        self.require(seen)
        held, index = seen.held, _index(rows)
        for own, given in zip((*self._held, *self._context), (held.prefix, held.fixed, held.free, *seen.context), strict=True):
            own[index] = given
        self._aim(rows, held.target)

    def swap(self, one: int, other: int) -> None:
        self._set([one, other], [other, one])

    def leave(self, sources: list[int], holes: list[int], left: int) -> None:
        """Rows in `sources` move into `holes`; slots from `left` on are free."""
        if holes:
            self._set(holes, sources)
        for asking in (self._guided, self._jacobian):
            asking.difference_update([slot for slot in asking if slot >= left])

    @property
    def asks_jacobian(self) -> bool:
        return bool(self._jacobian)

    def batch(self, start: int, count: int, padded: int) -> Batch:
        """`count` slots, filled up with others, which a step leaves as they are. The same views again for the same slots."""
        guided, jacobian = bool(self._guided), self.asks_jacobian
        key = (start, count, padded, guided, jacobian)
        if key not in self._batches:
            own, run = slice(start, start + count), slice(start, start + padded)
            target = _cut(self._target, run, jacobian) if guided else None
            with torch.inference_mode(False):
                held, context = self.held(run, target), tuple(tensor[run] for tensor in self._context)
                self._batches[key] = Batch(self.x[run], held, context, self.x[own], self._updates[:, own])
        return self._batches[key]

    def held(self, index: slice | Sequence[int], target: Target | None = None) -> Held:
        prefix, fixed, free = (tensor[index] for tensor in self._held)
        return Held(prefix=prefix, fixed=fixed, free=free, target=target)

    def updates(self, index: slice | Sequence[int]) -> Tensor:
        """[B, K, T, W]"""
        return self._updates[:, index].transpose(0, 1)

    def _aim(self, rows: Sequence[int], target: Target | None) -> None:
        index = _index(rows)
        self._guided.difference_update(rows)
        self._jacobian.difference_update(rows)
        if target is None:
            for values in (self._target.actions, self._target.weights, self._target.max_weight):
                values[index] = 0.0  # all of them: a former row's NaN times 0 would be NaN
            return
        through = target.through_model
        self._guided.update(rows)
        if through is not None:
            asks = through.flatten().expand(len(rows)).tolist()
            self._jacobian.update(row for row, jacobian in zip(rows, asks, strict=True) if jacobian)
        self._target.actions[index], self._target.weights[index] = target.actions, target.weights
        self._target.max_weight[index] = target.max_weight
        self._through[index] = False if through is None else through

    def _set(self, slots: list[int], sources: list[int]) -> None:
        """What is in `sources` into `slots`."""
        for values in (*self._tensors, *(self._target_tensors if self._guided else ())):
            values[slots] = values[sources]
        self._target.max_weight[slots] = self._target.max_weight[sources]
        for asking in (self._guided, self._jacobian):
            moved = [slot for slot, source in zip(slots, sources, strict=True) if source in asking]
            asking.difference_update(slots)
            asking.update(moved)


def _index(rows: Sequence[int]) -> slice | Sequence[int]:
    """A slice where it can be one: of views, not copies."""
    return slice(rows[0], rows[-1] + 1) if rows[-1] - rows[0] == len(rows) - 1 else list(rows)


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

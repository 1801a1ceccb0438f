"""Preallocated memory of rows in flight, one slot each. The first slots are the occupied ones, so that a batch is a slice.

N: slots; B: rows; T: chunk length; W: columns; K: denoising steps.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ros2_rfm_serving.engines.flow.graphs import Tensors
from ros2_rfm_serving.engines.flow.guidance import GuidanceTarget
from ros2_rfm_serving.engines.flow.perception_stream import PerceptionEvent
from ros2_rfm_serving.engines.flow.sampling import Held
from ros2_rfm_serving.errors import ModelError


@dataclass(frozen=True, kw_only=True)
class PerceivedContext:
    """Context of rows, with the conditioning that belongs to the same observations."""

    held: Held
    context: Tensors
    """Tensors, each [B, ...]."""
    there: PerceptionEvent | None = None
    """Event after which the context is complete; None if it is complete for all work that is enqueued later."""

    def row(self, i: int) -> PerceivedContext:
        held, target = self.held, self.held.target
        own = slice(i, i + 1)
        return PerceivedContext(
            held=Held(
                prefix=held.prefix[own],
                fixed=held.fixed[own],
                free=held.free[own],
                target=None if target is None else _cut(target, own, target.through_model is not None),
            ),
            context=tuple(tensor[own] for tensor in self.context),
            there=self.there,
        )

    def with_its_own(self, context: Tensors) -> PerceivedContext:
        """Return a copy with `context` and memory of its own, so that a row does not keep its batch alive."""
        return replace(self, held=copy.deepcopy(self.held), context=context)


class SlotBatch(NamedTuple):
    """Views of some slots."""

    x: Tensor
    """[B, T, W]"""
    held: Held
    context: Tensors
    own_x: Tensor
    """First rows of `x`, which a step changes."""
    own_updates: Tensor
    """Changes of these rows by step, [K, ...]."""


class Slots:
    def __init__(self, num_slots: int, x: Tensor, seen: PerceivedContext, num_steps: int) -> None:
        """Allocate slots that are shaped like the given rows, of which there is at least one."""
        with torch.inference_mode(False):  # otherwise guidance could not be differentiated
            self.x = _memory(num_slots, x)
            self._updates = x.new_zeros(num_steps, num_slots, *x.shape[1:])
            self._context = tuple(_memory(num_slots, tensor) for tensor in seen.context)
            self._held = tuple(_memory(num_slots, tensor) for tensor in (seen.held.prefix, seen.held.fixed, seen.held.free))
            self._through = torch.zeros(num_slots, 1, 1, dtype=torch.bool, device=x.device)
            self._target = GuidanceTarget(
                actions=_memory(num_slots, x),
                weights=x.new_zeros(num_slots, x.shape[1], 1),
                max_weight=np.zeros((num_slots, 1, 1)),
                through_model=self._through,
            )
        self._guided, self._jacobian = set[int](), set[int]()
        """Slots whose rows ask for guidance, and for guidance through the model's Jacobian."""
        self._tensors = (self.x, self._updates.transpose(0, 1), *self._context, *self._held)
        self._target_tensors = (self._target.actions, self._target.weights, self._through)
        self._batches: dict[tuple[int, int, int, bool, bool], SlotBatch] = {}

    def enter(self, at: int, x: Tensor, seen: PerceivedContext | None) -> None:
        """Write rows into free slots from `at` on. seen: None for rows that read a context before their first step."""
        rows = range(at, at + len(x))
        if seen is not None:
            self.read(rows, seen)
        self.x[rows.start : rows.stop] = x

    def require(self, seen: PerceivedContext) -> None:
        """Check that the slots can hold a context. Raises: `ModelError` if its shapes differ from those of the rows in flight."""
        shapes, known = _shapes(seen.context), _shapes(self._context)
        if shapes != known:
            raise ModelError(f"this request's context has the shapes {shapes}, those of the rows in flight {known}")

    def read(self, rows: Sequence[int], seen: PerceivedContext) -> None:
        """Set the context that slots read from now on.
        seen: one row for all slots, or as many rows as there are slots. Raises: `ModelError` if no slot can hold it."""
        self.require(seen)
        held, index = seen.held, _index(rows)
        for own, given in zip((*self._held, *self._context), (held.prefix, held.fixed, held.free, *seen.context), strict=True):
            own[index] = given
        self._aim(rows, held.target)

    def swap(self, one: int, other: int) -> None:
        self._set([one, other], [other, one])

    def leave(self, sources: list[int], holes: list[int], left: int) -> None:
        """Move rows from the slots `sources` into `holes`; slots from `left` on become free."""
        if holes:
            self._set(holes, sources)
        for asking in (self._guided, self._jacobian):
            asking.difference_update([slot for slot in asking if slot >= left])

    @property
    def asks_jacobian(self) -> bool:
        return bool(self._jacobian)

    def batch(self, start: int, count: int, padded: int) -> SlotBatch:
        """Return views of `count` slots from `start` on, padded with other slots, which a step leaves unchanged.
        The views are kept, so that the same slots always give the same views."""
        guided, jacobian = bool(self._guided), self.asks_jacobian
        key = (start, count, padded, guided, jacobian)
        if key not in self._batches:
            own, run = slice(start, start + count), slice(start, start + padded)
            target = _cut(self._target, run, jacobian) if guided else None
            with torch.inference_mode(False):
                held, context = self.held(run, target), tuple(tensor[run] for tensor in self._context)
                self._batches[key] = SlotBatch(self.x[run], held, context, self.x[own], self._updates[:, own])
        return self._batches[key]

    def held(self, index: slice | Sequence[int], target: GuidanceTarget | None = None) -> Held:
        prefix, fixed, free = (tensor[index] for tensor in self._held)
        return Held(prefix=prefix, fixed=fixed, free=free, target=target)

    def updates(self, index: slice | Sequence[int]) -> Tensor:
        """Return the changes by denoising step, [B, K, T, W]."""
        return self._updates[:, index].transpose(0, 1)

    def _aim(self, rows: Sequence[int], target: GuidanceTarget | None) -> None:
        index = _index(rows)
        self._guided.difference_update(rows)
        self._jacobian.difference_update(rows)
        if target is None:
            for values in (self._target.actions, self._target.weights, self._target.max_weight):
                values[index] = 0.0  # all of them, as a former row's NaN times 0 would be NaN
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
        """Copy the contents of the slots `sources` into `slots`."""
        for values in (*self._tensors, *(self._target_tensors if self._guided else ())):
            values[slots] = values[sources]
        self._target.max_weight[slots] = self._target.max_weight[sources]
        for asking in (self._guided, self._jacobian):
            moved = [slot for slot, source in zip(slots, sources, strict=True) if source in asking]
            asking.difference_update(slots)
            asking.update(moved)


def _index(rows: Sequence[int]) -> slice | Sequence[int]:
    """Return the indices as a slice where possible, which gives views instead of copies."""
    return slice(rows[0], rows[-1] + 1) if rows[-1] - rows[0] == len(rows) - 1 else list(rows)


def _cut(target: GuidanceTarget, rows: slice, jacobian: bool) -> GuidanceTarget:
    through = target.through_model[rows] if jacobian and target.through_model is not None else None
    return GuidanceTarget(
        actions=target.actions[rows], weights=target.weights[rows], max_weight=target.max_weight[rows], through_model=through
    )


def _memory(num_slots: int, like: Tensor) -> Tensor:
    """Return zeros, [N, ...], whose rows have the memory layout of those of `like`, so that kernels round alike."""
    order = sorted(range(1, like.dim()), key=like.stride, reverse=True)
    memory = like.new_zeros(num_slots, *(like.shape[dim] for dim in order))
    return memory.permute(0, *(1 + order.index(dim) for dim in range(1, like.dim())))


def _shapes(tensors: Tensors) -> list[list[int]]:
    """Return the shape of one row of each tensor."""
    return [list(tensor.shape[1:]) for tensor in tensors]

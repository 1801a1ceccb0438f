"""Rows in flight, each at its own solver step: they enter and leave between steps, and all steps are one batch each."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from ros2_rfm_serving.engines.base import SamplingConfig, VelocityModel
from ros2_rfm_serving.engines.flow.graphs import Tensors
from ros2_rfm_serving.engines.flow.memory import in_halves
from ros2_rfm_serving.engines.flow.sampling import changed, kept, padded, stepped, velocity_of
from ros2_rfm_serving.engines.flow.slots import Index, Seen, Slots
from ros2_rfm_serving.engines.flow.solvers import Step, solver_of
from ros2_rfm_serving.types import Array, InferenceRequest


class SteppedModel(VelocityModel, Protocol):
    """A `VelocityModel` whose rows may be put together with those of other calls of `perceive`.

    Its context is a tuple of tensors [B, ...], of the same shapes for all requests; `denormalize` reads nothing but the actions.
    """

    def perceive(self, requests: Sequence[InferenceRequest]) -> Tensors: ...


class Done(NamedTuple):
    """Of one row, model space."""

    chunk: Array
    """[T, A]"""
    updates: Array
    """[K, T, A]"""


class Flight:
    """One thread. A row is known by the number that its server gave it."""

    def __init__(self, model: SteppedModel, config: SamplingConfig, slots: Slots, max_batch_size: int) -> None:
        self._model, self._config, self._solver = model, config, solver_of(config)
        self._slots, self._max_batch_size = slots, max_batch_size
        self._rows: list[int] = []
        """By slot"""

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, row: int) -> bool:
        return row in self._rows

    def __iter__(self) -> Iterator[int]:
        return iter(self._rows)

    def enter(self, rows: Sequence[int], x: Tensor, seen: Seen | None) -> None:
        """x: [B, T, W], where their sampling starts from; seen: None where they `read` before their first step."""
        self._slots.enter(len(self._rows), x, seen)
        self._rows += rows

    def read(self, rows: Collection[int], seen: Seen) -> None:
        """Another context than they had, [1, ...], from here on."""
        if rows:
            self._slots.read([self._rows.index(row) for row in rows], seen)

    def steps(self) -> Mapping[int, int]:
        """Solver steps that each row has done."""
        return dict(zip(self._rows, self._slots.step.tolist(), strict=False))

    def advance(self, rows: Collection[int]) -> dict[int, Done]:
        """By one solver step; those that are done, which have left. Raises: `OutOfMemoryError`."""
        count = len(rows)
        self._to_front(set(rows))
        for start in range(0, count, self._max_batch_size):
            in_halves(self._step, range(start, min(start + self._max_batch_size, count)))
        done = np.flatnonzero(self._slots.step[:count] == self._solver.num_steps).tolist()
        answers = dict(zip((self._rows[slot] for slot in done), self._answers(done), strict=True)) if done else {}
        self.leave(answers)
        return answers

    def leave(self, rows: Collection[int]) -> None:
        """The last row moves into each hole."""
        for row in rows:
            if row in self._rows:
                slot, last = self._rows.index(row), len(self._rows) - 1
                if slot != last:
                    self._slots.move(last, slot)
                self._slots.step[last] = 0
                self._rows[slot] = self._rows[last]
                del self._rows[last]

    def _to_front(self, rows: set[int]) -> None:
        """The rows of this turn into the first slots."""
        if len(rows) == len(self._rows):
            return
        behind = [slot for slot in range(len(rows), len(self._rows)) if self._rows[slot] in rows]
        ahead = [slot for slot in range(len(rows)) if self._rows[slot] not in rows]
        for one, other in zip(ahead, behind, strict=True):
            self._slots.swap(one, other)
            self._rows[one], self._rows[other] = self._rows[other], self._rows[one]

    def _step(self, batch: Sequence[int]) -> list[None]:
        """One solver step of these slots, in one batch, filled up with others', which stay as they are."""
        slots = self._slots
        start, count = batch[0], len(batch)
        own, run = slice(start, start + count), slice(start, start + padded(count, self._config.fixed_shapes))
        steps = slots.step[own]
        step: Step = int(steps[0]) if (steps == steps[0]).all() else slots.step[run].copy()
        with torch.no_grad() if slots.asks_jacobian(run) else torch.inference_mode():
            held, context = slots.batch(run)
            x, updates = stepped(partial(velocity_of, self._model, context), slots.x[run], held, step, self._solver)
            slots.x[own] = x[:count]
            if isinstance(step, int):
                slots.updates[own, step] = updates[:count]
            else:
                slots.updates[range(own.start, own.stop), torch.from_numpy(steps)] = updates[:count]
        steps += 1
        return [None] * count

    def _answers(self, done: list[int]) -> list[Done]:
        slots = self._slots
        index: Index = slice(done[0], done[-1] + 1) if done[-1] - done[0] == len(done) - 1 else done
        held, columns = slots.held(index), len(self._model.contract.action_names)
        with torch.inference_mode():
            chunks = kept(slots.x[index], held)[..., :columns].cpu().numpy()
            updates = changed(slots.updates[index], held, self._solver)[..., :columns].cpu().numpy()
        return [Done(*each) for each in zip(chunks, updates, strict=True)]

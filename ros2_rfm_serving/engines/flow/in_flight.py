"""Rows in flight, each at its own denoising step. Rows enter and leave between steps, and rows that advance share a batch."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from ros2_rfm_serving.engines.base import SamplingConfig, VelocityModel
from ros2_rfm_serving.engines.flow.graphs import Tensors
from ros2_rfm_serving.engines.flow.memory import in_batches
from ros2_rfm_serving.engines.flow.perception_stream import PerceptionStream, has_come
from ros2_rfm_serving.engines.flow.sampling import changed, kept, padded, stepped, velocity_of
from ros2_rfm_serving.engines.flow.slots import PerceivedContext, Slots
from ros2_rfm_serving.engines.flow.solvers import Solver, numbers_of, solver_of
from ros2_rfm_serving.types import Array, InferenceRequest


class SteppedModel(VelocityModel, Protocol):
    """`VelocityModel` whose rows can share a batch with rows of other calls of `perceive`.

    Its context is a tuple of tensors [B, ...] of the same shapes for all requests, and `denormalize` reads nothing but the actions.
    """

    def perceive(self, requests: Sequence[InferenceRequest]) -> Tensors: ...


class FinishedRow(NamedTuple):
    """Finished chunk of one row, in model space."""

    chunk: Array
    """[T, A]"""
    updates: Array
    """Change by each denoising step, [K, T, A]."""


class PerceivedRows(NamedTuple):
    """Context that rows are to read and that the device may still be computing."""

    rows: tuple[int, ...]
    seen: PerceivedContext
    """Context of one row that all rows share, or of as many rows as `rows` has."""


class InFlightBatch:
    """Rows in flight and the batches that advance them.
    One thread makes all calls. A row is identified by the number that its server assigned."""

    def __init__(
        self, model: SteppedModel, config: SamplingConfig, slots: Slots, max_batch_size: int, aside: PerceptionStream
    ) -> None:
        self._model, self._config, self._aside = model, config, aside
        self._slots, self._max_batch_size = slots, max_batch_size
        self._rows: list[int] = []
        """Row number, by slot."""
        self._steps: list[int] = []
        """Completed denoising steps, by slot."""
        self._solvers: list[Solver] = []
        """Solver with the number of steps that the row asked for, by slot."""
        self._coming: list[PerceivedRows] = []

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, row: object) -> bool:
        return row in self._rows

    @property
    def _by_slot(self) -> tuple[list[Any], ...]:
        return self._rows, self._steps, self._solvers

    def steps(self) -> Iterable[tuple[int, int]]:
        """Return each row with its number of completed denoising steps."""
        return zip(self._rows, self._steps, strict=True)

    def enter(self, rows: Sequence[int], x: Tensor, seen: PerceivedContext | None, num_steps: Sequence[int]) -> None:
        """Add rows. x: start of their sampling, [B, T, W]. seen: None for rows that `read` a context before their first step."""
        later = seen if seen is not None and seen.there is not None else None
        if later is not None:
            self._slots.require(later)
        self._slots.enter(len(self._rows), x, seen if later is None else None)
        self._rows += rows
        self._steps += [0] * len(rows)
        self._solvers += [solver_of(self._config, count) for count in num_steps]
        if later is not None:
            self._coming.append(PerceivedRows(tuple(rows), later))

    def read(self, rows: Collection[int], seen: PerceivedContext) -> None:
        """Replace the context of rows by another one, [1, ...], from their next step on."""
        if rows and seen.there is None:
            self._slots.read(sorted(self._rows.index(row) for row in rows), seen)
        elif rows:
            self._slots.require(seen)
            self._coming.append(PerceivedRows(tuple(rows), seen))

    def waiting(self) -> set[int]:
        """Return the rows for which perception is still running."""
        return {row for rows, seen in self._coming if seen.there is not None and not has_come(seen.there) for row in rows}

    def _receive(self, rows: Collection[int]) -> None:
        """Apply the pending contexts of these rows, in order of arrival; the device waits for their perception."""
        coming, self._coming = self._coming, []
        for each in coming:
            if any(row in rows for row in each.rows):
                assert each.seen.there is not None
                self._aside.received(each.seen.context, each.seen.there)
                self._come(each)
            else:
                self._coming.append(each)

    def _come(self, coming: PerceivedRows) -> None:
        """Write a pending context into the slots that its rows have by now."""
        rows, seen = coming
        slots = {i: self._rows.index(row) for i, row in enumerate(rows) if row in self._rows}
        places, of_all = list(slots.values()), len(seen.context[0]) == 1
        with torch.inference_mode():
            if of_all or places == list(range(places[0], places[0] + len(rows))):
                self._slots.read(sorted(places), seen)
            else:
                for i, slot in slots.items():
                    self._slots.read([slot], seen.row(i))

    def advance(self, rows: Collection[int]) -> dict[int, FinishedRow]:
        """Advance rows by one denoising step and return those that are done, which leave.
        Raises: `OutOfMemoryError` if memory does not suffice for half a batch."""
        count = len(rows)
        if self._coming:
            self._receive(rows)
        self._to_front(rows)
        in_batches(self._step, range(count), self._max_batch_size)
        done = [slot for slot in range(count) if self._steps[slot] == self._solvers[slot].num_steps]
        answers = dict(zip((self._rows[slot] for slot in done), self._answers(done), strict=True)) if done else {}
        self.leave(answers)
        return answers

    def leave(self, rows: Collection[int]) -> None:
        """Remove rows; the last rows move into the slots that become free."""
        holes = [slot for slot, row in enumerate(self._rows) if row in rows] if rows else []
        if not holes:
            return
        left = len(self._rows) - len(holes)
        moving = [slot for slot in range(left, len(self._rows)) if self._rows[slot] not in rows]
        self._slots.leave(moving, holes[: len(moving)], left)
        for values in self._by_slot:
            for source, hole in zip(moving, holes, strict=False):
                values[hole] = values[source]
            del values[left:]
        self._coming = [each for each in self._coming if any(row in self._rows for row in each.rows)]

    def _to_front(self, rows: Collection[int]) -> None:
        """Move the rows of this turn into the first slots."""
        count = len(rows)
        if count == len(self._rows):
            return
        behind = [slot for slot in range(count, len(self._rows)) if self._rows[slot] in rows]
        ahead = [slot for slot in range(count) if self._rows[slot] not in rows]
        for one, other in zip(ahead, behind, strict=True):
            self._slots.swap(one, other)
            for values in self._by_slot:
                values[one], values[other] = values[other], values[one]

    def _step(self, slots: Sequence[int]) -> list[None]:
        """Run one denoising step of contiguous slots as one batch."""
        start, count = slots[0], len(slots)
        batch = self._slots.batch(start, count, padded(count, self._config.fixed_shapes))
        steps, solvers = self._steps[start : start + count], self._solvers[start : start + count]
        places = list(zip(solvers, steps, strict=True))
        numbers = numbers_of([*places, *places[:1] * (len(batch.x) - count)])
        with torch.no_grad() if self._slots.asks_jacobian else torch.inference_mode():
            x, updates = stepped(partial(velocity_of, self._model, batch.context), batch.x, batch.held, numbers, solvers[0])
            batch.own_x.copy_(x[:count])
            batch.own_updates[steps[0] if len(set(steps)) == 1 else (steps, range(count))] = updates[:count]
        self._steps[start : start + count] = [step + 1 for step in steps]
        return [None] * count

    def _answers(self, done: list[int]) -> list[FinishedRow]:
        together = done[-1] - done[0] == len(done) - 1
        index = slice(done[0], done[-1] + 1) if together else done
        held, columns = self._slots.held(index), len(self._model.contract.action_names)
        with torch.inference_mode():
            chunks = kept(self._slots.x[index], held)[..., :columns].cpu().numpy()
            updates = changed(self._slots.updates(index), held)[..., :columns].cpu().numpy()
        return [
            FinishedRow(chunk, own[: self._solvers[slot].num_updates])
            for slot, chunk, own in zip(done, chunks, updates, strict=True)
        ]

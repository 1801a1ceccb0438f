"""Rows that each read a context of their own: all are decoded together, each at its own position, with a slot of the KV cache.

Slots are allocated once; the first ones are the occupied ones, so that a batch is a slice.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from ros2_rfm_serving.engines.base import Cache, TokenModel, TokenSampling
from ros2_rfm_serving.engines.flow.memory import in_batches
from ros2_rfm_serving.engines.tokens.generated_tokens import GeneratedTokens
from ros2_rfm_serving.errors import ModelError
from ros2_rfm_serving.types import Array, EngineReply, InferenceRequest


@dataclass
class _Row:
    number: int
    position: int
    """Position of the next token."""
    prefix: Array


class DecodingBatch:
    """Rows in flight and the batches that advance them.
    One thread makes all calls. A row is identified by the number that its server assigned."""

    def __init__(self, model: TokenModel, sampling: TokenSampling, num_slots: int) -> None:
        self._model, self._max_batch_size = model, model.max_batch_size
        self._cache, self._said = model.cache(num_slots), GeneratedTokens(model, sampling, num_slots)
        self._memory: tuple[Tensor, ...] = (*self._cache, *self._said.memory)
        self._views: dict[tuple[int, int], Cache] = {}
        self._rows: list[_Row] = []
        """Row by slot."""

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, number: object) -> bool:
        return any(row.number == number for row in self._rows)

    def __iter__(self) -> Iterator[int]:
        return (row.number for row in self._rows)

    def free(self, count: int) -> Cache:
        """Return the slots of the next rows, cleared of earlier rows: a NaN among keys and values passes through any mask."""
        slots = self._cut(len(self._rows), len(self._rows) + count)
        for values in slots:
            values.zero_()
        return slots

    def enter(self, numbers: Sequence[int], requests: Sequence[InferenceRequest], prefixes: Sequence[Array]) -> None:
        """Add rows whose context is in the `free` slots.
        The tokens of their prefixes are given, so one prefill covers all of them."""
        start, end = len(self._rows), len(self._rows) + len(numbers)
        entering = []
        for slot, number, request, prefix in zip(range(start, end), numbers, requests, prefixes, strict=True):
            self._said.begin(slot, request)
            entering.append(_Row(number, self._said.set_prefix(slot, prefix), prefix))
        if longest := max(row.position for row in entering):
            self._model.generate(self._said.before(slice(start, end), range(longest)), [0] * len(numbers), self._cut(start, end))
        self._rows += entering

    def advance(self, numbers: Collection[int]) -> dict[int, EngineReply | ModelError]:
        """Advance rows by one token each, and return the replies of those that are complete, which leave.
        Raises: `OutOfMemoryError` if memory does not suffice for half a batch."""
        self._to_front(set(numbers))
        in_batches(self._decode, range(len(numbers)), self._max_batch_size)
        rows = self._rows[: len(numbers)]
        done = {row.number: (slot, row.prefix) for slot, row in enumerate(rows) if row.position == self._said.length}
        replies = {number: self._said.reply(slot, prefix) for number, (slot, prefix) in done.items()}
        self.leave(replies)
        return replies

    def _decode(self, slots: Sequence[int]) -> list[None]:
        """Decode one token for each of these contiguous slots, in one batch."""
        own = slice(slots[0], slots[-1] + 1)
        rows, positions = self._rows[own], [row.position for row in self._rows[own]]
        logits = self._model.generate(self._said.before_each(own, positions), positions, self._cut(own.start, own.stop))
        self._said.choose(slots, positions, logits[:, 0])
        for row in rows:
            row.position += 1
        return [None] * len(rows)

    def leave(self, numbers: Collection[int]) -> None:
        """Remove rows; the last row moves into each slot that becomes free."""
        for number in numbers:
            slot = next((slot for slot, row in enumerate(self._rows) if row.number == number), None)
            if slot is None:
                continue
            last = len(self._rows) - 1
            for values in self._memory if slot != last else ():
                values[slot] = values[last]
            self._rows[slot] = self._rows[last]
            del self._rows[last]

    def _cut(self, start: int, end: int) -> Cache:
        """Return views, which stay the same for the same slots."""
        if (start, end) not in self._views:
            self._views[start, end] = tuple(values[start:end] for values in self._cache)
        return self._views[start, end]

    def _to_front(self, numbers: set[int]) -> None:
        """Move the rows of this turn into the first slots."""
        count = len(numbers)
        behind = [slot for slot in range(count, len(self._rows)) if self._rows[slot].number in numbers]
        ahead = [slot for slot in range(count) if self._rows[slot].number not in numbers]
        for one, other in zip(ahead, behind, strict=True):
            for values in self._memory:
                values[[one, other]] = values[[other, one]]
            self._rows[one], self._rows[other] = self._rows[other], self._rows[one]

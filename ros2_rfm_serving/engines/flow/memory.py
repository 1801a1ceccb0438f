"""Out-of-memory handling: cached memory is freed and the two halves of a batch are tried once. Rows that fail do not enter."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import TypeVar

import torch

from ros2_rfm_serving.errors import ModelError, OutOfMemoryError
from ros2_rfm_serving.types import InferenceRequest

Rows = Sequence[tuple[int, InferenceRequest]]

Row = TypeVar("Row")
Answer = TypeVar("Answer")
_HOST = "DefaultCPUAllocator"
"""Name of the allocator in the plain RuntimeError that PyTorch raises when it cannot allocate memory on the host."""


def in_halves(run: Callable[[Sequence[Row]], list[Answer]], rows: Sequence[Row]) -> list[Answer]:
    """Return the answers of `run` to `rows`; if memory does not suffice, to their halves, one after the other.

    Raises: `OutOfMemoryError` if it does not suffice for the halves either, or for a single row.
    """
    answers = _attempt(run, rows)
    if answers is None and len(rows) > 1:
        middle = len(rows) // 2
        first = _attempt(run, rows[:middle])
        second = _attempt(run, rows[middle:]) if first is not None else None
        answers = [*first, *second] if first is not None and second is not None else None
    if answers is None:
        raise OutOfMemoryError(f"memory does not suffice for a batch of {len(rows)}; serve this model with a smaller one")
    return answers


def in_batches(run: Callable[[Sequence[Row]], list[Answer]], rows: Sequence[Row], largest: int) -> list[Answer]:
    """Run rows in order, in batches of at most `largest`.
    Raises: `OutOfMemoryError` if memory does not suffice for half a batch."""
    return [answer for start in range(0, len(rows), largest) for answer in in_halves(run, rows[start : start + largest])]


def not_entered(run: Callable[[Rows], list[None]], rows: Rows, inside: Container[int]) -> dict[int, ModelError]:
    """Enter rows with `run`, and return the errors of those that could not enter. All rows enter together, or one by one where that
    fails and they are not `inside` yet. If memory runs out, all of them get that error."""
    try:
        in_halves(run, rows)
        return {}
    except ModelError as error:
        rows = [row for row in rows if row[0] not in inside]
        if len(rows) == 1 or isinstance(error, OutOfMemoryError):
            return {row: error for row, _ in rows}
    return {row: error for one in rows for row, error in not_entered(run, [one], inside).items()}


def _attempt(run: Callable[[Sequence[Row]], list[Answer]], rows: Sequence[Row]) -> list[Answer] | None:
    """Return the answers of `run`, or None if memory does not suffice.
    Cached memory is freed only when the error is gone, as its traceback holds the tensors."""
    try:
        return run(rows)
    except (torch.OutOfMemoryError, MemoryError):
        pass
    except RuntimeError as error:
        if _HOST not in str(error):
            raise
    torch.cuda.empty_cache()
    return None

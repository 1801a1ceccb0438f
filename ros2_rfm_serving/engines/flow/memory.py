"""When memory does not suffice for a batch: free what is cached, try its halves, once. And rows that do not enter."""

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
"""PyTorch says this when it cannot allocate on the host, with a plain RuntimeError."""


def in_halves(run: Callable[[Sequence[Row]], list[Answer]], rows: Sequence[Row]) -> list[Answer]:
    """What `run` answers to `rows`; if memory does not suffice, to their halves, one after the other.

    Raises: `OutOfMemoryError` when it does not suffice for these either, or for a single row.
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
    """In order, no batch larger than this. Raises: `OutOfMemoryError`."""
    return [answer for start in range(0, len(rows), largest) for answer in in_halves(run, rows[start : start + largest])]


def not_entered(run: Callable[[Rows], list[None]], rows: Rows, inside: Container[int]) -> dict[int, ModelError]:
    """`run`, which lets rows in, of all, or of each alone where that fails; errors of those that are not `inside` then."""
    try:
        in_halves(run, rows)
        return {}
    except ModelError as error:
        rows = [row for row in rows if row[0] not in inside]
        if len(rows) == 1 or isinstance(error, OutOfMemoryError):
            return {row: error for row, _ in rows}
    return {row: error for one in rows for row, error in not_entered(run, [one], inside).items()}


def _attempt(run: Callable[[Sequence[Row]], list[Answer]], rows: Sequence[Row]) -> list[Answer] | None:
    """None: out of memory. What is cached is freed after the error, whose traceback holds the tensors, is gone."""
    try:
        return run(rows)
    except (torch.OutOfMemoryError, MemoryError):
        pass
    except RuntimeError as error:
        if _HOST not in str(error):
            raise
    torch.cuda.empty_cache()
    return None

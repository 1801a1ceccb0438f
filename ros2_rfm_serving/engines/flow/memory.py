"""When memory does not suffice for a batch: free what is cached, try its halves, once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

from ros2_rfm_serving.errors import OutOfMemoryError

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

"""Execution of many runs in several processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ros2_rfm_serving import compiled

Job = Callable[[], Any]


def _call(job: Job) -> Any:
    return job()


def in_parallel(jobs: Sequence[Job], processes: int) -> Iterator[Any]:
    if processes == 1:
        yield from map(_call, jobs)
        return
    from multiprocessing import get_context

    with get_context("spawn").Pool(processes, initializer=compiled.use) as pool:
        yield from pool.imap_unordered(_call, jobs)

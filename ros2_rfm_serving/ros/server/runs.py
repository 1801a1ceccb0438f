"""Runs of an engine: on the calling thread, or each on a thread of its own where the engine takes several at once."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from ros2_rfm_serving.server import RunningBatch
from ros2_rfm_serving.types import EngineReply

Answers = list[EngineReply | None]
Woken = Callable[[], None]
Unforeseen = Callable[[BaseException], None]


class Runs:
    """Runs for one caller's thread. On any thread, `unforeseen` gets an exception of `run`, and `woken` is called at its end."""

    def __init__(self, run: Callable[[RunningBatch], Answers], woken: Woken, unforeseen: Unforeseen, *, at_once: bool) -> None:
        self._run, self._woken, self._unforeseen, self.at_once = run, woken, unforeseen, at_once
        self._num_open = 0
        self._ended: deque[tuple[RunningBatch, Answers]] = deque()

    def __len__(self) -> int:
        """Number of runs that `ended` has not returned yet."""
        return self._num_open

    def start(self, work: RunningBatch) -> None:
        self._num_open += 1
        if not self.at_once:
            self._work(work)
            return
        try:
            threading.Thread(target=self._work, args=(work,), name="inference", daemon=True).start()
        except RuntimeError as error:  # the system has no more threads
            self._unforeseen(error)
            self._ended.append((work, [None] * len(work.batch)))

    def ended(self) -> tuple[RunningBatch, Answers] | None:
        """Return one finished run, each once; None: there is none."""
        if not self._ended:
            return None
        self._num_open -= 1
        return self._ended.popleft()

    def _work(self, work: RunningBatch) -> None:
        answers: Answers = [None] * len(work.batch)
        try:
            answers = self._run(work)
        except (Exception, SystemExit) as error:
            self._unforeseen(error)
        finally:  # it is over in every case
            self._ended.append((work, answers))
            self._woken()

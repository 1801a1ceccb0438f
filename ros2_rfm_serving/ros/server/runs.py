"""What an engine is at work on: on the thread that asks for it, or where it takes several at once, each on a thread of its own."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from ros2_rfm_serving.server import Work
from ros2_rfm_serving.types import EngineReply

Answers = list[EngineReply | None]
Woken = Callable[[], None]
Unforeseen = Callable[[BaseException], None]


class Runs:
    """For one thread. On whatever thread a work ends, `unforeseen` gets what `run` raised, if it did, and `woken` is called."""

    def __init__(self, run: Callable[[Work], Answers], woken: Woken, unforeseen: Unforeseen, *, at_once: bool) -> None:
        self._run, self._woken, self._unforeseen, self.at_once = run, woken, unforeseen, at_once
        self._num_open = 0
        self._ended: deque[tuple[Work, Answers]] = deque()

    def __len__(self) -> int:
        """Those that `ended` has not told yet."""
        return self._num_open

    def start(self, work: Work) -> None:
        self._num_open += 1
        if not self.at_once:
            self._work(work)
            return
        try:
            threading.Thread(target=self._work, args=(work,), name="inference", daemon=True).start()
        except RuntimeError as error:  # no more threads
            self._unforeseen(error)
            self._ended.append((work, [None] * len(work.batch)))

    def ended(self) -> tuple[Work, Answers] | None:
        """One that is over, told once; None: none."""
        if not self._ended:
            return None
        self._num_open -= 1
        return self._ended.popleft()

    def _work(self, work: Work) -> None:
        answers: Answers = [None] * len(work.batch)
        try:
            answers = self._run(work)
        except (Exception, SystemExit) as error:
            self._unforeseen(error)
        finally:  # whatever happened, it is over
            self._ended.append((work, answers))
            self._woken()

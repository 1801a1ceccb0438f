"""What an engine is at work on: on the thread that asks for it, or where it takes several at once, each on a thread of its own."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from ros2_rfm_serving.ros.node.runtime import clock
from ros2_rfm_serving.server import Work
from ros2_rfm_serving.types import EngineReply

Answers = list[EngineReply | None]


class Runs:
    """`start` and `ended` are for one thread, `busy_s` for any; `woken` is called on whatever thread a work ends."""

    def __init__(self, run: Callable[[Work], Answers], woken: Callable[[], None], *, at_once: bool) -> None:
        self._run, self._woken, self._at_once = run, woken, at_once
        self._begun_s: dict[Work, float] = {}
        self._ended: deque[tuple[Work, Answers]] = deque()

    def __len__(self) -> int:
        """Those that `ended` has not told yet."""
        return len(self._begun_s)

    def start(self, work: Work) -> None:
        self._begun_s[work] = clock()
        if self._at_once:
            threading.Thread(target=self._work, args=(work,), name="inference", daemon=True).start()
        else:
            self._work(work)

    def ended(self) -> tuple[Work, Answers] | None:
        """One that is over, told once; None: none."""
        if not self._ended:
            return None
        work, answers = self._ended.popleft()
        del self._begun_s[work]
        return work, answers

    def busy_s(self, now_s: float) -> float:
        """For how long the oldest has been under way; 0: none is."""
        return now_s - min(list(self._begun_s.values()), default=now_s)

    def _work(self, work: Work) -> None:
        answers: Answers = [None] * len(work.batch)
        try:
            answers = self._run(work)
        finally:  # whatever happened, it is over
            self._ended.append((work, answers))
            self._woken()

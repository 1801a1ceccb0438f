"""A scheduler's book in tests: what it writes, as it would travel."""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import Any

from ros2_rfm_serving.audit.chain import Page, records
from ros2_rfm_serving.audit.journal import Journal
from ros2_rfm_serving.audit.schedulers.book import Book


class KeptPlans:
    def __init__(self, profiles: Path) -> None:
        self.pages: list[Page] = []
        draw = itertools.count(1).__next__
        self.journal = Journal("scheduler", "scheduler", send=self.pages.append, stamp_s=lambda: 0.0, draw=draw)
        self.book = Book(self.journal, profiles, time.monotonic)
        self._times_s, self._listeners = itertools.count(time.monotonic() + 1e3, 10.0), itertools.count(1)

    def listen(self) -> None:
        """One more does, and gets a snapshot."""
        now_s = next(self._times_s)
        self.journal.listeners(next(self._listeners), now_s - 5.0)
        self.journal.tend(now_s)

    def records(self) -> list[dict[str, Any]]:
        self.journal.close(next(self._times_s), "the test ends")
        assert not self.journal.failures, self.journal.problem
        return [record for page in self.pages for record in records(page)]

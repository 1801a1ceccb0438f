"""Stream of changes to every open page. A page that reads too slowly misses frames and then gets the full state; nothing
accumulates."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from ros2_rfm_serving.monitoring.board import Board
from ros2_rfm_serving.monitoring.dashboard import views
from ros2_rfm_serving.monitoring.dashboard.events import Event, EventLine
from ros2_rfm_serving.monitoring.dashboard.history import PERIOD_S as SAMPLE_PERIOD_S
from ros2_rfm_serving.monitoring.dashboard.history import History
from ros2_rfm_serving.monitoring.dashboard.refusing import RecentRefusals

PERIOD_S = 0.5
"""Period of the frames; robots and servers publish at the same rate."""
MAX_PAGES = 64
BEHIND = 8
"""Maximum number of frames that a page may be behind."""
SAY_SOMETHING_S = 5.0
"""Maximum time between frames; a page that receives nothing for longer reconnects."""


class Page:
    """Frames for one page, on the loop's thread."""

    def __init__(self) -> None:
        self.frames: asyncio.Queue[bytes | None] = asyncio.Queue(BEHIND)
        """Queued frames; None: end of the stream."""
        self.missed = 0
        self.is_behind = True
        """The next frame has the full state."""

    def offer(self, frame: bytes | None) -> None:
        if self.is_behind and frame is not None:
            return
        try:
            self.frames.put_nowait(frame)
        except asyncio.QueueFull:
            self.missed += self.frames.qsize()
            while not self.frames.empty():
                self.frames.get_nowait()
            self.is_behind = frame is not None
            self.frames.put_nowait(frame)  # any frame wakes the page


class Feed:
    def __init__(self, board: Board) -> None:
        self.board, self.events, self.history, self.refusals = board, EventLine(), History(), RecentRefusals()
        self._pages: set[Page] = set()
        self._view: views.View = {}
        self._told = 0
        """Number of the newest event that was sent."""
        self._sampled_s = self._sent_s = float("-inf")
        self._over = False

    def tick(self, now_s: float, time_s: float) -> None:
        """Update the pages; it is called every `PERIOD_S`. now_s: board's clock."""
        self.events.look(self.board, now_s, time_s)
        self.refusals.sample(self.board, now_s)
        if now_s - self._sampled_s > SAMPLE_PERIOD_S - PERIOD_S / 2:
            self._sampled_s = now_s
            self.history.sample(self.board, now_s)
        if not self._pages:
            self._view = {}
            return
        view = views.fleet(self.board, now_s, self.refusals)
        changed, news = views.difference(self._view, view), self.events.since(self._told)
        self._view, self._told = view, self.events.last
        if changed or news or now_s - self._sent_s > SAY_SOMETHING_S:
            self._sent_s = now_s
            frame = _frame("delta", changed, news)
            for page in self._pages:
                page.offer(frame)

    @property
    def is_full(self) -> bool:
        return len(self._pages) >= MAX_PAGES or self._over

    async def frames(self, now_s: float, time_s: float) -> AsyncIterator[bytes]:
        """Yield the frames of one page until it leaves or the feed ends. Processes on an open page were observed, so that their
        loss is an event."""
        if not self._view:
            self.events.look(self.board, now_s, time_s)
            self._view, self._told, self._sent_s = views.fleet(self.board, now_s, self.refusals), self.events.last, now_s
        page = Page()
        self._pages.add(page)
        try:
            while not self._over:
                if page.is_behind:
                    page.is_behind = False
                    yield _frame("full", self._view, [event for event in self.events.since(0) if event.number <= self._told])
                frame = await page.frames.get()
                if frame is None:
                    return
                if not page.is_behind:
                    yield frame
        finally:
            self._pages.discard(page)

    def end(self) -> None:
        self._over = True
        for page in self._pages:
            page.offer(None)


def _frame(kind: str, view: views.View, events: list[Event]) -> bytes:
    """Return a frame as a server-sent event."""
    return f"event: {kind}\ndata: {packed({**view, 'events': events}).decode()}\n\n".encode()


def packed(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()

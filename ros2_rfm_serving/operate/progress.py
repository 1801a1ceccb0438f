"""Progress displays for work that takes longer than a user likes to wait without one."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SHOWN_AFTER_S = 0.8
"""Delay of a progress display, s: shorter work shows none."""
UPDATE_PERIOD_S = 0.2
"""Minimum time between two texts of one display, s."""


@contextmanager
def spinner(text: str) -> Iterator[Callable[[str], None]]:
    """Show `text` with a spinner on stderr once `SHOWN_AFTER_S` have passed, where stderr is a terminal.
    The function that it yields shows another text; it may be called for every step of the work."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.markup import escape

    status = Console(stderr=True).status(escape(text))
    timer = threading.Timer(SHOWN_AFTER_S, status.start)
    timer.daemon = True
    timer.start()
    shown_s = time.monotonic()

    def update(text: str) -> None:
        nonlocal shown_s
        if time.monotonic() - shown_s > UPDATE_PERIOD_S:
            shown_s = time.monotonic()
            status.update(escape(text))

    try:
        yield update
    finally:
        timer.cancel()
        timer.join()
        status.stop()

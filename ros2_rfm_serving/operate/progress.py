"""Progress of what takes longer than a user likes to wait without a word."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

SHOWN_AFTER_S = 0.8
"""Delay of a progress display, s: what is done sooner shows none."""


@contextmanager
def spinner(text: str) -> Iterator[None]:
    """Show `text` with a moving sign on stderr once `SHOWN_AFTER_S` have passed, where stderr is a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    status = Console(stderr=True).status(text)
    timer = threading.Timer(SHOWN_AFTER_S, status.start)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        status.stop()

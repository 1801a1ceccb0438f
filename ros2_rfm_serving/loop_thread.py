"""Event loop in a thread of its own, for processes whose other threads never wait for the network."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
ENDS_WITHIN_S = 5.0


class LoopThread:
    """Event loop that runs from its construction to `stop`."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def call(self, todo: Coroutine[Any, Any, T], timeout_s: float) -> T:
        """Return the result of `todo`, or raise its exception.

        Raises: `TimeoutError` after `timeout_s`; `todo` is then canceled.
        """
        future = asyncio.run_coroutine_threadsafe(asyncio.wait_for(todo, timeout_s), self.loop)
        try:
            return future.result()
        except asyncio.TimeoutError as error:
            raise TimeoutError(f"not done within {timeout_s:g} s") from error

    def soon(self, function: Callable[..., object], *arguments: object) -> None:
        """Schedule a call on the thread; after `stop` nothing happens."""
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(function, *arguments)

    def stop(self) -> None:
        """Stop the loop, and cancel its unfinished tasks."""
        if self.loop.is_closed():
            return
        asyncio.run_coroutine_threadsafe(_cancel_others(), self.loop).result(ENDS_WITHIN_S)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(ENDS_WITHIN_S)
        self.loop.close()


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)

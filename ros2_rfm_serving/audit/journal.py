"""Event log of one writer, active while there are subscribers: chains of records, in pages.

    journal = Journal("robot/push_1", "robot", send=publish, stamp_s=ros_time_s, draw=random_run)
    journal.describes(
        begin=lambda: {"config": codec.plain(config)},
        snapshot=lambda: {"config": codec.plain(config), "state": codec.plain(core.snapshot())},
    )
    journal.listeners(count, now_s)                  # after each count of the subscribers
    if journal.on: journal.note("tick", now_s, describe, tick)
    journal.tend(now_s)                              # after each event, and every PAGE_PERIOD_S; never within a decision
    journal.close(now_s, "the end of the process")

A failure of the journal does not affect its process: it ends the chain, is counted, and another chain begins.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from ros2_rfm_serving.audit.chain import BEGIN, COULD_NOT_GO_ON, FORMAT, SNAPSHOT, Chain, Page
from ros2_rfm_serving.audit.manifest import Sign
from ros2_rfm_serving.audit.signatures import sign_chain
from ros2_rfm_serving.audit.versions import versions

PAGE_PERIOD_S = 0.25
SEAL_PERIOD_S = 5.0
SNAPSHOT_PERIOD_S = 10.0
RETRY_S = 1.0
"""Delay of the next chain after a failure."""
SPREAD_S = 0.5
"""Window in which writers with a new common subscriber begin, because a snapshot takes milliseconds."""
MAX_PAGE_BYTES = 256 * 1024
MAX_DEFERRED = 64
"""Largest number of records whose encoding waits for the next page: those of a page at 250 per second."""
NO_SUBSCRIBER = "there is no subscriber"
PROCESS_ENDS = "the end of the process"

Describe = Callable[..., Mapping[str, Any] | bytes]


class Journal:
    """Event log of one writer, used by one thread at a time. Its methods never raise; `on` is true while records are kept."""

    def __init__(
        self,
        writer: str,
        role: str,
        *,
        send: Callable[[Page], object],
        stamp_s: Callable[[], float],
        draw: Callable[[], int],
        sign: Sign | None = None,
    ) -> None:
        """Create an event log. send: publishes a page. stamp_s: returns ROS time in s. draw: returns a random identity of 1 to
        2**63 - 1. sign: signs with the certificate of this process; None without a certificate."""
        self._sign = sign
        self.writer = writer
        self.on = False
        self.failures, self.problem = 0, ""
        """Number of chains that a failure ended, and the description of the last failure."""
        self.records = 0
        """Number of records since the start."""
        self._role, self._send, self._stamp_s, self._draw = role, send, stamp_s, draw
        self._begin_body: Callable[[], Mapping[str, Any]] = dict
        self._snapshot_body: Callable[[], Mapping[str, Any]] = dict
        self._chain: Chain | None = None
        self._deferred: list[tuple[str, float, Describe, tuple[Any, ...]]] = []
        self._after: dict[str, Any] | None = None
        self._listeners = 0
        self._begins_s = self._page_s = self._seal_s = self._snapshot_s = math.inf
        self._joined = False

    def describes(self, *, begin: Callable[[], Mapping[str, Any]], snapshot: Callable[[], Mapping[str, Any]]) -> None:
        """Set the contents of first records and snapshots, both for JSON. begin: returns further keys of a chain's first record,
        such as the core's configuration. snapshot: returns the whole state of the core, from which a replay can begin."""
        self._begin_body, self._snapshot_body = begin, snapshot

    # --- subscribers ---

    def listeners(self, num: int, now_s: float) -> None:
        """Update the number of subscribers."""
        before, self._listeners = self._listeners, num
        if not num:
            self.close(now_s, NO_SUBSCRIBER)
        elif not before:  # the reader may not have matched yet, and must not miss the first page
            self._begins_s = now_s + PAGE_PERIOD_S + SPREAD_S * (self._draw() % 1000) / 1000.0
        elif num > before:
            self._joined = True

    def close(self, now_s: float, why: str) -> None:
        """End the chain, and keep no records until there is a new subscriber."""
        self._begins_s = math.inf
        if self._chain is not None:
            self._guarded(now_s, lambda: self._close(now_s, why))
        self._listeners = 0

    def anew(self, now_s: float, why: str) -> None:
        """Begin another chain at once if there are subscribers, because the core was replaced."""
        listeners, listened = self._listeners, self._chain is not None
        if listened:
            self.close(now_s, why)
            self._listeners = listeners
            self._guarded(now_s, lambda: self._begin(now_s))
            self._page_s = now_s

    def break_off(self, now_s: float, problem: str) -> None:
        """Begin another chain at once, as `anew` does, because this one lacks decisions; this counts as a failure."""
        self.failures, self.problem = self.failures + 1, problem
        self.anew(now_s, f"{COULD_NOT_GO_ON}: {problem}")

    # --- events ---

    def note(self, kind: str, now_s: float, describe: Describe, *args: Any, urgent: bool = False) -> None:
        """Append a record. `describe(*args)` returns its keys, for JSON or as JSON, if there are subscribers. urgent: send a page
        at once."""
        if self._chain is not None:
            try:
                self._note(kind, now_s, describe(*args))
            except Exception as error:  # as in `_guarded`, which is slower
                self._failed(error, now_s)
            else:
                self._page_s = now_s if urgent else self._page_s

    def defer(self, kind: str, now_s: float, describe: Describe, *args: Any) -> None:
        """Append a record as `note` does, but call `describe` later, before any other record and every page, so that encoding does
        not delay decisions. The arguments must not change meanwhile."""
        if self._chain is not None:
            self._deferred.append((kind, now_s, describe, args))
            if len(self._deferred) >= MAX_DEFERRED:
                self._guarded(now_s, self._write_deferred)

    def tend(self, now_s: float) -> None:
        """Write due pages, seals and snapshots. Call it only between two decisions, because a snapshot describes that state."""
        if now_s >= min(self._page_s, self._begins_s):
            self._guarded(now_s, lambda: self._tend(now_s))

    def _tend(self, now_s: float) -> None:
        if self._chain is None:
            self._begin(now_s)
        self._write_deferred()
        if self._joined or now_s >= self._snapshot_s:
            self._snapshot("subscriber" if self._joined else "period", now_s)
        if now_s >= self._seal_s:
            self._seal(now_s, closed=False)
        self._page(now_s)

    # --- chains ---

    def _begin(self, now_s: float) -> None:
        self._chain, self._begins_s = Chain(self.writer, self._draw()), math.inf
        begun = {"role": self._role, "format": FORMAT, "stamp": self._stamp_s(), "versions": versions()}
        self._note(BEGIN, now_s, {**begun, **self._begin_body(), "after": self._after})
        self._snapshot("begin", now_s)
        self._seal_s, self.on = now_s + SEAL_PERIOD_S, True

    def _snapshot(self, why: str, now_s: float) -> None:
        self._note(SNAPSHOT, now_s, {"why": why, "format": FORMAT, **self._snapshot_body()})
        self._snapshot_s, self._joined = now_s + SNAPSHOT_PERIOD_S, False

    def _write_deferred(self) -> None:
        deferred, self._deferred = self._deferred, []
        for kind, at_s, describe, args in deferred:
            self._note(kind, at_s, describe(*args))

    def _note(self, kind: str, now_s: float, body: Mapping[str, Any] | bytes) -> None:
        assert self._chain is not None
        if self._deferred:
            self._write_deferred()
        self._chain.note(kind, now_s, body)
        self.records += 1
        if self._chain.size >= MAX_PAGE_BYTES:
            self._page(now_s)

    def _seal(self, now_s: float, *, closed: bool, **more: Any) -> None:
        assert self._chain is not None
        self._chain.seal(now_s, closed=closed, stamp=self._stamp_s(), **more)
        self._seal_s = now_s + SEAL_PERIOD_S

    def _page(self, now_s: float) -> None:
        assert self._chain is not None
        sign_chain(self._chain, now_s, self._sign)
        page = self._chain.page()
        self._page_s = now_s + PAGE_PERIOD_S
        if page is not None:
            self._send(page)

    def _close(self, now_s: float, why: str) -> None:
        assert self._chain is not None
        self._write_deferred()
        self._seal(now_s, closed=True, why=why)
        self._page(now_s)
        self._forget(why)

    def _forget(self, why: str) -> None:
        chain, self._chain, self.on = self._chain, None, False
        self._page_s = self._seal_s = self._snapshot_s = math.inf
        if chain is not None:
            self._after = {"run": chain.run, "records": chain.number, "hash": chain.hash, "why": why}

    # --- failures ---

    def _guarded(self, now_s: float, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception as error:  # no failure of the log may affect a decision
            self._failed(error, now_s)

    def _failed(self, error: Exception, now_s: float) -> None:
        self.failures += 1
        self._deferred.clear()
        self.problem = f"{type(error).__name__}: {error}"[:200]
        why = f"{COULD_NOT_GO_ON}: {self.problem}"
        try:
            if self._chain is not None:
                self._close(now_s, why)
        except Exception as again:
            self.problem = f"{self.problem}; {type(again).__name__}: {again}"[:400]
        self._forget(why)
        self._begins_s = now_s + RETRY_S if self._listeners else math.inf

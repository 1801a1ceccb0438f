"""The recorder's own chain of records: the extent of the received chains, and the losses.

Kinds: docs/audit.md. For every received chain, `sealed` and `closed` have the numbers of its first received record and of the next
one, and the last hash (`heads`), so that this chain's end anchors theirs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

from ros2_rfm_serving.audit.chain import ASIDE, CLOSED, HASH_DIGITS, MESSAGES, SEALED, Chain, Page, identity, parsed, why_broken
from ros2_rfm_serving.audit.manifest import Sign
from ros2_rfm_serving.audit.signatures import sign_chain

RECORDER = "recorder/"
"""Prefix of a recorder's writer name."""
SEAL_PERIOD_S = 5.0
CLOSED_MARK = b'"kind":"closed"'
MAX_CHAINS = 4096
"""Largest number of tracked chains, because any participant of the graph may publish pages."""


class Ledger:
    """Writer of the recorder's chain, for one thread; `page` returns the records since the last page."""

    def __init__(self, name: str, run: int, now_s: float, about: Mapping[str, Any], sign: Sign | None = None) -> None:
        """Begin the chain. about: keys of its first record. sign: signs with this process's certificate; None without one."""
        self._sign = sign
        self._chain = Chain(f"{RECORDER}{name}", run)
        self._heads: dict[tuple[str, int], tuple[int, int, str]] = {}
        """Writer and run -> numbers of the first received record and of the next one, hash of the last one."""
        self._sealed_s = now_s
        self.broken: dict[str, tuple[int, str]] = {}
        """Writer -> number of its chains that broke off, and the reason of the last one."""
        self._broken_runs: deque[tuple[str, int]] = deque(maxlen=MAX_CHAINS)
        self._chain.note("began", now_s, about)

    def hear(self, page: Page, now_s: float) -> None:
        """Account for another writer's page that is in the bag."""
        begins, number, _ = self._heads.get((page.writer, page.run), (page.first, page.first, ""))
        if page.writer.startswith(RECORDER):  # such a page is written to the bag alone, and never comes from the graph
            return
        if page.first < number:  # repetitions by middleware or other processes do not extend the chain
            return
        if page.first > number:
            body = {"writer": page.writer, "run": page.run, "first": number, "count": page.first - number}
            self._chain.note("lost", now_s, body)
        if page.lines:
            if (page.writer, page.run) not in self._heads and len(self._heads) >= MAX_CHAINS:
                del self._heads[next(iter(self._heads))]
            self._note_break(page)
            last = page.lines[-1][-HASH_DIGITS - 2 : -2].decode(errors="replace")
            self._heads[page.writer, page.run] = begins, page.first + len(page.lines), last

    def is_late(self, page: Page) -> bool:
        """Return whether later records of its chain have already come, so that the page is a repetition if it is genuine."""
        _, number, _ = self._heads.get((page.writer, page.run), (0, 0, ""))
        return page.first < number

    def set_aside(self, page: Page, topic: str, why: str, now_s: float) -> None:
        """Note a page in the bag whose signature is not that of its writer."""
        self._chain.note(ASIDE, now_s, {"topic": topic, "page": identity(page).hex(), "why": why})

    def _note_break(self, page: Page) -> None:
        """Count a chain that breaks off with this page, or the preceding chain if this page's first record reports a break."""
        for line in page.lines[-2:]:  # the last record may be the signature
            if CLOSED_MARK in line:
                self._count_break(page.writer, page.run, parsed(line))
        after = parsed(page.lines[0]).get("after") if page.first == 0 else None
        if isinstance(after, dict) and isinstance(after.get("run"), int):
            self._count_break(page.writer, after["run"], after)

    def _count_break(self, writer: str, run: int, told: Mapping[str, Any]) -> None:
        why = why_broken(told)
        if why and (writer, run) not in self._broken_runs and (writer in self.broken or len(self.broken) < MAX_CHAINS):
            self._broken_runs.append((writer, run))
            self.broken[writer] = self.broken.get(writer, (0, ""))[0] + 1, why

    def lost(self, topics: Mapping[str, int], why: str, now_s: float) -> None:
        for topic, count in topics.items():
            self._chain.note("lost", now_s, {"topic": topic, "count": count, "why": why})

    def note(self, kind: str, now_s: float, body: Mapping[str, Any]) -> None:
        self._chain.note(kind, now_s, body)

    def is_due(self, now_s: float) -> bool:
        """Return whether there are records since the last page, or the extents of the chains are due."""
        return len(self._chain) > 0 or now_s - self._sealed_s >= SEAL_PERIOD_S

    def page(
        self, now_s: float, stamp_s: float, *, closed: bool = False, messages: Iterable[Mapping[str, Any]] = ()
    ) -> Page | None:
        """Return the page that is due; None without one. stamp_s: ROS time. messages: digests of written messages (`Digests`)."""
        for one in messages:
            self._chain.note(MESSAGES, now_s, one)
        if closed or now_s - self._sealed_s >= SEAL_PERIOD_S:
            self._sealed_s = now_s
            body = {"records": self._chain.number, "stamp": stamp_s, "heads": self._told()}
            self._chain.note(CLOSED if closed else SEALED, now_s, body)
        sign_chain(self._chain, now_s, self._sign)
        return self._chain.page()

    def _told(self) -> list[dict[str, Any]]:
        return [
            {"writer": writer, "run": run, "first": begins, "next": number, "hash": last}
            for (writer, run), (begins, number, last) in self._heads.items()
        ]

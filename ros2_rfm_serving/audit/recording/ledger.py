"""The recorder's own chain of records: what it heard up to where, and what is missing.

Kinds: `began`, `lost` {topic, count, why} or {writer, run, first, count}, `split` {file, ...}, `disk` {problem}, `sealed` and
`closed` {heads}: of every chain that it has heard, the number of the next record and the hash of the last one, so that this chain's
end anchors theirs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ros2_rfm_serving.audit.chain import CLOSED, HASH_DIGITS, SEALED, Chain, Page

SEAL_PERIOD_S = 5.0


class Ledger:
    """Given what happens; `page` is what is to be written of it. Of one thread."""

    def __init__(self, name: str, run: int, now_s: float, about: Mapping[str, Any]) -> None:
        """about: of this recording."""
        self._chain = Chain(f"recorder/{name}", run)
        self._first: dict[tuple[str, int], int] = {}
        """Writer and run -> number of the first record that was heard."""
        self._heads: dict[tuple[str, int], tuple[int, str]] = {}
        """Writer and run -> number of its next record, hash of its last one."""
        self._sealed_s = now_s
        self._chain.note("began", now_s, about)

    def hear(self, page: Page, now_s: float) -> None:
        """A page of another writer goes into the bag."""
        self._first.setdefault((page.writer, page.run), page.first)
        number, _ = self._heads.get((page.writer, page.run), (page.first, ""))
        if page.first > number:
            body = {"writer": page.writer, "run": page.run, "first": number, "count": page.first - number}
            self._chain.note("lost", now_s, body)
        if page.lines:
            last = page.lines[-1][-HASH_DIGITS - 2 : -2].decode(errors="replace")
            self._heads[page.writer, page.run] = page.first + len(page.lines), last

    def lost(self, topics: Mapping[str, int], why: str, now_s: float) -> None:
        for topic, count in topics.items():
            self._chain.note("lost", now_s, {"topic": topic, "count": count, "why": why})

    def note(self, kind: str, now_s: float, body: Mapping[str, Any]) -> None:
        self._chain.note(kind, now_s, body)

    def page(self, now_s: float, stamp_s: float, *, closed: bool = False) -> Page | None:
        """None: nothing is due. stamp_s: ROS time."""
        if closed or now_s - self._sealed_s >= SEAL_PERIOD_S:
            self._sealed_s = now_s
            body = {"records": self._chain.number, "stamp": stamp_s, "heads": self._told()}
            self._chain.note(CLOSED if closed else SEALED, now_s, body)
        return self._chain.page()

    def _told(self) -> list[dict[str, Any]]:
        return [
            {"writer": writer, "run": run, "first": self._first[writer, run], "next": number, "hash": last}
            for (writer, run), (number, last) in self._heads.items()
        ]

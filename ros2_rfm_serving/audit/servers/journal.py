"""Transfer of a server's decisions into a journal: noted under the server's lock, written later by another thread."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from ros2_rfm_serving.audit.journal import Journal
from ros2_rfm_serving.audit.servers.records import COUNTS, image_bytes, kind_of, record_of
from ros2_rfm_serving.audit.servers.snapshots import NO_MODEL, State, described, encoded, state_of
from ros2_rfm_serving.audit.servers.witness import Note, unwitnessed, witnessed
from ros2_rfm_serving.server import ModelServer, ServerConfig, ServerCore

URGENT = frozenset({"open_session", "close_session", "set_accepting", "resize", "reconfigure", "collect_sessions"})
"""Methods after whose calls a page is sent at once."""
MAX_NOTES = 20_000
"""Largest number of waiting notes; beyond it notes are dropped, and another chain begins."""
MAX_IMAGE_BYTES = 512 * 1024 * 1024
"""Largest size of the images in waiting notes, decoded ones included: requests keep theirs until they are written."""


class ServerJournal:
    """Event log of a server, for one thread; only notes come from any thread. Without subscribers the server is unaffected."""

    def __init__(self, journal: Journal, clock: Callable[[], float]) -> None:
        self._journal, self._clock = journal, clock
        self._server: ModelServer | None = None
        self._engine: Mapping[str, Any] = {}
        self._counts: Counter[str] = Counter()
        """Recorded part of the server's `refused`."""
        self._notes: list[Note] = []
        self._taken: list[Note] = []
        self._kept_bytes = self._written_bytes = 0
        """Sizes of images in notes so far: the first counts under the server's lock, the second on the journal's thread."""
        self._witnesses = self._overrun = False
        journal.describes(begin=self._begin, snapshot=self._snapshot)

    def follow(self, server: ModelServer | None, engine: Mapping[str, Any]) -> None:
        """Record another server from the next chain on; None stops. engine: description for its reconstruction, for JSON."""
        self._leave()
        self._server, self._engine = server, engine

    def write(self) -> None:
        """Write the decisions since the last call. Call it before any other record, and before a page is sent."""
        if self._journal.on:
            number = len(self._notes)  # more notes may come meanwhile
            notes, self._notes[:number] = self._notes[:number], []
            self._note(notes)
            self._note_counts()
            if self._overrun:
                self._journal.break_off(self._clock(), "it was decided faster than it could be written")
        else:
            self._leave()

    def _keep(self, note: Note) -> None:
        """Keep a note, while the server's lock is held."""
        kept_bytes = self._kept_bytes + image_bytes(note)
        fits = len(self._notes) < MAX_NOTES and kept_bytes - self._written_bytes <= MAX_IMAGE_BYTES
        self._overrun |= not fits  # decisions after a missing one cannot be replayed
        if not self._overrun:
            self._kept_bytes = kept_bytes
            self._notes.append(note)

    def _note_counts(self) -> None:
        """Record counted problems outside of the decision core: of engines, and of unreadable requests."""
        if self._server is None or not (more := Counter(self._server.refused) - self._counts):
            return
        self._counts += more
        problems = {kind: self._server.problems[kind] for kind in more.keys() & self._server.problems.keys()}
        self._journal.note(COUNTS, self._clock(), lambda: {"counts": dict(more), "problems": problems})

    def _leave(self) -> None:
        if self._server is not None and self._witnesses:
            self._server.record_calls(unwitnessed)
        self._witnesses = False
        self._notes.clear()
        self._written_bytes = self._kept_bytes

    def _note(self, notes: list[Note]) -> None:
        for note in notes:
            self._journal.note(kind_of(note), note.t, record_of, note, self._padded, urgent=note.method in URGENT)
        self._written_bytes += sum(map(image_bytes, notes))

    # --- first records of a chain ---

    def _begin(self) -> dict[str, Any]:
        """Return the keys of a chain's first record: what a server of the same decisions and engine is made from."""
        if self._server is None:
            return {"config": None, "contract": None, "limits": None, "engine": None}
        with self._server.locked_core() as core:
            config, contract, limits = core.config, core.contract, core.limits
        return {**described(config, contract, limits), "engine": dict(self._engine)}

    def _snapshot(self) -> Mapping[str, Any]:
        """Return the keys of a snapshot. Earlier decisions precede it in the chain, and later ones follow it."""
        if self._server is None:
            return NO_MODEL
        taken: list[tuple[ServerConfig, State]] = []
        self._server.record_calls(partial(self._photograph, taken))
        notes, self._taken = self._taken, []
        self._note(notes)
        ((config, state),) = taken
        return {**described(config, self._server.contract, self._server.core.limits), **encoded(state)}

    def _photograph(self, taken: list[tuple[ServerConfig, State]], brain: ServerCore) -> ServerCore:
        """Take the state of the core and begin to record it, while the server's lock is held."""
        plain = unwitnessed(brain) if self._witnesses else brain
        taken.append((plain.config, state_of(plain)))
        self._taken, self._notes = self._notes, []
        if not self._witnesses and self._server is not None:
            self._counts = Counter(self._server.refused)
        self._witnesses, self._overrun = True, False
        return witnessed(plain, self._clock, self._keep)

    def _padded(self, tier: int, rows: int) -> int:
        """Return the number of rows that the engine computes; engines compiled for some sizes report it."""
        padded = getattr(self._server.engine(tier), "padded", None) if self._server else None
        return int(padded(rows)) if padded else rows

"""What a server decides, on its way into a journal: noted under the server's lock, written later and by another thread."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from ros2_rfm_serving.audit.journal import Journal
from ros2_rfm_serving.audit.servers import objects
from ros2_rfm_serving.audit.servers.records import CALL, COUNT, body_of, image_bytes, kind_of
from ros2_rfm_serving.audit.servers.snapshots import UNRECORDED, copied, written
from ros2_rfm_serving.audit.servers.witness import Note, unwitnessed, witnessed
from ros2_rfm_serving.server import ModelServer, ServerBrain

NO_MODEL = None
"""In place of a brain: nothing decides, and nothing is to be decided again."""
URGENT = frozenset({"open_session", "close_session", "take_new", "resize", "reconfigure", "collect_sessions"})
"""Calls that somebody will ask about."""
MAX_NOTES = 20_000
"""That wait to be written: what comes when nobody has come for these goes by, and a chain begins anew."""
MAX_IMAGE_BYTES = 512 * 1024 * 1024
"""Of the images in them, decoded ones too: requests keep theirs until they are written."""


class ServerJournal:
    """Of one thread, but for the notes, which come from any. While nobody listens the server works as if this were not here."""

    def __init__(self, journal: Journal, clock: Callable[[], float]) -> None:
        self._journal, self._clock = journal, clock
        self._server: ModelServer | None = None
        self._engine: Mapping[str, Any] = {}
        self._counts: Counter[str] = Counter()
        """Of the server's `refused`, as far as they are noted."""
        self._notes: list[Note] = []
        self._taken: list[Note] = []
        self._kept_bytes = self._written_bytes = 0
        """Of images in notes, so far: the one counts under the server's lock, the other on the journal's thread."""
        self._witnesses = self._overrun = False
        self._copy = b""
        journal.describes(begin=lambda: {"made_of": self._made_of()}, snapshot=lambda: {"brain": self._whole()})

    def follow(self, server: ModelServer | None, engine: Mapping[str, Any]) -> None:
        """Another one from the next chain on; None: none. engine: what it takes to build the same one again, for JSON."""
        self._leave()
        self._server, self._engine = server, engine

    def write(self) -> None:
        """What was decided since the last time. Before whatever else is noted, and before a page goes out."""
        if self._journal.on:
            number = len(self._notes)  # more may come meanwhile
            notes, self._notes[:number] = self._notes[:number], []
            self._note(notes)
            self._note_counts()
            if self._overrun:
                self._journal.break_off(self._clock(), "it was decided faster than it could be written")
        else:
            self._leave()

    def _keep(self, note: Note) -> None:
        """The server's lock is held."""
        kept_bytes = self._kept_bytes + image_bytes(note)
        fits = len(self._notes) < MAX_NOTES and kept_bytes - self._written_bytes <= MAX_IMAGE_BYTES
        self._overrun |= not fits  # what comes after one that is missing cannot be decided again
        if not self._overrun:
            self._kept_bytes = kept_bytes
            self._notes.append(note)

    def _note_counts(self) -> None:
        """What went wrong outside of the brain: engines, and what could not be read."""
        if self._server is None or not (more := Counter(self._server.refused) - self._counts):
            return
        self._counts += more
        problems = {kind: self._server.problems[kind] for kind in more.keys() & self._server.problems.keys()}
        self._journal.note(CALL, self._clock(), lambda: {"do": COUNT, "args": {"refused": dict(more), "problems": problems}})

    def _leave(self) -> None:
        if self._server is not None and self._witnesses:
            self._server.witness(unwitnessed)
        self._witnesses = False
        self._notes.clear()
        self._written_bytes = self._kept_bytes

    def _note(self, notes: list[Note]) -> None:
        for note in notes:
            self._journal.note(kind_of(note), note.t, body_of, note, self._padded, urgent=note.do in URGENT)
        self._written_bytes += sum(map(image_bytes, notes))

    # --- what a chain begins with ---

    def _made_of(self) -> Any:
        if self._server is None:
            return None
        config, contract = objects.plain(self._server.config), objects.plain(self._server.contract)
        return {"config": config, "contract": contract, "engine": dict(self._engine)}

    def _whole(self) -> Any:
        """What was decided before comes before it in the chain, all that follows behind it."""
        if self._server is None:
            return NO_MODEL
        self._server.witness(self._photograph)
        notes, copy, self._taken, self._copy = self._taken, self._copy, [], b""
        self._note(notes)
        try:
            return written(copy)
        except TypeError as error:  # of a policy that somebody else has written
            return {UNRECORDED: str(error)}

    def _photograph(self, brain: ServerBrain) -> ServerBrain:
        """The server's lock is held."""
        plain = unwitnessed(brain) if self._witnesses else brain
        self._copy = copied(plain)
        self._taken, self._notes = self._notes, []
        if not self._witnesses and self._server is not None:
            self._counts = Counter(self._server.refused)
        self._witnesses, self._overrun = True, False
        return witnessed(plain, self._clock, self._keep)

    def _padded(self, tier: int, rows: int) -> int:
        """Engines that are compiled for some sizes say so."""
        padded = getattr(self._server.engine(tier), "padded", None) if self._server else None
        return int(padded(rows)) if padded else rows

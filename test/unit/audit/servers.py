"""Servers whose decisions are kept, in tests: records as they would travel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson

from ros2_rfm_serving.audit import chain
from ros2_rfm_serving.audit.servers.records import record_of
from ros2_rfm_serving.audit.servers.snapshots import copied, written
from ros2_rfm_serving.audit.servers.witness import Note, witnessed
from ros2_rfm_serving.server import ModelServer


class Kept:
    """What a server decides from now on."""

    def __init__(self, server: ModelServer, clock: Callable[[], float]) -> None:
        self._server, self._clock = server, clock
        self._notes: list[Note | bytes] = []
        with server.deciding() as brain:
            self._notes.append(copied(brain))
            server_brain = brain
        del server_brain
        server.witness(lambda brain: witnessed(brain, clock, self._notes.append))

    def snapshot(self) -> None:
        with self._server.deciding() as brain:
            self._notes.append(copied(brain.brain))  # type: ignore[attr-defined]

    def records(self) -> list[dict[str, Any]]:
        """Through a chain and back."""
        kept = chain.Chain("server/s", 1)
        for note in self._notes:
            if isinstance(note, bytes):
                kept.note("snapshot", 0.0, {"why": "period", "brain": written(note)})
            else:
                kind, body = record_of(note)
                kept.note(kind, note.t, body)
        kept.seal(0.0, closed=True)
        page = kept.page()
        assert page is not None
        return [orjson.loads(line) for line in page.lines]

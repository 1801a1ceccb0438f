"""Servers whose decisions are kept, in tests: records as they would travel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson

from ros2_rfm_serving.audit import chain
from ros2_rfm_serving.audit.servers.records import record_of
from ros2_rfm_serving.audit.servers.snapshots import copied, written
from ros2_rfm_serving.audit.servers.witness import Note, unwitnessed, witnessed
from ros2_rfm_serving.server import ModelServer, ServerBrain


class Kept:
    """What a server decides from now on."""

    def __init__(self, server: ModelServer, clock: Callable[[], float]) -> None:
        self._server = server
        self._notes: list[Note | bytes] = []

        def begin(brain: ServerBrain) -> ServerBrain:
            self._notes.append(copied(brain))
            return witnessed(brain, clock, self._notes.append)

        server.witness(begin)

    def snapshot(self) -> None:
        with self._server.deciding() as brain:
            self._notes.append(copied(unwitnessed(brain)))

    def records(self) -> list[dict[str, Any]]:
        """Through a chain and back."""
        kept = chain.Chain("server/s", 1)
        for note in self._notes:
            if isinstance(note, bytes):
                kept.note("snapshot", 0.0, {"why": "period", "brain": written(note)})
            else:
                kind, body = record_of(note)
                kept.note(kind, note.t, body)
        page = kept.page()
        assert page is not None
        return [orjson.loads(line) for line in page.lines]

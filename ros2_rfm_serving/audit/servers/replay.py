"""Replay of a server's decisions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from ros2_rfm_serving.audit.chain import TRANSITION
from ros2_rfm_serving.audit.servers.reading import decided_again, event_of
from ros2_rfm_serving.audit.servers.records import BATCH, COUNTS, EVENT, REPLY, REQUEST, decided
from ros2_rfm_serving.audit.servers.snapshots import NO_MODEL, restored, snapshot_of
from ros2_rfm_serving.errors import RfmError
from ros2_rfm_serving.server import RunningBatch, ServerCore, events

DECISIONS = frozenset({EVENT, REQUEST, BATCH, REPLY})


class ServerReplay:
    """Implementation of `audit.replay.Replayer` for servers."""

    kinds: ClassVar = DECISIONS | {COUNTS, TRANSITION}

    def __init__(self) -> None:
        self.core: ServerCore | None = None
        """Restored core; None without a model."""

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        self.core = None
        self.core = restored(snapshot)

    def snapshot(self) -> Mapping[str, Any]:
        return NO_MODEL if self.core is None else snapshot_of(self.core)

    def work(self, number: int) -> RunningBatch:
        """Return a batch in progress. Raises: `RfmError` when there is none with this number."""
        assert self.core is not None
        return self.core.work(number)

    def feed(self, record: Mapping[str, Any]) -> Mapping[str, Any]:
        if record["kind"] not in DECISIONS:
            return {}
        if self.core is None:
            raise RfmError("it is a decision, and no model was loaded")
        event, now_s = event_of(record)
        return self._decided(self.core, event, now_s, str(record.get("updates_digest") or ""))

    def _decided(self, core: ServerCore, event: events.Event, now_s: float, updates_digest: str) -> Mapping[str, Any]:
        request = None
        try:
            if isinstance(event, events.AnswerReceived):
                request = core.work(event.batch).batch[event.position].request.id
                event = decided_again(event, core, updates_digest)
            answer = core.handle(event, now_s)
        except Exception as error:
            answer = error
        core.faults.clear()
        return decided(event, answer, core.poll_at_s, request)

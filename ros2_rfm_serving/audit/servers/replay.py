"""Replay of a server's decisions."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from ros2_rfm_serving.audit.servers import objects
from ros2_rfm_serving.audit.servers.reading import Call, call_of
from ros2_rfm_serving.audit.servers.records import body_of
from ros2_rfm_serving.audit.servers.snapshots import UNRECORDED, copied, written
from ros2_rfm_serving.audit.servers.witness import Note, witnessed
from ros2_rfm_serving.errors import RfmError
from ros2_rfm_serving.server import ServerBrain, Work

NOT_DECIDED = frozenset({"images", "inputs", "padded", "chunk", "chunk_rows", "updates", "by"})
"""Keys of records from arrays and engines, which a decision core does not hold; `rfm replay --infer` checks them."""
UNDECIDED = "it would not be decided at all"


class ServerReplay:
    """Implementation of `audit.replay.Replayer` for servers."""

    def __init__(self) -> None:
        self.brain: ServerBrain | None = None
        """Restored core; None without a model."""
        self._works: dict[int, Work] = {}
        """Batches in progress by number."""
        self._notes: list[Note] = []

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        self.brain, self._works = None, {}
        brain = snapshot.get("brain")
        if brain is None:
            return
        if isinstance(brain, dict) and UNRECORDED in brain:
            raise RfmError(str(brain[UNRECORDED]))
        restored = objects.value(brain)
        if not isinstance(restored, ServerBrain):
            raise RfmError("it is no server's brain")
        self.brain = restored
        self._works = {work.number: work for work in restored.works}

    def snapshot(self) -> Mapping[str, Any]:
        return {"brain": None if self.brain is None else written(copied(self.brain))}

    def work(self, number: int) -> Work:
        """Return a batch in progress. Raises: `KeyError` when there is none with this number."""
        return self._works[number]

    def feed(self, record: Mapping[str, Any]) -> Mapping[str, Any]:
        call = None if self.brain is None else call_of(record, self.brain, self._works)
        if self.brain is None or call is None:
            return {}
        answers = {key: value for key, value in self._decided(call, self.brain).items() if key not in NOT_DECIDED}
        for key in record.keys() & {"refused", "result", "supersedes"} - answers.keys():
            answers[key] = UNDECIDED
        return answers

    def _decided(self, call: Call, brain: ServerBrain) -> Mapping[str, Any]:
        """Return the decision in its recorded form. Raises: the brain's errors for a record that it cannot have written."""
        do, args = call
        with contextlib.suppress(RfmError):  # the note has the error
            getattr(witnessed(brain, lambda: 0.0, self._notes.append), do)(*args)
        brain.mishaps.clear()
        if not self._notes:  # it was refused in the recording, and is not refused now
            return {"refused": UNDECIDED}
        note = self._notes.pop()
        if do == "begin" and note.gave:
            self._works[note.gave.number] = note.gave
        return body_of(note)

"""A server decides once more."""

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
"""What the records have from arrays and engines, which no brain holds; `rfm replay --infer` looks at them."""
UNDECIDED = "it would not be decided at all"


class ServerReplay:
    """See `audit.replay.Replayer`."""

    def __init__(self) -> None:
        self.brain: ServerBrain | None = None
        """None: no model was loaded."""
        self._works: dict[int, Work] = {}
        """By number."""
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
        """One that has begun. Raises: `KeyError`."""
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
        """As it would be recorded. Raises: what the brain does where the record is none that it could have made."""
        do, args = call
        with contextlib.suppress(RfmError):  # it is in the note
            getattr(witnessed(brain, lambda: 0.0, self._notes.append), do)(*args)
        brain.mishaps.clear()
        if not self._notes:  # it was refused then, and is not now
            return {"refused": UNDECIDED}
        note = self._notes.pop()
        if do == "begin" and note.gave:
            self._works[note.gave.number] = note.gave
        return body_of(note)

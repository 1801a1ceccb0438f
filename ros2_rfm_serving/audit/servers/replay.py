"""A server's decisions made once more: the first that is another one, with both sides."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from ros2_rfm_serving.audit.servers.reading import Call, brain_of, call_of
from ros2_rfm_serving.audit.servers.records import record_of
from ros2_rfm_serving.audit.servers.snapshots import copied, written
from ros2_rfm_serving.audit.servers.states import canonical, differing
from ros2_rfm_serving.audit.servers.witness import Note, witnessed
from ros2_rfm_serving.errors import RfmError
from ros2_rfm_serving.server import ServerBrain, Work

OF_THE_RECORD = frozenset({"n", "t", "kind", "hash"})
NOT_DECIDED = frozenset({"images", "inputs", "padded", "chunk", "chunk_rows", "updates", "by"})
"""What the records have from arrays and engines, which no brain holds; `rfm replay --infer` looks at them."""
MOST_TOLD = 20


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A decision that was another one this time."""

    number: int
    """Of the record."""
    t: float
    recorded: dict[str, Any]
    replayed: dict[str, Any]
    """Of both sides what differs, and what it is about. Empty: this time nothing was decided."""


@dataclass
class ServerReplay:
    """One chain of a server, fed record by record."""

    decided: Counter[str] = field(default_factory=Counter)
    """Decisions that were made once more, by kind of record."""
    skipped: int = 0
    """Records before the first snapshot, or behind a gap."""
    differences: list[Difference] = field(default_factory=list)
    """The first ones; after each the replay goes on from the next snapshot."""
    problems: list[str] = field(default_factory=list)
    """What could not be compared, and why."""
    _brain: ServerBrain | None = None
    _notes: list[Note] = field(default_factory=list)
    _works: dict[int, Work] = field(default_factory=dict)

    def gap(self) -> None:
        """Records are missing here: the next snapshot begins anew."""
        self._brain = None

    def feed(self, record: Mapping[str, Any]) -> None:
        if record.get("kind") == "snapshot":
            self._snapshot(record)
        elif self._brain is None:
            self.skipped += record.get("kind") != "begin"
        else:
            self._decide(record, self._brain)

    # --- parts ---

    def _snapshot(self, record: Mapping[str, Any]) -> None:
        try:
            if self._brain is not None:
                self._compare_states(record, self._brain)
            self._brain = brain_of(record)
        except RfmError as error:
            self._brain = None
            self.problems.append(f"record {record.get('n')}: no replay from here: {error}")
            return
        self._works = {work.number: work for work in self._brain.works}

    def _compare_states(self, record: Mapping[str, Any], brain: ServerBrain) -> None:
        recorded, replayed = canonical(record.get("brain")), canonical(plain_json(written(copied(brain))))
        self.decided["snapshot"] += 1
        if recorded != replayed:
            self._differ(record, *differing(recorded, replayed))

    def _decide(self, record: Mapping[str, Any], brain: ServerBrain) -> None:
        try:
            call = call_of(record, brain, self._works)
            if call is None:
                return
            self.decided[record["kind"]] += 1
            replayed = self._replayed(call, brain)
        except RfmError as error:
            self._differ(record, _bare(record), {"problem": str(error)})
            return
        recorded = {key: value for key, value in record.items() if key not in OF_THE_RECORD | NOT_DECIDED}
        if recorded != replayed:
            self._differ(record, *_sides(recorded, replayed))

    def _replayed(self, call: Call, brain: ServerBrain) -> dict[str, Any]:
        """As it would be recorded. Raises: `RfmError` where it cannot be decided at all."""
        do, args = call
        try:
            with contextlib.suppress(RfmError):  # it is in the note
                getattr(witnessed(brain, lambda: 0.0, self._notes.append), do)(*args)
        except (KeyError, IndexError, AssertionError, TypeError, ValueError, AttributeError) as error:
            raise RfmError(f"{do} fails: {type(error).__name__}: {error}") from error
        brain.mishaps.clear()
        notes, self._notes[:] = list(self._notes), []
        if not notes:
            return {}
        if do == "begin" and (work := notes[0].gave):
            self._works[work.number] = work
        body = plain_json(record_of(notes[0])[1])
        return {key: value for key, value in body.items() if key not in NOT_DECIDED}

    def _differ(self, record: Mapping[str, Any], recorded: Any, replayed: Any) -> None:
        """What follows would differ because of it."""
        self._brain = None
        if len(self.differences) < MOST_TOLD:
            self.differences.append(
                Difference(number=record.get("n", -1), t=record.get("t", 0.0), recorded=recorded, replayed=replayed)
            )


def replayed(records: Iterable[Mapping[str, Any]]) -> ServerReplay:
    """Of one chain, without a gap."""
    replay = ServerReplay()
    for record in records:
        replay.feed(record)
    return replay


def plain_json(value: Any) -> Any:
    return orjson.loads(orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY))


def _bare(record: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key not in OF_THE_RECORD}


def _sides(recorded: dict[str, Any], replayed: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """With what says which decision it is."""
    keys = [key for key in {**recorded, **replayed} if recorded.get(key) != replayed.get(key) or key in ("do", "batch", "id")]
    return {k: recorded[k] for k in keys if k in recorded}, {k: replayed[k] for k in keys if k in replayed}

"""Replay of decisions: each record of a chain is fed to a core restored from a snapshot, and the results are compared."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Protocol

import orjson

from ros2_rfm_serving.audit import codec
from ros2_rfm_serving.audit.chain import (
    BEGIN,
    CLOSED,
    OPERATOR_COMMAND,
    SEALED,
    SIGNED,
    SNAPSHOT,
    Page,
    format_problem,
    records,
    why_broken,
)
from ros2_rfm_serving.audit.versions import differences
from ros2_rfm_serving.errors import RfmError

MAX_REASONS = 8
DAMAGED = (LookupError, TypeError, ValueError, AttributeError, RecursionError, ArithmeticError)
"""Exceptions that malformed records cause."""
UNDECIDED = frozenset({SEALED, CLOSED, OPERATOR_COMMAND, SIGNED})
"""Kinds of records of every writer that a replay passes over."""
ANSWERS = frozenset({"command", "result", "raised", "trajectory", "counter", "next_poll_s"})
"""Keys of records that the core wrote; they are compared whatever its replay returns."""


ABSENT = "(nothing)"
"""Placeholder for a key or an element that one side lacks."""


class Difference(NamedTuple):
    field: str
    """Path into the record, such as `why.chunk.sequence`."""
    recorded: Any
    replayed: Any


def first_difference(recorded: Any, replayed: Any) -> Difference | None:
    """Return the first difference between two recorded values; None for equal ones."""
    if recorded == replayed:  # usually the case, and quick
        return None
    return next(_differences("", recorded, replayed), None)


def _differences(path: str, one: Any, other: Any) -> Iterator[Difference]:
    if isinstance(one, dict) and isinstance(other, dict):
        for key in {**one, **other}:
            yield from _differences(f"{path}.{key}".lstrip("."), one.get(key, ABSENT), other.get(key, ABSENT))
    elif isinstance(one, list) and isinstance(other, list):
        for index in range(max(len(one), len(other))):
            left, right = (side[index] if index < len(side) else ABSENT for side in (one, other))
            yield from _differences(f"{path}[{index}]", left, right)
    elif one != other or type(one) is not type(other):
        yield Difference(path or "value", one, other)


class Replayer(Protocol):
    """Replay of one core. An exception counts as a difference, unless it is an `RfmError`: then this record cannot be replayed."""

    kinds: ClassVar[frozenset[str]]
    """Kinds of records that this version knows, beside those of every writer."""

    def restore(self, snapshot: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Continue from a snapshot record. Return those keys of its `state` that were decided again, with the inputs in it.

        Raises: `RfmError` when this version cannot restore it.
        """

    def feed(self, record: Mapping[str, Any]) -> Mapping[str, Any]:
        """Decide with the inputs in the record. Return those keys of the record that the core computes, in JSON's types and arrays;
        empty for a record of a kind that is not an input."""

    def snapshot(self) -> Mapping[str, Any]:
        """Return the keys of a snapshot that describe the core, for a comparison with a recorded one."""


@dataclass
class Replayed:
    """Result of the replay of one chain."""

    writer: str
    run: int
    decisions: int = 0
    """Number of records that were decided again and compared."""
    snapshots: int = 0
    """Number of snapshots that were compared."""
    skipped: int = 0
    """Number of records without a snapshot before them: the first ones, and those after a gap."""
    seconds: float = 0.0
    """Replayed duration by the writer's clock."""
    notes: list[str] = field(default_factory=list)
    """Information for the user: other software, gaps, unsupported records."""
    refused: bool = False
    """The replay stopped at some snapshot."""
    broke_off: str = ""
    """Reason why this chain or the one before it broke off, so that decisions are missing."""
    difference: Difference | None = None
    """First difference, which ends the replay."""
    at: Mapping[str, Any] = field(default_factory=dict)
    """Keys n, t, kind and event of the differing record, and its ROS time `stamp_s` if known."""


class Replay:
    """Replay of one chain, page by page, in order."""

    def __init__(self, writer: str, run: int, make: Callable[[], Replayer]) -> None:
        self.result = Replayed(writer, run)
        self._stamp_s: float | None = None
        """ROS time at t = 0 by the last stamp."""
        self._make = make
        self._replayer: Replayer | None = None
        self._next = 0
        self._last_s: float | None = None

    def add(self, page: Page) -> None:
        try:
            for record in records(page):
                if self.result.difference is not None:
                    return
                self._add(record)
        except (RfmError, *DAMAGED) as error:
            self._refuse(f"{error}; see `rfm audit verify`")

    def _add(self, record: Mapping[str, Any]) -> None:
        number, kind, now_s = record.get("n"), record.get("kind"), record.get("t")
        if not isinstance(number, int) or not isinstance(now_s, (int, float)):
            raise RfmError(f"{self.result.writer}: a record without number or time")
        if number != self._next and self._next:
            self._lose(f"{number - self._next} records are missing before {number}")
        self._next = number + 1
        self._note_break(record)
        self._stamp_s = record["stamp"] - now_s if isinstance(record.get("stamp"), (int, float)) else self._stamp_s
        if problem := format_problem(record):
            self._refuse(problem)
            return
        if kind == BEGIN:
            self._note_versions(record)
        elif kind == SNAPSHOT:
            self._snapshot(record)
        elif kind not in UNDECIDED:
            self._decide(record)
        self._pass_time(float(now_s))

    def _decide(self, record: Mapping[str, Any]) -> None:
        if self._replayer is None:
            self.result.skipped += 1
            return
        try:
            if record["kind"] not in self._replayer.kinds:
                raise RfmError(f"this version knows no kind {record['kind']!r:.60}")
            answers = self._replayer.feed(record)
        except RfmError as error:
            self._refuse(f"record {record['n']} cannot be replayed: {error}")
            return
        except Exception as error:
            answers = {"raised": codec.raised(error)}
        self._say_notes()
        if answers:
            self.result.decisions += 1
            told = {key: value for key, value in record.items() if key in answers or key in ANSWERS}
            self._compare(record, told, _as_read(answers))

    def _snapshot(self, record: Mapping[str, Any]) -> None:
        if self._replayer is not None:
            self.result.snapshots += 1
            replayed = _as_read(self._replayer.snapshot())
            self._compare(record, {key: record.get(key) for key in replayed}, replayed)
            return
        replayer = self._make()
        try:
            answers = replayer.restore(record)
        except Exception as error:  # of any constructor, for contents that no version wrote
            problem = error if isinstance(error, RfmError) else codec.raised(error)
            self._refuse(f"record {record['n']}, a snapshot, cannot be replayed from: {problem}")
            return
        self._replayer = replayer
        self._say_notes()
        if answers:
            self.result.decisions += 1
            self._compare(record, {key: record["state"].get(key) for key in answers}, _as_read(answers))

    def _compare(self, record: Mapping[str, Any], recorded: Any, replayed: Any) -> None:
        self.result.difference = first_difference(recorded, replayed)
        if self.result.difference is not None:
            stamp = {} if self._stamp_s is None else {"stamp_s": self._stamp_s + record["t"]}
            self.result.at = {**{key: record[key] for key in ("n", "t", "kind") if key in record}, **_what(record), **stamp}

    def _lose(self, why: str) -> None:
        self._replayer = None
        self._say(f"{why}: the next snapshot begins anew")

    def _refuse(self, why: str) -> None:
        self._replayer, self.result.refused = None, True
        self._say(why)

    def _say_notes(self) -> None:
        for note in getattr(self._replayer, "notes", ()):
            self._say(note)

    def _say(self, note: str) -> None:
        if len(self.result.notes) < MAX_REASONS and note not in self.result.notes:
            self.result.notes.append(note)

    def _note_versions(self, record: Mapping[str, Any]) -> None:
        for difference in differences(record.get("versions") or {}):
            self._say(f"recorded with {difference}")

    def _note_break(self, record: Mapping[str, Any]) -> None:
        after, kind = record.get("after"), record.get("kind")
        told = record if kind == CLOSED else after if kind == BEGIN and isinstance(after, dict) else {}
        if why := why_broken(told):
            self.result.broke_off = why
            which = "this chain" if kind == CLOSED else "the chain before this one"
            self._say(f"{which} breaks off, and what was decided between the two is not recorded: {why}")

    def _pass_time(self, now_s: float) -> None:
        if self._replayer is not None and self._last_s is not None:
            self.result.seconds += max(0.0, now_s - self._last_s)
        self._last_s = now_s


def _what(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the subject of a record: the name of its event."""
    event = record.get("event")
    return {"event": event.get("~")} if isinstance(event, dict) else {}


class ChainReplay(Protocol):
    """Replay of one chain, page by page, for any kind of writer. Its result describes what cannot be replayed."""

    result: Replayed

    def add(self, page: Page) -> None: ...


Makers = Mapping[str, Callable[[str, int], ChainReplay]]
"""Factories of replays by the first part of a writer's name; each receives the writer's name and run."""


def brains(make: Callable[[], Replayer]) -> Callable[[str, int], ChainReplay]:
    """Return a factory for `Makers`, for writers whose core receives one input after the other."""
    return functools.partial(Replay, make=make)


def replay(pages: Iterable[Page], makers: Makers, wanted: Callable[[str], bool] = lambda writer: True) -> Iterator[Replayed]:
    """Yield each page's chain in its state after the page: the same object for every page of a chain. wanted: selects writers."""
    chains: dict[tuple[str, int], ChainReplay] = {}
    for page in pages:
        make = makers.get(page.writer.partition("/")[0])
        if make is None or not wanted(page.writer):
            continue
        key = page.writer, page.run
        if key not in chains:
            chains[key] = make(*key)
        chains[key].add(page)
        yield chains[key].result


def _as_read(value: Any) -> Any:
    """Return a value as it is after recording and reading."""
    return orjson.loads(orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY))

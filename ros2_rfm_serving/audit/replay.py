"""Decided once more: each record of a chain is given to the brain that a snapshot of it holds, and what that says is compared."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import orjson

from ros2_rfm_serving.audit.chain import BEGIN, CLOSED, SEALED, SIGNED, SNAPSHOT, Page, format_problem, records, why_broken
from ros2_rfm_serving.audit.versions import differences
from ros2_rfm_serving.errors import RfmError

PERSON = "person"
MAX_REASONS = 8
DAMAGED = (LookupError, TypeError, ValueError, AttributeError, RecursionError, ArithmeticError)
"""What records raise that nobody wrote so."""
ANSWERS = frozenset({"command", "result", "raised"})
"""Keys of records that are the brain's, whatever it answers when it decides once more."""


ABSENT = "(nothing)"
"""What stands for a key or an element that one side lacks."""


class Difference(NamedTuple):
    field: str
    """A path into the record, such as `why.chunk.sequence`."""
    recorded: Any
    replayed: Any


def first_difference(recorded: Any, replayed: Any) -> Difference | None:
    """Return where two things that were recorded first differ; None: they are the same.

    Of objects that have numbers (servers') their content counts, and neither their number nor whether two places share one.
    """
    if recorded == replayed:  # the rule, and quick
        return None
    found = _Comparison(recorded, replayed)
    return next(found.differences("", recorded, replayed), None)


class _Comparison:
    def __init__(self, recorded: Any, replayed: Any) -> None:
        self._sides = dict(_numbered(recorded)), dict(_numbered(replayed))
        self._seen: set[tuple[int, int]] = set()
        """Pairs of numbered objects that were compared, or are."""

    def differences(self, path: str, one: Any, other: Any) -> Iterator[Difference]:
        one, other = _resolved(one, self._sides[0]), _resolved(other, self._sides[1])
        if isinstance(one, dict) and isinstance(other, dict):
            yield from self._maps(path, one, other)
        elif isinstance(one, list) and isinstance(other, list):
            for index in range(max(len(one), len(other))):
                left, right = (side[index] if index < len(side) else ABSENT for side in (one, other))
                yield from self.differences(f"{path}[{index}]", left, right)
        elif one != other or type(one) is not type(other):
            yield Difference(path or "value", one, other)

    def _maps(self, path: str, one: dict[str, Any], other: dict[str, Any]) -> Iterator[Difference]:
        pair = one.get("@", -1), other.get("@", -1)
        if min(pair) >= 0:
            if pair in self._seen:
                return
            self._seen.add(pair)
        for key in {**one, **other}:
            if key != "@":
                yield from self.differences(f"{path}.{key}".lstrip("."), one.get(key, ABSENT), other.get(key, ABSENT))


def _numbered(value: Any) -> Iterator[tuple[int, Any]]:
    """Every object with a number; iteratively, as a whole brain is deep."""
    todo = [value]
    while todo:
        one = todo.pop()
        if isinstance(one, dict):
            if "@" in one and one.get("~") != "@":
                yield one["@"], one
            todo += one.values()
        elif isinstance(one, list):
            todo += one


def _resolved(value: Any, numbered: dict[int, Any]) -> Any:
    return numbered.get(value["@"], value) if isinstance(value, dict) and value.get("~") == "@" else value


class Replayer(Protocol):
    """One brain. What raises counts as a difference, unless it is an `RfmError`: then this record cannot be replayed at all."""

    def restore(self, snapshot: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Continue from a snapshot record. Return those keys of its `state` that were decided again, as their inputs stand in it.

        Raises: `RfmError` when this version cannot.
        """

    def feed(self, record: Mapping[str, Any]) -> Mapping[str, Any]:
        """Decides as the record says that it was told; returns those keys of the record that it answers, in JSON's terms and
        arrays. Empty: a record of a kind that is none of its inputs."""

    def snapshot(self) -> Mapping[str, Any]:
        """Return the keys of a snapshot that describe the core, for a comparison with a recorded one."""


@dataclass
class Replayed:
    """One chain."""

    writer: str
    run: int
    decisions: int = 0
    """Records that the brain answered, and that were compared."""
    snapshots: int = 0
    """Compared."""
    skipped: int = 0
    """Records without a snapshot before them: what came first, and what followed a gap."""
    seconds: float = 0.0
    """Of the writer's clock, that were replayed."""
    notes: list[str] = field(default_factory=list)
    """What people should know: other software, gaps, what this version cannot replay."""
    refused: bool = False
    """It could not be replayed from some snapshot on."""
    broke_off: str = ""
    """Why its writer could not go on with this chain, or with the one before it: there are decisions that nobody can replay."""
    difference: Difference | None = None
    """The first one; after it nothing is replayed."""
    at: Mapping[str, Any] = field(default_factory=dict)
    """n, t, kind, and what was done, of its record, and its ROS time, `stamp_s`, as far as it is known."""


class Replay:
    """One chain, page by page, in order."""

    def __init__(self, writer: str, run: int, make: Callable[[], Replayer]) -> None:
        self.result = Replayed(writer, run)
        self._stamp_s: float | None = None
        """ROS time at t = 0, as it was said last."""
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
        if problem := format_problem(self.result.writer, record):
            self._refuse(problem)
            return
        if kind == BEGIN:
            self._note_versions(record)
        elif kind == SNAPSHOT:
            self._snapshot(record)
        elif kind not in (SEALED, CLOSED, PERSON, SIGNED):
            self._decide(record)
        self._pass_time(float(now_s))

    def _decide(self, record: Mapping[str, Any]) -> None:
        if self._replayer is None:
            self.result.skipped += 1
            return
        try:
            answers = self._replayer.feed(record)
        except RfmError as error:
            self._refuse(f"record {record['n']} cannot be replayed: {error}")
            return
        except Exception as error:
            answers = {"raised": f"{type(error).__name__}: {error}"[:400]}
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
        except RfmError as error:
            self._refuse(f"record {record['n']}, a snapshot, cannot be replayed from: {error}")
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
    """Return what a record is about: the name of an event, or the call of a server."""
    event = record.get("event")
    return {"event": event.get("~")} if isinstance(event, dict) else {"do": record["do"]} if "do" in record else {}


class ChainReplay(Protocol):
    """One chain, page by page, whatever its writer is. What cannot be replayed stands in its result."""

    result: Replayed

    def add(self, page: Page) -> None: ...


Makers = Mapping[str, Callable[[str, int], ChainReplay]]
"""By the first part of a writer's name: for its name and run."""


def brains(make: Callable[[], Replayer]) -> Callable[[str, int], ChainReplay]:
    """For `Makers`: those whose brain is told one thing after the other."""
    return functools.partial(Replay, make=make)


def replay(pages: Iterable[Page], makers: Makers, wanted: Callable[[str], bool] = lambda writer: True) -> Iterator[Replayed]:
    """Each page's chain as it stands after it: the same object for every page of a chain. wanted: whether to replay a writer."""
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
    """As it would come out of a recording."""
    return orjson.loads(orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY))

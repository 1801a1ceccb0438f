"""Records of one writer, each with the hash of all before it.

A record is one line of JSON: `{"n": 17, "t": 812.25, "kind": "command", ..., "hash": "..."}`: its number in the chain, seconds on
the writer's monotonic clock, what it is, and the chained hash of everything before it and of itself up to this key. `closed` is the
last record of a chain that ended in order; `sealed` comes in between, so that less is in doubt when it did not.

`begin` and each snapshot say in which format the chain is. This version reads one format of each writer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from ros2_rfm_serving.errors import RfmError

HASH_DIGITS = 32
"""Of SHA-256, hexadecimal: 128 bits."""
NOTHING = "0" * HASH_DIGITS
"""The hash before the first record."""
FORMAT = 2
OBJECTS = 1
"""Snapshots are objects with their attributes (`servers/objects.py`). Servers write it until they have events."""
BEGIN, SNAPSHOT = "begin", "snapshot"
"""Kinds of the records that say it."""
SEALED, CLOSED = "sealed", "closed"
MESSAGES, SIGNED = "messages", "signed"
"""Of a recorder: digests of what it has written; of all: a certificate's signature of its chain up to there."""
OWN = "rfm/recorder/audit"
"""A recorder's own topic, which it writes to its bag alone: what anybody publishes on one of that name is in no recording."""
ASIDE, LATE = "aside", "it came after the records that follow it"
"""Of a recorder: a page that counts for nothing; and why, where it is its writer's own that somebody repeats."""
HASH_KEY = b',"hash":"'
COULD_NOT_GO_ON = "it could not go on"
"""How `why` of a last record begins whose writer ended its chain because of a failure, and began another one later."""


@dataclass(frozen=True, kw_only=True)
class Page:
    """Some records, as they travel (`AuditPage.msg`)."""

    writer: str
    run: int
    first: int
    previous: str
    lines: tuple[bytes, ...]


class Chain:
    """Of one writer. `note` appends a record; `page` takes what was appended since the last page. Of one thread at a time."""

    def __init__(self, writer: str, run: int) -> None:
        """`run`: drawn at random, not 0."""
        self.writer, self.run = writer, run
        self.number, self.hash = 0, NOTHING
        """Of the next record, and of the last one."""
        self.size = 0
        """Bytes since the last page."""
        self._lines: list[bytes] = []
        self._first, self._previous = 0, NOTHING

    def __len__(self) -> int:
        """Records since the last page."""
        return len(self._lines)

    def note(self, kind: str, now_s: float, body: Mapping[str, Any] | bytes) -> None:
        """`body`: what JSON knows, and arrays; its keys are none of n, t, kind, hash. Bytes: an object with a key, as JSON.

        Raises: `TypeError` for what JSON does not know; then nothing was appended.
        """
        if isinstance(body, bytes):
            plain = orjson.dumps({"n": self.number, "t": now_s, "kind": kind})[:-1] + b"," + body[1:-1]
        else:
            plain = orjson.dumps({"n": self.number, "t": now_s, "kind": kind, **body}, option=orjson.OPT_SERIALIZE_NUMPY)[:-1]
        self.hash = chained(self.hash, plain)
        self._lines.append(plain + HASH_KEY + self.hash.encode() + b'"}')
        self.number += 1
        self.size += len(self._lines[-1])

    def seal(self, now_s: float, *, closed: bool = False, **more: Any) -> None:
        """Says how many there are, and `more`. closed: nothing comes after it."""
        self.note(CLOSED if closed else SEALED, now_s, {"records": self.number, **more})

    def page(self) -> Page | None:
        """None: nothing was noted since the last one."""
        if not self._lines:
            return None
        page = Page(writer=self.writer, run=self.run, first=self._first, previous=self._previous, lines=tuple(self._lines))
        self._lines, self._first, self._previous, self.size = [], self.number, self.hash, 0
        return page


def format_of(writer: str) -> int:
    """Return the format in which this version writes and reads the chains of a writer."""
    return OBJECTS if writer.partition("/")[0] == "server" else FORMAT


def format_problem(writer: str, record: Mapping[str, Any]) -> str:
    """Return why this version does not read a chain, by a record with its format. Empty: it does, or the record has no format.

    Records of format 1 did not say it. A value that no version writes is no format: `rfm audit verify` reports the change.
    """
    if record.get("kind") not in (BEGIN, SNAPSHOT):
        return ""
    recorded = record.get("format", 1)
    is_other = type(recorded) is int and 0 < recorded != format_of(writer)
    return f"recorded in format {recorded}, which this version does not read" if is_other else ""


def check_format(writer: str, record: Mapping[str, Any]) -> None:
    """Raises: `RfmError` when a record says that its chain is in another format."""
    if problem := format_problem(writer, record):
        raise RfmError(f"{writer}: {problem}")


def identity(page: Page) -> bytes:
    """Return a digest of all that a page says: equal ones are the same page."""
    head = f"{page.writer}\n{page.run}\n{page.first}\n{page.previous}\n".encode(errors="surrogateescape")
    return hashlib.sha256(head + b"\n".join(page.lines)).digest()[:16]


def why_broken(told: Mapping[str, Any]) -> str:
    """Return why a writer could not go on with a chain, by its last record or its next chain; empty: it could."""
    why = told.get("why")
    return why if isinstance(why, str) and why.startswith(COULD_NOT_GO_ON) else ""


def chained(previous: str, plain: bytes) -> str:
    """`plain`: the record up to its own hash."""
    return hashlib.sha256(previous.encode() + plain).hexdigest()[:HASH_DIGITS]


@dataclass(frozen=True, kw_only=True)
class Flaw:
    """Something that is not as it was written."""

    writer: str
    run: int
    number: int
    """Of the record; of the first one that is missing."""
    problem: str
    page: int = -1
    """Which page of the writer, as they were read; -1: none."""
    is_open_end: bool = False
    """A beginning or an end that nobody knows, which a writer or a recorder that was killed leaves, too; or that no recorder says
    which chains there were."""


@dataclass
class Checked:
    """One chain, page by page. Feed it in the order in which the pages lie; `end` says what is missing at the end.

    What somebody else says of it comes first: `lost` and `heads`, of those who heard it.
    """

    writer: str
    run: int
    flaws: list[Flaw] = field(default_factory=list)
    lost: list[tuple[int, int]] = field(default_factory=list)
    """(number of the first one, how many): records that never reached whoever recorded them."""
    heads: dict[int, str] = field(default_factory=dict)
    """Number of a record -> hash of the one before it."""
    expected: tuple[int, int] | None = None
    """Numbers of the first record that was heard, and of the one after the last; None: nobody says."""
    partial: bool = False
    """Files before are gone by right: the recorder removed them, or one file alone is asked about. So its beginning is open."""
    begins: int = -1
    """Number of the first record; more than 0: somebody began to listen then."""
    number: int = 0
    """Of the next record."""
    hash: str = NOTHING
    closed: bool = False
    broke_off: str = ""
    """Why its writer could not go on with it; empty: it could."""
    follows: tuple[int, str] | None = None
    """Run of the same writer's chain before this one that broke off, as its first record says, and why; None: none did."""
    pages: int = 0
    num_lost: int = 0
    """Records of `lost` that are missing indeed."""
    repeats: int = 0
    """Pages that had come before, just so: a middleware repeats, and so may anybody on the graph. They count for nothing."""
    see: Callable[[dict[str, Any]], None] | None = None
    """Given every record, as it stands there."""
    _pages: set[bytes] = field(default_factory=set)
    """Identities of those that came."""

    def add(self, page: Page, *, unsaid: bool = False) -> None:
        """unsaid: whoever recorded it was killed before it could say what it lost until then."""
        if self._is_repeat(page):
            self.repeats += 1
            return
        if self.begins < 0:
            self._begin(page)
        elif page.first > self.number:
            self._miss(page.first, unsaid)
        elif page.first < self.number:
            self._flaw(page.first, "records come twice or in another order")
        elif page.previous != self.hash:
            self._flaw(page.first, "it does not follow the record before it")
        self._read(page)
        self.pages += 1

    def end(self) -> None:
        """Nothing comes any more."""
        first, after = self.expected or (self.begins, self.number)
        self._miss(max(after, self.number))
        if self.expected is not None and self.number > after:
            self._flaw(after, f"{self.number - after} records more than whoever recorded them heard")
        if not self.closed and self.expected is None:
            self._flaw(self.number, "not closed: the writer was killed, the recording ended first, or the end was cut off", True)
        if self.begins > max(first, 0):
            self._flaw(first, f"{self.begins - first} records at the beginning are missing", self.partial)
        if self.begins > 0 and self.expected is None:
            self._flaw(0, f"it begins with record {self.begins}: what was before was not heard, or cut off", True)

    def _is_repeat(self, page: Page) -> bool:
        digest = identity(page)
        if digest in self._pages:
            return True
        self._pages.add(digest)
        return False

    def _begin(self, page: Page) -> None:
        self.begins, self.number, self.hash = page.first, page.first, page.previous
        if page.first == 0 and page.previous != NOTHING:
            self._flaw(0, "its first record follows another one")
        if page.first in self.heads and self.heads[page.first] != page.previous:
            self._flaw(page.first, "its first record follows another one")

    def _miss(self, until: int, is_open_end: bool = False) -> None:
        """Records from the next one on are not there."""
        missing = max(0, until - self.number)
        known = sum(max(0, min(first + count, until) - max(first, self.number)) for first, count in self.lost)
        self.num_lost += min(known, missing)
        if known < missing:
            told = f", and {known} that were lost on the way" if known else ""
            self._flaw(self.number, f"{missing - known} records are missing{told}", is_open_end)

    def _read(self, page: Page) -> None:
        self.number, self.hash = page.first, page.previous
        for line in page.lines:
            plain, _, tail = line.rpartition(HASH_KEY)
            found = parsed(line)
            signs = found.get("kind") == SIGNED  # the last record too
            if self.closed and not signs:
                self._flaw(self.number, "a record after the last one")
            if (number := found.get("n")) != self.number:
                self._flaw(self.number, f"here stands record {number}")
                self.number = number if isinstance(number, int) and number > self.number else self.number
            self.hash = chained(self.hash, plain)
            if tail != self.hash.encode() + b'"}':
                self._flaw(self.number, "it was changed, or one before it on its page is missing")
                self.hash = tail[:-2].decode(errors="replace")  # what follows may be as it was written
            self.closed = found.get("kind") == CLOSED or (self.closed and signs)
            self._note_break(found)
            if found.get("kind") == CLOSED and found.get("records") != self.number:
                self._flaw(self.number, f"it speaks of {found.get('records')} records before it")
            self.number += 1
            if self.heads.get(self.number, self.hash) != self.hash:
                self._flaw(self.number - 1, "whoever recorded it heard another one in its place: the chain was written anew")
            if self.see is not None:
                self.see(found)

    def _note_break(self, record: Mapping[str, Any]) -> None:
        if self.closed and (why := why_broken(record)):
            self.broke_off = why
            self._flaw(self.number, f"the chain breaks off, and what was decided until the next one is not recorded: {why}", True)
        after = record.get("after")
        if self.number == 0 and isinstance(after, dict) and (why := why_broken(after)) and isinstance(after.get("run"), int):
            self.follows = after["run"], why

    def _flaw(self, number: int, problem: str, is_open_end: bool = False) -> None:
        flaw = Flaw(writer=self.writer, run=self.run, number=number, problem=problem, page=self.pages, is_open_end=is_open_end)
        self.flaws.append(flaw)


def records(page: Page) -> Iterator[dict[str, Any]]:
    """Raises: `RfmError` for a line that is no JSON."""
    for line in page.lines:
        found = parsed(line)
        if not found:
            raise RfmError(f"{page.writer}: a record is no JSON: {line[:80]!r}")
        yield found


def parsed(line: bytes) -> dict[str, Any]:
    """Return the record that a line of a page is; empty: it is none."""
    try:
        found = orjson.loads(line)
    except orjson.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) else {}

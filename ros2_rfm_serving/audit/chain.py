"""Hash chain of the records of one writer.

A record is one line of JSON: `{"n": 17, "t": 812.25, "kind": "command", ..., "hash": "..."}`. It has its number in the chain, the
time in s on the writer's monotonic clock, its kind, and the chained hash of everything before it and of itself up to this key.
`closed` is the last record of a chain that ended in order; `sealed` comes in between, and limits the doubt about a chain without
end.

`begin` and each snapshot name the chain's format. This version reads one format.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from ros2_rfm_serving.errors import RfmError

HASH_DIGITS = 32
"""Length of a truncated SHA-256 in hexadecimal digits: 128 bits."""
NOTHING = "0" * HASH_DIGITS
"""Hash before the first record."""
FORMAT = 2
"""Format of the chains that this version writes and reads."""
BEGIN, SNAPSHOT = "begin", "snapshot"
"""Kinds of the records that have the format."""
SEALED, CLOSED = "sealed", "closed"
TRANSITION = "transition"
"""Kind of records about a changed state of a robot or server."""
OPERATOR_COMMAND = "operator_command"
"""Kind of records about a command of an operator, which decide nothing by themselves."""
MESSAGES, SIGNED = "messages", "signed"
"""Kinds of records: digests of the recorder's output; signature of a certificate over the chain up to there."""
OWN = "rfm/recorder/audit"
"""Topic of the recorder's own pages, which it writes to its bag alone. It never records publications on a topic of that name."""
ASIDE, LATE = "aside", "it came after the records that follow it"
"""Kind of a recorder's record about a page without effect, and its reason if a genuine page was repeated later."""
HASH_KEY = b',"hash":"'
COULD_NOT_GO_ON = "the recording failed"
"""Prefix of `why` in the last record of a chain that its writer ended because of a failure, before it began another one."""


@dataclass(frozen=True, kw_only=True)
class Page:
    """Consecutive records in the form of their publication (`AuditPage.msg`)."""

    writer: str
    run: int
    first: int
    previous: str
    lines: tuple[bytes, ...]


class Chain:
    """Hash chain of one writer, used by one thread at a time. `note` appends a record; `page` returns those since the last page."""

    def __init__(self, writer: str, run: int) -> None:
        """Begin a chain. `run`: random identity, not 0."""
        self.writer, self.run = writer, run
        self.number, self.hash = 0, NOTHING
        """Number of the next record, and hash of the last one."""
        self.size = 0
        """Number of bytes since the last page."""
        self._lines: list[bytes] = []
        self._first, self._previous = 0, NOTHING

    def __len__(self) -> int:
        """Return the number of records since the last page."""
        return len(self._lines)

    def note(self, kind: str, now_s: float, body: Mapping[str, Any] | bytes) -> None:
        """Append a record. `body`: values that JSON has, and arrays, under keys other than n, t, kind and hash; as bytes, a JSON
        object with a key. Raises: `TypeError` for a value that JSON cannot represent; then nothing was appended."""
        if isinstance(body, bytes):
            plain = orjson.dumps({"n": self.number, "t": now_s, "kind": kind})[:-1] + b"," + body[1:-1]
        else:
            plain = orjson.dumps({"n": self.number, "t": now_s, "kind": kind, **body}, option=orjson.OPT_SERIALIZE_NUMPY)[:-1]
        self.hash = chained(self.hash, plain)
        self._lines.append(plain + HASH_KEY + self.hash.encode() + b'"}')
        self.number += 1
        self.size += len(self._lines[-1])

    def seal(self, now_s: float, *, closed: bool = False, **more: Any) -> None:
        """Append the number of records so far, and `more`. closed: the chain ends with this record."""
        self.note(CLOSED if closed else SEALED, now_s, {"records": self.number, **more})

    def page(self) -> Page | None:
        """Return the records since the last page; None without any."""
        if not self._lines:
            return None
        page = Page(writer=self.writer, run=self.run, first=self._first, previous=self._previous, lines=tuple(self._lines))
        self._lines, self._first, self._previous, self.size = [], self.number, self.hash, 0
        return page


def format_problem(record: Mapping[str, Any]) -> str:
    """Return why this version does not read a chain, by a record with its format; empty if it does, or the record has no format.

    Records of format 1 did not state it. A value that no version writes is not a format: `rfm audit verify` reports the change.
    """
    if record.get("kind") not in (BEGIN, SNAPSHOT):
        return ""
    recorded = record.get("format", 1)
    is_other = type(recorded) is int and 0 < recorded != FORMAT
    return f"recorded in format {recorded}, which this version does not read" if is_other else ""


def check_format(writer: str, record: Mapping[str, Any]) -> None:
    """Check the format in a record. Raises: `RfmError` when its chain has another format than this version reads."""
    if problem := format_problem(record):
        raise RfmError(f"{writer}: {problem}")


def identity(page: Page) -> bytes:
    """Return a digest of a page's whole content: equal digests mean the same page."""
    head = f"{page.writer}\n{page.run}\n{page.first}\n{page.previous}\n".encode(errors="surrogateescape")
    return hashlib.sha256(head + b"\n".join(page.lines)).digest()[:16]


def why_broken(told: Mapping[str, Any]) -> str:
    """Return why a writer could not continue a chain, by its last record or its next chain; empty if it could."""
    why = told.get("why")
    return why if isinstance(why, str) and why.startswith(COULD_NOT_GO_ON) else ""


def chained(previous: str, plain: bytes) -> str:
    """Return the chained hash of a record. `plain`: the record up to its own hash."""
    return hashlib.sha256(previous.encode() + plain).hexdigest()[:HASH_DIGITS]


@dataclass(frozen=True, kw_only=True)
class Flaw:
    """Deviation of a chain from the state in which it was written."""

    writer: str
    run: int
    number: int
    """Number of the record, or of the first missing one."""
    problem: str
    page: int = -1
    """Index of the writer's page in the order of reading; -1: none."""
    is_open_end: bool = False
    """Unknown beginning or end of a chain, which a killed writer or recorder leaves, too; or no recorder lists the chains."""


@dataclass
class Checked:
    """Verification of one chain, page by page. Add pages in their order in the recording; `end` finds what is missing at the end.

    Reports of its receivers come first: `lost` and `heads`.
    """

    writer: str
    run: int
    flaws: list[Flaw] = field(default_factory=list)
    lost: list[tuple[int, int]] = field(default_factory=list)
    """Number of the first record and count of each stretch of records that never reached the recorder."""
    heads: dict[int, str] = field(default_factory=dict)
    """Number of a record -> hash of the one before it."""
    expected: tuple[int, int] | None = None
    """Number of the first received record, and of the one after the last; None without a report."""
    partial: bool = False
    """Earlier files are missing legitimately (removed by the recorder, or not part of the query), so that the beginning is open."""
    begins: int = -1
    """Number of the first record; more than 0 if recording began later than the chain."""
    number: int = 0
    """Number of the next record."""
    hash: str = NOTHING
    closed: bool = False
    broke_off: str = ""
    """Reason why its writer could not continue it; empty if it could."""
    follows: tuple[int, str] | None = None
    """Run and failure of the preceding chain of this writer, if it broke off, by this chain's first record; None otherwise."""
    pages: int = 0
    num_lost: int = 0
    """Number of records of `lost` that are actually missing."""
    repeats: int = 0
    """Number of exact repetitions of pages, which middleware and any participant of the graph can cause. They have no effect."""
    see: Callable[[dict[str, Any]], None] | None = None
    """Callback that receives every record as it was written."""
    _pages: set[bytes] = field(default_factory=set)
    """Identities of the pages so far."""

    def add(self, page: Page, *, unsaid: bool = False) -> None:
        """Verify the next page. unsaid: its recorder was killed before it could report its losses until then."""
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
        """Verify the end of the chain after its last page."""
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
        """Add a flaw for the missing records from the next one up to `until`, apart from reported losses."""
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
            signs = found.get("kind") == SIGNED  # it may follow the last record, too
            if self.closed and not signs:
                self._flaw(self.number, "a record after the last one")
            if (number := found.get("n")) != self.number:
                self._flaw(self.number, f"here stands record {number}")
                self.number = number if isinstance(number, int) and number > self.number else self.number
            self.hash = chained(self.hash, plain)
            if tail != self.hash.encode() + b'"}':
                self._flaw(self.number, "it was changed, or one before it on its page is missing")
                self.hash = tail[:-2].decode(errors="replace")  # the following records may be intact
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
    """Yield the records of a page. Raises: `RfmError` for a line that is not JSON."""
    for line in page.lines:
        found = parsed(line)
        if not found:
            raise RfmError(f"{page.writer}: a record is no JSON: {line[:80]!r}")
        yield found


def parsed(line: bytes) -> dict[str, Any]:
    """Return the record in a line of a page; empty for a line without one."""
    try:
        found = orjson.loads(line)
    except orjson.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) else {}

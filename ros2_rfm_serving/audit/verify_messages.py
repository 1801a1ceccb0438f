"""Verification of a recording's messages by the recorder's chained digests: changed, removed, inserted and moved messages.

It takes one pass: messages of each topic wait until the recorder's page with their digests comes. Those follow a second later, so
that few messages wait, however long the recording is.
"""

from __future__ import annotations

import base64
import itertools
from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from ros2_rfm_serving.audit.findings import Finding, Kind
from ros2_rfm_serving.audit.recording.digests import SHORT_BYTES, Item, hash_of, item

MOST_KEPT = 100_000
"""Largest number of findings that are kept; further ones are counted."""
MOST_WAITING = 8192
"""Largest number of waiting messages of a topic after a difference: digests are two seconds behind."""
LAST_NS = (1 << 64) - 1
LATE_NS = 60_000_000_000
"""Age before the recorder's last digests from which a message cannot have come after them: its queue does not hold a minute."""
LAST_PAGES = 4
DIGEST_DELAY_NS = 2_000_000_000
"""Time by which digests are behind their messages at most."""
Key = tuple[str, str]
"""Topic and type."""


class _Said(NamedTuple):
    """Time (ns) and short digest of one message, as the recorder noted them."""

    time_ns: int
    short: bytes


class Messages:
    """Comparison of messages with digests: `came` for each message in file order, `said` for each record of digests, then `end`."""

    def __init__(self, files: Collection[str] | None, removed: Collection[str] = ()) -> None:
        """Begin a comparison. files: names of existing files; None if another tool has renamed them. removed: files that the
        recorder removed itself because of its size limit. Both are read when they are needed."""
        self._files, self._removed = files, removed
        self._waiting: defaultdict[Key, deque[Item]] = defaultdict(deque)
        self._findings: list[Finding] = []
        self._absent: Counter[str] = Counter()
        """File -> number of messages that the recorder wrote to it, for missing files."""
        self.num_checked = 0
        """Number of messages whose digests were compared."""
        self.num_uncovered = 0
        """Number of messages after the last digests of a killed recorder."""
        self.num_unjudged = 0
        """Number of messages whose digests are missing."""
        self.num_more = 0
        """Number of findings beyond those that are kept."""
        self.is_covered = False
        """True if the recorder noted any digests."""
        self._next: dict[Key, int] = {}
        """Number of the message whose digest comes next."""
        self._begins = False
        """True if the recorder's digests begin with the first message."""
        self._gaps: Counter[Key] = Counter()
        """Number of missing digests before the next one."""
        self._said_ns = deque[int]([0], maxlen=LAST_PAGES)
        """Times of the last pages with digests: a clock may be set between two of them."""
        self._undigested: list[tuple[int, int]] = []
        """Intervals (ns) of messages whose digests may have been in missing records."""

    def came(self, topic: str, kind: str, time_ns: int, published_ns: int, data: bytes) -> None:
        """Add a message that is not a page of the recorder's own."""
        self._waiting[topic, kind].append(item(data, time_ns, published_ns))

    def said(self, record: Mapping[str, Any]) -> None:
        """Compare messages with a record `messages`. Raises: `LookupError`, `TypeError` or `ValueError` for malformed content."""
        self.is_covered = True
        file, topics = str(record["file"]), record["topics"]
        before_ns, at_ns = self._said_ns[-1], int(record["at_ns"])
        self._said_ns.append(at_ns)
        if not self._next:  # its first digests are those of the first message of each topic, unless earlier files are gone
            self._begins = all(one["first"] == 0 for one in topics)
        for one in topics:
            key, hashed, count = (str(one["topic"]), str(one["type"])), one["hash"], len(one["times_ns"])
            first = int(one["first"])
            gap = max(0, first - self._next.get(key, 0 if self._begins else first))
            self._gaps[key] += gap
            if gap and (before_ns - DIGEST_DELAY_NS, at_ns) not in self._undigested[-1:]:
                self._undigested.append((before_ns - DIGEST_DELAY_NS, at_ns))
            self._next[key] = first + count
            if file not in self._files if self._files is not None else file in self._removed:
                self._absent[file] += count
                continue
            self.num_checked += count
            self._match(key, one, count, hashed)

    def end(self, *, closed: bool, alone: bool, lost: Mapping[str, int]) -> tuple[tuple[Finding, ...], list[str]]:
        """Return findings and notes. closed: the recorder ended in order. alone: only one file of a recording is verified, and
        others are elsewhere. lost: number of messages by topic that the recorder counted as lost."""
        notes = [
            f"{topic}: {count} messages were lost before they were written, as the recorder noted"
            for topic, count in sorted(lost.items())
        ]
        if self.is_covered:
            self._leftover(closed)
        for file, count in self._absent.items():
            if file in self._removed:
                notes.append(
                    f"{file}: the recorder removed it, as only so much is kept; digests of its last {count} messages are left"
                )
            elif alone:
                notes.append(f"{file}: its messages were not compared, as this file alone was named")
            else:
                self._find(Finding(kind=Kind.MISSING, topic="", file=file, problem=f"at least {count} messages are gone with it"))
        if self.num_more:
            notes.append(f"{self.num_more} more messages are not as they were, beyond the {MOST_KEPT} that are named")
        return tuple(_moved(self._findings)), notes

    def _match(self, key: Key, one: Mapping[str, Any], count: int, hashed: str) -> None:
        """Compare the messages of a topic with their digests in a record."""
        waiting = self._waiting[key]
        if gap := self._gaps.pop(key):
            self._skip(gap, _expected(one), waiting)
        some = list(itertools.islice(waiting, count))
        if len(some) == count and hash_of(some) == hashed:
            for _ in some:
                waiting.popleft()
        else:
            self._compare(key, _expected(one), hashed, waiting)

    def _leftover(self, closed: bool) -> None:
        for key, waiting in self._waiting.items():
            early = [one for one in waiting if closed or one.time_ns < min(self._said_ns) - LATE_NS]
            self.num_uncovered += len(waiting) - len(early)
            for one in early:
                self._judge_leftover(key, one)

    def _judge_leftover(self, key: Key, one: Item) -> None:
        """Count a message without a digest if its digest may be in a missing record; otherwise it was inserted."""
        if any(since_ns <= one.time_ns <= until_ns for since_ns, until_ns in self._undigested):
            self.num_unjudged += 1
        else:
            self._found(Kind.INSERTED, key, one.time_ns, one.short)

    def _skip(self, gap: int, expected: list[_Said], waiting: deque[Item]) -> None:
        """Set aside messages whose digests are missing together with the recorder's records. They lie before the next named ones
        and are no more than `gap`, so that nothing shows them to be foreign."""
        there = (_Said(one.time_ns, one.short) for one in itertools.islice(waiting, gap + 1))
        for _ in range(next((place for place, one in enumerate(there) if one == expected[0]), 0)):
            waiting.popleft()
            self.num_unjudged += 1

    def _compare(self, key: Key, expected: list[_Said], hashed: str, waiting: deque[Item]) -> None:
        """Find the differing messages up to the last one that matches; later ones wait for the next record."""
        there = list(waiting)
        places: defaultdict[_Said, deque[int]] = defaultdict(deque)
        for place, one in enumerate(there):
            places[_Said(one.time_ns, one.short)].append(place)
        fits = [places[one].popleft() if places[one] else None for one in expected]
        self._count_reordered(key, expected, fits)
        self._check_hash(key, expected, [there[place] for place in fits if place is not None], hashed)
        last = max((place for place in fits if place is not None), default=-1)
        used = {place for place in fits if place is not None}
        for said in (said for said, place in zip(expected, fits, strict=True) if place is None):
            used |= self._explain(key, said, [place for place in range(len(there)) if place not in used], there, last)
        for place in range(last + 1):
            if place not in used:
                self._found(Kind.INSERTED, key, there[place].time_ns, there[place].short)
        waiting.clear()
        waiting.extend(one for place, one in enumerate(there) if place > last and place not in used)
        while len(waiting) > MOST_WAITING:
            one_more = waiting.popleft()
            self._found(Kind.INSERTED, key, one_more.time_ns, one_more.short)

    def _explain(self, key: Key, one: _Said, free: list[int], there: list[Item], last: int) -> set[int]:
        """Find the fate of one message. Return the place of the message that replaced it; empty without one."""
        for place in free:
            if there[place].time_ns == one.time_ns:
                self._found(Kind.CHANGED, key, one.time_ns, one.short)
                return {place}
        for place in free:
            if place < last and there[place].short == one.short:
                self._found(Kind.MOVED, key, one.time_ns, one.short, _moved_to(one.time_ns, there[place].time_ns))
                return {place}
        self._found(Kind.REMOVED, key, one.time_ns, one.short)
        return set()

    def _count_reordered(self, key: Key, expected: list[_Said], fits: list[int | None]) -> None:
        before = -1
        for one, place in zip(expected, fits, strict=True):
            if place is not None and place < before:
                self._found(Kind.REORDERED, key, one.time_ns, one.short)
            before = max(before, -1 if place is None else place)

    def _check_hash(self, key: Key, expected: list[_Said], there: list[Item], hashed: str) -> None:
        """Compare the complete digests, where the short ones of all messages match."""
        if len(there) == len(expected) and hash_of(there) != hashed:
            problem = f"one of {len(there)} messages from then on has the same short digest and other contents"
            self._found(Kind.CHANGED, key, expected[0].time_ns if expected else 0, b"", problem)

    def _found(self, kind: Kind, key: Key, time_ns: int, short: bytes, problem: str = "") -> None:
        self._find(Finding(kind=kind, topic=key[0], type=key[1], time_ns=time_ns, problem=problem, digest=short))

    def _find(self, finding: Finding) -> None:
        if len(self._findings) < MOST_KEPT:
            self._findings.append(finding)
        else:
            self.num_more += 1


class SortedMessages(Messages):
    """Comparison for a recording that another tool has sorted by time, and whose clock was set during the recording.

    There, messages do not lie in the order in which they came. So each digest is searched among all messages of its topic by time
    and contents, and the order proves nothing. This keeps 40 bytes and more per message of the recording.
    """

    def __init__(self, files: Collection[str] | None, removed: Collection[str] = ()) -> None:
        super().__init__(files, removed)
        self._places: defaultdict[Key, dict[_Said, deque[Item]]] = defaultdict(dict)

    def came(self, topic: str, kind: str, time_ns: int, published_ns: int, data: bytes) -> None:
        one = item(data, time_ns, published_ns)
        self._places[topic, kind].setdefault(_Said(one.time_ns, one.short), deque()).append(one)

    def _match(self, key: Key, one: Mapping[str, Any], count: int, hashed: str) -> None:
        places, expected, there = self._places[key], _expected(one), list[Item]()
        for said in expected:
            if found := places.get(said):
                there.append(found.popleft())
            else:
                self._found(Kind.REMOVED, key, said.time_ns, said.short)
        self._check_hash(key, expected, there, hashed)

    def _leftover(self, closed: bool) -> None:
        for key, places in self._places.items():
            left = sorted(one for some in places.values() for one in some)
            unjudged = min(self._gaps[key], len(left))
            self.num_unjudged += unjudged
            self.num_uncovered += 0 if closed or unjudged else len(left)
            for one in left if closed and not unjudged else ():
                self._judge_leftover(key, one)
        self._findings = list(_changed(self._findings))


def is_in_order(topics: Iterable[Mapping[str, Any]], at_ns: int, before_ns: dict[Key, int]) -> bool:
    """Return whether the messages in a record of digests have the same order after sorting by time.

    at_ns: time of the recorder's page that has the record. before_ns: time of the last message of each topic, which this updates.
    Raises: the errors of `Messages.said`.
    """
    for one in topics:
        key, times = (str(one["topic"]), str(one["type"])), list(itertools.accumulate(map(int, one["times_ns"])))
        if times and (times != sorted(times) or times[0] < before_ns.get(key, 0) or times[-1] > at_ns):
            return False
        before_ns[key] = times[-1] if times else before_ns.get(key, 0)
    return True


def _changed(findings: Iterable[Finding]) -> Iterator[Finding]:
    """Yield findings; a removed message and another one inserted at the same time are merged into one changed message."""
    findings = list(findings)
    inserted: defaultdict[tuple[str, str, int], deque[Finding]] = defaultdict(deque)
    for one in findings:
        if one.kind is Kind.INSERTED:
            inserted[one.topic, one.type, one.time_ns].append(one)
    gone: set[int] = set()
    for one in findings:
        same = inserted[one.topic, one.type, one.time_ns] if one.kind is Kind.REMOVED and one.topic else None
        if same:
            gone.add(id(same.popleft()))
            yield replace(one, kind=Kind.CHANGED)
        elif one.kind is not Kind.INSERTED:
            yield one
    yield from (one for one in findings if one.kind is Kind.INSERTED and id(one) not in gone)


def _expected(one: Mapping[str, Any]) -> list[_Said]:
    """Return the times and short digests in a record. Raises: the errors of `Messages.said`."""
    packed = base64.b64decode(one["digests"], validate=True)
    times, at_ns = one["times_ns"], 0
    if len(packed) != SHORT_BYTES * len(times):
        raise ValueError("not as many digests as times")
    found = []
    for place, time_ns in enumerate(times):
        at_ns += int(time_ns)
        if not 0 <= at_ns <= LAST_NS:
            raise ValueError("no time that a file may have")
        found.append(_Said(at_ns, packed[SHORT_BYTES * place : SHORT_BYTES * (place + 1)]))
    return found


def _moved(findings: Iterable[Finding]) -> Iterable[Finding]:
    """Return findings; a message that was removed and inserted elsewhere with the same bytes becomes one moved message."""
    findings = list(findings)
    inserted: defaultdict[tuple[str, bytes], deque[Finding]] = defaultdict(deque)
    for one in findings:
        if one.kind is Kind.INSERTED:
            inserted[one.topic, one.digest].append(one)
    gone: set[int] = set()
    for one in findings:
        if one.kind is Kind.REMOVED and inserted[one.topic, one.digest]:
            other = inserted[one.topic, one.digest].popleft()
            gone |= {id(one), id(other)}
            moved = _moved_to(one.time_ns, other.time_ns)
            yield Finding(kind=Kind.MOVED, topic=one.topic, type=one.type, time_ns=one.time_ns, problem=moved, digest=one.digest)
    yield from (one for one in findings if id(one) not in gone)


def _moved_to(before_ns: int, now_ns: int) -> str:
    return f"by {(now_ns - before_ns) / 1e9:+.6f} s"

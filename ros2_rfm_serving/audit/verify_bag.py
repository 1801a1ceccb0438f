"""Verification of a recording: its chains, its messages by the recorder's digests and the writers' records, its files' bytes."""

from __future__ import annotations

import struct
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from ros2_rfm_serving.audit import mcap_scan
from ros2_rfm_serving.audit.bag import PAGE, Bag, Message, in_chain_order, number_of
from ros2_rfm_serving.audit.bag_metadata import METADATA
from ros2_rfm_serving.audit.bag_writer import REMOVED_SUFFIX
from ros2_rfm_serving.audit.chain import ASIDE, CLOSED, LATE, MESSAGES, OWN, Page, identity, parsed
from ros2_rfm_serving.audit.findings import Finding, Kind, local_text
from ros2_rfm_serving.audit.manifest import MANIFEST, Manifest, read_manifest
from ros2_rfm_serving.audit.page_bytes import page_bytes, page_of
from ros2_rfm_serving.audit.recording.ledger import RECORDER, Ledger
from ros2_rfm_serving.audit.verify import LOST, NO_RECORDER, Verified, verify
from ros2_rfm_serving.audit.verify_files import check_files, sums_of
from ros2_rfm_serving.audit.verify_folder import Recorded, check_metadata, check_names
from ros2_rfm_serving.audit.verify_messages import Messages, SortedMessages, is_in_order
from ros2_rfm_serving.audit.verify_records import Compared
from ros2_rfm_serving.errors import RfmError

BROKEN = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, struct.error)
"""Exceptions that malformed records cause."""


FIRST_NS = 5_000_000_000
"""Time within which a recorder's first page is in the recording."""
CLOSED_MARK = b'"kind":"closed"'
REMOVED, SPLIT = b'"kind":"removed"', b'"kind":"split"'
SPLIT_KIND = "split"
MESSAGES_MARK = b'"kind":"messages"'
PAGES_S = 3.0
"""Longest time between two pages of a working recorder, s."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Result of the verification of a recording."""

    chains: Verified
    findings: tuple[Finding, ...]
    """Differences by time; those of files come first."""
    damages: tuple[str, ...]
    """Descriptions of unreadable parts."""
    notes: tuple[str, ...]
    """Limits of the verification, and losses before writing, for which no later owner of the recording is responsible."""
    doubts: tuple[str, ...]
    """Parts that show no change, although their completeness is not proven."""
    num_checked: int
    """Number of messages whose digests the recorder has chained."""
    manifest: Manifest | None

    @property
    def is_good(self) -> bool:
        return not (self.chains.flaws or self.findings or self.damages)

    @property
    def is_changed(self) -> bool:
        """Return whether the recording was changed, apart from an end that is missing because the recorder was killed."""
        return any(one.is_change for one in self.findings) or any(not flaw.is_open_end for flaw in self.chains.flaws)


Prove = Callable[[Page, int], str]
"""Check of a page with its time of recording (ns since 1970): returns why it is not its writer's; empty if it is."""


def verify_bag(bag: Bag, prove: Prove | None = None) -> Verdict:
    """Verify a recording. prove: judges pages by their signatures; None skips this. Raises: `RfmError` when it cannot be read."""
    one = _Pass(bag, prove)
    alone = bag.path.is_file()
    chains = verify(one.pages, one.see, alone=alone or bool(one.marked), has_recorder=one.has_recorder and not alone)
    covered = one.messages.is_covered
    folder, folder_notes = one.check_folder()
    findings, notes = one.messages.end(closed=one.closed, alone=alone, lost=one.lost)
    differing, more = one.compared.end(one.lost)
    files = check_files(bag, one.sums, covered=covered, named=one.named, closed=one.closed, gone=one.marked)
    known = {(found.topic, found.time_ns) for found in findings}
    differing = [found for found in differing if (found.topic, found.time_ns) not in known]
    return Verdict(
        chains=chains,
        findings=tuple(
            sorted((*files.findings, *folder, *one.findings, *one.unproven, *findings, *differing), key=lambda found: found.time_ns)
        ),
        damages=tuple(bag.damages),
        notes=(*one.notes(), *notes, *more, *files.notes, *folder_notes),
        doubts=(*one.doubts(), *(flaw.problem for flaw in chains.flaws if flaw.problem == NO_RECORDER), *files.doubts),
        num_checked=one.messages.num_checked,
        manifest=files.manifest,
    )


class _Walked(NamedTuple):
    """Page of a recording, with the message that contained it."""

    topic: str
    time_ns: int
    data: bytes
    page: Page
    is_own: bool
    """True if it is the recorder's page."""


class _Pass:
    """Walk through a recording: `pages` yields the recorder's pages in the first pass, and all pages in the second."""

    def __init__(self, bag: Bag, prove: Prove | None) -> None:
        self._bag, self._prove = bag, prove
        self._passes = 0
        self._removed: set[str] = set()
        """Files that the recorder removed itself, known after the first pass."""
        self.marked = _marked(bag)
        """Files that the recorder removed on a full disk, by the placeholders in their place."""
        self.named = {one.path.name: one.path.name for one in bag.files}
        """Name of each file -> its original name from the recorder, which a single file may no longer have."""
        self._files = self.named.values() if bag.is_ours else None
        self.messages: Messages = Messages(self._files, self._removed)
        self.compared = Compared(bag.read)
        self.findings: list[Finding] = []
        self.sums: dict[str, dict[int, str]] = defaultdict(dict)
        self.lost: Counter[str] = Counter()
        self.closed = False
        self._owns = set[bytes]()
        """Identities of the recorder's pages, which are never repeated, because they are not published."""
        self._sorted_anew = False
        """True if another tool sorted the messages by time after a clock was set during the recording, which loses their order."""
        self._before_ns = dict[tuple[str, str], int]()
        """Topic and type -> time of the last message with a digest of the recorder."""
        self.recorded = Recorded(removed=self._removed)
        self._ledger = Ledger("", 1, 0.0, {})
        """Receives the pages as the recorder did, to find the chains that broke off."""
        self.counts: dict[str, Counter[tuple[str, str]]] = {}
        """File -> topic and type -> number of messages."""
        self._disk_failed = False
        """True if the recorder noted a failure to write."""
        self._page_ns = 0
        """Time of the recorder's last page."""
        self._behind: dict[tuple[str, int], tuple[float, float, int]] = {}
        """Chain -> times of its first and its last record after the recorder's last page by its writer's clock, without a gap
        between them, and the number of the next record."""
        self._own: tuple[str, int, bytes, Page] | None = None
        """Topic, time, bytes and content of the recorder's page whose records come next."""
        self._strange: Counter[str] = Counter()
        """Topic -> number of pages in the name of a recorder on a topic where it does not write."""
        self._unproven: dict[str, Finding] = {}
        """Identity of a page without its writer's signature -> finding about it."""
        self._aside: dict[str, str] = {}
        """Identity of a page that the recorder set aside for that -> reason."""
        self._names_own = any(topic.endswith(f"/{OWN}") for topic in bag.topics)

    @property
    def has_recorder(self) -> bool:
        """Return whether this package's recorder wrote it, for longer than its first record takes."""
        return (self._bag.is_ours or self._names_own) and self._bag.ends_ns - self._bag.begins_ns > FIRST_NS

    def pages(self) -> Iterator[Page]:
        self._passes += 1
        return self._recorders() if self._passes == 1 else self._all()

    def _recorders(self) -> Iterator[Page]:
        known, before, ended = list[str](), (0, 0), False
        """Files in the recorder's records; a single file is the last one that it began."""
        for message in self._bag.messages(PAGE):
            self.compared.heard(message.data, message.time_ns)
            page = self._page(message.data) if self._is_own(message.topic) else None
            if page is not None and self._counts(page, message.topic, message.time_ns, first=True):
                told = (parsed(line) for line in page.lines if REMOVED in line)
                self._removed |= {str(one.get("file")) for one in told}
                known += _files_of(page) if self._bag.path.is_file() else ()
                if not self._bag.is_ours:
                    self._sorted_anew |= ((page.run, page.first) < before and page.run == before[0]) or not self._is_in_order(page)
                before = page.run, page.first
                ended |= any(CLOSED_MARK in line for line in page.lines)
                yield page
        self.marked -= self.marked if ended else self._removed  # a recorder that ended in order has noted all of them
        self._removed |= self.marked
        if self._sorted_anew:
            self.messages = SortedMessages(self._files, self._removed)
        if (begun := [name for name in known if name]) and (name := self._bag.path.name) not in begun:
            self.named[name] = begun[-1]

    def _is_in_order(self, page: Page) -> bool:
        """Return whether messages, sorted by time, keep the order in which a page of the recorder lists their digests."""
        try:
            return all(
                is_in_order(record["topics"], int(record["at_ns"]), self._before_ns)
                for record in (parsed(line) for line in page.lines if MESSAGES_MARK in line)
                if record.get("kind") == MESSAGES
            )
        except BROKEN:  # its own chain reports the change
            return True

    def _all(self) -> Iterator[Page]:
        walked = self._walk()
        if self._sorted_anew:
            came = list(walked)
            where = {id(one.page): one for one in came}
            walked = (where[id(page)] for page in in_chain_order([one.page for one in came], ()))
        for topic, time_ns, data, page, own in walked:
            self._own = (topic, time_ns, data, page) if own else None
            if own:
                self._page_ns = time_ns
                self._behind.clear()
                self._find_repeat(page, topic, time_ns)
            else:
                self._ledger.hear(page, 0.0)
            yield page

    def _walk(self) -> Iterator[_Walked]:
        """Yield the pages that count, and compare all messages on the way."""
        for topic, kind, time_ns, published_ns, data in _messages(self._bag, self.counts):
            page = self._page(data) if kind == PAGE else None
            own = page is not None and page.writer.startswith(RECORDER) and self._is_own(topic)
            if not own:
                self.messages.came(topic, kind, time_ns, published_ns, data)
                self.compared.came(Message(topic, kind, time_ns, data))
            if page is not None and self._counts(page, topic, time_ns, first=False):
                yield _Walked(topic, time_ns, data, page, own)

    def _find_repeat(self, page: Page, topic: str, time_ns: int) -> None:
        """Find a repetition of a recorder's own page, which must be unique because it is not published."""
        if (which := identity(page)) in self._owns:
            again = Finding(kind=Kind.INSERTED, topic=topic, type=PAGE, time_ns=time_ns, problem="it came before")
            self.findings.append(again)
        else:
            self._owns.add(which)
            self.recorded.with_pages |= {next(reversed(self.counts))} if self.counts else set()

    def _page(self, data: bytes) -> Page | None:
        try:
            return page_of(data)
        except RfmError as error:
            self._bag.damages[str(error)] = None
            return None

    def _is_own(self, topic: str) -> bool:
        return not self._names_own or topic.endswith(f"/{OWN}")

    def _counts(self, page: Page, topic: str, time_ns: int, *, first: bool) -> bool:
        """Return whether a page counts, and is not published by another process in the writer's name."""
        if page.writer.startswith(RECORDER) and not self._is_own(topic):
            self._strange[topic] += not first
            return False
        if self._prove is not None and (problem := self._prove(page, time_ns)):
            told = f"{page.writer}, record {page.first}: {problem}"
            found = Finding(kind=Kind.UNPROVEN, topic=topic, type=PAGE, time_ns=time_ns, problem=told)
            self._unproven.setdefault(identity(page).hex(), found)
            return False
        return True

    # --- records ---

    def see(self, writer: str, run: int, record: Mapping[str, Any]) -> None:
        try:
            if writer.startswith(RECORDER):
                self._recorder(record)
            else:
                self._note_behind(writer, run, record)
                self.compared.record(writer, run, record)
        except (RfmError, *BROKEN):  # its own chain reports the change
            return

    def _note_behind(self, writer: str, run: int, record: Mapping[str, Any]) -> None:
        number, now_s = int(record["n"]), float(record["t"])
        since_s, _, following = self._behind.get((writer, run), (now_s, now_s, number))
        self._behind[writer, run] = since_s if number == following else now_s, now_s, number + 1

    def _recorder(self, record: Mapping[str, Any]) -> None:
        kind = record.get("kind")
        if kind in (SPLIT_KIND, MESSAGES) and record.get("file"):
            self.recorded.files.add(str(record["file"]))
        if kind == "began" and "ros_distro" in record:
            self.recorded.ros_distro = str(record["ros_distro"])
        if kind == MESSAGES:
            self._check_page(int(record["at_ns"]))
            sums_of(record, self.sums)
            self.recorded.files |= {str(one["file"]) for one in record.get("sums", ())}
            self.messages.said(record)
            self.compared.covered = True
        elif kind == ASIDE and record["why"] != LATE:  # late pages are counted as repeats
            self._aside[str(record["page"])] = str(record["why"])
        elif kind == LOST and "topic" in record:
            self.lost[str(record["topic"])] += int(record["count"])
        self._disk_failed |= kind == "disk"
        self.closed |= kind == CLOSED
        self.recorded.closed = self.closed

    def _check_page(self, at_ns: int) -> None:
        """Check the message around a page of the recorder, which is written with the time in its record."""
        if self._own is None:
            return
        topic, time_ns, data, page = self._own
        self._own = None
        if time_ns != at_ns:
            moved = f"by {(time_ns - at_ns) / 1e9:+.6f} s"
            self.findings.append(Finding(kind=Kind.MOVED, topic=topic, type=PAGE, time_ns=at_ns, problem=moved))
        elif data != page_bytes(page, at_ns):
            self.findings.append(Finding(kind=Kind.CHANGED, topic=topic, type=PAGE, time_ns=at_ns))

    @property
    def unproven(self) -> list[Finding]:
        """Return findings for unsigned pages that a verified recorder did not set aside on arrival: it checked none, or they were
        inserted later."""
        return [found for page, found in self._unproven.items() if page not in self._aside]

    def check_folder(self) -> tuple[list[Finding], list[str]]:
        """Return findings and notes about names in the folder and about `metadata.yaml`."""
        bag = self._bag
        if not bag.path.is_dir():
            return [], []
        findings, notes = check_names(bag, self.recorded)
        manifest = read_manifest(bag.path / MANIFEST)
        lacks = self.recorded.files - self._removed - self.counts.keys()
        if manifest is None or manifest.problem or lacks or not (bag.is_ours and self.messages.is_covered):
            return findings, notes  # missing or damaged parts have findings of their own
        self.recorded.broken = self._ledger.broken
        if manifest.mended:  # `rfm record --recover` wrote it, maybe elsewhere
            self.recorded.ros_distro = None
        exact = manifest.ended and self.closed
        problems = check_metadata(bag, self.counts, self.recorded, exact=exact)
        if problems and exact and self._disk_failed and not check_metadata(bag, self.counts, self.recorded, exact=False):
            notes.append(f"{METADATA} is older than the end of the recording: the disk failed, as the recorder noted")
            problems = []
        return [*findings, *problems], notes

    def doubts(self) -> list[str]:
        """Return descriptions of parts that are not proven, although nothing shows a change."""
        doubts = [
            f"{name} is missing, and {name}{REMOVED_SUFFIX} says that the recorder removed it on a full disk and could not note it"
            for name in sorted(self.marked)
        ]
        if self.messages.is_covered and not self.closed and self._bag.path.is_dir():
            doubts += self._open_end()
        return doubts

    def _open_end(self) -> Iterator[str]:
        """Yield the limits of proof of a recording without the recorder's last record."""
        page, last = local_text(self._page_ns), self._bag.ends_ns
        yield (
            f"the recorder's last record is missing, and its records end at {page}: either the recorder was killed then, or"
            " somebody cut off what came later. The recording looks the same in both cases; what was recorded after its end,"
            " and whether anything was, is not proved"
        )
        wrote_s = max((until_s - since_s for since_s, until_s, _ in self._behind.values()), default=0.0)
        longest_s = max(wrote_s, (last - self._page_ns) / 1e9)
        if longest_s > PAGES_S:
            yield (
                f"messages of {longest_s:.0f} s follow the recorder's last page, and it writes a page every second: either its disk"
                " hung and it was killed just then, or somebody removed its last pages. These messages are not proved: they may"
                " have been changed, removed or inserted"
            )

    def notes(self) -> list[str]:
        notes = [
            f"{topic}: {count} pages in the name of a recorder were set aside: it writes none there"
            for topic, count in self._strange.items()
        ]
        for why, count in Counter(self._aside.values()).items():
            notes.append(f"{count} pages were set aside by the recorder when they came: {why}")
        if self._sorted_anew:
            notes.append(
                "reordered: a clock was set back during the recording, and another tool sorted the messages by time. Their times"
                " and contents are verified; the order in which they came is known from the recorder's records alone"
            )
        if not self.messages.is_covered:
            notes.append(
                "its recorder chained no digests of messages: what no record names is not covered, such as statuses and schedules"
            )
        if self.messages.num_unjudged:
            notes.append(
                f"{self.messages.num_unjudged} messages lie where the recorder's digests are missing, and were not compared"
            )
        if self.messages.num_uncovered:
            notes.append(
                f"{self.messages.num_uncovered} messages came after the recorder's last digests: checksums alone cover them"
            )
        return notes


def _marked(bag: Bag) -> set[str]:
    """Return the removed files by their placeholders. Only the oldest files are removed, so newer placeholders are ignored."""
    if not bag.path.is_dir():
        return set()
    oldest = min((number_of(one.path) for one in bag.files), default=(0, ""))
    found = (path.with_suffix("") for path in bag.path.glob(f"*.mcap{REMOVED_SUFFIX}") if not path.stat().st_size)
    return {path.name for path in found if number_of(path) < oldest}


def _files_of(page: Page) -> Iterator[str]:
    """Yield the files that have begun according to a page of the recorder."""
    for line in page.lines:
        if SPLIT in line and (record := parsed(line)).get("kind") == "split":
            yield str(record.get("file"))


def _messages(bag: Bag, counts: dict[str, Counter[tuple[str, str]]]) -> Iterator[tuple[str, str, int, int, bytes]]:
    """Yield topic, type, time (ns), publish time (ns) and CDR of all messages: in files of this package's recorder in their order,
    in others by time. counts: receives, for the recorder's files, the number of messages by file and topic; its last key is the
    current file."""
    if not bag.is_ours:
        yield from ((one.topic, one.type, one.time_ns, one.time_ns, one.data) for one in bag.messages())
        return
    for file in bag.files:
        numbers, counted = Counter[int](), counts.setdefault(file.path.name, Counter())
        for chunk in file.chunks:
            data, problem = mcap_scan.unpacked(chunk)
            bag.damages |= {problem: None} if problem else {}
            for _, number, time_ns, published_ns, message in mcap_scan.messages_in(data):
                if (channel := file.channels.get(number)) is not None:
                    numbers[number] += 1
                    yield channel.topic, channel.type, time_ns, published_ns, message
        for number, count in numbers.items():
            counted[file.channels[number].topic, file.channels[number].type] += count

"""Work of the writing thread: bag, splits, retention; losses are counted and recorded in the bag, too."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ros2_rfm_serving.audit.bag import PAGE
from ros2_rfm_serving.audit.bag_metadata import METADATA, custom_data
from ros2_rfm_serving.audit.bag_writer import BagWriter, folders_of
from ros2_rfm_serving.audit.chain import LATE, Page
from ros2_rfm_serving.audit.manifest import Sign
from ros2_rfm_serving.audit.mcap_chunk import Channel, Chunk
from ros2_rfm_serving.audit.mcap_file import Output
from ros2_rfm_serving.audit.page_bytes import page_bytes, page_of
from ros2_rfm_serving.audit.recording.digests import Digests
from ros2_rfm_serving.audit.recording.intake import Sample, Topic
from ros2_rfm_serving.audit.recording.ledger import Ledger
from ros2_rfm_serving.audit.recording.told import Told
from ros2_rfm_serving.errors import RfmError

Prove = Callable[[Page], str]
"""Check of a page: returns why it is not its writer's; empty if it is."""
PAGE_PERIOD_S = 1.0
DAY_S, MB, GB = 86_400.0, 1 << 20, 1 << 30
BROKEN = "rfm_serving/broken_chains"
"""Key in `custom_data` of `metadata.yaml`: JSON, writer -> number of its chains that broke off, and the reason of the last one."""
KEPT_SPLITS = 4
"""Smallest number of files within the kept size or time, because retention removes whole files."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Bounds of files and of the recording; 0 means unbounded."""

    split_bytes: int = 1 * GB
    split_s: float = 900.0
    keep_bytes: int = 0
    keep_s: float = 0.0

    @property
    def file_bytes(self) -> int:
        bounds = [bound for bound in (self.split_bytes, self.keep_bytes // KEPT_SPLITS) if bound > 0]
        return min(bounds, default=0)

    @property
    def file_s(self) -> float:
        return min([bound for bound in (self.split_s, self.keep_s / KEPT_SPLITS) if bound > 0], default=0.0)


class Recorder:
    """Recorder for one thread: periodic `work` with received messages, `close` at the end. Errors of the disk are never raised."""

    def __init__(
        self,
        folder: Path,
        limits: Limits,
        ledger: Ledger,
        page_topic: Topic,
        open_file: Callable[[Path], Output] | None = None,
        sign: Sign | None = None,
        prove: Prove | None = None,
    ) -> None:
        """Open the folder. page_topic: topic of the recorder's own records. sign: signs the manifest. prove: judges pages where
        there are certificates. Raises: `RfmError` when the folder cannot be used."""
        self._prove = prove
        self._ledger, self._limits, self._page_topic = ledger, limits, page_topic
        self._lost: Counter[str] = Counter()
        self._unsaid: dict[str, Counter[str]] = {}
        """Reason -> topic -> number of losses since the last record of them."""
        self._page_failed, self._tried_s = False, -math.inf
        self._problem = self._said = ""
        self._pages: list[tuple[int, bytes]] = []
        """Own pages that are not on the disk yet."""
        self._digests = Digests(page_topic.name)
        self._bag = BagWriter(
            folder,
            split_bytes=limits.file_bytes,
            split_s=limits.file_s,
            lost=self._lose,
            open_file=open_file,
            wrote=self._wrote,
            sign=sign,
        )
        self._begun, self._now_s = 0, 0.0
        self._unnoted = False
        """True if files were removed without a record of it on the disk."""
        self._num_due = 0
        """Number of the oldest files that will be removed."""
        self.told = Told(folder=folder)

    def work(self, samples: list[Sample], overflowed: Mapping[str, int], now_s: float, now_ns: int) -> None:
        """Write messages, records and pages. samples: received since the last call. overflowed: by topic, number of messages
        without room in the queue. now_s: monotonic."""
        self._now_s = now_s
        for sample in samples:
            self._write(sample)
        self._bag.flush_older(now_ns)
        if overflowed:
            self._count(overflowed, "the disk is too slow")
        self._retain(now_s, now_ns)
        self._note_changes(now_s)
        self._write_pages(now_s, now_ns)
        self._tell()

    def note(self, kind: str, now_s: float, body: Mapping[str, Any]) -> None:
        """Append a record to the recorder's own chain."""
        self._ledger.note(kind, now_s, body)

    def close(self, now_s: float, now_ns: int) -> Told:
        self._now_s = now_s
        self._bag.flush()
        self._write_pages(now_s, now_ns, closed=True)
        self._bag.close(ended=not self._pages)
        self._tell()
        return self.told

    def _write(self, sample: Sample) -> None:
        topic = sample.topic
        self._bag.write(
            topic.name, topic.type, topic.definition, sample.data, sample.time_ns, qos=topic.qos, published_ns=sample.published_ns
        )

    def _wrote(self, file: str, chunk: Chunk, channels: Mapping[int, Channel]) -> None:
        """Account for a chunk that is in a file. Its pages count from then on: the ledger notes unwritten ones as lost."""
        self._digests.wrote(file, chunk, channels)
        pages = {number for number in chunk.index if channels[number].type == PAGE}
        for number, _, _, data in chunk.messages() if pages else ():
            topic = channels[number].topic
            if number in pages and topic != self._page_topic.name:
                try:
                    self._hear(page_of(data), topic, self._now_s)
                except RfmError as error:  # it is in the bag as it came
                    self._ledger.note("damaged", self._now_s, {"topic": topic, "why": str(error)})

    def _hear(self, page: Page, topic: str, now_s: float) -> None:
        if self._prove is not None and (why := self._prove(page) or (LATE if self._ledger.is_late(page) else "")):
            self._ledger.set_aside(page, topic, why, now_s)
            return
        before = dict(self._ledger.broken)
        self._ledger.hear(page, now_s)
        if self._ledger.broken != before:
            self._bag.describe(BROKEN, json.dumps(self._ledger.broken))

    def _lose(self, counts: Mapping[str, int], error: OSError) -> None:
        """Count messages that the bag could not write."""
        self._problem = error.strerror or str(error)
        self._page_failed |= self._page_topic.name in counts
        self._count({topic: count for topic, count in counts.items() if topic != self._page_topic.name}, self._problem)

    def _count(self, topics: Mapping[str, int], why: str) -> None:
        self._lost.update(topics)
        self._unsaid.setdefault(why, Counter()).update(topics)

    def _note_losses(self, now_s: float) -> None:
        for why, topics in self._unsaid.items():
            self._ledger.lost(topics, why, now_s)
        self._unsaid.clear()

    def _retain(self, now_s: float, now_ns: int) -> None:
        """Note the files to remove. They are removed once that page is written: a kill in between leaves no file missing."""
        bag, limits = self._bag, self._limits
        size = bag.size - sum(one.size for one in itertools.islice(bag.ended, self._num_due))
        for one in list(bag.ended)[self._num_due :]:
            if not (0 < limits.keep_bytes < size or 0 < limits.keep_s < (now_ns - one.ends_ns) / 1e9):
                return
            self._ledger.note("removed", now_s, {"file": one.name})
            self._num_due, size = self._num_due + 1, size - one.size

    def _remove(self, now_s: float, *, noted: bool) -> None:
        """Remove the files that are due. noted: the record of their removal is on the disk."""
        if noted and self._unnoted:
            self._bag.forget_removed()
            self._unnoted = False
        while self._num_due:
            self._unnoted |= not noted
            oldest, self._num_due = self._bag.ended[0].name, self._num_due - 1
            try:
                self._bag.remove_oldest(noted=noted)
            except OSError as error:  # it stays, and is not tried again
                self._ledger.note("disk", now_s, {"problem": f"{oldest} cannot be removed: {error.strerror or error}"})

    def _note_changes(self, now_s: float) -> None:
        if self._bag.writable:
            self._problem = ""
        if self._problem != self._said:
            self._ledger.note("disk", now_s, {"problem": self._problem})
            self._said = self._problem
        if self._bag.begun != self._begun:
            self._begun = self._bag.begun
            self._ledger.note("split", now_s, {"file": self._bag.name})

    def _write_pages(self, now_s: float, now_ns: int, *, closed: bool = False) -> None:
        """Write each page until it is on the disk, before the next one, so that this chain has no gaps."""
        if not closed and now_s - self._tried_s < PAGE_PERIOD_S:
            return
        self._tried_s = now_s
        notes_all = not self._pages or closed
        if notes_all:
            self._note_losses(now_s)
            due = closed or self._ledger.is_due(now_s)
            messages = self._digests.take(self._bag.sums(), now_ns, always=due)
            page = self._ledger.page(now_s, now_ns / 1e9, closed=closed, messages=messages)
            self._pages += [(now_ns, page_bytes(page, now_ns))] if page is not None else []
        topic, self._page_failed = self._page_topic, False
        for time_ns, data in self._pages:
            self._bag.write(topic.name, topic.type, topic.definition, data, time_ns, qos=topic.qos)
        if self._pages:
            self._bag.flush()
        if not self._page_failed:
            self._pages.clear()
        if self._page_failed:  # the page needs the room
            self._remove(now_s, noted=False)
        elif notes_all:
            self._remove(now_s, noted=True)

    def _tell(self) -> None:
        bag = self._bag
        self.told = Told(
            folder=bag.folder,
            topics=len(bag.counts),
            messages=bag.counts.total(),
            size=bag.size,
            lost=dict(self._lost),
            problem=self._problem,
            files=bag.files,
            broken=dict(self._ledger.broken),
        )


def broken_chains(folder: Path) -> dict[str, tuple[int, str]]:
    """Return the writers whose chains broke off, with counts and reasons, in a recording and those that follow it after a kill.

    This reads `metadata.yaml` alone, and so it is quick; `rfm audit verify` reads the records themselves.
    """
    found: dict[str, tuple[int, str]] = {}
    for one in folders_of(folder):
        text = custom_data(one / METADATA).get(BROKEN, "")
        try:
            told = {str(writer): (int(count), str(why)) for writer, (count, why) in json.loads(text or "{}").items()}
        except (ValueError, TypeError, AttributeError):
            continue
        found |= {writer: (count + found.get(writer, (0, ""))[0], why) for writer, (count, why) in told.items()}
    return found

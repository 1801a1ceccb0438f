"""A genuine recording for tests: what real robots and a real server said, as the recorder's own code writes it today.

The messages are those of `test/bags/`, which a recorder heard from processes at work. They go through `Recorder` once more, a turn
every 0.2 s, so that its chain has whatever this version notes.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ros2_rfm_serving.audit import mcap_scan
from ros2_rfm_serving.audit.bag import PAGE, Bag
from ros2_rfm_serving.audit.bag_metadata import METADATA
from ros2_rfm_serving.audit.chain import CLOSED, MESSAGES, SEALED, Chain, records
from ros2_rfm_serving.audit.manifest import MANIFEST, FileSum, manifest, read_manifest, sha256_of
from ros2_rfm_serving.audit.mcap_chunk import Chunk
from ros2_rfm_serving.audit.mcap_file import McapFile
from ros2_rfm_serving.audit.page_bytes import page_of
from ros2_rfm_serving.audit.recording.intake import Sample, Topic
from ros2_rfm_serving.audit.recording.ledger import Ledger
from ros2_rfm_serving.audit.recording.recorder import Limits, Recorder
from ros2_rfm_serving.audit.recording.recover import describe
from test.unit.audit import recorded

REPOSITORY = Path(__file__).parents[3]
KEPT = REPOSITORY / "test" / "bags" / "0.1.0" / "two_arms"
"""A recording of processes at work."""
OWN = "/rfm/recorder/audit"
TURN_NS = 200_000_000
LASTS_S = 5.05
"""Longer than a recording must last to miss its recorder's chain (5 s), and shorter than the turn in which the recorder notes for
the second time which records it has."""


def samples(source: Path = KEPT) -> Iterator[Sample]:
    """Yield what the recorder received in the first LASTS_S, in the order in which it came."""
    bag = Bag(source)
    until_ns = next(one.time_ns for one in bag.messages() if one.topic != OWN) + round(1e9 * LASTS_S)
    definitions = {channel.topic: channel for one in bag.files for channel in one.channels.values()}
    for message in bag.messages(until_ns=until_ns):
        if message.topic != OWN:
            channel = definitions[message.topic]
            yield Sample(Topic(channel.topic, channel.type, channel.definition, channel.qos), message.time_ns, message.data)


def record(
    folder: Path,
    *,
    limits: Limits | None = None,
    closes: bool = True,
    heard: Iterator[Sample] | None = None,
    losing: Callable[[Sample], bool] = lambda sample: False,
    ahead_s: Callable[[int], float] = lambda turn: 0.0,
    **more: Any,
) -> Path:
    """losing: of which the recorder's queue has no room. ahead_s: how far the recorder's clock is ahead in a turn."""
    one = Recorder(
        folder,
        limits or Limits(),
        Ledger("vm", 5, 0.0, {"stamp": 0.0}, more.get("sign")),
        Topic(OWN, PAGE, recorded.definition(PAGE)),
        **more,
    )
    turn: list[Sample] = []
    lost: dict[str, int] = {}
    begins_ns = until_ns = number = 0
    for sample in heard if heard is not None else samples():
        begins_ns, until_ns = begins_ns or sample.time_ns, until_ns or sample.time_ns + TURN_NS
        while sample.time_ns >= until_ns:
            one.work(turn, lost, (until_ns - begins_ns) / 1e9, until_ns + int(ahead_s(number) * 1e9))
            turn, lost, until_ns, number = [], {}, until_ns + TURN_NS, number + 1
        if losing(sample):
            lost[sample.topic.name] = lost.get(sample.topic.name, 0) + 1
        else:
            turn.append(sample._replace(time_ns=sample.time_ns + int(ahead_s(number) * 1e9)))
    one.work(turn, lost, (until_ns - begins_ns) / 1e9, until_ns + int(ahead_s(number) * 1e9))
    if closes:
        one.close((until_ns - begins_ns) / 1e9 + 0.5, until_ns + TURN_NS + int(ahead_s(number) * 1e9))
    return folder


# --- what somebody does to it who knows how a recording is made ---


@dataclass(frozen=True)
class Raw:
    """One message of a file."""

    topic: str
    kind: str
    time_ns: int
    published_ns: int
    data: bytes

    def shifted(self, seconds: float) -> Raw:
        return replace(self, time_ns=self.time_ns + int(seconds * 1e9), published_ns=self.published_ns + int(seconds * 1e9))

    def flipped(self, at: int = -1) -> Raw:
        """With one bit of its bytes changed."""
        data = bytearray(self.data)
        data[at] ^= 1
        return replace(self, data=bytes(data))

    def said(self, kind: str, **fields: Any) -> Raw:
        return replace(self, data=recorded.cdr(kind, **fields))


Change = Callable[[list[Raw]], list[Raw]]


def rewritten(source: Path, target: Path, change: Change, *, with_manifest: bool = True) -> Path:
    """A copy whose messages are those of `change`, with index, checksums, `metadata.yaml` and `manifest.json` that fit."""
    shutil.copytree(source, target)
    for file in sorted(target.glob("*.mcap")):
        _rewrite(file, change)
    if with_manifest and (before := read_manifest(target / MANIFEST)) is not None:
        describe(target)
        sums = {name: FileSum((target / name).stat().st_size, sha256_of((target / name).read_bytes())) for name in before.files}
        metadata = sha256_of((target / METADATA).read_bytes())
        (target / MANIFEST).write_text(manifest(sums, [metadata], ended=before.ended))
    return target


def uncovered(target: Path) -> Path:
    """A recording by a recorder that chained no digests of messages, and wrote no manifest."""
    folder = rewritten(KEPT, target, _without_digests)
    (folder / MANIFEST).unlink()
    return folder


def _without_digests(messages: list[Raw]) -> list[Raw]:
    pages = {place: page_of(messages[place].data) for place in of(messages, OWN)}
    first = next(iter(pages.values()))
    chain, kept = Chain(first.writer, first.run), list[Raw]()
    for place, raw in enumerate(messages):
        if place not in pages:
            kept.append(raw)
            continue
        for record in records(pages[place]):
            body = {name: value for name, value in record.items() if name not in ("n", "t", "kind", "hash", "records")}
            if record["kind"] in (SEALED, CLOSED):
                chain.seal(record["t"], closed=record["kind"] == CLOSED, **body)
            elif record["kind"] != MESSAGES:
                chain.note(record["kind"], record["t"], body)
        if (page := chain.page()) is not None:
            kept.append(replace(raw, data=recorded.page(page)))
    return kept


def _rewrite(file: Path, change: Change) -> None:
    scanned = mcap_scan.scan(file)
    found, forms = [], {}
    for at in scanned.chunks:
        for channel, time_ns, data in mcap_scan.records(at)[0]:
            one = scanned.channels[channel]
            found.append(Raw(one.topic, one.type, time_ns, time_ns, data))
            forms[one.topic, one.type] = at.compression == "zstd", channel
    file.unlink()
    with file.open("xb", buffering=0) as output:
        made = McapFile(output)
        chunk = Chunk(compressed=True)
        for raw in change(found):
            compressed, channel = forms[raw.topic, raw.kind]
            if compressed != chunk.compressed or chunk.size > 50_000:
                if chunk.index:
                    made.write(chunk, scanned.channels)
                chunk = Chunk(compressed=compressed)
            chunk.add(channel, raw.time_ns, raw.data, raw.published_ns)
        made.write(chunk, scanned.channels)
        made.finish()


def of(messages: list[Raw], topic: str) -> list[int]:
    """Places of a topic's messages."""
    return [place for place, one in enumerate(messages) if one.topic == topic]


def pages_of(messages: list[Raw], writer: str) -> list[int]:
    return [place for place, one in enumerate(messages) if one.kind == PAGE and page_of(one.data).writer == writer]

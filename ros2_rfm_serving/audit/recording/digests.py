"""Digests of what the recorder has written, for its own chain of records: `messages`, once a second.

So whatever is done to a message afterwards is found, whether or not anybody's records name it. Only what is in a file has a digest:
what the disk did not take is counted as lost, and has none.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ros2_rfm_serving.audit.chain import HASH_DIGITS
from ros2_rfm_serving.audit.manifest import FileSum
from ros2_rfm_serving.audit.mcap_chunk import Channel, Chunk

SHORT_BYTES = 8
"""Of each message's digest: they tell which one was changed. That none was, `hash` says, by all 32."""
TIME = struct.Struct("<Q")


class Item(bytes):
    """Time and digest of one message: 8 bytes of ns since 1970, and 32 of SHA-256."""

    @property
    def time_ns(self) -> int:
        return int(TIME.unpack_from(self)[0])

    @property
    def short(self) -> bytes:
        return self[TIME.size : TIME.size + SHORT_BYTES]


def item(data: bytes, time_ns: int, published_ns: int) -> Item:
    """Return time and digest of a message; a publish time of its own counts as a part of its bytes."""
    sha256 = hashlib.sha256(data)
    if published_ns != time_ns:
        sha256.update(TIME.pack(published_ns))
    return Item(TIME.pack(time_ns) + sha256.digest())


def hash_of(items: Iterable[bytes]) -> str:
    """Return one hash, hexadecimal, over times and digests in order."""
    return hashlib.sha256(b"".join(items)).hexdigest()[:HASH_DIGITS]


@dataclass
class _Topic:
    first: int = 0
    """Number of the first of `items` among all of its messages."""
    items: list[Item] = field(default_factory=list)


class Digests:
    """`wrote` for every chunk that is in a file, `take` for what a page of the recorder says of it. Of one thread."""

    def __init__(self, own: str) -> None:
        """own: the recorder's own topic, whose pages are chained themselves."""
        self._own = own
        self._files: dict[str, dict[tuple[str, str], _Topic]] = {}
        self._counts: dict[tuple[str, str], int] = {}
        self._sums: dict[str, FileSum] = {}
        """As they were said last."""

    def wrote(self, file: str, chunk: Chunk, channels: Mapping[int, Channel]) -> None:
        topics = self._files.setdefault(file, {})
        for number, time_ns, published_ns, data in chunk.messages():
            channel = channels[number]
            if channel.topic != self._own:
                key = channel.topic, channel.type
                found = topics.get(key) or topics.setdefault(key, _Topic(self._counts.get(key, 0)))
                found.items.append(item(data, time_ns, published_ns))
                self._counts[key] = self._counts.get(key, 0) + 1

    def take(self, sums: Mapping[str, FileSum], at_ns: int, *, always: bool) -> list[dict[str, Any]]:
        """Return bodies of records, one per file, of what was written since the last time; none when nothing was, and not `always`.
        sums: of the files as they are now. at_ns: ROS time of the page that they stand in."""
        files, self._files = {name: topics for name, topics in self._files.items() if topics}, {}
        if not files and not always:
            return []
        said = {name: one for name, one in sums.items() if self._sums.get(name) != one}
        self._sums = dict(sums)
        told: list[dict[str, Any]] = [
            {"at_ns": at_ns, "file": name, "topics": [_plain(*one) for one in topics.items()]}
            for name, topics in (files or {"": {}}).items()
        ]
        told[-1]["sums"] = [{"file": name, "size": one.size, "sha256": one.sha256} for name, one in said.items()]
        return told


def _plain(key: tuple[str, str], topic: _Topic) -> dict[str, Any]:
    times = [one.time_ns for one in topic.items]
    return {
        "topic": key[0],
        "type": key[1],
        "first": topic.first,
        "times_ns": [times[0], *(time - before for before, time in itertools.pairwise(times))],
        "digests": base64.b64encode(b"".join(one.short for one in topic.items)).decode(),
        "hash": hash_of(topic.items),
    }

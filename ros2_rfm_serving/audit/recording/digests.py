"""Digests of the recorder's output for its own chain of records: `messages`, once a second.

They reveal every later change to a message, also if no other record names it. Only messages in a file have a digest: the others are
counted as lost.
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
"""Length in bytes of each message's short digest, which identifies a changed one; `hash` covers all 32 bytes of all digests."""
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
    """Return time and digest of a message; a differing publish time counts as a part of its bytes."""
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
    """Number of the first of `items` among all messages of the topic."""
    items: list[Item] = field(default_factory=list)


class Digests:
    """Collector of digests for one thread: `wrote` adds each chunk that is in a file, `take` returns the records for a page."""

    def __init__(self, own: str) -> None:
        """Begin a collection. own: the recorder's own topic, whose pages are chained themselves."""
        self._own = own
        self._files: dict[str, dict[tuple[str, str], _Topic]] = {}
        self._counts: dict[tuple[str, str], int] = {}
        self._sums: dict[str, FileSum] = {}
        """Sizes and digests in the last records."""

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
        """Return bodies of records, one per file, about the messages since the last call; without any, nothing unless `always`.
        sums: the present sums of the files. at_ns: ROS time of the page that will have the records."""
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

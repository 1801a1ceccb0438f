"""What a door has carried, and what not and why. Of every thread."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Mapping

from ros2_rfm_serving.errors import BadMessageError
from ros2_rfm_serving.ros.zenoh.format import Address, Attachment

LOST = "lost_behind_the_door"
"""Counter of what is missing between the door and a robot."""
MAX_SENDERS = 8192
"""Whose numbers are remembered; the one that was silent for longest is forgotten first."""
MAX_GAP = 1_000_000
"""A larger one is no loss but a number that somebody made up."""


class Tally:
    def __init__(self) -> None:
        self._lock, self._counts = threading.Lock(), Counter[str]()

    def count(self, what: str, times: int = 1) -> None:
        with self._lock:
            self._counts[what] += times

    def taken(self) -> Mapping[str, int]:
        with self._lock:
            return dict(self._counts)


class Sequences:
    """The numbers that every sender gives its messages: what was lost on the way is missing, what is replayed was there before."""

    def __init__(self) -> None:
        self._last: OrderedDict[tuple[bytes, str], int] = OrderedDict()

    def take(self, attachment: Attachment, name: str) -> int:
        """How many are missing before this one of a topic. Raises: `BadMessageError` where it is no newer than the last."""
        key, number = (attachment.gid, name), attachment.sequence
        last = self._last.get(key, number - 1)
        if number <= last:
            raise BadMessageError("repeated", f"{name}: number {number} after number {last} of the same sender")
        self._last[key] = number
        self._last.move_to_end(key)
        if len(self._last) > MAX_SENDERS:
            self._last.popitem(last=False)
        gap = number - last - 1
        return gap if gap <= MAX_GAP else 0


def check_interface(meant: Address, ours: Address) -> None:
    """Raises: `BadMessageError`."""
    if meant.interface.name != ours.interface.name:
        raise BadMessageError("foreign_type", f"{ours.name} is a {ours.interface.name}, not a {meant.interface.name[:200]}")
    if meant.interface.hash != ours.interface.hash:
        problem = f"{ours.interface.name} of {ours.name} is {meant.interface.hash[:100]} there and {ours.interface.hash} here"
        raise BadMessageError("stale_hash", f"{problem}: both sides need the same version of rfm_serving")

"""What a door has carried, and what not and why. Of every thread."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Mapping

from ros2_rfm_serving.errors import BadMessageError
from ros2_rfm_serving.ros.zenoh.format import NO_HASH, Address, Attachment

LOST_BEFORE, LOST = "lost_before_the_door", "lost_behind_the_door"
"""Counters of what is missing between a robot and the door, and between the door and a robot."""
OUT_OF_TURN = "out_of_turn"
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
    """The numbers that every sender gives its messages: what was lost on the way is missing. They are figures, and refuse nothing:
    anybody may write any sender's identity, which all are told, and any number with it. What was said before is refused by who
    knows whose it is: a server by its session, a robot by its request, who hears a schedule or a status by what is in it."""

    def __init__(self, tally: Tally, lost: str) -> None:
        """lost: counter of what is missing."""
        self._tally, self._lost = tally, lost
        self._last: OrderedDict[tuple[bytes, str], int] = OrderedDict()

    def take(self, attachment: Attachment, name: str) -> int:
        """How many are missing before this one of a topic. A number that is not above the last one is counted; whatever comes
        next is held against it, so that no number that was made up is in the way of those that follow."""
        key, number = (attachment.gid, name), attachment.sequence
        last = self._last.get(key, number - 1)
        self._last[key] = number
        self._last.move_to_end(key)
        if len(self._last) > MAX_SENDERS:
            self._last.popitem(last=False)
        if number <= last:
            self._tally.count(OUT_OF_TURN)
            return 0
        missing = number - last - 1
        if not 0 < missing <= MAX_GAP:
            return 0
        self._tally.count(self._lost, missing)
        return missing


def check_owner(owner: str, robot: str) -> None:
    """owner: whose own name something was said under; empty: nobody's. Raises: `BadMessageError`: it is another robot's."""
    if owner and robot != owner:
        raise BadMessageError("foreign_name", f"{owner} speaks for {robot[:100]!r}")


def check_interface(meant: Address, ours: Address) -> None:
    """Raises: `BadMessageError`."""
    if meant.interface.name != ours.interface.name:
        raise BadMessageError("foreign_type", f"{ours.name} is a {ours.interface.name}, not a {meant.interface.name[:200]}")
    if meant.interface.hash == NO_HASH:
        raise BadMessageError("stale_hash", f"{ours.name}: types of ROS 2 Humble have no hashes, Jazzy is needed")
    if meant.interface.hash != ours.interface.hash:
        problem = f"{ours.interface.name} of {ours.name} is {meant.interface.hash[:100]} there and {ours.interface.hash} here"
        raise BadMessageError("stale_hash", f"{problem}: both sides need the same version of rfm_serving")

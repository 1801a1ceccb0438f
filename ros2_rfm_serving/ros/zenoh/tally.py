"""Counters of the messages that a gateway has forwarded, lost and refused, for every thread."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Mapping

from ros2_rfm_serving.errors import BadMessageError
from ros2_rfm_serving.ros.zenoh.format import NO_HASH, Address, Attachment

LOST_BEFORE, LOST = "lost_before_the_door", "lost_behind_the_door"
"""Counters of messages that were lost between a robot and the gateway, and between the gateway and a robot."""
OUT_OF_TURN = "out_of_turn"
MAX_SENDERS = 8192
"""Maximum number of senders whose numbers are remembered; the longest silent one is forgotten first."""
MAX_GAP = 1_000_000
"""Maximum gap; a larger one is no loss but a forged number."""


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
    """Sequence numbers of every sender, by which lost messages are counted.

    They are statistics, and refuse nothing: anybody may send any sender's identity, which is public, with any number. Replays are
    refused by the receivers that know the sender: a server by its session, a robot by its request, a subscriber of a schedule or
    status by its content."""

    def __init__(self, tally: Tally, lost: str) -> None:
        """Create the state. lost: counter of missing messages."""
        self._tally, self._lost = tally, lost
        self._last: OrderedDict[tuple[bytes, str], int] = OrderedDict()

    def take(self, attachment: Attachment, name: str) -> int:
        """Return the number of messages that are missing before this one of a topic. A number that is not above the last one is
        counted, and becomes the reference for the next one, so that a forged number does not affect those that follow."""
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
    """Check the sender. owner: robot under whose own name a message was sent; empty: a shared name.
    Raises: `BadMessageError` when the message is another robot's."""
    if owner and robot != owner:
        raise BadMessageError("foreign_name", f"{owner} speaks for {robot[:100]!r}")


def check_interface(meant: Address, ours: Address) -> None:
    """Raise `BadMessageError` when the type of a message differs from the local one."""
    if meant.interface.name != ours.interface.name:
        raise BadMessageError("foreign_type", f"{ours.name} is a {ours.interface.name}, not a {meant.interface.name[:200]}")
    if meant.interface.hash == NO_HASH:
        raise BadMessageError("stale_hash", f"{ours.name}: types of ROS 2 Humble have no hashes, Jazzy is needed")
    if meant.interface.hash != ours.interface.hash:
        problem = f"{ours.interface.name} of {ours.name} is {meant.interface.hash[:100]} there and {ours.interface.hash} here"
        raise BadMessageError("stale_hash", f"{problem}: both sides need the same version of rfm_serving")

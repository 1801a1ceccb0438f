"""Queue between Zenoh's threads, which only enqueue arrivals (Remote-RTC §6.5), and the one thread that processes them.

Each sender has a queue of its own, and they are served in turn, so that a flood displaces only messages of its own sender. A sender
that publishes under a robot's own name is identified by that name; senders under a shared name only by the identities that they
choose, in any number. So the latter have half of the space and every other turn, and cannot take the space of the former.
"""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Mapping
from typing import Any, NamedTuple

MAX_IN_LANE, MAX_LANES, MAX_WAITING_BYTES = 16, 8192, 32 << 20
"""The last two limits are for each half."""
MAX_WAITING_TOKENS = 1 << 17
"""Maximum number of waiting tokens: an arrival or departure is published once, in a queue of its own."""
Take = Callable[[Any], None]


class Lane(NamedTuple):
    whose: Hashable
    is_own: bool = False
    """True: the sender is identified by its own name; False: by the identity that it chooses."""


TOKENS = Lane("tokens", is_own=True)
NOBODY = Lane(b"")
"""Lane of senders without an attachment."""


def octets(data: Any) -> bytes:
    """Return the bytes of a Zenoh payload or attachment; empty for None."""
    return b"" if data is None else bytes(data.to_bytes())


class _Waiting(NamedTuple):
    take: Take
    item: Any
    size: int


class Inbox:
    """Queue of arrivals that are not processed yet. `put` is called on any thread."""

    def __init__(self, arrived: Callable[[], object] = lambda: None) -> None:
        """Create the queue. arrived: called after each `put`, on its thread."""
        self._arrived = arrived
        self._halves = {True: _Lanes(), False: _Lanes()}
        self._turns = itertools.cycle(self._halves.values())
        self._changed = threading.Condition()
        self._ended = False

    @property
    def overrun(self) -> Mapping[str, int]:
        """Counters of arrivals that were lost because too much was waiting."""
        return {"overrun": self._halves[True].lost, "overrun_shared": self._halves[False].lost}

    def __len__(self) -> int:
        with self._changed:
            return sum(map(len, self._halves.values()))

    def put(self, take: Take, item: Any, size: int, lane: Lane = NOBODY, most: int = MAX_IN_LANE) -> None:
        """Enqueue an item. lane: sender's lane. most: limit of that lane, beyond which its oldest item is dropped.
        Where all lanes of its half hold too much, the fullest one drops an item, which may be this one."""
        with self._changed:
            self._halves[lane.is_own].put(lane.whose, _Waiting(take, item, size), most)
            self._changed.notify()
        self._arrived()

    def end(self) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify()

    def serve(self, failed: Callable[[], None]) -> None:
        """Process items until `end`, and all that wait by then.
        failed: called while an exception of `take` is being handled, which costs that item."""
        while (waiting := self._next()) is not None:
            _take(waiting, failed)

    def drain(self, failed: Callable[[], None]) -> None:
        """Process the present items, without waiting for more."""
        for _ in range(len(self)):
            with self._changed:
                waiting = self._first()
            if waiting is not None:
                _take(waiting, failed)

    def _next(self) -> _Waiting | None:
        with self._changed:
            self._changed.wait_for(lambda: any(self._halves.values()) or self._ended)
            return self._first()

    def _first(self) -> _Waiting | None:
        """Return the next item of the half whose turn it is, or of the other one."""
        return next((half.first() for half in itertools.islice(self._turns, 2) if half), None)


class _Lanes:
    """Lanes of one half, under the inbox's lock."""

    def __init__(self) -> None:
        self._lanes: OrderedDict[Hashable, deque[_Waiting]] = OrderedDict()
        """Lanes, the next one first."""
        self._bytes = 0
        self.lost = 0

    def __len__(self) -> int:
        return sum(map(len, self._lanes.values()))

    def __bool__(self) -> bool:
        return bool(self._lanes)

    def put(self, lane: Hashable, waiting: _Waiting, most: int) -> None:
        if len(self._lanes.get(lane, ())) >= most:
            self._lose(lane)
        if not self._make_room(lane, waiting.size):
            self.lost += 1
            return
        self._lanes.setdefault(lane, deque()).append(waiting)
        self._bytes += waiting.size

    def first(self) -> _Waiting:
        """Return the next lane's first item, and move that lane to the end."""
        lane = next(iter(self._lanes))
        waiting = self._taken(lane)
        if lane in self._lanes:
            self._lanes.move_to_end(lane)
        return waiting

    def _taken(self, lane: Hashable) -> _Waiting:
        waiting = self._lanes[lane].popleft()
        self._bytes -= waiting.size
        if not self._lanes[lane]:
            del self._lanes[lane]
        return waiting

    def _make_room(self, lane: Hashable, size: int) -> bool:
        """Drop items until there is room; return False when there is none for this item."""
        if lane not in self._lanes and len(self._lanes) >= MAX_LANES:
            return False
        while self._bytes + size > MAX_WAITING_BYTES:
            fullest = max(self._lanes, key=self._bytes_in, default=lane)
            if self._bytes_in(fullest) <= self._bytes_in(lane) + size:
                fullest = lane
            if fullest not in self._lanes:
                return False
            self._lose(fullest)
        return True

    def _lose(self, lane: Hashable) -> None:
        self._taken(lane)
        self.lost += 1

    def _bytes_in(self, lane: Hashable) -> int:
        return sum(waiting.size for waiting in self._lanes.get(lane, ()))


def _take(waiting: _Waiting, failed: Callable[[], None]) -> None:
    try:
        waiting.take(waiting.item)
    except Exception:
        failed()

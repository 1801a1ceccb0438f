"""Between Zenoh's threads and ours: they only put down what arrives (Remote-RTC §6.5), each sender's in a lane of its own, and one
thread of ours takes it up, from every lane in turn: who floods displaces what is its own.

Who sends under a name that is a robot's alone is told by the name; of what all send under one name there is only the identity that
each gives itself, as many as it likes. So these have half of the room and every other turn, and cannot take the others'.
"""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Mapping
from typing import Any, NamedTuple

MAX_IN_LANE, MAX_LANES, MAX_WAITING_BYTES = 16, 8192, 32 << 20
"""The last two of either half."""
MAX_WAITING_TOKENS = 1 << 17
"""Who comes and goes is said once, in a lane that nobody else is in."""
Take = Callable[[Any], None]


class Lane(NamedTuple):
    whose: Hashable
    is_own: bool = False
    """By its name, under which nobody else sends; else by what senders call themselves."""


TOKENS = Lane("tokens", is_own=True)
NOBODY = Lane(b"")
"""Of senders without an attachment."""


def octets(data: Any) -> bytes:
    """Of Zenoh's payloads and attachments; of none, none."""
    return b"" if data is None else bytes(data.to_bytes())


class _Waiting(NamedTuple):
    take: Take
    item: Any
    size: int


class Inbox:
    """What has arrived and nobody has looked at. `put` is called on any thread."""

    def __init__(self, arrived: Callable[[], object] = lambda: None) -> None:
        """arrived: is called after each `put`, on its thread."""
        self._arrived = arrived
        self._halves = {True: _Lanes(), False: _Lanes()}
        self._turns = itertools.cycle(self._halves.values())
        self._changed = threading.Condition()
        self._ended = False

    @property
    def overrun(self) -> Mapping[str, int]:
        """Lost, since too much was waiting."""
        return {"overrun": self._halves[True].lost, "overrun_shared": self._halves[False].lost}

    def __len__(self) -> int:
        with self._changed:
            return sum(map(len, self._halves.values()))

    def put(self, take: Take, item: Any, size: int, lane: Lane = NOBODY, most: int = MAX_IN_LANE) -> None:
        """lane: whose it is. most: that wait in it; the oldest gives way. Where all lanes of its half hold too much, the fullest
        one does, which may be this one."""
        with self._changed:
            self._halves[lane.is_own].put(lane.whose, _Waiting(take, item, size), most)
            self._changed.notify()
        self._arrived()

    def end(self) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify()

    def serve(self, failed: Callable[[], None]) -> None:
        """Until `end`, and all that waits by then. failed: an exception of `take` is being handled; it costs that item."""
        while (waiting := self._next()) is not None:
            _take(waiting, failed)

    def drain(self, failed: Callable[[], None]) -> None:
        """What is there now, without waiting for more."""
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
        """Of the half whose turn it is, or of the other one."""
        return next((half.first() for half in itertools.islice(self._turns, 2) if half), None)


class _Lanes:
    """One half of them, under the inbox's lock."""

    def __init__(self) -> None:
        self._lanes: OrderedDict[Hashable, deque[_Waiting]] = OrderedDict()
        """The next one first."""
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
        """Of the next lane, which is the last one then."""
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
        """False: there is none for it."""
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

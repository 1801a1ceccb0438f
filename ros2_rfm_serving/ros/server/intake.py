"""Intake of observations between the wire and the mailboxes: they are converted, checked and decoded beside executor and engine."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple

from ros2_rfm_serving.errors import BadMessageError
from ros2_rfm_serving.ros.node.runtime import clock
from ros2_rfm_serving.ros.server.decode_line import Line
from ros2_rfm_serving.ros.wire import cdr
from ros2_rfm_serving.server import ModelServer, images
from ros2_rfm_serving.server.arrivals import Arrivals
from ros2_rfm_serving.types import ObservationRequest, RequestId

MAX_WAITING = 4096
"""Maximum number of undecoded observations; beyond it they are refused and counted."""

STRANGERS = frozenset({"unknown_session", "stale_epoch"})
"""Kinds of refusals that concern no open session: their sequence numbers tell nothing about lost messages."""

Refused = Callable[[BadMessageError], None]
Check = Callable[[RequestId, bytes], None]
"""Check that an observation is from the opener of its session; raises `BadMessageError`."""


class _Item(NamedTuple):
    request: ObservationRequest
    arrived_s: float
    refused: Refused


class Intake:
    """Intake that keeps the latest only: a newer observation of the same robot and component replaces an undecoded one.

    The robot that has used least of the decoding time is next. Large images have threads of their own, so that they delay neither
    small ones nor, on a busy machine, the engine. wake: called when a request has entered its mailbox. complain: called with each
    refusal. Both are called on any thread."""

    def __init__(
        self,
        server: ModelServer,
        wake: Callable[[], None],
        complain: Refused,
        num_threads: int,
        check: Check = lambda request, data: None,
    ) -> None:
        """Start the threads. num_threads: number that decodes small images, and number that decodes large ones."""
        self._server, self._wake, self._complain, self._check = server, wake, complain, check
        self._decodes = bool(server.contract.cameras) and not server.takes_encoded
        self._lock, self._stopping = threading.Lock(), False
        self._light, self._heavy = Line(self._lock), Line(self._lock, polite=True)
        self._arrivals = Arrivals()
        self._threads: list[threading.Thread] = []
        for line in (self._light, self._heavy) if self._decodes else ():
            name = "decode" if line is self._light else "decode_large"
            self._threads += [
                threading.Thread(target=self._run, args=(line,), name=f"{name}_{i}", daemon=True) for i in range(num_threads)
            ]
        for thread in self._threads:
            thread.start()

    def take(self, data: bytes) -> None:
        """Accept an observation on the executor's thread; it is submitted at once where nothing has to be decoded."""
        arrived_s = clock()
        try:
            with self._server.counting_refusals():
                request = self._admitted(data, arrived_s)
        except BadMessageError as error:
            self._complain(error)
            return
        except Exception as error:  # an arriving message may end nothing but itself
            self._server.count_fault("intake_error", f"{type(error).__name__}: {error}")
            return
        self.put(request, arrived_s, self._complain)

    def _admitted(self, data: bytes, arrived_s: float) -> ObservationRequest:
        """Check an observation before it replaces one that may run. Raises: `BadMessageError`."""
        request = cdr.observation_from(data)
        try:
            self._server.check_admission(request.id)
        except BadMessageError as error:
            if error.kind not in STRANGERS:
                self._check(request.id, data)
                self._arrived(request.id)
            raise
        self._check(request.id, data)
        self._arrived(request.id)
        self._server.charge(request.id, arrived_s)
        return request

    def _arrived(self, request: RequestId) -> None:
        """Count lost messages of an open session, also from requests that may not run: a refused message is not a lost one."""
        if lost := self._arrivals.lost_before(request):
            self._server.count("lost_on_the_way", lost)

    def put(self, request: ObservationRequest, arrived_s: float, refused: Refused) -> None:
        """Accept a request within its quota. refused: called on any thread."""
        item = _Item(request, arrived_s, refused)
        if not self._threads:
            self._submit(item)
            return
        key = (request.id.robot, request.id.component)
        line, other = self._light, self._heavy
        if not images.is_light(request.images):
            line, other = other, line
        full = False
        with self._lock:
            if (waiting := line.get(key) or other.get(key)) is not None:
                before = waiting.request.id
                if before.session_epoch == request.id.session_epoch and before.sequence >= request.id.sequence:
                    self._server.count("stale_sequence")
                    return
                self._server.superseded_early(before)
                other.pop(key)
            elif len(self._light) + len(self._heavy) >= MAX_WAITING:
                self._server.count("intake_full")
                full = True
            if not full:
                line.arrive(key, item)
        if full:
            refused(BadMessageError("intake_full", f"{MAX_WAITING} requests wait to be decoded; try again"))

    @property
    def is_idle(self) -> bool:
        """True if nothing is to be decoded."""
        return self._light.is_idle and self._heavy.is_idle

    def stalled_s(self, now_s: float) -> float:
        """Return for how long a decoder has not returned, or none has begun waiting work, s; 0: nothing to do. Takes no lock."""
        return max(self._light.stalled_s(now_s), self._heavy.stalled_s(now_s))

    def stop(self) -> list[threading.Thread]:
        """Stop the threads and return them; they end after their present image."""
        with self._lock:
            self._stopping = True
            for line in (self._light, self._heavy):
                line.changed.notify_all()
        return self._threads

    def _run(self, line: Line) -> None:
        with self._lock:
            line.join()
        while True:
            with self._lock:
                while not len(line) and not self._stopping:
                    line.changed.wait()
                if self._stopping:
                    return
                key, item = line.begin()
            self._submit(item)
            with self._lock:
                line.end(key)

    def _submit(self, item: _Item) -> None:
        try:
            with self._server.counting_refusals():
                self._server.deposit(item.request, item.arrived_s)
        except BadMessageError as error:
            item.refused(error)
        except (Exception, SystemExit) as error:  # a decoder is foreign code: its failure costs this message alone
            self._server.count_fault("intake_error", f"{type(error).__name__}: {error}")
            item.refused(BadMessageError("intake_error", "the request could not be read; the server's log says why"))
        else:
            self._wake()

"""Between the wire and the mailboxes: observations are converted, checked and decoded beside the executor and the engine."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import traceback
from collections.abc import Callable
from typing import NamedTuple

from ros2_rfm_serving.errors import BadMessageError
from ros2_rfm_serving.ros.node.runtime import clock
from ros2_rfm_serving.ros.wire import cdr
from ros2_rfm_serving.server import ModelServer, images
from ros2_rfm_serving.server.arrivals import Arrivals
from ros2_rfm_serving.server.fair import FairQueue
from ros2_rfm_serving.types import ObservationRequest

MAX_WAITING = 4096
"""Robots with an observation that nobody has looked at yet; beyond it they are refused and counted."""

HEAVY_NICENESS = 10
"""Of the threads that decode what is large: the others, the engine's and the executor's go first. Linux has that per thread."""

Key = tuple[str, str]
Refused = Callable[[BadMessageError], None]


class _Item(NamedTuple):
    request: ObservationRequest
    arrived_s: float
    refused: Refused


class Intake:
    """Latest only: an undecoded observation gives way to a newer one of the same robot and component.

    Whoever has used least of the decoding is next, and what takes long to decode has threads of its own: it holds up neither the
    others nor, on a machine that is busy, the engine. `wake` is called when a request has come into its mailbox, `complain` with
    what was refused, both on any thread.
    """

    def __init__(
        self,
        server: ModelServer,
        wake: Callable[[], None],
        complain: Refused,
        log: Callable[[str], None],
        num_threads: int,
    ) -> None:
        """num_threads: of those that decode what is small, and of those that decode the rest."""
        self._server, self._wake, self._complain, self._log = server, wake, complain, log
        self._decodes = bool(server.contract.cameras) and not server.takes_encoded
        self._light: FairQueue[Key, _Item] = FairQueue()
        self._heavy: FairQueue[Key, _Item] = FairQueue()
        self._arrivals = Arrivals()
        self._changed, self._stopping = threading.Condition(), False
        self._threads: list[threading.Thread] = []
        for queue in (self._light, self._heavy) if self._decodes else ():
            name = "decode" if queue is self._light else "decode_large"
            self._threads += [
                threading.Thread(target=self._run, args=(queue,), name=f"{name}_{i}", daemon=True) for i in range(num_threads)
            ]
        for thread in self._threads:
            thread.start()

    def take(self, data: bytes) -> None:
        """On the executor's thread: at once where nothing is to be decoded, else handed over."""
        arrived_s = clock()
        try:
            with self._server.counting_refusals():
                request = cdr.observation_from(data)
        except BadMessageError as error:
            self._complain(error)
            return
        if lost := self._arrivals.lost_before(request.id):
            self._server.refused["lost_on_the_way"] += lost
        self.put(request, arrived_s, self._complain)

    def put(self, request: ObservationRequest, arrived_s: float, refused: Refused) -> None:
        """`refused` is called on any thread."""
        item = _Item(request, arrived_s, refused)
        if not self._threads:
            self._submit(item)
            return
        key = (request.id.robot, request.id.component)
        queue, other = self._light, self._heavy
        if not images.is_light(request.images):
            queue, other = other, queue
        with self._changed:
            if (waiting := queue.get(key) or other.get(key)) is not None:
                before = waiting.request.id
                if before.session_epoch == request.id.session_epoch and before.sequence >= request.id.sequence:
                    self._server.refused["stale_sequence"] += 1
                    return
                self._server.superseded_early(before)
                other.pop(key)
            elif len(self._light) + len(self._heavy) >= MAX_WAITING:
                self._server.refused["intake_full"] += 1
                return
            queue.put(key, item)
            self._changed.notify_all()

    def stop(self) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(timeout=2.0)

    def _run(self, queue: FairQueue[Key, _Item]) -> None:
        if queue is self._heavy:
            _yield_to_others()
        while True:
            with self._changed:
                while not queue and not self._stopping:
                    self._changed.wait()
                if self._stopping:
                    return
                key, item = queue.take()
            begun_s = clock()
            self._submit(item)
            with self._changed:
                queue.charge(key, clock() - begun_s)

    def _submit(self, item: _Item) -> None:
        try:
            with self._server.counting_refusals():
                self._server.submit(item.request, item.arrived_s)
        except BadMessageError as error:
            item.refused(error)
        except Exception:  # a decoder is foreign code: whatever it raises costs this message and nothing else
            self._server.refused["intake_error"] += 1
            self._log(traceback.format_exc())
        else:
            self._wake()


def _yield_to_others() -> None:
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), HEAVY_NICENESS)

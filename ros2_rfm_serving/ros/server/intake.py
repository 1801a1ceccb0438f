"""Between the wire and the mailboxes: observations are converted, checked and decoded beside the executor and the engine."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable

from ros2_rfm_serving.errors import BadMessageError
from ros2_rfm_serving.ros.node.runtime import clock
from ros2_rfm_serving.ros.wire import cdr
from ros2_rfm_serving.server import ModelServer
from ros2_rfm_serving.types import ObservationRequest

MAX_WAITING = 4096
"""Robots with an observation that nobody has looked at yet; beyond it they are refused and counted."""

Key = tuple[str, str]


class Intake:
    """Latest only: an undecoded observation gives way to a newer one of the same robot and component.

    `wake` is called when a request has come into its mailbox, `complain` with what was refused, both on any thread.
    """

    def __init__(
        self,
        server: ModelServer,
        wake: Callable[[], None],
        complain: Callable[[BadMessageError], None],
        num_threads: int,
    ) -> None:
        self._server, self._wake, self._complain = server, wake, complain
        self._decodes = bool(server.contract.cameras) and not server.takes_encoded
        self._waiting: dict[Key, tuple[ObservationRequest, float]] = {}
        """(request, when it arrived), oldest first"""
        self._begun_s: dict[int, float] = {}
        """Decoder's thread -> since when it decodes."""
        self._moved_s = -math.inf
        """When a decoder last came, or something came for idle ones."""
        self._changed, self._stopping = threading.Condition(), False
        self._threads: list[threading.Thread] = []
        if self._decodes:
            self._threads = [threading.Thread(target=self._run, name=f"decode_{i}", daemon=True) for i in range(num_threads)]
        for thread in self._threads:
            thread.start()

    def take(self, data: bytes) -> None:
        """On the executor's thread: at once where nothing is to be decoded, else handed over."""
        arrived_s = clock()
        try:
            with self._server.counting_refusals():
                request = cdr.observation_from(data)
                if self._threads:  # before it takes the place of one that may run
                    self._server.check_admission(request.id)
        except BadMessageError as error:
            self._complain(error)
            return
        except Exception as error:  # nothing that arrives may end more than itself
            self._server.mishap("intake_error", f"{type(error).__name__}: {error}")
            return
        if not self._threads:
            self._submit(request, arrived_s)
            return
        key = (request.id.robot, request.id.component)
        with self._changed:
            if key in self._waiting:
                before = self._waiting[key][0].id
                if before.session_epoch == request.id.session_epoch and before.sequence >= request.id.sequence:
                    self._server.count("stale_sequence")
                    return
                self._server.superseded_early(before)
            elif len(self._waiting) >= MAX_WAITING:
                self._server.count("intake_full")
                return
            if not self._waiting:
                self._moved_s = arrived_s
            self._waiting[key] = (request, arrived_s)
            self._changed.notify()

    @property
    def is_idle(self) -> bool:
        """Nothing is to be decoded."""
        return not self._waiting and not self._begun_s

    def stalled_s(self, now_s: float) -> float:
        """For how long a decoder has not come back, or none has come for what waits; 0: nothing is to be done. Takes no lock."""
        begun_s = min(tuple(self._begun_s.values()), default=math.inf)
        return max(0.0, now_s - min(begun_s, self._moved_s if self._waiting else math.inf))

    def stop(self) -> list[threading.Thread]:
        """Those that end, after the image that they decode."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        return self._threads

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._stopping:
                    self._changed.wait()
                if self._stopping:
                    return
                key = next(iter(self._waiting))
                request, arrived_s = self._waiting.pop(key)
                self._begun_s[threading.get_ident()] = self._moved_s = clock()
            self._submit(request, arrived_s)
            self._begun_s.pop(threading.get_ident())

    def _submit(self, request: ObservationRequest, arrived_s: float) -> None:
        try:
            with self._server.counting_refusals():
                self._server.submit(request, arrived_s)
        except BadMessageError as error:
            self._complain(error)
        except (Exception, SystemExit) as error:  # a decoder is foreign code: it costs this message and nothing else
            self._server.mishap("intake_error", f"{type(error).__name__}: {error}")
        else:
            self._wake()

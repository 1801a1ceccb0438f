"""Schedules as they are said and heard where there are certificates: signed by a scheduler, each word once, and of now.

A scheduler says its schedule over and over. Each time is a word of its own, with a number and a signature: so nobody else keeps it
alive. That it is no recording of a scheduler that has gone follows from what a server has drawn at random: a schedule names the
processes of servers that its scheduler hears.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

from rclpy.serialization import serialize_message

from ros2_rfm_serving.errors import BadMessageError, ConfigurationError, UnprovenError
from ros2_rfm_serving.ros.node.doorkeeper import verifier_of_process
from ros2_rfm_serving.ros.wire import bounded, convert
from ros2_rfm_serving.ros.wire.proofs import Words, number_of, sayer_of_word
from ros2_rfm_serving.security.proof import Says, Verifies
from ros2_rfm_serving.types import Heard

ROLE = "scheduler"
"""Of a certificate."""
MOST_SCHEDULERS = 256
"""Of which numbers are remembered."""
MOST_NAMED = 8
"""Schedulers that a server names in its status."""
MOST_GONE = 64
"""Former processes of one server that are remembered."""


class ScheduleSpeaker:
    """Of a scheduler. Without a certificate everything stays as it is."""

    def __init__(self, prover: Says | None) -> None:
        self._prover, self._words, self._number = prover, Words(), 0
        self._message: Any = None
        self._certificate, self._data = b"", b""

    def put(self, message: Any) -> bytes:
        """To be said from now on; as it is, but for stamp, number and signature."""
        self._message = message
        if self._prover is not None:
            with contextlib.suppress(ConfigurationError):  # `/diagnostics` says it
                self._certificate = self._prover.certificate()
        message.certificate = self._certificate
        if self._certificate:
            self._data = self._words.put(message)
        else:
            data: bytes = serialize_message(message)
            self._data = data[: bounded.check(data, type(message))]  # readers of recordings take no byte more
        return self._data

    def word(self, now: Any) -> bytes:
        """To be published. now: `builtin_interfaces/Time`."""
        if self._prover is not None:
            with contextlib.suppress(ConfigurationError):  # what is said so is followed by nobody who demands a certificate
                if self._prover.certificate() != self._certificate:
                    self.put(self._message)
                self._number += 1
                return self._words.say(self._number, now, self._prover)
        return convert.stamped_bytes(self._data, now)


class ScheduleHearer:
    """Of words that a scheduler has signed. Without a certificate it demands none."""

    def __init__(self, verifier: Verifies | None) -> None:
        self._verifier = verifier
        self._numbers: OrderedDict[int, int] = OrderedDict()
        """Scheduler -> number of the last word."""

    @staticmethod
    def of_process() -> ScheduleHearer:
        """Raises: `ConfigurationError`."""
        return ScheduleHearer(verifier_of_process())

    @property
    def demands(self) -> bool:
        return self._verifier is not None

    def check(self, schedule: Any, word: memoryview) -> None:
        """For `bounded.hear`, of what is repeated: by a scheduler, and said for the first time. Raises: `BadMessageError`."""
        if self._verifier is None:
            return
        scheduler, number = schedule.scheduler, number_of(word)
        if len(schedule.certificate) and number <= self._numbers.get(scheduler, 0):
            # The middleware itself does so, after a cut: the last word is latched.
            raise BadMessageError(Heard.STALE.value, "a word of a scheduler that was said before")
        try:
            who = sayer_of_word(schedule, word, self._verifier)
        except UnprovenError as error:
            raise BadMessageError("unproven", str(error)) from error
        if (who.role or who.name) != ROLE:  # of a keystore without roles its name says it, which nobody else has
            raise BadMessageError("unproven", f"the certificate of {who.name} is no scheduler's: if it is one, rfm security rotate")
        self._numbers[scheduler] = number
        self._numbers.move_to_end(scheduler)
        if len(self._numbers) > MOST_SCHEDULERS:
            self._numbers.popitem(last=False)


class Contemporaries:
    """Of a server's process: schedulers that live since it does, as they name it."""

    def __init__(self, process: int) -> None:
        self._process = process
        self._named: OrderedDict[int, None] = OrderedDict()
        self._known: OrderedDict[int, None] = OrderedDict()

    @property
    def named(self) -> list[int]:
        """Heard lately: each finds out from that that this server lives since it does."""
        return list(self._named)

    def meet(self, schedule: Any) -> bool:
        """A schedule that is proven. True: its scheduler was not heard lately."""
        if self._process in schedule.hears:
            _remember(self._known, schedule.scheduler, MOST_SCHEDULERS)
        is_new = schedule.scheduler not in self._named
        _remember(self._named, schedule.scheduler, MOST_NAMED)
        return is_new

    def lives(self, scheduler: int) -> bool:
        return scheduler in self._known


class Processes:
    """Of servers, as a scheduler hears them: of each the newest."""

    def __init__(self) -> None:
        self._newest: dict[str, int] = {}
        self._gone: dict[str, OrderedDict[int, None]] = {}

    @property
    def newest(self) -> list[int]:
        return sorted(self._newest.values())

    def hear(self, server: str, process: int) -> bool:
        """True: it is another one than before."""
        before = self._newest.get(server, 0)
        if process == before:
            return False
        if before:
            _remember(self._gone.setdefault(server, OrderedDict()), before, MOST_GONE)
        self._newest[server] = process
        return True

    def is_gone(self, server: str, process: int) -> bool:
        """It has a successor."""
        return process in self._gone.get(server, ())

    def keep(self, servers: Iterable[str]) -> None:
        """Forgets all others."""
        for server in self._newest.keys() - set(servers):
            del self._newest[server]


def _remember(known: OrderedDict[int, None], one: int, most: int) -> None:
    known[one] = None
    known.move_to_end(one)
    if len(known) > most:
        known.popitem(last=False)

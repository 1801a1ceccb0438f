"""Signed publication and verification of schedules where there are certificates: each message counts once, and only while fresh.

A scheduler repeats its schedule. Each repetition is a message with its own number and signature, so no other process can keep the
schedule alive. Freshness follows from a server's random number: a schedule lists the server processes that its scheduler receives,
so it is no recording of a scheduler that has gone.
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
from ros2_rfm_serving.types import ScheduleVerdict

ROLE = "scheduler"
"""Role in a scheduler's certificate."""
MOST_SCHEDULERS = 256
"""Number of schedulers whose last message number is remembered."""
MOST_NAMED = 8
"""Maximum number of schedulers that a server lists in its status."""
MOST_GONE = 64
"""Maximum number of former processes of one server that are remembered."""


class ScheduleSpeaker:
    """Signer of a scheduler's messages. Without a certificate messages stay unchanged."""

    def __init__(self, prover: Says | None) -> None:
        self._prover, self._words, self._number = prover, Words(), 0
        self._message: Any = None
        self._certificate, self._data = b"", b""

    def put(self, message: Any) -> bytes:
        """Set the schedule to publish from now on, and return its bytes without stamp, number and signature."""
        self._message = message
        if self._prover is not None:
            with contextlib.suppress(ConfigurationError):  # `/diagnostics` reports it
                self._certificate = self._prover.certificate()
        message.certificate = self._certificate
        if self._certificate:
            self._data = self._words.put(message)
        else:
            data: bytes = serialize_message(message)
            self._data = data[: bounded.check(data, type(message))]  # readers of recordings accept no trailing byte
        return self._data

    def word(self, now: Any) -> bytes:
        """Return the next message for publication. now: `builtin_interfaces/Time`."""
        if self._prover is not None:
            with contextlib.suppress(ConfigurationError):  # servers that demand a certificate ignore the message
                if self._prover.certificate() != self._certificate:
                    self.put(self._message)
                self._number += 1
                return self._words.say(self._number, now, self._prover)
        return convert.stamped_bytes(self._data, now)


class ScheduleHearer:
    """Verifier of schedules. Without a certificate it demands none."""

    def __init__(self, verifier: Verifies | None) -> None:
        self._verifier = verifier
        self._numbers: OrderedDict[int, int] = OrderedDict()
        """Scheduler -> number of its last message."""

    @staticmethod
    def of_process() -> ScheduleHearer:
        """Return the verifier of this process. Raises: `ConfigurationError`."""
        return ScheduleHearer(verifier_of_process())

    @property
    def demands(self) -> bool:
        return self._verifier is not None

    def check(self, schedule: Any, word: memoryview) -> None:
        """Check that a repeated schedule is a scheduler's and was not received before; for `bounded.hear`.
        Raises: `BadMessageError`."""
        if self._verifier is None:
            return
        scheduler, number = schedule.scheduler, number_of(word)
        if len(schedule.certificate) and number <= self._numbers.get(scheduler, 0):
            # The middleware itself repeats the last message after a cut, because it is latched.
            raise BadMessageError(ScheduleVerdict.STALE.value, "a word of a scheduler that was said before")
        try:
            who = sayer_of_word(schedule, word, self._verifier)
        except UnprovenError as error:
            raise BadMessageError("unproven", str(error)) from error
        if (who.role or who.name) != ROLE:  # in a keystore without roles the unique name shows it
            raise BadMessageError("unproven", f"the certificate of {who.name} is no scheduler's: if it is one, rfm security rotate")
        self._numbers[scheduler] = number
        self._numbers.move_to_end(scheduler)
        if len(self._numbers) > MOST_SCHEDULERS:
            self._numbers.popitem(last=False)


class Contemporaries:
    """Schedulers that are alive at the same time as a server's process, because they list it."""

    def __init__(self, process: int) -> None:
        self._process = process
        self._named: OrderedDict[int, None] = OrderedDict()
        self._known: OrderedDict[int, None] = OrderedDict()

    @property
    def named(self) -> list[int]:
        """Schedulers that were received lately; each learns from the list that this server process is alive at the same time."""
        return list(self._named)

    def meet(self, schedule: Any) -> bool:
        """Record a verified schedule; return whether its scheduler was not received lately."""
        if self._process in schedule.hears:
            _remember(self._known, schedule.scheduler, MOST_SCHEDULERS)
        is_new = schedule.scheduler not in self._named
        _remember(self._named, schedule.scheduler, MOST_NAMED)
        return is_new

    def lives(self, scheduler: int) -> bool:
        return scheduler in self._known


class Processes:
    """Newest process of each server, as a scheduler receives them."""

    def __init__(self) -> None:
        self._newest: dict[str, int] = {}
        self._gone: dict[str, OrderedDict[int, None]] = {}

    @property
    def newest(self) -> list[int]:
        return sorted(self._newest.values())

    def hear(self, server: str, process: int) -> bool:
        """Record a server's process; return whether it differs from the previous one."""
        before = self._newest.get(server, 0)
        if process == before:
            return False
        if before:
            _remember(self._gone.setdefault(server, OrderedDict()), before, MOST_GONE)
        self._newest[server] = process
        return True

    def is_gone(self, server: str, process: int) -> bool:
        """Return whether the process has a successor."""
        return process in self._gone.get(server, ())

    def keep(self, servers: Iterable[str]) -> None:
        """Forget all other servers."""
        for server in self._newest.keys() - set(servers):
            del self._newest[server]


def _remember(known: OrderedDict[int, None], one: int, most: int) -> None:
    known[one] = None
    known.move_to_end(one)
    if len(known) > most:
        known.popitem(last=False)

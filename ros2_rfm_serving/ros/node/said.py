"""Signed statuses and reports of a process. They are published without a request, so there is no session and no session MAC."""

from __future__ import annotations

import contextlib
import secrets
from collections import OrderedDict
from typing import Any

from ros2_rfm_serving.errors import BadMessageError, ConfigurationError, UnprovenError
from ros2_rfm_serving.ros.node.doorkeeper import prover_of_member, prover_of_process, verifier_of_process
from ros2_rfm_serving.ros.wire.proofs import reporter, sayer, signed, signed_report
from ros2_rfm_serving.security.proof import Verifies, Who
from ros2_rfm_serving.security.wire_table import owner_of

UNPROVEN, STALE = "unproven", "stale_status"
"""Kinds of refused messages: not signed by the right process; received before."""
PROCESS, NUMBER = "process", "number"
"""Values of a report: the random number of its process, and the number of the report, counted from 1."""
MOST_PROCESSES = 256
"""Maximum number of processes of one robot that are remembered: its restarts under one scheduler."""


_Numbers = dict[str, OrderedDict[int, int]]
"""Robot -> process -> highest number that was received from it."""


class Speaker:
    """Signer of a process' messages, or of those of one member in it. Without a certificate messages stay unchanged."""

    def __init__(self, member: str = "") -> None:
        """Create the signer. member: member whose messages it signs; empty: the process' own. Raises: `ConfigurationError`."""
        self._prover = prover_of_member(member) if member else prover_of_process()
        self.process, self._number = 1 + secrets.randbelow(2**64 - 1), 0

    def numbered(self, status: Any) -> Any:
        """Put the process' number into a status to publish, and return it; a signed status also gets a number of its own."""
        status.process = self.process
        if self._prover is None:
            return status
        self._number += 1
        status.number = self._number
        return self.signed(status)

    def report(self, status: Any) -> Any:
        """Return a `DiagnosticStatus` of the whole process for publication; a signed one gets a unique number."""
        if self._prover is not None:
            self._number += 1
            with contextlib.suppress(ConfigurationError):  # as in `signed`
                signed_report(status, {PROCESS: self.process, NUMBER: self._number}, self._prover)
        return status

    def signed(self, message: Any) -> Any:
        """Return the message for publication, or its signed bytes."""
        if self._prover is None:
            return message
        try:
            return signed(message, self._prover)
        except ConfigurationError:  # `/diagnostics` reports it; receivers that demand a certificate ignore the message
            return message


class Hearer:
    """Verifier of messages that their publishers sign. Without a certificate it demands none."""

    def __init__(self, verifier: Verifies | None) -> None:
        self._verifier = verifier
        self._numbers: tuple[_Numbers, _Numbers] = {}, {}
        """Numbers of statuses to other schedulers, and to this one; old statuses cannot crowd out present ones."""

    @staticmethod
    def of_process() -> Hearer:
        """Return the verifier of this process. Raises: `ConfigurationError`."""
        return Hearer(verifier_of_process())

    @property
    def demands(self) -> bool:
        return self._verifier is not None

    def who(self, message: Any, data: memoryview) -> Who | None:
        """Return the signer of a message; None: no signature is demanded. data: bytes of the message. Raises: `BadMessageError`."""
        if self._verifier is None:
            return None
        try:
            return sayer(message, data, self._verifier)
        except UnprovenError as error:
            raise BadMessageError(UNPROVEN, str(error)) from error

    def is_of_now(self, status: Any, scheduler: int) -> bool:
        """Return whether a status was made after that scheduler has drawn its identity, which nobody could know before."""
        return not self.demands or scheduler in (status.scheduler, *getattr(status, "hears", ()))

    def check_status(self, robot: str, scheduler: int, status: Any, data: memoryview) -> None:
        """Check that a status on the topic of `robot` is its own and was not received before. Raises: `BadMessageError`."""
        if self.demands:
            self._check(self._numbers[self.is_of_now(status, scheduler)], robot, status, data)

    def check_own(self, name: str, status: Any, data: memoryview) -> None:
        """Check a status as `check_status` does, whichever scheduler it answers: for servers, or receivers that follow no
        scheduler."""
        if self.demands:
            self._check(self._numbers[0], name, status, data)

    def check_report(self, report: Any, node: str) -> None:
        """Check that a report is from the process of this node, and was not received before.
        node: its name below the factory's namespace. Raises: `BadMessageError`."""
        if self._verifier is None:
            return
        try:
            who = reporter(report, self._verifier)
        except UnprovenError as error:
            raise BadMessageError(UNPROVEN, str(error)) from error
        role, name = owner_of(node)
        if (who.name != name) if name else (who.role or who.name) != str(role.name).lower():
            raise BadMessageError(UNPROVEN, f"{who.name} reports for node {node[:100]!r}")
        values = {value.key: value.value for value in report.values}
        try:
            process, number = int(values[PROCESS]), int(values[NUMBER])
        except (KeyError, ValueError):
            raise BadMessageError(UNPROVEN, f"a report of {node[:100]!r} has no process and number") from None
        known = self._numbers[0].get(node, OrderedDict())
        if number <= known.get(process, 0):
            raise BadMessageError(STALE, f"a report of {node[:100]!r} that was received before")
        self._remember(self._numbers[0], node, process, number)

    def _check(self, heard: _Numbers, name: str, status: Any, data: memoryview) -> None:
        """Check a status; the cheap checks come first."""
        if len(status.certificate) and status.number <= heard.get(name, {}).get(status.process, 0):
            # The middleware itself repeats messages after a cut: that is no forgery.
            raise BadMessageError(STALE, f"a status of {name[:100]!r} that was said before")
        if (who := self.who(status, data)) and who.name != name:
            raise BadMessageError(UNPROVEN, f"{who.name} tells how {name[:100]!r} is")
        self._remember(heard, name, status.process, status.number)

    @staticmethod
    def _remember(heard: _Numbers, name: str, process: int, number: int) -> None:
        numbers = heard.setdefault(name, OrderedDict())
        numbers[process] = number
        numbers.move_to_end(process)
        if len(numbers) > MOST_PROCESSES:
            numbers.popitem(last=False)

"""Verified statuses and schedules for an observer; where there are certificates, only those from their own publishers count.

An observer follows no scheduler. It recognises old messages by what it has received itself: each message counts once, and of two
processes of one name only one is shown. A recording of a whole factory, where nothing else is received, is recognised by a
challenge to the servers (`dated.py`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from ros2_rfm_serving.errors import BadMessageError
from ros2_rfm_serving.monitoring.board import STALE_AFTER_S, Board, Proof
from ros2_rfm_serving.ros.node.doorkeeper import verifier_of_process
from ros2_rfm_serving.ros.node.runtime import clock
from ros2_rfm_serving.ros.node.said import UNPROVEN, Hearer
from ros2_rfm_serving.ros.node.scheduled import ScheduleHearer


class Proven:
    """Verification for one observer.
    Without a certificate it demands none, and the board shows where there is something to check."""

    def __init__(self, board: Board, enclave: Path | None = None) -> None:
        """Create the checks. enclave: its authority counts when the environment names none. Raises: `ConfigurationError`."""
        verifier = verifier_of_process(enclave)
        self.verifier = verifier
        self._board, self._shown = board, Shown()
        self._hearer, self._schedules = Hearer(verifier), ScheduleHearer(verifier)
        if verifier:
            board.proof = Proof.UNDATED

    def check_schedule(self, schedule: Any, word: memoryview) -> None:
        """Verify a repeated schedule; for `bounded.hear`. Raises: `BadMessageError`."""
        self._note(schedule)
        self._schedules.check(schedule, word)

    def check_status(self, name: str, status: Any, data: memoryview) -> None:
        """Verify a status on the topic of `name`; for `bounded.hear`. Raises: `BadMessageError`."""
        self._note(status)
        self._hearer.check_own(name, status, data)
        if not self._hearer.demands:
            return
        is_of(name, status)
        self._shown.take(name, status.process, self._hearer.is_of_now(status, self._board.scheduler), clock())

    def check_report(self, report: Any, node: str) -> None:
        """Check what a process reports of itself. node: below the factory's namespace. Raises: `BadMessageError`."""
        self._hearer.check_report(report, node)

    def count(self, error: BadMessageError, about: str) -> None:
        """Count a refused message. about: process whose message it was."""
        if error.kind == UNPROVEN:
            self._board.refuse(about)

    @property
    def proof(self) -> Proof:
        return self._board.proof

    def _note(self, message: Any) -> None:
        if self._board.proof is Proof.NONE and len(message.certificate):
            self._board.proof = Proof.UNCHECKED


def is_of(name: str, status: Any) -> None:
    """Check that a status on the topic of `name` is about `name`. Raises: `BadMessageError`."""
    if status.header.frame_id != name:
        raise BadMessageError(UNPROVEN, f"{name[:100]!r} tells how {status.header.frame_id[:100]!r} is")


class _Heard(NamedTuple):
    process: int
    is_of_now: bool
    at_s: float


class Shown:
    """Choice of the process that is shown under each name.
    Alternating figures of two processes would help no reader, and one of the two may be a recording."""

    def __init__(self) -> None:
        self._since_s: dict[str, float] = {}
        self._heard: dict[str, _Heard] = {}

    def take(self, name: str, process: int, is_of_now: bool, now_s: float) -> None:
        """Accept or refuse a status of a process. is_of_now: it answers the scheduler whose schedule is shown.

        A status that does not waits for one that does. Another process takes over from one that is silent, and a process of now
        takes over from one that is not. Raises: `BadMessageError`."""
        if name not in self._heard and not is_of_now and now_s - self._since_s.setdefault(name, now_s) <= STALE_AFTER_S:
            raise BadMessageError("untimely_status", f"{name[:100]!r} follows another scheduler, or did when that was recorded")
        before = self._heard.get(name)
        is_another = before is not None and process != before.process and now_s - before.at_s <= STALE_AFTER_S
        if before is not None and is_another and (before.is_of_now or not is_of_now):
            raise BadMessageError(UNPROVEN, f"another process of {name[:100]!r} is heard, or was recorded")
        self._heard[name] = _Heard(process, is_of_now, now_s)

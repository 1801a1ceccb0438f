"""Verification of the statuses, schedules and pages in a recording: a recorder stores everything that arrives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

from rfm_serving import msg

from ros2_rfm_serving.audit.bag import Message
from ros2_rfm_serving.audit.chain import Page
from ros2_rfm_serving.audit.manifest import Manifest
from ros2_rfm_serving.audit.signatures import NAMES, problem_of
from ros2_rfm_serving.audit.verify_bag import Prove
from ros2_rfm_serving.errors import BadMessageError, UnprovenError
from ros2_rfm_serving.ros.node.said import STALE, Hearer
from ros2_rfm_serving.ros.node.scheduled import ScheduleHearer
from ros2_rfm_serving.ros.proven import is_of
from ros2_rfm_serving.ros.wire import bounded
from ros2_rfm_serving.security.signing import Verifier
from ros2_rfm_serving.types import ScheduleVerdict

KINDS = {f"rfm_serving/msg/{kind.__name__}": kind for kind in (msg.RobotStatus, msg.ServerStatus, msg.Schedule)}
REPEATED = (STALE, ScheduleVerdict.STALE.value)


@dataclass
class Proofs:
    proven: int = 0
    repeated: int = 0
    """Messages that had been there before: a middleware repeats messages, and anybody may."""
    unproven: Counter[str] = field(default_factory=Counter)
    """Topic -> number of unverified messages."""
    problems: dict[str, str] = field(default_factory=dict)
    """Topic -> problem of its first unverified message."""
    manifest: str = ""
    """Why the manifest of files is not a recorder's; empty: a recorder's certificate has signed it, or there is none."""


def check(messages: Iterable[Message], enclave: Path) -> Proofs:
    """Verify messages of `KINDS`, in the order of their arrival. enclave: the authority that counts. A certificate must have
    been valid when a message was recorded, and not be revoked now. Raises: `ConfigurationError`."""
    found, now = Proofs(), [datetime.now(timezone.utc)]
    verifier = Verifier(enclave, lambda: now[0])
    hearer, schedules = Hearer(verifier), bounded.Repeated(msg.Schedule, ScheduleHearer(verifier).check)
    for message in messages:
        now[0] = datetime.fromtimestamp(message.time_ns / 1e9, timezone.utc)
        try:
            if KINDS[message.type] is msg.Schedule:
                schedules(message.data)
            else:
                _check_status(message, hearer)
        except BadMessageError as error:
            if error.kind in REPEATED:
                found.repeated += 1
                continue
            found.unproven[message.topic] += 1
            found.problems.setdefault(message.topic, str(error))
            continue
        found.proven += 1
    return found


def page_prover(enclave: Path) -> Prove:
    """Return the function that verifies audit pages. enclave: as in `check`. Raises: `ConfigurationError`."""
    now = [datetime.now(timezone.utc)]
    verifier = Verifier(enclave, lambda: now[0])

    def prove(page: Page, time_ns: int) -> str:
        now[0] = datetime.fromtimestamp(time_ns / 1e9, timezone.utc)
        return problem_of(page, verifier.check_said)

    return prove


def check_manifest(found: Manifest | None, ends_ns: int, enclave: Path, proofs: Proofs) -> None:
    """Add to `proofs` whether a recorder's certificate has signed the manifest.
    ends_ns: end of the recording. enclave: as in `check`. Raises: `ConfigurationError`."""
    if found is None or found.problem:  # such a manifest is a finding of its own
        return
    at = datetime.fromtimestamp(ends_ns / 1e9, timezone.utc)
    try:
        if found.signature is None:
            raise UnprovenError("nobody has signed it")
        who = Verifier(enclave, lambda: at).check_said(*found.signature, found.text)
        if who.name not in NAMES["recorder"]:
            raise UnprovenError(f"{who.name} has signed it, and no recorder")
    except UnprovenError as error:
        proofs.manifest = str(error)


def _check_status(message: Message, hearer: Hearer) -> None:
    """Verify a status. Raises: `BadMessageError`."""
    parts = message.topic.split("/")
    name = parts[-3] if KINDS[message.type] is msg.RobotStatus else parts[-2]  # <robot>/rfm/status, servers/<server>/status
    status, end = bounded.measured(message.data, KINDS[message.type])
    hearer.check_own(name, status, memoryview(message.data)[:end])
    is_of(name, status)

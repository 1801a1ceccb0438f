"""Causes in a process and its machine: disks, certificates, and the recorder."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

from ros2_rfm_serving.monitoring.findings.finding import FACTORY, Finding
from ros2_rfm_serving.monitoring.findings.look import OK, RECORDER, Diagnosis, Look
from ros2_rfm_serving.types.process_problems import CERTIFICATE_INVALID, CERTIFICATE_WARNING, LOG_DISK_FULL

FULL, FULL_BYTES = 0.05, 10 * 2**30
"""Free share and free bytes of a disk; a disk with less than both counts as full."""
NO_SPACE = os.strerror(errno.ENOSPC)
NAMED = 3
"""Maximum owners of one process in a line; a process may have many robots."""
SILENT_AFTER_S = 3.5
"""Silence after which a process counts as gone; it reports to `/diagnostics` every second."""
RECORDING = f"{RECORDER}: recording"


def owners_of(look: Look, kind: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield each text of this kind of process problem with the owners of the statuses that carry it."""
    owners: dict[str, dict[str, None]] = {}
    for said in look.diagnosed:
        if kind in said.process_problems:
            owners.setdefault(said.process_problems[kind], {})[said.owner] = None
    for problem, found in sorted(owners.items()):
        yield problem, tuple(sorted(found))


def report_of(owners: tuple[str, ...]) -> str:
    """Return the beginning of a line about the owners, such as "arm_1, arm_2 report"."""
    more = f" and {len(owners) - NAMED} more" if len(owners) > NAMED else ""
    return ", ".join(owners[:NAMED]) + more + (" reports" if len(owners) == 1 else " report")


def full_disk(look: Look) -> Iterator[Finding]:
    """Yield the full disk of the observing machine, and those that processes of any machine report."""
    disk, evidence = look.disk, [f"{said.name} reports: {said.message}" for said in look.diagnosed if NO_SPACE in said.message]
    evidence += [f"{report_of(owners)}: {problem}" for problem, owners in owners_of(look, LOG_DISK_FULL)]
    if disk and disk.free_bytes < min(FULL * disk.size_bytes, FULL_BYTES):
        left, size = disk.free_bytes / 1e6, disk.size_bytes / 1e6
        evidence = [f"{disk.folder} has {left:.1f} MB free of {size:.1f} MB", "logs and recordings stop when it is full", *evidence]
    if evidence:
        mend = "remove old logs and recordings there; the factory keeps running meanwhile"
        yield Finding(cause="full disk", about=FACTORY, evidence=tuple(evidence), mend=mend)


def invalid_certificate(look: Look) -> Iterator[Finding]:
    yield from _certificates(look, "invalid certificate", CERTIFICATE_INVALID)


def certificate_warning(look: Look) -> Iterator[Finding]:
    yield from _certificates(look, "certificate ends soon", CERTIFICATE_WARNING)


def _certificates(look: Look, cause: str, kind: str) -> Iterator[Finding]:
    mend = (
        "run `rfm security check` and `rfm security rotate`, which issues a new certificate; then copy the enclave to its machine"
    )
    for problem, owners in owners_of(look, kind):
        evidence = (f"{report_of(owners)}: {problem}",)
        yield Finding(cause=cause, about=owners[0], concerns=owners[1:], evidence=evidence, mend=mend)


def incomplete_recording(look: Look) -> Iterator[Finding]:
    """Yield the losses that recorders report, and a recorder that became silent during the observation."""
    newest = {said.values.get("folder", ""): said for said in look.diagnoses.get(RECORDING, [])}  # one folder per recorder
    if evidence := [line for said in newest.values() for line in _incomplete(look, said)]:
        yield Finding(
            cause="incomplete recording",
            about=RECORDER,
            evidence=tuple(evidence),
            mend="restart the recorder if it ended; else use a faster disk, a larger `queue_mb` or fewer topics (docs/record.md)",
        )


def _incomplete(look: Look, newest: Diagnosis) -> list[str]:
    topics, folder = (newest.values.get(key, "?") for key in ("topics", "folder"))
    silent_s = look.ended_s - newest.heard_s
    if silent_s > SILENT_AFTER_S:
        silent = f"no status was received from the recorder for {silent_s:.1f} s; it publishes one every second"
        return [silent, f"it recorded {topics} topics to {folder}"]
    if newest.level <= OK or NO_SPACE in newest.message:
        return []
    return [f"the recorder reports: {newest.message}", f"it records {topics} topics to {folder}"]

"""Processes and their records at a moment: the end of a killed process is the time of its last record, and not the newest record of
its name, which may be of another process."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ros2_rfm_serving.audit.explain.explanation import clock, duration
from ros2_rfm_serving.audit.log import AuditLog
from ros2_rfm_serving.audit.recording.ledger import RECORDER
from ros2_rfm_serving.audit.runs import QUIET_S, Run

LOSS_NOTED_S = 10.0
"""Longest delay of the recorder's record of a loss, such as with a full disk."""


class Presence(enum.Enum):
    """State of a writer's process at a moment by its records."""

    RUNNING = "running"
    """Later records of the same chain exist."""
    SILENT = "silent"
    """Later records of the same chain exist, after a gap that includes this moment."""
    ENDED = "ended"
    """The chain ended in order, as its process did."""
    NO_END = "without an end"
    """The records stop without an end: the process was killed, hung, or was cut off from the recorder."""
    UNRECORDED = "not recorded"
    """Recording of the process had not begun, or its chain was closed or broke off while the process went on."""
    UNKNOWN = "unknown"
    """The recording has no record of it."""


@dataclass(frozen=True, kw_only=True)
class Fate:
    """Known state of one writer's process at a moment."""

    presence: Presence
    text: str
    """Description without the name of the writer."""
    run: Run | None = None
    """Chain that includes the moment or ends before it."""
    next: Run | None = None
    """Chain after it."""
    certain: bool = True
    """False if the process may still have run, because its last record is recent or the recording ends soon after it."""

    @property
    def runs(self) -> bool:
        return self.presence in (Presence.RUNNING, Presence.SILENT)

    def facts(self) -> dict[str, Any]:
        times = (
            {} if self.run is None else {"run": f"{self.run.run:016x}", "begins_s": self.run.begins_s, "ends_s": self.run.ends_s}
        )
        following = {} if self.next is None else {"next_begins_s": self.next.begins_s}
        return {"presence": self.presence.value, "certain": self.certain, **times, **following, "text": self.text}


def fate_of(log: AuditLog, writer: str, at_s: float) -> Fate:
    """Return the state of a writer's process at a moment, ROS time in s, by its records."""
    return fate_in(log, log.runs.get(writer, ()), at_s)


def fate_in(log: AuditLog, runs: Sequence[Run], at_s: float) -> Fate:
    """Return the state of a process at a moment, by some chains of one writer in order of time."""
    begun = [run for run in runs if run.begins_s <= at_s]
    if not begun:
        return _not_begun(runs, at_s)
    run = max(begun, key=lambda one: (min(one.ends_s, at_s), one.begins_s))  # processes of one name may overlap
    following = runs[len(begun)] if len(begun) < len(runs) else None
    if at_s <= run.ends_s:
        return _within(run, at_s, following)
    ago = f"its records end {duration(at_s - run.ends_s)} before ({clock(run.ends_s)})"
    if run.closed is not None:
        presence = Presence.ENDED if run.ended_in_order else Presence.UNRECORDED
        text = f"{ago}: {run.closed}" + _next(following, at_s)
        return Fate(presence=presence, text=text, run=run, next=following)
    if following is not None and following.process == run.process:
        text = f"{ago}, unfinished; the same process wrote records again from {clock(following.begins_s)}"
        return Fate(presence=Presence.UNRECORDED, text=text, run=run, next=following)
    certain, doubt = min(at_s, log.ends_s) - run.ends_s > run.quiet_s, ""
    if certain and _is_lossy(log, run.ends_s, at_s):
        certain, doubt = False, "; the recorder lost messages meanwhile, so it may have run"
    elif not certain:
        doubt = f"; one that runs writes at least every {QUIET_S:.0f} s, so it may have run"
    text = f"{ago}, without an end{_next(following, at_s)}{doubt}"
    return Fate(presence=Presence.NO_END, text=text, run=run, next=following, certain=certain)


def without_an_end(log: AuditLog, writer: str) -> list[Run]:
    """Return the last chain of each process of a writer whose records stop without an end."""
    runs = log.runs.get(writer, [])
    return [run for number, run in enumerate(runs) if _has_no_end(run, runs[number + 1 :], log.ends_s)]


def _has_no_end(run: Run, others: Sequence[Run], recording_ends_s: float) -> bool:
    """Return whether a chain has no end. others: chains that began later. Simultaneous ones, such as a rival's, do not end it."""
    if run.closed is not None or any(one.process == run.process for one in others):
        return False
    return recording_ends_s - run.ends_s > run.quiet_s or any(one.begins_s > run.ends_s for one in others)


def _not_begun(runs: Sequence[Run], at_s: float) -> Fate:
    if not runs:
        return Fate(presence=Presence.UNKNOWN, text="its audit log is not in this recording")
    text = f"its records begin {duration(runs[0].begins_s - at_s)} after ({clock(runs[0].begins_s)})"
    return Fate(presence=Presence.UNRECORDED, text=text, next=runs[0])


def _within(run: Run, at_s: float, following: Run | None) -> Fate:
    for since_s, until_s, missing in run.gaps:
        if since_s < at_s < until_s:
            what = f"{missing} of its records are missing" if missing else "it wrote nothing"
            text = f"{what} from {clock(since_s)} to {clock(until_s)} ({duration(until_s - since_s)})"
            return Fate(presence=Presence.SILENT, text=text, run=run, next=following)
    text = f"its records go on; they begin {duration(at_s - run.begins_s)} before ({clock(run.begins_s)})"
    return Fate(presence=Presence.RUNNING, text=text, run=run, next=following)


def _is_lossy(log: AuditLog, since_s: float, until_s: float) -> bool:
    """Return whether a recorder noted a loss of messages in this time, or soon after."""
    recorders = [writer for writer in log.by_writer if writer.startswith(RECORDER)]
    return any(log.within(writer, since_s - LOSS_NOTED_S, until_s + LOSS_NOTED_S, "lost", "disk") for writer in recorders)


def _next(following: Run | None, at_s: float) -> str:
    return "" if following is None else f"; the next ones begin {duration(following.begins_s - at_s)} after"

"""Problems of a whole process, which each of its statuses in `/diagnostics` carries beside the report on its own part.

People read them in the message. Programs read them in the values, so that a full log disk is not mistaken for a problem of a robot,
a server or a name.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import NamedTuple

LOG_DISK_FULL, LOG_DISK_SILENT = "log disk full", "log disk silent"
CERTIFICATE_INVALID, CERTIFICATE_WARNING = "certificate invalid", "certificate warning"
NAMESPACE = "namespace"
"""Value of every status in `/diagnostics`, which factories in different namespaces share. A factory without a namespace has no
value."""
ENDED = "ended"
"""Figure of a process' last report; 1: it has done its work and ends in order."""
CONFIGURATION = "configuration"
"""Part of the status of a node that could not be configured, as in `arm_1: configuration`."""
PREFIX, OWN_LEVEL = "process_problem ", "level_without_process_problems"


class DiagnosticEntry(NamedTuple):
    level: int
    """Level as in `diagnostic_msgs/DiagnosticStatus`."""
    message: str
    problems: Mapping[str, str] = {}
    """Kind -> text of the problems of the process."""


def with_process_problems(status: DiagnosticEntry, level: int) -> tuple[int, str, dict[str, str]]:
    """Return level, message and additional values of a status with the problems of its process, of which `level` is the gravest."""
    if not status.problems:
        return status.level, status.message, {}
    values = {f"{PREFIX}{kind}": text for kind, text in status.problems.items()} | {OWN_LEVEL: str(status.level)}
    return max(status.level, level), "; ".join((status.message, *status.problems.values())), values


def without_process_problems(level: int, message: str, values: Mapping[str, str]) -> DiagnosticEntry:
    """Return the arguments of `with_process_problems`. The values may come from any process: a value that does not fit stays as it
    is."""
    problems = {key.removeprefix(PREFIX): text for key, text in values.items() if key.startswith(PREFIX)}
    if not problems:
        return DiagnosticEntry(level, message)
    with contextlib.suppress(KeyError, ValueError):
        level = int(values[OWN_LEVEL])
    return DiagnosticEntry(level, message.removesuffix("; " + "; ".join(problems.values())), problems)

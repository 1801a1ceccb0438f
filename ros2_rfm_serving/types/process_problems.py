"""Problems of a whole process, which every status of it carries in `/diagnostics` beside what it reports of its own part.

People read them in the message. Programs read them in the values, so that a full log disk is not taken for trouble of a robot, of a
server or of a name.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import NamedTuple

LOG_DISK_FULL, LOG_DISK_SILENT = "log disk full", "log disk silent"
CERTIFICATE_INVALID, CERTIFICATE_WARNING = "certificate invalid", "certificate warning"
NAMESPACE = "namespace"
"""Value of every status in `/diagnostics`, which factories in namespaces of their own share. A factory without one has no value."""
ENDED = "ended"
"""Figure of a process' last report: 1, it has done its work and ends in order."""
CONFIGURATION = "configuration"
"""Part of the status of a node that could not be configured, as in `arm_1: configuration`."""
PREFIX, LEVEL = "process_problem ", "level_without_process_problems"


class Status(NamedTuple):
    level: int
    """As in `diagnostic_msgs/DiagnosticStatus`."""
    message: str
    problems: Mapping[str, str] = {}
    """Kind -> text, of the process."""


def joined(status: Status, level: int) -> tuple[int, str, dict[str, str]]:
    """Return level, message and additional values of a status with the problems of its process, of which `level` is the gravest."""
    if not status.problems:
        return status.level, status.message, {}
    values = {f"{PREFIX}{kind}": text for kind, text in status.problems.items()} | {LEVEL: str(status.level)}
    return max(status.level, level), "; ".join((status.message, *status.problems.values())), values


def separated(level: int, message: str, values: Mapping[str, str]) -> Status:
    """Return what `joined` was given. Values may be anybody's: what does not fit stays as it is."""
    problems = {key.removeprefix(PREFIX): text for key, text in values.items() if key.startswith(PREFIX)}
    if not problems:
        return Status(level, message)
    with contextlib.suppress(KeyError, ValueError):
        level = int(values[LEVEL])
    return Status(level, message.removesuffix("; " + "; ".join(problems.values())), problems)

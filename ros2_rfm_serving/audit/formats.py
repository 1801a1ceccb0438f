"""Formats of records. `begin` and each snapshot of a chain say in which format it is, and this version reads exactly one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ros2_rfm_serving.errors import RfmError

FORMAT = 2
OBJECTS = 1
"""Snapshots are objects with their attributes (`servers/objects.py`). Servers write it until they have events."""
BEGIN, SNAPSHOT = "begin", "snapshot"
"""Kinds of the records that say it."""


def format_of(writer: str) -> int:
    """Return the format in which this version writes and reads the chains of a writer."""
    return OBJECTS if writer.partition("/")[0] == "server" else FORMAT


def check_format(writer: str, record: Mapping[str, Any]) -> None:
    """Raises: `RfmError` when a record says that its chain is in another format. Records of format 1 did not say so.

    A value that no version writes is no format: `rfm audit verify` reports the change.
    """
    if record.get("kind") not in (BEGIN, SNAPSHOT):
        return
    recorded = record.get("format", 1)
    if type(recorded) is int and 0 < recorded != format_of(writer):
        raise RfmError(f"{writer}: recorded in format {recorded}, which this version does not read")

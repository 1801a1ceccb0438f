"""`metadata.yaml` of a rosbag2 folder."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ros2_rfm_serving.audit.mcap_chunk import Channel
from ros2_rfm_serving.audit.message_types import MessageTypes

VERSION, METADATA = 9, "metadata.yaml"


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A file that is whole."""

    name: str
    size: int
    begins_ns: int
    ends_ns: int
    counts: Mapping[int, int]
    """Channel -> messages."""


def metadata(files: Iterable[Ended], channels: Mapping[int, Channel], types: MessageTypes) -> str:
    """`metadata.yaml` as rosbag2 has it since version 9 (Jazzy)."""
    files = list(files)
    counts: Counter[int] = sum((Counter(one.counts) for one in files), Counter())
    begins, ends = min((one.begins_ns for one in files), default=0), max((one.ends_ns for one in files), default=0)
    information = {
        "version": VERSION,
        "storage_identifier": "mcap",
        **_times(begins, ends, counts.total()),
        "topics_with_message_count": [_topic(channels[number], count, types) for number, count in sorted(counts.items())],
        "compression_format": "",
        "compression_mode": "",
        "relative_file_paths": [one.name for one in files],
        "files": [{"path": one.name, **_times(one.begins_ns, one.ends_ns, sum(one.counts.values()))} for one in files],
        "custom_data": None,
        "ros_distro": os.environ.get("ROS_DISTRO", "unknown"),
    }
    return yaml.safe_dump({"rosbag2_bagfile_information": information}, sort_keys=False)


def compression_mode(file: Path) -> str:
    """Return `FILE`, `MESSAGE`, `STORAGE` or another mode that a metadata file names, in capitals; empty where it names none."""
    if not file.is_file():  # opening a pipe waits for its other end
        return ""
    try:
        found = yaml.safe_load(file.read_text(encoding="utf-8"))["rosbag2_bagfile_information"]["compression_mode"]
    except (OSError, yaml.YAMLError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return ""
    return str(found or "").upper()


def replace_text(path: Path, text: str) -> None:
    """At once: whoever reads it finds the old one or the new one."""
    new = path.with_name(path.name + ".new")
    try:
        new.unlink(missing_ok=True)  # of somebody who was killed; behind a link may lie what is no recording
        with new.open("x", encoding="utf-8") as file:
            file.write(text)
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)


def _times(begins_ns: int, ends_ns: int, count: int) -> dict[str, Any]:
    return {
        "starting_time": {"nanoseconds_since_epoch": begins_ns},
        "duration": {"nanoseconds": ends_ns - begins_ns},
        "message_count": count,
    }


def _topic(channel: Channel, count: int, types: MessageTypes) -> dict[str, Any]:
    return {
        "topic_metadata": {
            "name": channel.topic,
            "type": channel.type,
            "serialization_format": "cdr",
            "offered_qos_profiles": yaml.safe_load(channel.qos) if channel.qos else [],
            "type_description_hash": types.hash(channel.type, channel.definition),
        },
        "message_count": count,
    }

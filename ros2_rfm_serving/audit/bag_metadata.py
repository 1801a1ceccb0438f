"""Contents of `metadata.yaml` of a rosbag2 folder."""

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
from ros2_rfm_serving.private_files import private

VERSION, METADATA = 9, "metadata.yaml"
ROOT = "rosbag2_bagfile_information"


_Dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""Libyaml's classes where available: a factory has thousands of topics, and this file is written every minute."""


@dataclass(frozen=True, kw_only=True)
class Ended:
    """State of a file as far as it is written."""

    name: str
    size: int
    begins_ns: int
    ends_ns: int
    counts: Mapping[int, int]
    """Channel -> number of messages."""


def metadata(
    files: Iterable[Ended], channels: Mapping[int, Channel], types: MessageTypes, custom: Mapping[str, str] | None = None
) -> str:
    """Return the text of `metadata.yaml`; the arguments are those of `information`."""
    return str(yaml.dump({ROOT: information(files, channels, types, custom)}, Dumper=_Dumper, sort_keys=False))


def information(
    files: Iterable[Ended], channels: Mapping[int, Channel], types: MessageTypes, custom: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return the contents of `metadata.yaml` in the form of rosbag2 since version 9 (Jazzy). custom: further facts about the
    recording, by name."""
    files = list(files)
    counts: Counter[int] = sum((Counter(one.counts) for one in files), Counter())
    begins, ends = min((one.begins_ns for one in files), default=0), max((one.ends_ns for one in files), default=0)
    return {
        "version": VERSION,
        "storage_identifier": "mcap",
        **_times(begins, ends, counts.total()),
        "topics_with_message_count": [_topic(channels[number], count, types) for number, count in sorted(counts.items())],
        "compression_format": "",
        "compression_mode": "",
        "relative_file_paths": [one.name for one in files],
        "files": [{"path": one.name, **_times(one.begins_ns, one.ends_ns, sum(one.counts.values()))} for one in files],
        "custom_data": dict(custom) if custom else None,
        "ros_distro": ros_distro(),
    }


def ros_distro() -> str:
    """Return the name of the ROS 2 distribution of this process, as `metadata.yaml` has it."""
    return os.environ.get("ROS_DISTRO", "unknown")


def read_information(file: Path) -> dict[str, Any]:
    """Return the contents of a `metadata.yaml`; empty if the file is missing or unreadable."""
    if not file.is_file():  # opening a pipe waits for its other end
        return {}
    try:
        found = yaml.load(file.read_text(encoding="utf-8"), Loader=_Loader)[ROOT]
    except (OSError, yaml.YAMLError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def compression_mode(file: Path) -> str:
    """Return `FILE`, `MESSAGE`, `STORAGE` or another mode that a metadata file names, in capitals; empty if it names none."""
    return str(read_information(file).get("compression_mode") or "").upper()


def custom_data(file: Path) -> dict[str, str]:
    """Return the further facts about a recording in its metadata file, by name; empty if there are none."""
    found = read_information(file).get("custom_data")
    if not isinstance(found, dict):
        return {}
    return {str(name): str(text) for name, text in found.items() if isinstance(text, str | int | float)}


def replace_text(path: Path, text: str) -> None:
    """Replace a file atomically, for its owner alone: a reader finds the old text or the new one."""
    new = path.with_name(path.name + ".new")
    try:
        new.unlink(missing_ok=True)  # left by a killed process; a link may lead to a file outside the recording
        with open(new, "x", encoding="utf-8", opener=private) as file:
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
            "offered_qos_profiles": _profiles(channel.qos),
            "type_description_hash": types.hash(channel.type, channel.definition),
        },
        "message_count": count,
    }


def _profiles(qos: str) -> Any:
    """Return the QoS profiles that a channel of a file offers; empty if their text is damaged."""
    try:
        return yaml.load(qos, Loader=_Loader) if qos else []
    except (yaml.YAMLError, ValueError, RecursionError):
        return []

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
from ros2_rfm_serving.private_files import private

VERSION, METADATA = 9, "metadata.yaml"


_Dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""Of libyaml where it is there: a factory has thousands of topics, and this is written every minute."""


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A file, as far as it is written."""

    name: str
    size: int
    begins_ns: int
    ends_ns: int
    counts: Mapping[int, int]
    """Channel -> messages."""


def metadata(
    files: Iterable[Ended], channels: Mapping[int, Channel], types: MessageTypes, custom: Mapping[str, str] | None = None
) -> str:
    """Return `metadata.yaml` as rosbag2 has it since version 9 (Jazzy). custom: what else is said of the recording, by name."""
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
        "custom_data": dict(custom) if custom else None,
        "ros_distro": os.environ.get("ROS_DISTRO", "unknown"),
    }
    return str(yaml.dump({"rosbag2_bagfile_information": information}, Dumper=_Dumper, sort_keys=False))


def compression_mode(file: Path) -> str:
    """Return `FILE`, `MESSAGE`, `STORAGE` or another mode that a metadata file names, in capitals; empty where it names none."""
    return str(_information(file, "compression_mode") or "").upper()


def custom_data(file: Path) -> dict[str, str]:
    """Return what else a metadata file says of its recording, by name; empty where it says nothing."""
    found = _information(file, "custom_data")
    return {str(name): str(text) for name, text in found.items()} if isinstance(found, dict) else {}


def _information(file: Path, key: str) -> Any:
    if not file.is_file():  # opening a pipe waits for its other end
        return None
    try:
        return yaml.load(file.read_text(encoding="utf-8"), Loader=_Loader)["rosbag2_bagfile_information"][key]
    except (OSError, yaml.YAMLError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None


def replace_text(path: Path, text: str) -> None:
    """Replace a file at once, for its owner alone: a reader finds the old text or the new one."""
    new = path.with_name(path.name + ".new")
    try:
        new.unlink(missing_ok=True)  # of somebody who was killed; behind a link may lie what is no recording
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
            "offered_qos_profiles": yaml.load(channel.qos, Loader=_Loader) if channel.qos else [],
            "type_description_hash": types.hash(channel.type, channel.definition),
        },
        "message_count": count,
    }

"""Names in the folder of a recording and its `metadata.yaml`, compared with the recorder's records and the contents of its files.

Anyone can rewrite an unsigned `manifest.json`, so neither check relies on it: the recorder's chain names every file that the
recorder began, and all of `metadata.yaml` follows from the messages, the definitions of their topics and the chains.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ros2_rfm_serving.audit.bag import Bag, number_of
from ros2_rfm_serving.audit.bag_metadata import METADATA, Ended, information, read_information
from ros2_rfm_serving.audit.bag_writer import REMOVED_SUFFIX
from ros2_rfm_serving.audit.findings import Finding, Kind
from ros2_rfm_serving.audit.manifest import MANIFEST
from ros2_rfm_serving.audit.mcap_chunk import Channel
from ros2_rfm_serving.audit.recording.recorder import BROKEN

UNFINISHED = (f"{METADATA}.new", f"{MANIFEST}.new", ".mcap.mending")
"""Suffixes of files that a killed recorder or `rfm record --recover` may leave."""
FIXED = ("version", "storage_identifier", "compression_format", "compression_mode")
TOPICS, FILES, CUSTOM, DISTRO = "topics_with_message_count", "files", "custom_data", "ros_distro"
LONGEST = 60
"""Largest number of displayed characters of a text."""
MOST_NAMED = 4
"""Largest number of listed differences of one file; the others are counted."""
Counts = Mapping[str, Mapping[tuple[str, str], int]]
"""File -> topic and type -> number of messages."""


@dataclass(kw_only=True)
class Recorded:
    """Facts about the folder in the recorder's chain."""

    files: set[str] = field(default_factory=set)
    """Every file that it began, by its records."""
    with_pages: set[str] = field(default_factory=set)
    """Files with pages of its own: its last page may begin a file, which no record names."""
    removed: set[str] = field(default_factory=set)
    """Files that it removed."""
    ros_distro: str | None = None
    """`ROS_DISTRO` of its process; None for a version that did not record it."""
    broken: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    """Writer -> number of its chains that broke off, and the reason of the last one."""
    closed: bool = False
    """True if its last record is present."""


def check_names(bag: Bag, recorded: Recorded) -> tuple[list[Finding], list[str]]:
    """Return findings and notes about files in the folder that are not part of the recording."""
    findings, notes = [], []
    for path in sorted(bag.path.iterdir()):
        name = path.name
        if name in (METADATA, MANIFEST) or _is_known(bag, recorded, name):
            continue
        if name.endswith(UNFINISHED):
            notes.append(f"{name}: a process was killed while it wrote this file, which is no part of the recording")
            continue
        findings.append(Finding(kind=Kind.EXTRA, topic="", file=name, problem=_why_extra(bag, recorded, name)))
    return findings, notes


def _is_known(bag: Bag, recorded: Recorded, name: str) -> bool:
    if name.endswith(REMOVED_SUFFIX):
        base = name.removesuffix(REMOVED_SUFFIX)
        return not recorded.closed and (base in recorded.removed or base in recorded.files)
    if not name.endswith(".mcap"):
        return False
    listed = _listed(bag)
    if recorded.files and bag.is_ours:
        began_later = not recorded.closed or name in recorded.with_pages
        return name in recorded.files or (began_later and name in _next_names(bag, recorded))
    return not listed or name in listed or (bag.is_ours and not recorded.closed)


def _listed(bag: Bag) -> set[str]:
    paths = read_information(bag.path / METADATA).get("relative_file_paths")
    return {path for path in paths if isinstance(path, str)} if isinstance(paths, list) else set()


def _next_names(bag: Bag, recorded: Recorded) -> set[str]:
    """Return the names of files that the recorder may have begun after its last record: they are numbered without a gap."""
    there = {one.path.name for one in bag.files}
    last = max(recorded.files, key=lambda name: number_of(bag.path / name))
    number, stem = number_of(bag.path / last)[0], last.removesuffix(".mcap").rstrip("0123456789")
    names = set()
    while (name := f"{stem}{(number := number + 1)}.mcap") in there:
        names.add(name)
    return names


def _why_extra(bag: Bag, recorded: Recorded, name: str) -> str:
    if not name.endswith(".mcap"):
        return "it is no part of the recording, and nothing reads it"
    named_by = "the recorder began no such file" if recorded.files and bag.is_ours else f"{METADATA} does not name it"
    return f"{named_by}: somebody put it there later"


def check_metadata(bag: Bag, counts: Counts, recorded: Recorded, *, exact: bool) -> list[Finding]:
    """Return a finding for each statement of `metadata.yaml` that the files contradict.

    exact: the recorder wrote it last of all. Otherwise it may be older than the files: fewer messages and a shorter time are right.
    """
    stated = read_information(bag.path / METADATA)
    if not stated:
        missing = not (bag.path / METADATA).exists()  # the check of the manifest reports it
        return [] if missing else [_finding("it cannot be read")]
    expected = _expected(bag, counts)
    found = list(_exact(stated, expected) if exact and not recorded.removed else _older(stated, expected, recorded))
    found += _custom(stated.get(CUSTOM), recorded, exact=exact)
    if recorded.ros_distro is not None and stated.get(DISTRO) != recorded.ros_distro:
        found.append(f"{DISTRO} is {_short(stated.get(DISTRO))}, and its recorder had {_short(recorded.ros_distro)}")
    more = [f"and {len(found) - MOST_NAMED} more statements are wrong"] if len(found) > MOST_NAMED else []
    return [_finding(problem) for problem in (*found[:MOST_NAMED], *more)]


def _finding(problem: str) -> Finding:
    return Finding(kind=Kind.BYTES, topic="", file=METADATA, problem=problem)


def _expected(bag: Bag, counts: Counts) -> dict[str, Any]:
    """Return the contents of `metadata.yaml` that follow from the files."""
    numbers: dict[tuple[str, str], int] = {}
    channels: dict[int, Channel] = {}
    for one in bag.files:
        for channel in one.channels.values():
            number = numbers.setdefault((channel.topic, channel.type), len(numbers))
            channels.setdefault(number, channel)
    ended = [
        Ended(
            name=one.path.name,
            size=one.size,
            begins_ns=min(chunk.begins_ns for chunk in one.chunks),
            ends_ns=max(chunk.ends_ns for chunk in one.chunks),
            counts={numbers[key]: count for key, count in counts[one.path.name].items()},
        )
        for one in bag.files
        if counts.get(one.path.name)
    ]
    return information(ended, channels, bag.message_types)


def _keys(stated: Mapping[str, Any], expected: Mapping[str, Any]) -> Iterator[str]:
    yield from (f"it has the key {_short(name)}, which no recorder writes" for name in stated.keys() - expected.keys())


def _exact(stated: Mapping[str, Any], expected: Mapping[str, Any]) -> Iterator[str]:
    yield from _keys(stated, expected)
    yield from _topics(_by_topic(stated), _by_topic(expected), exact=True)
    for name, value in expected.items():
        if name in (TOPICS, CUSTOM, DISTRO):
            continue
        if stated.get(name) != value:
            yield f"{name} is {_short(stated.get(name))}, and the files have {_short(value)}"


def _older(stated: Mapping[str, Any], expected: Mapping[str, Any], recorded: Recorded) -> Iterator[str]:
    """Yield the statements that could not have been right at any time while the files grew."""
    yield from _keys(stated, expected)
    for name in FIXED:
        if stated.get(name) != expected[name]:
            yield f"{name} is {_short(stated.get(name))}, and the files have {_short(expected[name])}"
    if not recorded.removed:
        yield from _topics(_by_topic(stated), _by_topic(expected), exact=False)
    files = {one["path"]: one for one in expected[FILES]}
    paths = stated.get("relative_file_paths")
    for path in paths if isinstance(paths, list) else ():
        if path not in files and path not in recorded.removed and path not in recorded.files:
            yield f"it names {_short(path)}, which is no file of the recording"
    entries = stated.get(FILES)
    for entry in entries if isinstance(entries, list) else ():
        file = files.get(entry.get("path")) if isinstance(entry, dict) and isinstance(entry.get("path"), str) else None
        if file is not None and not _is_within(entry, file):
            yield f"it states more messages or another time for {file['path']} than the file has"
    counts = [_total(stated.get(TOPICS)), _total(entries), stated.get("message_count")]
    if counts.count(counts[0]) != len(counts):
        by_topic, by_file, in_all = map(_short, counts)
        yield f"its counts of messages differ: {by_topic} by topic, {by_file} by file, {in_all} in all"
    if not recorded.removed and not _is_within(stated, expected):
        yield "it states more messages or another time than the files have"


def _total(entries: Any) -> int:
    counts = (one.get("message_count") for one in entries if isinstance(one, dict)) if isinstance(entries, list) else ()
    return sum(count for count in counts if isinstance(count, int))


def _is_within(stated: Mapping[str, Any], there: Mapping[str, Any]) -> bool:
    try:
        begins, there_begins = (int(one["starting_time"]["nanoseconds_since_epoch"]) for one in (stated, there))
        lasts, there_lasts = (int(one["duration"]["nanoseconds"]) for one in (stated, there))
        count = int(stated["message_count"])
    except (LookupError, TypeError, ValueError):
        return False
    return (
        0 <= count <= there["message_count"]
        and begins >= there_begins
        and lasts >= 0
        and begins + lasts <= there_begins + there_lasts
    )


def _by_topic(contents: Mapping[str, Any]) -> dict[tuple[str, str], Mapping[str, Any]]:
    """Return the entries of topics; repeated and malformed entries get distinct keys."""
    found: dict[tuple[str, str], Mapping[str, Any]] = {}
    entries = contents.get(TOPICS)
    for number, one in enumerate(entries if isinstance(entries, list) else ()):
        about = one.get("topic_metadata") if isinstance(one, dict) else None
        name, kind = (about.get("name"), about.get("type")) if isinstance(about, dict) else (None, None)
        key = (name, kind) if isinstance(name, str) and isinstance(kind, str) else (f"entry {number}", "")
        found[key if key not in found else (f"{key[0]} (again)", key[1])] = one if isinstance(one, dict) else {}
    return found


def _topics(
    stated: Mapping[tuple[str, str], Mapping[str, Any]], expected: Mapping[tuple[str, str], Mapping[str, Any]], *, exact: bool
) -> Iterator[str]:
    for key, one in stated.items():
        there = expected.get(key)
        if there is None:
            yield f"it names the topic {key[0]} of type {key[1]}, and no file has messages of it"
            continue
        if one.get("topic_metadata") != there["topic_metadata"]:
            yield f"it describes the topic {key[0]} otherwise than the files do"
        count, has = one.get("message_count"), there["message_count"]
        if not isinstance(count, int) or count > has or count < 0 or (exact and count != has):
            yield f"it counts {_short(count)} messages of {key[0]}, and the files have {has}"
    if exact:
        yield from (
            f"it does not name the topic {key[0]}, of which the files have messages" for key in expected.keys() - stated.keys()
        )


def _custom(stated: Any, recorded: Recorded, *, exact: bool) -> Iterator[str]:
    """Yield differences of the chains that broke off; they are not all known where the recorder removed files."""
    facts = stated if isinstance(stated, dict) else {}
    if stated is not None and not isinstance(stated, dict):
        yield f"{CUSTOM} is {_short(stated)}"
    yield from (f"{CUSTOM} has {_short(name)}, which no recorder writes" for name in facts.keys() - {BROKEN})
    try:
        listed = {str(writer): (int(count), str(why)) for writer, (count, why) in json.loads(facts.get(BROKEN, "{}")).items()}
    except (ValueError, TypeError, AttributeError, RecursionError):
        yield f"{CUSTOM} names chains that broke off in a form that no recorder writes"
        return
    if recorded.removed:
        return
    there = recorded.broken
    right = listed == there if exact else all(count <= there.get(writer, (0, ""))[0] for writer, (count, _) in listed.items())
    if not right:
        yield f"{CUSTOM} names other chains that broke off than the records do: {_names(listed)}; the records: {_names(there)}"


def _names(broken: Collection[str]) -> str:
    return ", ".join(sorted(broken)) or "none"


def _short(value: Any) -> str:
    """Return a value of `metadata.yaml` for people. Containers are shown without contents: aliases could make them of any size."""
    if isinstance(value, str):
        return repr(value) if len(value) <= LONGEST else f"{value[:LONGEST]!r}..."
    if value is None or isinstance(value, bool | int | float):
        return repr(value) if not isinstance(value, int) or value.bit_length() < 128 else "a number that no recording has"
    if isinstance(value, dict) and value.keys() <= {"nanoseconds_since_epoch", "nanoseconds"}:
        return ", ".join(f"{_short(one)} ns" if isinstance(one, int) else "no time" for one in value.values()) or "no time"
    return f"another {type(value).__name__}"

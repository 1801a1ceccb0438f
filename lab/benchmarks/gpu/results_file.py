"""A folder of results as one file: written anew after every piece, whole at every instant, and a folder again on the next machine.

A compressed tar archive. Its first member lists the others with their SHA-256, and names the machine.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import shutil
import tarfile
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import NoReturn

from lab.benchmarks.gpu.machine import Machine, machine_from
from lab.benchmarks.gpu.rows import replace
from lab.benchmarks.gpu.runner import MACHINE, difference
from ros2_rfm_serving.errors import ConfigurationError

INDEX = "index.json"
FORMAT = "rfm bench gpu, results, 1"
LAST_OF_LOG = 32_768
"""Bytes of a log that are kept."""
MOST_BYTES = 16 * 2**20
"""Limit of the compressed file, which a borrowed machine returns."""
MOST_UNPACKED_BYTES = 64 * 2**20
MOST_FILES = 2000
PATTERNS = ("*.csv", "*.md", MACHINE, "state/*.json", "logs/*.log", "profiles/*.csv", "rosa/*.csv", "rosa/*.txt", "rosa/*.md")
SAVED_EVERY_S = 5.0
"""Seconds between two saves while a piece runs, if it has measured something."""
DAMAGED = (OSError, EOFError, ValueError, KeyError, TypeError, tarfile.TarError, zlib.error)


@dataclass(frozen=True, kw_only=True)
class Results:
    """Contents of a results file, as they were written."""

    file: Path
    machine: Machine
    files: Mapping[str, bytes]
    """Contents by path below the folder of results."""


@dataclass
class Saver:
    """Saver that keeps a results file up to date with its folder."""

    out: Path
    file: Path
    clock: Callable[[], float] = time.monotonic
    _seen: tuple[tuple[str, int, int], ...] = field(default=(), init=False)
    _looked_s: float = field(default=0.0, init=False)

    def save(self) -> None:
        """Write the file. Raises: `ConfigurationError` when it cannot be written; then it is unchanged."""
        self._seen = self._state()
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            write(self.out, self.file)
        except OSError as error:
            fix = "make room or choose another file; the same command goes on"
            raise ConfigurationError(
                f"cannot be written: {error.strerror}", file=str(self.file), key="--bundle", fix=fix
            ) from error

    def save_if_changed(self) -> None:
        """Save the results of a running piece at intervals. Raises: as `save`."""
        if self.clock() - self._looked_s < SAVED_EVERY_S:
            return
        self._looked_s = self.clock()
        if self._state() != self._seen:
            self.save()

    def _state(self) -> tuple[tuple[str, int, int], ...]:
        """Return the state of the files except logs, which change all the time without results."""
        found = []
        for path in _paths(self.out):
            if path.suffix != ".log":
                status = path.stat()
                found.append((str(path), status.st_mtime_ns, status.st_size))
        return tuple(found)


def write(out: Path, file: Path) -> None:
    """Write the results of a folder to a file, at once or not at all. Raises: `OSError`."""
    found = {path.relative_to(out).as_posix(): _content(path) for path in _paths(out)}
    data = _packed(found)
    if len(data) > MOST_BYTES:
        data = _packed({name: content for name, content in found.items() if not name.startswith("logs/")})
    replace(file, data)


def _paths(out: Path) -> Iterator[Path]:
    for pattern in PATTERNS:
        yield from sorted(path for path in out.glob(pattern) if path.is_file() and not path.is_symlink())


def _content(path: Path) -> bytes:
    data = path.read_bytes()
    return data[-LAST_OF_LOG:] if path.suffix == ".log" else data


def _packed(files: Mapping[str, bytes]) -> bytes:
    """Return the archive; the same files give the same bytes."""
    machine = json.loads(files[MACHINE])
    sums = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    index = json.dumps({"format": FORMAT, "machine": machine, "files": sums}, indent=1).encode()
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as compressed, tarfile.open(fileobj=compressed, mode="w") as archive:
        for name, data in {INDEX: index, **files}.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return packed.getvalue()


def read(file: Path) -> Results:
    """Read a file of results whole. Raises: `ConfigurationError` for one that is not there, damaged, or no file of results."""
    if not file.is_file():
        raise ConfigurationError(
            "is not there", file=str(file), key="--from", fix="name the file that --bundle wrote, or leave it out"
        )
    try:
        members = _members(file)
        index = json.loads(members.pop(INDEX))
    except DAMAGED as error:
        _refuse(file, f"is damaged, or no file of results: {error or type(error).__name__}")
    if not isinstance(index, dict) or index.get("format") != FORMAT or not isinstance(index.get("files"), dict):
        _refuse(file, f"is no file of results: its {INDEX} does not say {FORMAT!r}")
    if machine_from(index.get("machine")) is None or MACHINE not in members:
        _refuse(file, "does not say of which machine it is")
    for name in sorted(members.keys() | index["files"].keys()):
        if name not in members:
            _refuse(file, f"is damaged: {name} is missing")
        if hashlib.sha256(members[name]).hexdigest() != index["files"].get(name):
            _refuse(file, f"is damaged: {name} is not as it was written")
    machine = machine_from(json.loads(members[MACHINE]))
    if machine is None or machine != machine_from(index["machine"]):
        _refuse(file, f"is damaged: {MACHINE} names another machine than {INDEX}")
    return Results(file=file, machine=machine, files=members)


def _members(file: Path) -> dict[str, bytes]:
    """Return the members. Raises: one of `DAMAGED`."""
    found: dict[str, bytes] = {}
    with gzip.open(file) as compressed:  # read to the end, where the checksum is
        whole = compressed.read(MOST_UNPACKED_BYTES + 1)
    if len(whole) > MOST_UNPACKED_BYTES:
        raise ValueError(f"more than {MOST_UNPACKED_BYTES} bytes")
    with tarfile.open(fileobj=io.BytesIO(whole), mode="r:") as archive:
        for member in archive:
            path = PurePosixPath(member.name)
            if not member.isreg() or path.is_absolute() or ".." in path.parts or member.name != path.as_posix():
                raise ValueError(f"{member.name!r} is not a file below the folder of results")
            if member.name != INDEX and not any(path.match(pattern) for pattern in PATTERNS if _depth(pattern) == len(path.parts)):
                raise ValueError(f"{member.name!r} is none of its files")
            if len(found) >= MOST_FILES or member.name in found:
                raise ValueError(f"more than {MOST_FILES} files, or {member.name!r} twice")
            data = archive.extractfile(member)
            found[member.name] = data.read() if data else b""
    return found


def _depth(pattern: str) -> int:
    return len(PurePosixPath(pattern).parts)


def _refuse(file: Path, problem: str) -> NoReturn:
    fix = "name another file that --bundle wrote, or leave --from out and measure anew"
    raise ConfigurationError(problem, file=str(file), key="--from", fix=fix)


def unpack(results: Results, out: Path, machine: Machine) -> None:
    """Make the file a folder again, at once or not at all, in which a run goes on.

    Raises: `ConfigurationError` for results of another machine, and for a folder that holds files already or cannot be written.
    """
    if problem := difference(results.machine.columns(), machine):
        fix = "go on where it was measured; plan and rosa run anywhere: --piece plan --piece rosa"
        raise ConfigurationError(f"is of another machine: {problem}", file=str(results.file), key="--from", fix=fix)
    partial = out.with_name(out.name + ".partial")
    try:
        if out.exists() and any(out.iterdir()):
            fix = "choose a folder that is empty or not there; without --from the run goes on with what the folder holds"
            raise ConfigurationError("holds files already", file=str(out), key="--out", fix=fix)
        shutil.rmtree(partial, ignore_errors=True)
        for name, data in results.files.items():
            target = partial / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
        if out.exists():
            out.rmdir()
        partial.rename(out)
    except OSError as error:
        fix = "make room or choose another folder"
        raise ConfigurationError(f"cannot be written: {error.strerror}", file=str(out), key="--out", fix=fix) from error

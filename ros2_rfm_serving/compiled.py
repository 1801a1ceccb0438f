"""Virtual time in machine code: what a request passes through there, compiled by `rfm compile` from the same source.

What was compiled is kept in the user's cache under a digest of the source: whoever has changed a line is interpreted again. The
live body, the audit log and its replays are always interpreted: they take brains apart, attribute by attribute, which machine code
does not let them, and are given classes of others.
"""

from __future__ import annotations

import hashlib
import os
import stat
import sys
from collections.abc import Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

PACKAGE = Path(__file__).resolve().parent
SWITCH = "RFM_COMPILED"
"""`no`: interpreted, whatever has been compiled."""
SUFFIX = EXTENSION_SUFFIXES[0]
"""Of files that this interpreter loads, and no other."""
ROOMS = ("types", "factory", "profiles", "engines", "dispatch", "scheduler", "server", "robot", "virtual_time", "simulation")
"""Whose source the digest is of: all that is looked at while compiling."""
MODULES = (
    *(f"types.{name}" for name in ("following", "histogram", "patience", "phase")),
    *(f"robot.{name}" for name in ("brain", "figures", "history", "parts", "supervision", "task", "tasks")),
    *(f"robot.conversation.{name}" for name in ("calls", "conversation", "due", "flight", "latency", "link", "links")),
    *(f"robot.conversation.{name}" for name in ("presence", "requests")),
    *(f"robot.motion.{name}" for name in ("action_queue", "failsafe", "fallback", "gate", "motion", "pace", "shaping")),
    *("robot.motion.smoothness", "robot.motion.trail"),
    *(f"server.{name}" for name in ("brain", "server", "mailboxes", "figures", "tiers", "intake", "replies")),
    *(f"server.{name}" for name in ("deciding", "loop", "stepping", "running", "quota")),
    *(f"dispatch.{name}" for name in ("batching", "dispatcher", "entering", "history", "service_times", "waiting")),
    *(f"simulation.{name}" for name in ("robot", "host", "goodput", "gpu", "wire", "stays", "timing")),
    *(f"virtual_time.{name}" for name in ("events", "rounds")),
)
"""Where a request spends its time. None whose classes are extended elsewhere, or read as classes: a default of `RobotConfig`."""


class CompiledModules(MetaPathFinder):
    """Finds them before Python finds their source."""

    def __init__(self, folder: Path) -> None:
        self._files = {_name(file.relative_to(folder)): file for file in folder.rglob(f"*{SUFFIX}")}

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        file = self._files.get(name)
        return spec_from_file_location(name, file) if file else None


def _name(file: Path) -> str:
    return ".".join([*file.parts[:-1], file.name.removesuffix(SUFFIX)])


def sources() -> Iterator[Path]:
    """Below `PACKAGE`, in a fixed order."""
    yield from sorted(PACKAGE.glob("*.py"))
    for room in ROOMS:
        yield from sorted((PACKAGE / room).rglob("*.py"))


def cache() -> Path:
    """This package's own folder of the user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / PACKAGE.name


def own_folder(name: str) -> Path:
    """A folder of the cache, made where it is missing, that nobody else can write to.

    Raises: `OSError`, `PermissionError` where others could; `RuntimeError`: nobody knows the user's home.
    """
    made = cache() / name
    made.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not is_own(made):
        raise PermissionError(f"others can write to {made}")
    return made


def home() -> Path:
    """Of all that was ever compiled."""
    return cache() / "compiled"


def folder() -> Path:
    """Of what was compiled from this very source for this interpreter, if it was."""
    digest = hashlib.sha256(SUFFIX.encode())
    for file in sources():
        digest.update(str(file.relative_to(PACKAGE)).encode() + b"\0" + file.read_bytes() + b"\0")
    return home() / digest.hexdigest()[:32]


def is_own(found: Path) -> bool:
    """Nobody but this user can have put anything into it: what lies there is executed."""
    try:
        about = found.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid() and not about.st_mode & 0o022


def use() -> bool:
    """From now on, and before one of `MODULES` is imported. False: nothing is compiled of this source, `SWITCH` says no, or another
    user could have written it (`is_own`)."""
    if os.environ.get(SWITCH) == "no" or not is_own(found := folder()):
        return False
    early = [name for name in MODULES if f"{PACKAGE.name}.{name}" in sys.modules]
    assert not early, f"imported before it could be found compiled: {', '.join(early)}"
    sys.meta_path.insert(0, CompiledModules(found))
    return True


def in_use() -> bool:
    return any(isinstance(finder, CompiledModules) for finder in sys.meta_path)

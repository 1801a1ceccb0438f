"""Compiled modules of virtual time: machine code that `rfm compile` builds of the modules that every simulated request passes.

Compiled modules are stored in the user's cache under a digest of the source: after a change of any line, the source is interpreted
again. The live adapter, the audit log and its replays always use interpreted code: they access cores attribute by attribute and
replace their classes, which machine code does not allow.
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
"""Environment variable; `no`: the source is interpreted, whatever has been compiled."""
SUFFIX = EXTENSION_SUFFIXES[0]
"""File name suffix of the extension modules that this interpreter loads."""
ROOMS = ("types", "factory", "profiles", "engines", "dispatch", "scheduler", "server", "robot", "virtual_time", "simulation")
"""Packages whose source enters the digest: all that the compiler reads."""
MODULES = (
    *(f"types.{name}" for name in ("schedule_follower", "histogram", "batch_wait", "desynchronisation")),
    *(f"robot.{name}" for name in ("core", "figures", "history", "parts", "task_rules", "task", "tasks")),
    *(
        f"robot.client.{name}"
        for name in (
            "calls",
            "request_scheduler",
            "request_timing",
            "pending_requests",
            "latency",
            "component_client",
            "server_clients",
        )
    ),
    *(f"robot.client.{name}" for name in ("server_liveness", "requests")),
    *(
        f"robot.motion.{name}"
        for name in ("action_queue", "failsafe", "fallback", "chunk_validator", "command_generator", "pace", "shaping")
    ),
    *("robot.motion.smoothness", "robot.motion.trail"),
    *(f"server.{name}" for name in ("core", "server", "mailboxes", "figures", "engine_queues", "intake", "replies")),
    *(f"server.{name}" for name in ("core_access", "loop", "step_engine_runner", "engine_runner", "quota")),
    *(f"dispatch.{name}" for name in ("batching", "dispatcher", "batch_entry", "history", "service_times", "waiting_request")),
    *(f"simulation.{name}" for name in ("robot", "simulated_server", "goodput", "gpu", "wire", "chunk_continuity", "timing")),
    *(f"virtual_time.{name}" for name in ("events", "iterations")),
)
"""Modules in which a request spends its time. Modules whose classes are extended elsewhere, or read as classes (the defaults of
`RobotConfig`), are not among them."""


class CompiledModules(MetaPathFinder):
    """Import hook that finds compiled modules before Python finds their source."""

    def __init__(self, folder: Path) -> None:
        self._files = {_name(file.relative_to(folder)): file for file in folder.rglob(f"*{SUFFIX}")}

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        file = self._files.get(name)
        return spec_from_file_location(name, file) if file else None


def _name(file: Path) -> str:
    return ".".join([*file.parts[:-1], file.name.removesuffix(SUFFIX)])


def sources() -> Iterator[Path]:
    """Yield the source files below `PACKAGE`, in a fixed order."""
    yield from sorted(PACKAGE.glob("*.py"))
    for room in ROOMS:
        yield from sorted((PACKAGE / room).rglob("*.py"))


def cache() -> Path:
    """Return this package's own folder of the user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / PACKAGE.name


def own_folder(name: str) -> Path:
    """Return a folder of the cache that only the user can write to. It is created where it is missing.

    Raises: `OSError`; `PermissionError` where other users could write to it; `RuntimeError` when the user's home is not known.
    """
    made = cache() / name
    made.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not is_own(made):
        raise PermissionError(f"others can write to {made}")
    return made


def home() -> Path:
    """Return the folder of everything that was ever compiled."""
    return cache() / "compiled"


def folder() -> Path:
    """Return the folder for modules compiled from exactly this source for this interpreter, which need not exist."""
    digest = hashlib.sha256(SUFFIX.encode())
    for file in sources():
        digest.update(str(file.relative_to(PACKAGE)).encode() + b"\0" + file.read_bytes() + b"\0")
    return home() / digest.hexdigest()[:32]


def is_own(found: Path) -> bool:
    """Return whether only this user can have put anything into a folder: the files in it are executed."""
    try:
        about = found.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid() and not about.st_mode & 0o022


def use() -> bool:
    """Use the compiled modules from now on. Call it before one of `MODULES` is imported.

    Returns False when nothing is compiled of this source, `SWITCH` says no, or another user could have written it (`is_own`).
    """
    if os.environ.get(SWITCH) == "no" or not is_own(found := folder()):
        return False
    early = [name for name in MODULES if f"{PACKAGE.name}.{name}" in sys.modules]
    assert not early, f"imported before it could be found compiled: {', '.join(early)}"
    sys.meta_path.insert(0, CompiledModules(found))
    return True


def in_use() -> bool:
    return any(isinstance(finder, CompiledModules) for finder in sys.meta_path)

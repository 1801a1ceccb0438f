"""Check of a user's own files through the page: its request and its result."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from ros2_rfm_serving.monitoring.dashboard.control import NAME

MAX_CHECK_BYTES = 256 * 1024
MAX_FILES = 8
MAX_NAME = 200
SUFFIXES = (".yaml", ".yml", ".csv")


class WantedCheck(NamedTuple):
    file: str
    """Descriptor: a path on the page's machine, or one of `texts`."""
    texts: Mapping[str, str]
    """Name -> content of pasted files; empty: `file` is on the page's machine."""
    live: bool
    """Compare it with the running graph as well."""


class CheckResult(NamedTuple):
    valid: bool
    lines: list[str]
    """Output of `rfm check`."""
    command: str
    """Shell command for the same check."""


Check = Callable[[WantedCheck], CheckResult]
Why = Callable[[str], dict[str, Any]]
"""Function that finds causes for a robot, a server, or (empty) the whole factory."""


def read_check(body: bytes) -> WantedCheck:
    """Return a check from the body of a request. Raises: `ValueError` with the problem if it is invalid."""
    try:
        told: Any = json.loads(body)
    except (ValueError, RecursionError):
        raise ValueError("the body is no JSON") from None
    if not isinstance(told, dict):
        raise ValueError('write {"file": ..., "texts": {...}, "live": false}')
    file, texts, live = told.get("file", ""), told.get("texts", {}), told.get("live", False)
    if not isinstance(file, str) or not 0 < len(file) <= MAX_NAME or not file.isprintable() or file.startswith("-"):
        raise ValueError("file: the name of a descriptor, such as factory.yaml")
    if not isinstance(live, bool):
        raise ValueError("live: true or false")
    if not isinstance(texts, dict) or len(texts) > MAX_FILES:
        raise ValueError(f"texts: at most {MAX_FILES} files by name")
    for name, text in texts.items():
        _check_text(name, text)
    if texts and file not in texts:
        raise ValueError(f"texts: has no {file!r}, which is to be checked")
    return WantedCheck(file, texts, live)


def read_why(body: bytes) -> str:
    """Return the robot or server whose causes are requested; empty: the whole factory. Raises: `ValueError` for an invalid body."""
    try:
        told: Any = json.loads(body)
    except (ValueError, RecursionError):
        raise ValueError("the body is no JSON") from None
    name = told.get("name", "") if isinstance(told, dict) else None
    if not isinstance(name, str) or (name and not NAME.fullmatch(name)):
        raise ValueError('write {"name": "arm_1"}: a robot or a server; empty: the whole factory')
    return name


def _check_text(name: str, text: Any) -> None:
    """Check a pasted file. Raises: `ValueError` for a name that would leave the folder of the pasted files."""
    path = PurePosixPath(name)
    if not isinstance(text, str):
        raise ValueError(f"texts: {name[:MAX_NAME]!r} is no text")
    is_inside = not path.is_absolute() and ".." not in path.parts and "\\" not in name
    if not 0 < len(name) <= MAX_NAME or not name.isprintable() or not is_inside or path.suffix not in SUFFIXES:
        raise ValueError(f"texts: a file's name is relative, without `..`, and ends in {', '.join(SUFFIXES)}")

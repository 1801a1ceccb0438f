"""Message definitions for recorders and viewers: the text of a type and of all types that it contains (`ros2msg`)."""

from __future__ import annotations

import functools
import importlib
import re
import sys
from pathlib import Path
from typing import Any

from ament_index_python.packages import PackageNotFoundError, get_package_share_directory

from ros2_rfm_serving.ros.node.runtime import share

PRIMITIVES = {
    *("bool", "byte", "char", "float32", "float64", "string", "wstring"),
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
}
FEEDBACK = "_FeedbackMessage"
UUID, UUID_FILE = "unique_identifier_msgs/UUID", ("unique_identifier_msgs", "msg", "UUID")
SEPARATOR = "=" * 80
FIELD = re.compile(r"^\s*([A-Za-z][\w/]*)(?:<=\d+)?(?:\[[^\]]*\])?\s+[A-Za-z]\w*", re.ASCII)


@functools.cache
def message(kind: str) -> str:
    """Return the definition of a message such as `rfm_serving/msg/RobotStatus`. Raises: `KeyError` when it is not installed."""
    package, _, name = kind.split("/")
    return _with_parts(_file(package, "msg", name), package)


@functools.cache
def service(kind: str) -> tuple[str, str]:
    """Return request and response of a service such as `std_srvs/srv/Trigger`. Raises: `KeyError` when it is not installed."""
    package, _, name = kind.split("/")
    request, response = re.split(r"^---\s*$", _file(package, "srv", name), maxsplit=1, flags=re.MULTILINE)
    return _with_parts(request, package), _with_parts(response, package)


def text(kind: str) -> str:
    """Return the definition of a message, or of an action's feedback. Raises: `KeyError` when it is not installed."""
    package, folder, name = kind.split("/")
    if folder != "action":
        return message(kind)
    action = name.removesuffix(FEEDBACK)
    feedback = re.split(r"^---\s*$", _file(package, "action", action), flags=re.MULTILINE)[2]
    parts = {f"{package}/{action}_Feedback": feedback}
    _collect(feedback, package, parts)
    return _joined(f"unique_identifier_msgs/UUID goal_id\n{package}/{action}_Feedback feedback", parts | {UUID: _file(*UUID_FILE)})


def any_class(kind: str) -> Any:
    """Return a message class, also of an action's feedback, `rfm_serving/action/ExecuteTask_FeedbackMessage`.
    Raises: as `python_class`."""
    if not kind.endswith(FEEDBACK):
        return python_class(kind)
    return python_class(kind.removesuffix(FEEDBACK)).Impl.FeedbackMessage


def python_class(kind: str) -> Any:
    """Return the class of a message or service. Raises: `ImportError` or `AttributeError` when it is not installed."""
    package, folder, name = kind.split("/")
    return getattr(importlib.import_module(f"{package}.{folder}"), name)


def _with_parts(text: str, package: str) -> str:
    parts: dict[str, str] = {}
    _collect(text, package, parts)
    return _joined(text, parts)


def _joined(text: str, parts: dict[str, str]) -> str:
    return "\n".join([text.rstrip("\n"), *(f"{SEPARATOR}\nMSG: {name}\n{part.rstrip()}" for name, part in parts.items())]) + "\n"


def _collect(text: str, package: str, parts: dict[str, str]) -> None:
    for line in text.splitlines():
        match = FIELD.match(line.partition("#")[0])
        if match is None or match[1] in PRIMITIVES:
            continue
        owner, _, name = match[1].rpartition("/")
        owner = owner.partition("/")[0] or package
        if f"{owner}/{name}" not in parts:
            part = parts[f"{owner}/{name}"] = _file(owner, "msg", name)
            _collect(part, owner, parts)


def _file(package: str, folder: str, name: str) -> str:
    share()  # finds the prefix when no setup file was sourced
    try:
        return (_share_of(package) / folder / f"{name}.{folder}").read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise KeyError(f"{package}/{folder}/{name}: {error}") from None


def _share_of(package: str) -> Path:
    try:
        return Path(get_package_share_directory(package))
    except PackageNotFoundError:  # a workspace that was built on the wheels does not list them
        return Path(sys.prefix) / "share" / package

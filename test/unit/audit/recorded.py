"""Recordings for tests, made without ROS: definitions from `msg/` and the library's, bytes by its serializer."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
from rosbags.interfaces import Nodetype
from rosbags.typesys import Stores, get_types_from_msg, get_typestore

from ros2_rfm_serving.audit.bag_writer import BagWriter
from ros2_rfm_serving.audit.chain import Page

MESSAGES = Path(__file__).parents[3] / "msg"
SEPARATOR = "=" * 80


@functools.cache
def _store() -> Any:
    store = get_typestore(Stores.ROS2_JAZZY)
    found: dict[str, Any] = {}
    for file in sorted(MESSAGES.glob("*.msg")):
        found |= get_types_from_msg(file.read_text(encoding="utf-8"), f"rfm_serving/msg/{file.stem}")
    store.register(found)
    return store


@functools.cache
def definition(kind: str) -> str:
    """`ros2msg`, with all that it is made of, of `rfm_serving/msg/Observation`."""
    text, _ = _store().generate_msgdef(kind, ros_version=2)
    return str(text)


def cdr(kind: str, **fields: Any) -> bytes:
    """Fields: as the library wants them; those that are not named are empty."""
    return bytes(_store().serialize_cdr(made(kind, **fields), kind))


def made(kind: str, **fields: Any) -> Any:
    """A message."""
    empty = _store().types[kind]
    return empty(**{name: fields.get(name, _empty(found)) for name, found in _store().fielddefs[kind][1]})


def page(page: Page) -> bytes:
    """An `AuditPage`."""
    return cdr(
        "rfm_serving/msg/AuditPage",
        writer=page.writer,
        run=page.run,
        first=page.first,
        previous=page.previous,
        records=b"\n".join(page.lines).decode(),
    )


def write(bag: BagWriter, topic: str, kind: str, time_ns: int, **fields: Any) -> None:
    bag.write(topic, kind, definition(kind), cdr(kind, **fields), time_ns)


def _empty(found: Any) -> Any:
    form, about = found
    if form == Nodetype.NAME:
        return made(about)
    if form == Nodetype.BASE:
        return {"string": "", "bool": False, "float32": 0.0, "float64": 0.0}.get(about[0], 0)
    (inner, kind), size = about
    if inner == Nodetype.NAME or kind[0] == "string":
        return [_empty((inner, kind)) for _ in range(size)]
    return np.zeros(size, dtype=kind[0])

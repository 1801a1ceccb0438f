"""Chains of a recording on one time axis, in seconds from its beginning."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ros2_rfm_serving.audit import codec
from ros2_rfm_serving.audit.chain import Page, check_format, records
from ros2_rfm_serving.errors import RfmError

Record = Mapping[str, Any]
T = TypeVar("T")


@dataclass
class Chain:
    """Chain of one core, for as long as it was recorded."""

    writer: str
    role: str
    stamp_s: float
    """ROS time at the writer's second 0."""
    records: list[Record] = field(default_factory=list)
    begins_s: float = 0.0
    """ROS time at which the recording begins."""

    def at_s(self, t: float) -> float:
        """Return the time of an instant on the writer's clock."""
        return self.stamp_s + t - self.begins_s

    def of(self, *kinds: str) -> Iterator[tuple[float, Record]]:
        """Yield time and record of these kinds."""
        return ((self.at_s(record["t"]), record) for record in self.records if record["kind"] in kinds)


def chains_of(pages: Iterable[Page]) -> list[Chain]:
    """Return the chains whose beginning was recorded, in its order. Raises: `RfmError` for a chain of another format."""
    found: dict[tuple[str, int], Chain] = {}
    for page in pages:
        for record in records(page):
            check_format(page.writer, record)
            if record["kind"] == "begin":
                found[page.writer, page.run] = Chain(page.writer, record["role"], record["stamp"] - record["t"])
            if chain := found.get((page.writer, page.run)):
                chain.records.append(record)
    chains = list(found.values())
    begins_s = min((chain.stamp_s + chain.records[0]["t"] for chain in chains), default=0.0)
    for chain in chains:
        chain.begins_s = begins_s
    return chains


def first(found: Any, kind: type[T]) -> T | None:
    """Return the first value of a class in the codec's output, at any depth; None without one.
    Raises: `RfmError` when it cannot be read."""
    raw = _first_raw(found, codec.NAMES[kind])
    if raw is None:
        return None
    value = codec.value(raw)
    if not isinstance(value, kind):
        raise RfmError(f"no {kind.__name__} of a recording: {value!r:.80}")
    return value


def _first_raw(found: Any, name: str) -> Any:
    """Return the first object of a class in its recorded form, at any depth; None without one."""
    if isinstance(found, dict):
        if found.get("~") == name:
            return found
        inner: Sequence[Any] = list(found.values())
    else:
        inner = found if isinstance(found, list) else ()
    return next((one for value in inner if (one := _first_raw(value, name)) is not None), None)

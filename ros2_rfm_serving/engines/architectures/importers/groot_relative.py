"""Actions of GR00T N1.6 and N1.7 that are counted from the state: key by key, each action of a chunk with statistics of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ros2_rfm_serving.engines.architectures.importers.files import Json
from ros2_rfm_serving.engines.architectures.importers.groot import span_of
from ros2_rfm_serving.engines.architectures.manifest import Affine
from ros2_rfm_serving.errors import ModelError

Statistics = Mapping[str, Mapping[str, Any]]
"""Key -> what -> numbers"""


class Relative(NamedTuple):
    sources: tuple[int | None, ...] = ()
    """Of each action the column of the state that it is counted from"""
    action: Affine | None = None
    """None: as that of actions which are not relative"""


def relative_of(statistics: Json, tag: str, configs: Sequence[Any], own: Mapping[str, Statistics], percentiles: bool) -> Relative:
    """configs: `action_configs`; own: statistics of state and action. Raises: `ModelError`, for poses too: they are turned.

    Relative keys go by their least and largest, whatever the others do (`percentiles`).
    """
    state, action, where = own["state"], own["action"], f"{statistics.file}: {tag}"
    told = dict(zip(action, configs, strict=True))
    counted = {key: str(each.get("state_key") or key) for key, each in told.items() if each["rep"].lower() == "relative"}
    if not counted:
        return Relative()
    for key, name in counted.items():
        if told[key]["type"].lower() != "non_eef":
            raise ModelError(f"{where}: {key}: poses relative to a pose are not supported")
        if name not in state or len(state[name]["min"]) != len(action[key]["min"]):
            raise ModelError(f"{where}: {key} is relative to the state {name!r}, which is not there with as many columns")
    relative = statistics.map(tag, "relative_action")
    if missing := [key for key in counted if key not in relative]:
        raise ModelError(f"{where}.relative_action.{missing[0]} is missing")
    sources = [column for key in action for column in _sources(state, counted.get(key), len(action[key]["min"]))]
    low, high = ("q01", "q99") if percentiles else ("min", "max")
    spans = {
        key: (relative[key]["min"], relative[key]["max"]) if key in counted else (each[low], each[high])
        for key, each in action.items()
    }
    lengths = {len(span[0]) for key, span in spans.items() if _has_lines(span[0])}
    if len(lengths) > 1:
        raise ModelError(f"{where}.relative_action: chunks of {sorted(lengths)} actions")
    lines = [
        span_of({key: {"min": _line(low, i), "max": _line(high, i)} for key, (low, high) in spans.items()})
        for i in range(max(lengths, default=1))
    ]
    return Relative(
        tuple(sources),
        Affine(
            offset=tuple(value for line in lines for value in line.offset),
            scale=tuple(value for line in lines for value in line.scale),
            lines=len(lines),
        ),
    )


def _sources(state: Statistics, name: str | None, columns: int) -> list[int | None]:
    if name is None:
        return [None] * columns
    first = sum(len(state[key]["min"]) for key in list(state)[: list(state).index(name)])
    return list(range(first, first + columns))


def _has_lines(values: Sequence[Any]) -> bool:
    """Numbers for each action of a chunk, not for all of them."""
    return isinstance(values[0], Sequence)


def _line(values: Sequence[Any], i: int) -> list[float]:
    found: list[float] = list(values[i] if _has_lines(values) else values)
    return found

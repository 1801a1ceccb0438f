"""Actions of GR00T N1.6 and N1.7 that are relative to the state: key by key, each action of a chunk with statistics of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ros2_rfm_serving.engines.architectures.importers.files import Json
from ros2_rfm_serving.engines.architectures.importers.groot_columns import Key
from ros2_rfm_serving.errors import ModelError


def relative_keys(processor: Json, tag: str, keys: Sequence[str], configs: Sequence[Any]) -> dict[str, str]:
    """Return the relative action keys, each with the key of the state that it is relative to. configs: `action_configs`.

    Raises: `ModelError` that names the file and the key; also for poses, which are rotated as well as moved.
    """
    where = f"{processor.file}: modality_configs.{tag}.action.action_configs"
    if len(configs) != len(keys):
        raise ModelError(f"{where} has {len(configs)} entries for {len(keys)} keys")
    counted: dict[str, str] = {}
    for i, (key, told) in enumerate(zip(keys, configs, strict=True)):
        if str(told["rep"]).lower() != "relative":
            continue
        if str(told["type"]).lower() != "non_eef":
            raise ModelError(
                f"{where}.{i}.type is {told['type']!r}: {key!r}: poses relative to a pose are not supported: they are turned as "
                "well as moved"
            )
        counted[key] = str(told.get("state_key") or key)
    return counted


def sources_of(
    processor: Json, tag: str, counted: Mapping[str, str], state: Sequence[Key], action: Sequence[Key]
) -> tuple[int | None, ...]:
    """Return the column of the state that each action is relative to. Raises: `ModelError` if the state lacks it."""
    firsts: dict[str, tuple[int, int]] = {}
    first = 0
    for key in state:
        firsts[key.name] = (first, key.num_columns)
        first += key.num_columns
    found: list[int | None] = []
    for key in action:
        if key.name not in counted:
            found += [None] * key.num_columns
            continue
        name = counted[key.name]
        begin, size = firsts.get(name, (0, -1))
        if size != key.num_columns:
            raise ModelError(
                f"{processor.file}: modality_configs.{tag}.action: {key.name} is relative to the state {name!r}, which is not "
                "there with as many columns"
            )
        found += range(begin, begin + size)
    return tuple(found)

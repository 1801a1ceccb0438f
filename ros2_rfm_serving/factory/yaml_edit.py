"""Edit of one key in the text of a user's YAML file: comments, order and everything else stay as they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.factory import yaml_source
from ros2_rfm_serving.factory.yaml_source import dotted

Path = Sequence[str]


def with_key(text: str, path: Path, value: Mapping[str, Any] | str, file: str) -> str:
    """Return `text` with this mapping of numbers, or this word, at `path`, part of which may exist.

    Raises: `ConfigurationError` with the text to write by hand where the edit would change something else, as under an alias.
    """
    before = yaml_source.parse(text, file).data
    try:
        edited = _edited(text, list(path), _flow(value))
        changed = yaml_source.parse(edited, file).data
    except (KeyError, ConfigurationError):
        changed = None
    if changed is None or changed != _set(before, list(path), value if isinstance(value, str) else dict(value)):
        fix = f"write `{path[-1]}: {_flow(value)}` under {dotted(tuple(path[:-1]))} yourself"
        raise ConfigurationError("cannot be written without touching other things", file=file, key=dotted(tuple(path)), fix=fix)
    return edited


def _flow(value: Mapping[str, Any] | str) -> str:
    if isinstance(value, str):
        return value
    return "{" + ", ".join(f"{key}: {content:g}" for key, content in value.items()) + "}"


def _set(data: Any, path: list[str], value: dict[str, Any] | str) -> Any:
    if not path:
        return value
    return {**(data or {}), path[0]: _set((data or {}).get(path[0]), path[1:], value)}


def _edited(text: str, path: list[str], value: str) -> str:
    """Return the edited text. Raises: `KeyError` where a parent is no mapping."""
    node = yaml.compose(text, yaml.SafeLoader)
    for depth, key in enumerate(path):
        if not isinstance(node, yaml.MappingNode):
            raise KeyError(key)
        found = next((pair for pair in node.value if pair[0].value == key), None)
        if found is None:
            return _inserted(text, node, path[depth:], value)
        if depth == len(path) - 1:
            return _replaced(text, found[1], value)
        node = found[1]
    raise KeyError(path[-1])


def _replaced(text: str, node: Any, value: str) -> str:
    """Return the text with a value replaced. A block mapping ends where the next key begins: text after its last value stays."""
    last = node
    while isinstance(last, yaml.MappingNode) and last.value and not last.flow_style:
        last = last.value[-1][1]
    start = node.start_mark.index
    if last is not node or not text[start : last.end_mark.index]:  # or the value is empty
        start, value = text.rindex(":", 0, start) + 1, f" {value}"
    return f"{text[:start]}{value}{text[last.end_mark.index :]}"


def _inserted(text: str, parent: Any, path: list[str], value: str) -> str:
    """Return the text with a key added: before the first key of a block mapping, at its indentation, or after the last one in
    braces."""
    for key in reversed(path[1:]):
        value = f"{{{key}: {value}}}"
    line = f"{path[0]}: {value}"
    if parent.flow_style:
        end = parent.end_mark.index - 1
        return f"{text[:end].rstrip()}{', ' if parent.value else ''}{line}{text[end:]}"
    first = parent.value[0][0].start_mark
    newline, indentation = "\r\n" if "\r\n" in text else "\n", " " * first.column
    return f"{text[: first.index]}{line}{newline}{indentation}{text[first.index :]}"

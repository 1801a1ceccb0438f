"""YAML with line numbers: a user's file as plain data, the line of every key, and validation errors with both."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from ros2_rfm_serving.errors import ConfigurationError

KeyPath = tuple[str | int, ...]
Model = TypeVar("Model", bound=BaseModel)
MAX_VALUES = 100_000
"""Limit for the values of a file with every alias expanded: a few aliases of aliases could otherwise exhaust the memory."""
OCTAL = re.compile(r"[-+]?0[0-9_]+|[-+]?0o[0-7_]+")
"""`010` is 8 in YAML 1.1 and in ROS parameter files, and 10 in YAML 1.2; `0o10` is text in YAML 1.1, and 8 in YAML 1.2."""
SEXAGESIMAL = re.compile(r"[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?")
"""`1:30` is 90 in YAML 1.1, and text in YAML 1.2."""
BINARY = re.compile(r"[-+]?0b[01_]+")
"""`0b11` is 3 in YAML 1.1, and text in YAML 1.2."""
EXPONENT = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+")
"""`1e3` is text in YAML 1.1, and 1000.0 in YAML 1.2 and to its readers."""
INT64 = range(-(1 << 63), 1 << 63)
"""Whole numbers that ROS parameters and messages hold."""
INTEGER, FLOAT, TEXT = (f"tag:yaml.org,2002:{name}" for name in ("int", "float", "str"))
NUMBERS = frozenset({INTEGER, FLOAT})
BOOLEAN = "tag:yaml.org,2002:bool"
FALSE = frozenset({"no", "off", "false"})


@dataclass(frozen=True)
class YamlSource:
    """A parsed file; `lines` maps a key path to the line (from 1) of its key."""

    file: str
    data: dict[str, Any]
    lines: dict[KeyPath, int]
    booleans: dict[KeyPath, str] = field(default_factory=dict)
    """Values that YAML 1.1 reads as true or false, as they are written: `no`, `on`."""

    def error(self, path: KeyPath, problem: str, fix: str = "") -> ConfigurationError:
        known = path
        while known and known not in self.lines:
            known = known[:-1]
        return ConfigurationError(problem, file=self.file, line=self.lines.get(known, 1), key=dotted(path), fix=fix)

    def validate(self, model: type[Model], path: KeyPath, data: Any) -> Model:
        """Return `data` (found at `path`) as a pydantic model. The first violation is raised as `ConfigurationError`."""
        try:
            made = model.model_validate(data)
        except ValidationError as invalid:
            # A misspelt key is both unknown and, under its right name, missing: the former is the one to fix.
            first = min(invalid.errors(), key=lambda error: error["type"] != "extra_forbidden")
            where = (*path, *(part for part in first["loc"] if part != "[key]"))
            if first["type"] == "extra_forbidden":
                known = sorted(_keys_at(model, first["loc"][:-1]))
                raise self.error(where, "unknown key", did_you_mean(str(first["loc"][-1]), known)) from None
            if first["type"] == "missing":
                raise self.error(where, "is missing", f"add `{first['loc'][-1]}:` there") from None
            if isinstance(first["input"], bool):
                raise self._truth(where, first["input"]) from None
            raise self.error(where, f"{first['msg']} (found {first['input']!r})", "correct the value") from None
        for where in _booleans_as_numbers(data, made, path):
            raise self._truth(where, self.booleans.get(where, "").lower() not in FALSE)
        return made

    def _truth(self, where: KeyPath, value: bool) -> ConfigurationError:
        written = self.booleans.get(where, str(value).lower())
        problem = f"`{written}` is a truth value to YAML (found {value})"
        return self.error(where, problem, f"write a number, or a text in quotes: '{written}'")


def read(file: Path, loader: type[yaml.SafeLoader] = yaml.SafeLoader) -> YamlSource:
    """Read a file. Raises: `ConfigurationError` when it cannot be read, is no YAML mapping, or repeats a key."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not UTF-8 text"
        raise ConfigurationError(f"cannot be read: {reason}", file=str(file), fix="check the path") from error
    return parse(text, str(file), loader)


def parse(text: str, file: str, loader: type[yaml.SafeLoader] = yaml.SafeLoader) -> YamlSource:
    """Parse the text of a file; `loader` decides the meaning of its scalars. Raises: `ConfigurationError`."""
    source = YamlSource(file, {}, {})
    try:
        reader = loader(text)
        node = reader.get_single_node()
        _walk(node, (), source)
        data = reader.construct_document(node) if node else None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark else 0
        raise ConfigurationError(f"is not valid YAML: {getattr(error, 'problem', error)}", file=file, line=line) from error
    except RecursionError as error:
        raise ConfigurationError("is nested too deeply", file=file, fix="does an alias stand within what it stands for?") from error
    except (ValueError, LookupError, AttributeError) as error:  # PyYAML's, of `2026-02-30` and `!!bool maybe`
        raise ConfigurationError(
            "holds an impossible date, number, tag or character", file=file, fix="quote it if it is text"
        ) from error
    if not isinstance(data, dict):
        raise ConfigurationError("is not a mapping of keys to values", file=file, line=1, fix="begin with `key: value`")
    source.data.update(data)
    return source


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the known word that is most likely meant; empty: no word is similar."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return near[0] if near else ""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    known = list(known)
    near = nearest(name, known)
    return f"did you mean `{near}`?" if near else f"known here: {', '.join(known) or 'none'}"


def dotted(path: KeyPath) -> str:
    """Return a path as text: ("robot_fleet", 0, "task") is `robot_fleet[0].task`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def misread(node: yaml.ScalarNode) -> tuple[str, str]:
    """Return (problem, fix) of an unquoted number that YAML 1.1 reads as another one than its writer means; empty: it is none.

    Source: YAML 1.1, https://yaml.org/type/int.html and float.html; YAML 1.2.2, section 10.3.2.
    """
    text = node.value
    if node.style is not None and node.tag not in NUMBERS:  # `!!int "010"` is a number, and read like one
        return "", ""
    quote = "in quotes if it is text"
    if OCTAL.fullmatch(text):
        decimal = re.sub(r"^([-+]?)0o?0*(?=[0-9])", r"\1", text.replace("_", ""))
        return f"`{text}` is an octal number to some readers of YAML and a decimal one to others", f"write `{decimal}`, or {quote}"
    if node.tag not in NUMBERS:
        return "", ""
    if SEXAGESIMAL.fullmatch(text):
        return f"`{text}` is a number with base 60 in YAML", f"write the number of units, or {quote}"
    if BINARY.fullmatch(text):
        value = int(text.replace("_", ""), 2)
        return f"`{text}` is a binary number to some readers of YAML and text to others", f"write `{value}`, or {quote}"
    if "_" in text:  # `1_000` is text in YAML 1.2
        return f"`{text}` is a number to some readers of YAML and text to others", f"write `{text.replace('_', '')}`, or {quote}"
    if node.tag == INTEGER and int(text, 0) not in INT64:
        return f"`{text}` has more than 64 bits", f"write a smaller number, or {quote}"
    return "", ""


def _booleans_as_numbers(data: Any, made: Any, path: KeyPath) -> Iterator[KeyPath]:
    """Yield the paths at which `data` has a truth value that pydantic accepted as a number: `yes` would be 1 robot, or 1 ms."""
    if isinstance(data, bool):
        if isinstance(made, int | float) and not isinstance(made, bool):
            yield path
    elif isinstance(data, Mapping):
        names = {info.alias or name: name for name, info in type(made).model_fields.items()} if isinstance(made, BaseModel) else {}
        for key, value in data.items():
            part = getattr(made, names[key], None) if key in names else made.get(key) if isinstance(made, Mapping) else None
            yield from _booleans_as_numbers(value, part, (*path, key))
    elif isinstance(data, list) and isinstance(made, list | tuple) and len(data) == len(made):
        for index, (value, part) in enumerate(zip(data, made, strict=True)):
            yield from _booleans_as_numbers(value, part, (*path, index))


def _check_number(node: yaml.ScalarNode, path: KeyPath, source: YamlSource) -> None:
    problem, fix = misread(node)
    if problem:
        raise ConfigurationError(problem, file=source.file, line=node.start_mark.line + 1, key=dotted(path), fix=fix)


def _check_key(key: yaml.ScalarNode, path: KeyPath, source: YamlSource) -> None:
    """Check a key. Raises: `ConfigurationError` for one that would be true, false or another number than is written."""
    _check_number(key, path, source)
    if key.style is None and key.tag == BOOLEAN:
        problem = f"the key `{key.value}` is a truth value to YAML"
        fix = f"write it in quotes: '{key.value}'"
        raise ConfigurationError(problem, file=source.file, line=key.start_mark.line + 1, key=dotted(path), fix=fix)


def _walk(node: Any, path: KeyPath, source: YamlSource) -> None:
    """Record the lines of all keys. Raises: `ConfigurationError`; `ValueError` for half a surrogate pair, which cannot be
    displayed."""
    if len(source.lines) > MAX_VALUES:
        raise ConfigurationError(f"holds more than {MAX_VALUES} values", file=source.file, fix="are there aliases of aliases?")
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue  # PyYAML refuses it
            key.value.encode()
            here = (*path, key.value)
            _check_key(key, here, source)
            if here in source.lines:
                first = source.lines[here]
                problem = f"is written twice (also in line {first})"
                raise ConfigurationError(
                    problem, file=source.file, line=key.start_mark.line + 1, key=dotted(here), fix="keep one of them"
                )
            source.lines[here] = key.start_mark.line + 1
            _walk(value, here, source)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            source.lines[(*path, index)] = value.start_mark.line + 1
            _walk(value, (*path, index), source)
    elif isinstance(node, yaml.ScalarNode):
        node.value.encode()
        _check_number(node, path, source)
        if node.style is None and node.tag == TEXT and EXPONENT.fullmatch(node.value) and math.isfinite(float(node.value)):
            node.tag = FLOAT
        if node.style is None and node.tag == BOOLEAN:
            source.booleans[path] = node.value


def _keys_at(model: type[BaseModel], location: tuple[str | int, ...]) -> list[str]:
    """Return the keys that a nested model accepts, following field names (and skipping dictionary keys)."""
    current: Any = model
    for part in location:
        field = current.model_fields.get(part) if isinstance(part, str) and hasattr(current, "model_fields") else None
        annotation = field.annotation if field else None
        models = [a for a in (annotation, *getattr(annotation, "__args__", ())) if isinstance(a, type) and issubclass(a, BaseModel)]
        if models:
            current = models[0]
    return [field.alias or name for name, field in current.model_fields.items()]

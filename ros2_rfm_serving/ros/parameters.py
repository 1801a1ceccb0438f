"""Declaring many ROS parameters with descriptions and ranges, and reading them as what they should be.

A parameter of a node with several robots counts for all of them, unless `<robot>.<name>` says otherwise for one.
"""

from __future__ import annotations

import difflib
import enum
import math
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

from rcl_interfaces.msg import FloatingPointRange, IntegerRange, ParameterDescriptor
from rclpy.exceptions import InvalidParameterValueException
from rclpy.node import Node

from ros2_rfm_serving.errors import ConfigurationError

E = TypeVar("E", bound=enum.Enum)
_LARGEST_INTEGER = 2**63 - 1


class Spec(NamedTuple):
    """One parameter. A list's default says what is in it; an empty string in it, or no number, stands for nothing."""

    default: bool | int | float | str | list[str] | list[float]
    description: str
    low: float = -math.inf
    high: float = math.inf
    choices: tuple[str, ...] = ()

    @property
    def wanted(self) -> str:
        """In words, for people."""
        if self.choices:
            return f"one of {', '.join(choice or '(empty)' for choice in self.choices)}"
        if isinstance(self.default, list):
            return "a list of strings" if self.default else "a list of numbers"
        kind = {bool: "true or false", int: "an integer", float: "a number", str: "a string"}[type(self.default)]
        ends = [f"at least {self.low:g}"] * math.isfinite(self.low) + [f"at most {self.high:g}"] * math.isfinite(self.high)
        return " ".join([kind, " and ".join(ends)]).strip()

    def descriptor(self) -> Any:
        """Dynamically typed, so that `20` does for `20.0`; `Values` checks what it is."""
        described = ParameterDescriptor(description=self.description, additional_constraints=self.wanted, dynamic_typing=True)
        bounded = math.isfinite(self.low) or math.isfinite(self.high)
        if bounded and type(self.default) is int:
            high = int(self.high) if math.isfinite(self.high) else _LARGEST_INTEGER
            described.integer_range = [IntegerRange(from_value=int(self.low), to_value=high)]
        elif bounded and type(self.default) is float:
            described.floating_point_range = [FloatingPointRange(from_value=self.low, to_value=self.high)]
        return described


def choice(default: enum.Enum, description: str) -> Spec:
    return Spec(default.value, description, choices=tuple(member.value for member in type(default)))


def declare(node: Node, specs: Mapping[str, Spec], robot: str = "") -> None:
    """All parameters; of a `robot`, those that its own section of the parameter file has. Raises: `ConfigurationError`."""
    for name, spec in specs.items():
        full = f"{robot}.{name}" if robot else name
        if node.has_parameter(full) or (robot and full not in _overrides(node)):
            continue
        try:
            node.declare_parameter(full, spec.default, spec.descriptor())
        except InvalidParameterValueException as error:
            value = _overrides(node)[full].value
            raise ConfigurationError(f"{value!r} is out of range", key=full, fix=f"give {spec.wanted}") from error


def unknown(node: Node) -> list[str]:
    """Parameters that were given and that nobody declared: misspelt ones among them, with what was probably meant."""
    undeclared = [name for name in _overrides(node) if not node.has_parameter(name) and not name.startswith("qos_overrides.")]
    declared = list(node.get_parameters_by_prefix(""))
    near = {name: difflib.get_close_matches(name.rsplit(".", 1)[-1], declared, 1) for name in undeclared}
    return [name + (f" (did you mean {close[0]}?)" if close else "") for name, close in near.items()]


class Values:
    """Reads declared parameters. Every method raises `ConfigurationError`, which names the parameter, its value and the fix."""

    def __init__(self, node: Node, specs: Mapping[str, Spec], robot: str = "") -> None:
        self._node, self._specs, self._robot = node, specs, robot

    def wrong(self, name: str, problem: str, fix: str = "") -> ConfigurationError:
        """An error about this parameter."""
        return ConfigurationError(
            f"{problem} (it is {self._raw(name)!r})", key=self._key(name), fix=fix or f"give {self._specs[name].wanted}"
        )

    def flag(self, name: str) -> bool:
        value = self._raw(name)
        if not isinstance(value, bool):
            raise self.wrong(name, "not a truth value")
        return value

    def integer(self, name: str) -> int:
        value = self._raw(name)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.wrong(name, "not an integer")
        return int(self._within(name, value))

    def number(self, name: str) -> float:
        value = self._raw(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
            raise self.wrong(name, "not a number")
        return self._within(name, float(value))

    def text(self, name: str) -> str:
        value = self._raw(name)
        if not isinstance(value, str):
            raise self.wrong(name, "not a string")
        if self._specs[name].choices and value not in self._specs[name].choices:
            near = difflib.get_close_matches(value, self._specs[name].choices, 1)
            raise self.wrong(name, "unknown" + (f", did you mean {near[0]!r}?" if near else ""))
        return value

    def choice(self, name: str, kind: type[E]) -> E:
        return kind(self.text(name))

    def texts(self, name: str) -> tuple[str, ...]:
        value = self._raw(name)
        if isinstance(value, str) or not all(isinstance(part, str) for part in value):
            raise self.wrong(name, "not a list of strings")
        return tuple(part for part in value if part)

    def distinct(self, name: str) -> tuple[str, ...]:
        texts = self.texts(name)
        if len(set(texts)) != len(texts):
            raise self.wrong(name, "something is in it twice", "name each once")
        return texts

    def numbers(self, name: str) -> tuple[float, ...]:
        value = self._raw(name)
        if isinstance(value, str | int | float) or not all(type(part) in (int, float) for part in value):
            raise self.wrong(name, "not a list of numbers")
        return tuple(float(part) for part in value)

    def pairs(self, name: str) -> dict[str, str]:
        """A list of `key=value`."""
        parts = [part.partition("=") for part in self.texts(name)]
        if not all(key.strip() and equals for key, equals, _ in parts) or len({key for key, _, _ in parts}) != len(parts):
            raise self.wrong(name, "not a list of key=value, each key once", "write it as [key=value, ...]")
        return {key.strip(): value.strip() for key, _, value in parts}

    def numbered(self, name: str) -> dict[str, float]:
        """A list of `key=number`."""
        return {key: self.parsed(name, value) for key, value in self.pairs(name).items()}

    def parsed(self, name: str, text: str) -> float:
        """A number within a string of this parameter."""
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise self.wrong(name, f"{text!r} is not a number", "write a finite number there")
        return number

    def _key(self, name: str) -> str:
        own = f"{self._robot}.{name}"
        return own if self._robot and self._node.has_parameter(own) else name

    def _raw(self, name: str) -> Any:
        value = self._node.get_parameter(self._key(name)).value
        return self._specs[name].default if value is None else value

    def _within(self, name: str, value: float) -> float:
        if not self._specs[name].low <= value <= self._specs[name].high:
            raise self.wrong(name, "out of range")
        return value


def _overrides(node: Node) -> dict[str, Any]:
    """What parameter files and the command line say, declared or not; rclpy has no public name for it."""
    given: dict[str, Any] = node._parameter_overrides
    return given

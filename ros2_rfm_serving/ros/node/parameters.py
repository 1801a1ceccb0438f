"""Declaration of many ROS parameters with types, descriptions and ranges, and typed access to their values.

A parameter of a node with several robots applies to all of them, unless `<robot>.<name>` overrides it for one. `changes.py` has the
changes at run time.
"""

from __future__ import annotations

import difflib
import enum
import math
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from rcl_interfaces.msg import FloatingPointRange, IntegerRange, ParameterDescriptor
from rclpy.node import Node
from rclpy.parameter import Parameter

from ros2_rfm_serving.errors import ConfigurationError

E = TypeVar("E", bound=enum.Enum)
_LARGEST_INTEGER = 2**63 - 1
NOTHING: Mapping[str, Any] = MappingProxyType({})
"""Empty set of changes."""


class When(enum.Enum):
    """Time at which a parameter may change."""

    ANY = "at any time"
    UNCONFIGURED = "while its node is not configured"
    START = "with a restart of its node"
    """The parameter is read-only."""


class Spec(NamedTuple):
    """One parameter. A list's default determines the type of its elements; an empty string, or an empty list, means no element."""

    default: bool | int | float | str | list[str] | list[float]
    description: str
    low: float = -math.inf
    high: float = math.inf
    choices: tuple[str, ...] = ()
    when: When = When.START

    @property
    def wanted(self) -> str:
        """Description of valid values, as text."""
        if self.choices:
            return f"one of {', '.join(choice or '(empty)' for choice in self.choices)}"
        ends = [f"at least {self.low:g}"] * math.isfinite(self.low) + [f"at most {self.high:g}"] * math.isfinite(self.high)
        return " ".join([_KINDS[self.type], " and ".join(ends)]).strip()

    @property
    def type(self) -> Parameter.Type:
        if isinstance(self.default, list):
            return Parameter.Type.STRING_ARRAY if self.default else Parameter.Type.DOUBLE_ARRAY
        return Parameter.Type.from_parameter_value(self.default)

    def parameter(self, name: str, value: Any) -> Parameter[Any]:
        """Return the value as a parameter: `20` is accepted for `20.0`, and an empty list for a list of any type."""
        if self.type is Parameter.Type.DOUBLE and type(value) is int:
            value = float(value)
        elif isinstance(self.default, list) and not isinstance(value, str | int | float) and value is not None:
            value = [float(part) if type(part) is int and self.type is Parameter.Type.DOUBLE_ARRAY else part for part in value]
        return Parameter(name, self.type, value) if self._holds(value) else Parameter(name, value=value)

    def problem(self, value: Any) -> str:
        """Return what is wrong with this value by itself; empty: nothing."""
        if not self._holds(value) or (isinstance(value, float) and math.isnan(value)):
            return f"not {_KINDS[self.type].replace('true or false', 'a truth value')}"
        if self.choices and value not in self.choices:
            near = difflib.get_close_matches(value, self.choices, 1)
            return "unknown" + (f", did you mean {near[0]!r}?" if near else "")
        if isinstance(value, int | float) and not self.low <= value <= self.high:
            return "out of range"
        return ""

    def descriptor(self) -> ParameterDescriptor:
        constraints = f"{self.wanted}; changes {self.when.value}"
        described = ParameterDescriptor(
            description=self.description, additional_constraints=constraints, read_only=self.when is When.START
        )
        bounded = math.isfinite(self.low) or math.isfinite(self.high)
        if bounded and type(self.default) is int:
            high = int(self.high) if math.isfinite(self.high) else _LARGEST_INTEGER
            described.integer_range = [IntegerRange(from_value=int(self.low), to_value=high)]
        elif bounded and type(self.default) is float:
            described.floating_point_range = [FloatingPointRange(from_value=self.low, to_value=self.high)]
        return described

    def _holds(self, value: Any) -> bool:
        """Return whether the value has the parameter's type; Python takes a bool for an integer, ROS does not."""
        return bool(self.type.check(value)) and isinstance(value, bool) is (self.type is Parameter.Type.BOOL)


_KINDS = {
    Parameter.Type.BOOL: "true or false",
    Parameter.Type.INTEGER: "an integer",
    Parameter.Type.DOUBLE: "a number",
    Parameter.Type.STRING: "a string",
    Parameter.Type.STRING_ARRAY: "a list of strings",
    Parameter.Type.DOUBLE_ARRAY: "a list of numbers",
}


def choice(default: enum.Enum, description: str) -> Spec:
    return Spec(default.value, description, choices=tuple(member.value for member in type(default)))


def declare(node: Node, specs: Mapping[str, Spec], robot: str = "") -> dict[str, Spec]:
    """Declare all parameters and return them by full name.
    robot: declare those that the robot's own section of the parameter file has. Raises: `ConfigurationError`."""
    declared = {}
    for name, spec in specs.items():
        full = f"{robot}.{name}" if robot else name
        if robot and not (node.has_parameter(full) or full in _overrides(node)):
            continue
        declared[full] = spec
        if not node.has_parameter(full):
            _declare(node, full, spec)
    return declared


def _declare(node: Node, name: str, spec: Spec) -> None:
    overrides = _overrides(node)
    if name in overrides:
        overrides[name] = spec.parameter(name, overrides[name].value)
        if problem := spec.problem(overrides[name].value):
            value = overrides[name].value
            raise ConfigurationError(f"{problem} (it is {value!r})", key=name, fix=f"give {spec.wanted}")
    value = overrides[name].value if name in overrides else spec.default
    if value == []:  # rclpy could not tell the type of its elements
        described = spec.descriptor()
        read_only, described.read_only = described.read_only, False
        node.declare_parameter(name, spec.type, described, ignore_override=True)
        node.set_parameters([Parameter(name, spec.type, [])])
        described.read_only = read_only
    else:
        node.declare_parameter(name, value, spec.descriptor(), ignore_override=True)


def unknown(node: Node) -> dict[str, str]:
    """Return the given parameters that are not declared, each with the declared one that was probably meant, or ""."""
    undeclared = [name for name in _overrides(node) if not node.has_parameter(name) and not name.startswith("qos_overrides.")]
    declared = list(node.get_parameters_by_prefix(""))
    return {name: nearest(name, declared) for name in undeclared}


SIMILAR = 0.8
"""Minimum similarity of two names without their sections for one to be suggested for the other."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the most similar known parameter; empty: there is none.

    Parameters of the same section have precedence: `limits.lowr` is `limits.lower`. A name without its section is recognised as
    well: `request_timeout_s` is `link.request_timeout_s`."""
    known = list(known)
    section, dot, leaf = name.rpartition(".")
    leaves = {other.rpartition(".")[2]: other for other in known}
    if leaf in leaves:
        return leaves[leaf]
    beside = [other for other in known if other.startswith(section + dot) and "." not in other[len(section + dot) :]]
    found = difflib.get_close_matches(name, beside, 1) or difflib.get_close_matches(name, known, 1)
    return (found or [leaves[near] for near in difflib.get_close_matches(leaf, leaves, 1, SIMILAR)] or [""])[0]


class Values:
    """Typed access to declared parameters by full name, with their present values or those that `changed` would give them.
    Every method raises `ConfigurationError`, which names the parameter, its value and the fix."""

    def __init__(self, node: Node, specs: Mapping[str, Spec], robot: str = "", changed: Mapping[str, Any] = NOTHING) -> None:
        self._node, self._specs, self._robot, self._changed = node, specs, robot, changed

    def wrong(self, name: str, problem: str, fix: str = "") -> ConfigurationError:
        """Return an error about this parameter."""
        return ConfigurationError(
            f"{problem} (it is {self._raw(name)!r})", key=self._key(name), fix=fix or f"give {self._specs[name].wanted}"
        )

    def check(self, name: str) -> None:
        """Check a parameter by itself."""
        self._checked(name)

    def flag(self, name: str) -> bool:
        return bool(self._checked(name))

    def integer(self, name: str) -> int:
        return int(self._checked(name))

    def number(self, name: str) -> float:
        return float(self._checked(name))

    def text(self, name: str) -> str:
        return str(self._checked(name))

    def choice(self, name: str, kind: type[E]) -> E:
        return kind(self.text(name))

    def texts(self, name: str) -> tuple[str, ...]:
        return tuple(part for part in self._checked(name) if part)

    def distinct(self, name: str) -> tuple[str, ...]:
        texts = self.texts(name)
        if len(set(texts)) != len(texts):
            raise self.wrong(name, "something is in it twice", "name each once")
        return texts

    def numbers(self, name: str) -> tuple[float, ...]:
        return tuple(self._checked(name))

    def pairs(self, name: str) -> dict[str, str]:
        """Return a list of `key=value` as a mapping."""
        parts = [part.partition("=") for part in self.texts(name)]
        if not all(key.strip() and equals for key, equals, _ in parts) or len({key for key, _, _ in parts}) != len(parts):
            raise self.wrong(name, "not a list of key=value, each key once", "write it as [key=value, ...]")
        return {key.strip(): value.strip() for key, _, value in parts}

    def numbered(self, name: str) -> dict[str, float]:
        """Return a list of `key=number` as a mapping."""
        return {key: self.parsed(name, value) for key, value in self.pairs(name).items()}

    def parsed(self, name: str, text: str) -> float:
        """Return a number within a string of this parameter."""
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
        key = self._key(name)
        value = self._changed[key] if key in self._changed else self._node.get_parameter(key).value
        return self._specs[name].parameter(key, value).value

    def _checked(self, name: str) -> Any:
        value = self._raw(name)
        if problem := self._specs[name].problem(value):
            raise self.wrong(name, problem)
        return value


def _overrides(node: Node) -> dict[str, Any]:
    """Return the values of parameter files and the command line, declared or not; rclpy has no public name for them."""
    given: dict[str, Any] = node._parameter_overrides
    return given

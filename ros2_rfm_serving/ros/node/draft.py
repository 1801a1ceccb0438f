"""Stand-in for a node that does not run, to report before a start what the node would refuse."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

from rclpy.node import Node
from rclpy.parameter import Parameter

from ros2_rfm_serving.errors import ConfigurationError

EVERY_NODES = {"use_sim_time": False, "start_type_description_service": True}
"""Parameters that rclpy declares in every node, with their defaults."""


def draft(given: Mapping[str, Any]) -> Node:
    """Return a stand-in, for `declare`, `unknown` and `Values` alone. given: as in a parameter file, nested maps too."""
    return cast(Node, _Draft({name: SimpleNamespace(value=value) for name, value in flat(given).items()}))


def declare_every_nodes(node: Node) -> None:
    """Declare what rclpy declares in every node. Raises: `ConfigurationError`."""
    for name, default in EVERY_NODES.items():
        node.declare_parameter(name, default, None)


def flat(parameters: Mapping[Any, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten parameters as ROS does: `{a: {b: 1}}` is the parameter `a.b`."""
    found: dict[str, Any] = {}
    for name, value in parameters.items():
        found |= flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return found


class _Draft:
    """The part of a node's interface that reading parameters needs: no context, nothing on the graph."""

    def __init__(self, given: dict[str, Any]) -> None:
        self._parameter_overrides = given
        self._values: dict[str, Any] = {}

    def get_namespace(self) -> str:
        """Return the root: a file does not say in which namespace its node will be."""
        return "/"

    def has_parameter(self, name: str) -> bool:
        return name in self._values

    def declare_parameter(self, name: str, value: object, descriptor: object, *, ignore_override: bool = False) -> SimpleNamespace:
        """Declare a parameter.
        Raises: `ConfigurationError` for a value of another type than the default's, where rclpy raises its own."""
        given = None if ignore_override else self._parameter_overrides.get(name)
        if given is not None and (wanted := Parameter.Type.from_parameter_value(value)) is not _type_of(given.value):
            kind = wanted.name.lower().replace("_", " ")
            raise ConfigurationError(f"not a {kind} (it is {given.value!r})", key=name, fix=f"give a {kind}, such as {value!r}")
        self._values[name] = value if given is None else given.value
        return self.get_parameter(name)

    def set_parameters(self, parameters: Sequence[Parameter[Any]]) -> None:
        self._values.update({one.name: one.value for one in parameters})

    def get_parameter(self, name: str) -> SimpleNamespace:
        return SimpleNamespace(value=self._values[name])

    def get_parameters_by_prefix(self, prefix: str) -> dict[str, Any]:
        return {name: value for name, value in self._values.items() if name.startswith(prefix)}


def _type_of(value: object) -> Parameter.Type | None:
    """Return the parameter type of a value; None: no parameter can hold it."""
    try:
        return Parameter.Type.from_parameter_value(value)
    except TypeError:
        return None

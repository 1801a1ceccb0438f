"""What `ros2 param set` may change: checked at once and as a whole, then applied as a whole, or refused with the reason."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from typing import Any

from rcl_interfaces.msg import SetParametersResult
from rclpy.node import Node
from rclpy.parameter import Parameter

from ros2_rfm_serving.errors import ConfigurationError, RfmError
from ros2_rfm_serving.ros.node.parameters import Spec, When

Accept = Callable[[Mapping[str, Any]], Callable[[], None]]
"""Checks the whole configuration that would result, and raises `RfmError` if it cannot be; then nothing has changed. Returns what
makes it so, which must not fail."""


class Changes:
    """Of one node, on its executor's thread, and so between two control periods and never within one.

    rclpy itself refuses other types, what is out of range or read-only, by the descriptors, and names that nobody declared.
    """

    def __init__(
        self, node: Node, specs: Mapping[str, Spec], accept: Accept, *, configured: Callable[[], bool] = lambda: True
    ) -> None:
        """specs: by full name; others are none of ours. configured: parameters may not change for which that matters."""
        self._node, self._specs, self._accept, self._configured = node, specs, accept, configured
        self._apply: Callable[[], None] = _nothing
        node.add_pre_set_parameters_callback(self._converted)
        node.add_on_set_parameters_callback(self._check)
        node.add_post_set_parameters_callback(lambda _: self._make_it_so())

    def _converted(self, parameters: list[Parameter[Any]]) -> list[Parameter[Any]]:
        """An integer will do for a number."""
        known = self._specs
        return [known[p.name].parameter(p.name, p.value) if p.name in known and p.value is not None else p for p in parameters]

    def _check(self, parameters: list[Parameter[Any]]) -> SetParametersResult:
        self._apply = _nothing
        try:
            changed = {p.name: p.value for p in parameters if self._is_change(p)}
            for name, value in changed.items():
                self._check_one(name, value)
            if changed:
                self._apply = self._accept(changed)
        except RfmError as error:
            return SetParametersResult(successful=False, reason=str(error))
        except Exception as error:  # a service without an answer would be worse
            self._node.get_logger().error(f"parameters could not be checked:\n{traceback.format_exc()}")
            return SetParametersResult(successful=False, reason=f"could not be checked: {error}")
        return SetParametersResult(successful=True)

    def _is_change(self, parameter: Parameter[Any]) -> bool:
        """Neither the declaration of a parameter nor the value that it has."""
        name, node = parameter.name, self._node
        return name in self._specs and node.has_parameter(name) and not _equal(node.get_parameter(name).value, parameter.value)

    def _check_one(self, name: str, value: Any) -> None:
        spec = self._specs[name]
        if problem := spec.problem(value):
            raise ConfigurationError(f"{problem} (it would be {value!r})", key=name, fix=f"give {spec.wanted}")
        if spec.when is When.UNCONFIGURED and self._configured():
            fix = "deactivate it and clean it up first (ros2 lifecycle set NODE deactivate, then cleanup)"
            raise ConfigurationError("cannot change while the node is active or configured", key=name, fix=fix)

    def _make_it_so(self) -> None:
        apply, self._apply = self._apply, _nothing
        try:
            apply()
        except Exception:  # a service without an answer would be worse
            self._node.get_logger().error(f"parameters were accepted and did not take effect:\n{traceback.format_exc()}")


def _nothing() -> None:
    """What a change of nothing leads to."""


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, bool | int | float | str | None) or isinstance(other, bool | int | float | str | None):
        return bool(one == other)
    return list(one) == list(other)

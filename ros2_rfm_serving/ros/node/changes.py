"""Run-time changes of parameters: a request is checked as a whole, then applied as a whole or refused with the reason."""

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
"""Check the configuration that would result, and return the function that applies it, which must not fail.
It raises `RfmError` when that configuration is invalid; then nothing has changed."""


class Changes:
    """Parameter callbacks of one node. They run on its executor's thread, hence between two control periods and never within one.
    rclpy itself refuses wrong types, values out of range, read-only parameters and undeclared names, by the descriptors."""

    def __init__(
        self, node: Node, specs: Mapping[str, Spec], accept: Accept, *, configured: Callable[[], bool] = lambda: True
    ) -> None:
        """Register the callbacks.
        specs: by full name; other parameters are not checked here. configured: whether the node is configured."""
        self._node, self._specs, self._accept, self._configured = node, specs, accept, configured
        self._apply: Callable[[], None] = _nothing
        node.add_pre_set_parameters_callback(self._converted)
        node.add_on_set_parameters_callback(self._check)
        node.add_post_set_parameters_callback(lambda _: self._make_it_so())

    def _converted(self, parameters: list[Parameter[Any]]) -> list[Parameter[Any]]:
        """Convert integers to floats where the parameter is a float."""
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
        except Exception as error:  # a missing reply would be worse
            self._node.get_logger().error(f"parameters could not be checked:\n{traceback.format_exc()}")
            return SetParametersResult(successful=False, reason=f"could not be checked: {error}")
        return SetParametersResult(successful=True)

    def _is_change(self, parameter: Parameter[Any]) -> bool:
        """Return whether a value changes: neither a declaration nor the present value does."""
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
        except Exception:  # a missing reply would be worse
            self._node.get_logger().error(f"parameters were accepted and did not take effect:\n{traceback.format_exc()}")


def _nothing() -> None:
    """Apply an empty change."""


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, bool | int | float | str | None) or isinstance(other, bool | int | float | str | None):
        return bool(one == other)
    return list(one) == list(other)

"""A robot's own file of ROS parameters beside the descriptor, which wins: a file that contradicts it is refused."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ros2_rfm_serving.factory import yaml_source
from ros2_rfm_serving.factory.ros_yaml import RosLoader
from ros2_rfm_serving.factory.yaml_source import KeyPath, YamlSource

DECLARED_BY = {
    "instruction": "components.system1.prompt",
    "component_prompts": "components.<component>.prompt",
    "calls_per_action": "pipeline.system2_to_system1_call_ratio and components.<component>.call_ratio",
    "component_fallbacks": "components.<component>.fallback",
    "synchronous": "execution.mode",
    "execution_horizon": "pipeline.action_period_ms",
    "num_steps": "execution.num_steps",
    "accept_other_rate": "execution.accept_other_rate",
    "pipelining.pp_perception": "execution.pipelining.pp_perception",
    "pipelining.pp_generation": "execution.pipelining.pp_generation",
    "pipelining.alpha": "execution.pipelining.alpha",
    "pipelining.fetch_offset": "execution.pipelining.fetch_offset",
    "horizon_policy": "execution.horizon.policy",
    "horizon_threshold": "execution.horizon.threshold",
    "horizon_min_steps": "execution.horizon.min_steps",
    "max_task_retries": "task_retry.max_task_retries",
    "on_max_task_retries": "task_retry.on_max_task_retries",
    "max_consecutive_safety_replan": "safety_and_slo_violation.max_consecutive_safety_replan",
    "max_consecutive_slo_violation": "safety_and_slo_violation.max_consecutive_slo_violation",
    "on_max_violation": "safety_and_slo_violation.on_max_violation",
    "control_rate_hz": "world.control_rate_hz",
    "max_image_size_px": "image_size_px",
}
"""Parameter of a robot -> the only key below its task that sets it."""


PARAMETERS = "ros__parameters"
NAME_PART = re.compile(r"[A-Za-z0-9_]+|\*\*?")
"""A part of the name of a node in a parameter file."""


@dataclass(frozen=True)
class RobotFile:
    """ROS parameters that a file gives to the node of a robot."""

    source: YamlSource
    parameters: Mapping[str, Any]
    """Name -> value; `{gate: {jump: hold}}` is `gate.jump`."""
    where: Mapping[str, KeyPath]
    """Name -> the path of its key in the file."""

    @staticmethod
    def read(file: Path, node: str = "") -> RobotFile:
        """Read the sections for a node, the later ones over the earlier ones, as rcl reads values.

        node: its fully qualified name, such as `/reach_1/robot`; empty: any, so that all sections count. Sections for other nodes
        are checked for values that rcl refuses, and are left out.

        Raises: `ConfigurationError`, also for a file in which no section is for this node.
        """
        source = yaml_source.read(file, RosLoader)
        where: dict[str, KeyPath] = {}
        parameters: dict[str, Any] = {}
        others = []
        for section in _sections(source, source.data, ()):
            leaves = list(_leaves(source, section))
            if node and not is_section_for(node, section[:-1]):
                others.append(section)
                continue
            for path, value in leaves:
                name = ".".join(str(part) for part in path[len(section) :])
                if name in where and where[name][: len(section)] == section:
                    raise source.error(path, f"is written twice: `{name}` is a key above, too", "keep one of them")
                where[name], parameters[name] = path, value
        if others and not parameters:
            written = ", ".join("/".join(str(part) for part in section[:-1]) for section in others)
            problem = f"no section is for the node {node}: the file has {written}"
            raise source.error(others[0][:-1], problem, f"name the section `/**`, or `{node}`")
        return RobotFile(source, parameters, where)

    @staticmethod
    def sections_in(file: Path) -> tuple[KeyPath, ...]:
        """Return the keys above each `ros__parameters` of a file. Raises: `ConfigurationError`."""
        source = yaml_source.read(file, RosLoader)
        return tuple(section[:-1] for section in _sections(source, source.data, ()))

    def number(self, name: str, default: float) -> float:
        """Return a parameter that must be above zero. Raises: `ConfigurationError` where it is not."""
        value = self.parameters.get(name, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf"):
            raise self.source.error(self.where[name], f"is {value!r}", "give a number above zero")
        return float(value)

    def agree(self, declared: Mapping[str, Any], factory: str, task: str) -> None:
        """Check that the file agrees with the descriptor. Raises: `ConfigurationError` naming both files where it does not."""
        for name, value in declared.items():
            if name in self.parameters and not _same(self.parameters[name], value):
                problem = f"is {self.parameters[name]!r} here, and {factory} means {value!r} (`{task}.{DECLARED_BY[name]}`)"
                raise self.source.error(self.where[name], problem, "say it in the descriptor alone: remove it here")


def is_section_for(node: str, section: KeyPath) -> bool:
    """Return whether rcl gives the parameters below these keys to a node: `*` is one part of its name, `**` any number of them.

    node: its fully qualified name. section: the keys above `ros__parameters`, namespaces first.
    """
    written = "/".join(str(part) for part in section)
    return _matches(written.strip("/").split("/"), node.strip("/").split("/"))


def _matches(pattern: Sequence[str], name: Sequence[str]) -> bool:
    if not pattern:
        return not name
    if pattern[0] == "**":
        return any(_matches(pattern[1:], name[skipped:]) for skipped in range(len(name) + 1))
    return bool(name) and pattern[0] in ("*", name[0]) and _matches(pattern[1:], name[1:])


def _sections(source: YamlSource, data: Mapping[str, Any], path: KeyPath) -> Iterator[KeyPath]:
    """Yield the path of each `ros__parameters`, also below namespaces. Raises: `ConfigurationError` where a node has none."""
    for name, value in data.items():
        here = (*path, name)
        if not isinstance(value, dict) or not (value or name == PARAMETERS) or (name == PARAMETERS and not path):
            raise source.error(here, f"is not below `{PARAMETERS}`", f"begin the file with `/**:`, below it `{PARAMETERS}:`")
        if name != PARAMETERS and not all(NAME_PART.fullmatch(part) for part in str(name).strip("/").split("/")):
            raise source.error(
                here, "is no name of a node to ROS", "write letters, digits and underscores; `*` and `**` stand alone"
            )
        if name == PARAMETERS:
            yield here
        else:
            yield from _sections(source, value, here)


def _leaves(source: YamlSource, path: KeyPath) -> Iterator[tuple[KeyPath, Any]]:
    """Yield path and value of each parameter below `path`. Raises: `ConfigurationError` for values that rcl refuses."""
    value: Any = source.data
    for part in path:
        value = value[part]
    if isinstance(value, dict):
        for name in value:
            yield from _leaves(source, (*path, name))
        return
    if value is None:
        raise source.error(path, "is empty", 'write a value, `""` for an empty text, or remove the key')
    if isinstance(value, list):
        _check_list(source, path, value)
    yield path, value


def _check_list(source: YamlSource, path: KeyPath, values: list[Any]) -> None:
    """Check a list. Raises: `ConfigurationError` for one that rcl refuses, and for an empty one, which sets no value at a node."""
    if not values:
        raise source.error(path, "is [], which ROS reads as no value", 'remove the key, or write `[""]` for a list without texts')
    if any(isinstance(part, (list, dict)) or part is None for part in values):
        raise source.error(path, f"is {values!r}", "write numbers or texts: ROS reads no lists, maps or empty values in a list")
    kinds = {type(part) for part in values}
    if kinds == {int, float}:
        written = ", ".join(repr(float(part)) for part in values)
        raise source.error(path, f"is {values!r}: ROS refuses whole numbers beside others in a list", f"write [{written}]")
    if len(kinds) > 1:
        raise source.error(path, f"is {values!r}", "write values of one kind: ROS refuses lists of several kinds")


def _same(here: Any, there: Any) -> bool:
    """Return whether two values are equal; the order of a list of `name=value` does not matter."""
    if isinstance(here, list) and isinstance(there, list):
        return sorted(map(str, here)) == sorted(map(str, there))
    return isinstance(here, bool) == isinstance(there, bool) and bool(here == there)

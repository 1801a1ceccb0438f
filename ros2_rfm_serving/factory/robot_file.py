"""A robot's own file of ROS parameters beside the descriptor: the descriptor wins, and a file that contradicts it is refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ros2_rfm_serving.factory import yaml_source
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
"""Parameter of a robot -> the key below its task that says it, here alone."""


@dataclass(frozen=True)
class RobotFile:
    source: YamlSource
    parameters: Mapping[str, Any]
    where: Mapping[str, KeyPath]
    """Parameter -> where it stands."""

    @staticmethod
    def read(file: Path) -> RobotFile:
        """All its sections, one after the other. Raises: `ConfigurationError`."""
        source = yaml_source.read(file)
        parameters: dict[str, Any] = {}
        where: dict[str, KeyPath] = {}
        for name, section in source.data.items():
            found = section.get("ros__parameters") if isinstance(section, dict) else None
            if not isinstance(found, dict):
                raise source.error((name,), "has no `ros__parameters`", "write a map of parameters there")
            parameters.update({key: _alike(value) for key, value in found.items()})
            where.update({key: (name, "ros__parameters", key) for key in found})
        for key, value in parameters.items():
            if isinstance(value, list) and len({type(part) for part in value}) > 1:
                raise source.error(where[key], f"is {value!r}", "write values of one kind: ROS takes no others in a list")
        return RobotFile(source, parameters, where)

    def number(self, name: str, default: float) -> float:
        """Of a parameter that must be above zero. Raises: `ConfigurationError`."""
        value = self.parameters.get(name, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf"):
            raise self.source.error(self.where[name], f"is {value!r}", "give a number above zero")
        return float(value)

    def agree(self, declared: Mapping[str, Any], factory: str, task: str) -> None:
        """Raises: `ConfigurationError` naming both files where the descriptor says otherwise."""
        for name, value in declared.items():
            if name in self.parameters and not _same(self.parameters[name], value):
                problem = f"is {self.parameters[name]!r} here, and {factory} means {value!r} (`{task}.{DECLARED_BY[name]}`)"
                raise self.source.error(self.where[name], problem, "say it in the descriptor alone: remove it here")


def _alike(value: Any) -> Any:
    """`[0, 0.5]` are two numbers to people, and to ROS two kinds of them, which it refuses in a list."""
    if isinstance(value, list) and {type(part) for part in value} == {int, float}:
        return [float(part) for part in value]
    return value


def _same(here: Any, there: Any) -> bool:
    """A list of `name=value` says the same in any order."""
    if isinstance(here, list) and isinstance(there, list):
        return sorted(map(str, here)) == sorted(map(str, there))
    return isinstance(here, bool) == isinstance(there, bool) and bool(here == there)

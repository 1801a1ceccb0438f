"""The processes of a factory, as data: `rfm up` and `launch/factory.launch.py` start this one list."""

from __future__ import annotations

import contextlib
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.factory import yaml_source
from ros2_rfm_serving.factory.descriptor import Factory, Robot, ServerCluster, Task
from ros2_rfm_serving.types import SYSTEM1


@dataclass(frozen=True, kw_only=True)
class NodeSpec:
    """One node in a process of its own."""

    name: str
    """Unique in the factory; also names its log."""
    executable: str
    """In lib/rfm_serving."""
    namespace: str = ""
    """Below the factory's namespace."""
    parameters: dict[str, Any] = field(default_factory=dict)
    params_file: str = ""
    """ROS parameters that `parameters` adds to or overrides; empty: none."""
    simulated: bool = False
    """Stands in for hardware: left out where real robots are."""


def node_list(
    factory: Factory,
    config_folder: Path,
    *,
    fleet_namespace: str = "",
    work: dict[str, Any] | None = None,
    profiles: Path | None = None,
) -> list[NodeSpec]:
    """All nodes, in the order of starting. `work`: parameters of the foreman; None: no foreman. `profiles`: folder of latency
    profiles and models.yaml; None: the shipped one.

    Raises: `ConfigurationError` when a robot's parameter file is missing.
    """
    common = {"fleet_namespace": fleet_namespace} if fleet_namespace else {}
    folder = {"profiles_folder": str(profiles.resolve())} if profiles else {}
    nodes = [
        NodeSpec(
            name="scheduler",
            executable="scheduler_node",
            namespace="rfm",
            parameters={"factory_file": str(Path(factory.file).resolve()), **folder, **common},
        )
    ]
    nodes += [
        NodeSpec(
            name=server,
            executable="model_server_node",
            namespace=f"rfm/servers/{server}",
            parameters={"server": server, **_group_parameters(group), **folder, **common},
        )
        for server, group in factory.groups.items()
    ]
    for robot in factory.robots:
        nodes += _robot_nodes(factory, robot, config_folder, common)
    if work is not None:
        robots = [robot.name for robot in factory.robots]
        nodes.append(
            NodeSpec(name="foreman", executable="foreman_node", namespace="rfm", parameters={"robots": robots, **work, **common})
        )
    for name, count in Counter(node.name for node in nodes).items():
        if count > 1:
            raise ConfigurationError(f"two processes would be named {name!r}", file=factory.file, fix="rename the task")
    return nodes


def robot_nodes(
    factory: Factory, robot: Robot, config_folder: Path, *, fleet_namespace: str = "", work: dict[str, Any] | None = None
) -> list[NodeSpec]:
    """The nodes of one robot that joins a running factory, in the order of starting. `work`: as in `node_list`.

    Raises: `ConfigurationError` when its parameter file is missing.
    """
    common = {"fleet_namespace": fleet_namespace} if fleet_namespace else {}
    nodes = _robot_nodes(factory, robot, config_folder, common)
    if work is not None:
        parameters = {"robots": [robot.name], **work, **common}
        name = f"{robot.name}_foreman"
        nodes.append(NodeSpec(name=name, executable="foreman_node", namespace=robot.name, parameters=parameters))
    return nodes


def _robot_nodes(factory: Factory, robot: Robot, config_folder: Path, common: dict[str, Any]) -> list[NodeSpec]:
    task = factory.tasks[robot.task]
    nodes = [
        NodeSpec(
            name=robot.name,
            executable="robot_node",
            namespace=robot.name,
            parameters={"robot": robot.name, "task": robot.task, **_task_parameters(task), **common},
            params_file=str(_params_file(factory, robot.task, task.robot, config_folder)),
        )
    ]
    if task.world:
        world = {
            "robot": robot.name,
            "task": task.world.task,
            "seed": task.world.seed + 10_000 * robot.index,
            "control_rate_hz": task.world.control_rate_hz,
            "camera_rate_hz": task.world.camera_rate_hz,
            "interface": task.world.interface.value,
        }
        node = NodeSpec(
            name=f"{robot.name}_world",
            executable="metaworld_robot_node",
            namespace=robot.name,
            parameters={**world, **common},
            simulated=True,
        )
        nodes.insert(0, node)  # the robot is there before who drives it
    return nodes


def _group_parameters(group: ServerCluster) -> dict[str, Any]:
    """What the descriptor says about the servers of a group."""
    parameters = {"dispatch": group.dispatch, "batching": group.batching, "refetch_after_s": group.refetch_after_ms / 1e3}
    if group.overflow is None:
        return parameters
    overflow = group.overflow
    tier = {
        "overflow_url": overflow.url,
        "overflow_round_trip_s": overflow.round_trip_ms / 1e3,
        "overflow_token_env": overflow.token_env,
    }
    return parameters | tier


def _task_parameters(task: Task) -> dict[str, Any]:
    """What the descriptor says about the robots of a task. Lists of nothing are left out: ROS cannot tell their type."""
    others = {name: component for name, component in task.components.items() if name != SYSTEM1}
    calls = [f"{name}={ratio:.9g}" for name in others if (ratio := task.calls_per_action(name))]
    return {
        "instruction": task.components[SYSTEM1].prompt,
        **({"component_prompts": [f"{name}={component.prompt}" for name, component in others.items()]} if others else {}),
        **({"calls_per_action": calls} if calls else {}),
        "component_fallbacks": [f"{name}={component.fallback.value}" for name, component in task.components.items()],
        **_horizon_parameters(task),
        "max_task_retries": task.task_retry.max_task_retries,
        "on_max_task_retries": task.task_retry.on_max_task_retries.value,
        "max_consecutive_safety_replan": task.safety_and_slo_violation.max_consecutive_safety_replan,
        "max_consecutive_slo_violation": task.safety_and_slo_violation.max_consecutive_slo_violation,
        "on_max_violation": task.safety_and_slo_violation.on_max_violation.value,
        **({"control_rate_hz": task.world.control_rate_hz} if task.world else {}),
    }


def _horizon_parameters(task: Task) -> dict[str, Any]:
    """A static horizon is the robot's own."""
    horizon = task.execution.horizon
    if horizon.policy == "static":
        return {}
    return {
        "horizon_policy": horizon.policy,
        "horizon_threshold": horizon.threshold,
        "horizon_min_steps": horizon.min_steps,
    }


def _params_file(factory: Factory, task: str, name: str, config_folder: Path) -> Path:
    candidates = [Path(factory.file).resolve().parent / name, config_folder / "robots" / name]
    for file in candidates:
        with contextlib.suppress(OSError):  # a name that no file can have
            if file.is_file():
                return file
    raise ConfigurationError(
        f"no file {name!r}",
        file=factory.file,
        key=f"{task}.robot",
        fix=f"put it at {candidates[0]} or {candidates[1]}",
    )


def write_parameters(node: NodeSpec, file: Path) -> None:
    """A ROS parameter file with all of a node's parameters. Raises: `ConfigurationError` for a file of its own that is none."""
    file.write_text(parameter_file(merged_parameters(node)), encoding="utf-8")


def merged_parameters(node: NodeSpec) -> dict[str, Any]:
    """All of a node's, by name. Raises: `ConfigurationError` for a file of its own that is none."""
    merged: dict[str, Any] = {}
    if node.params_file:
        source = yaml_source.read(Path(node.params_file))
        for name, section in source.data.items():
            found = section.get("ros__parameters") if isinstance(section, dict) else None
            if not isinstance(found, dict):
                raise source.error((name,), "has no `ros__parameters`", "write a map of parameters there")
            merged.update(found)
    merged.update(node.parameters)
    return merged


class _Quoting(yaml.SafeDumper):
    """Quotes every string: ROS takes a bare `y` or `on` for a truth value, as YAML 1.1 has it, and PyYAML writes them bare."""


_Quoting.add_representer(str, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"'))


def parameter_file(parameters: dict[str, Any]) -> str:
    """The text of a ROS parameter file for any node."""
    return yaml.dump({"/**": {"ros__parameters": parameters}}, Dumper=_Quoting, sort_keys=True)

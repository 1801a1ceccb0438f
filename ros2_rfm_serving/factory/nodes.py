"""Processes of a factory, as data: `rfm up` and `launch/factory.launch.py` start this one list."""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.factory.descriptor import Factory, RobotEntry
from ros2_rfm_serving.factory.robot_file import RobotFile
from ros2_rfm_serving.factory.settings import ServerSettings, robot_settings, settings_of
from ros2_rfm_serving.factory.task import CONTROL_RATE_HZ, METAWORLD, WorldEntry
from ros2_rfm_serving.private_files import private
from ros2_rfm_serving.types import HorizonRequest, PipelineConfig

WORLD_EXECUTABLES = ("metaworld_robot_node", "simulated_robot_node")
"""Executables of simulated robots: Meta-World's, in whose surroundings obstacles can be staged, and all others'."""
ROBOT_NODE = "robot"
"""Name of the node of a robot, below the robot's namespace."""
ZENOH_PORT = 7447
"""Port of the factory's router."""


@dataclass(frozen=True, kw_only=True)
class NodeSpec:
    """One node in a process of its own."""

    name: str
    """Name that is unique in the factory, and also names its log."""
    executable: str
    """File in lib/rfm_serving."""
    namespace: str = ""
    """Namespace below the factory's."""
    parameters: dict[str, Any] = field(default_factory=dict)
    params_file: str = ""
    """ROS parameters that `parameters` adds to or overrides; empty: none."""
    graph_name: str = ""
    """Fully qualified name of the node, whose sections of `params_file` apply; empty: all sections apply."""
    simulated: bool = False
    """The node replaces hardware, and is left out where robots are real."""
    host: str = ""
    """Host of the descriptor on which it runs; empty: there are none."""
    device: str = ""
    """GPU of a model server (see `factory.machines`); empty: any."""
    environment: dict[str, str] = field(default_factory=dict)
    """Variables of its process, in addition to those that it inherits."""


def node_list(
    factory: Factory,
    config_folder: Path,
    *,
    fleet_namespace: str = "",
    work: dict[str, Any] | None = None,
    profiles: Path | None = None,
) -> list[NodeSpec]:
    """Return all nodes, in the order of starting.

    work: parameters of the foreman; None: no foreman. profiles: folder of latency profiles and models.yaml; None: the shipped one.

    Raises: `ConfigurationError` when a robot's parameter file is missing or contradicts the descriptor.
    """
    common = {"fleet_namespace": fleet_namespace} if fleet_namespace else {}
    folder = {"profiles_folder": str(profiles.resolve())} if profiles else {}
    nodes = [
        NodeSpec(
            name="scheduler",
            executable="scheduler_node",
            namespace="rfm",
            parameters={"factory_file": str(Path(factory.file).resolve()), **folder, **common},
            host=factory.scheduler_host,
        )
    ]
    nodes += _server_nodes(factory, {**folder, **common})
    nodes += _zenoh_nodes(factory, common)
    for robot in factory.robots:
        nodes += _robot_nodes(factory, robot, config_folder, common)
    if work is not None:
        nodes += _foremen(factory, {**work, **common})
    for name, count in Counter(node.name for node in nodes).items():
        if count > 1:
            raise ConfigurationError(f"two processes would be named {name!r}", file=factory.file, fix="rename the task")
    return nodes


def _server_nodes(factory: Factory, common: dict[str, Any]) -> list[NodeSpec]:
    origin = {"descriptor": factory.fingerprint} if factory.fingerprint else {}
    seats = factory.gpu_assignments
    return [
        NodeSpec(
            name=server,
            executable="model_server_node",
            namespace=f"rfm/servers/{server}",
            parameters={"server": server, **_server_parameters(settings), **origin, **common},
            host=seats[server].host if server in seats else "",
            device=seats[server].device if server in seats else "",
        )
        for server, settings in settings_of(factory).servers.items()
    ]


def _zenoh_nodes(factory: Factory, common: dict[str, Any]) -> list[NodeSpec]:
    """Return the router and its gateway; none where no host's robots are on Zenoh."""
    if not factory.zenoh_hosts:
        return []
    host, parameters = factory.scheduler_host, {"router": zenoh_router(factory), **common}
    router = NodeSpec(name="router", executable="zenoh_router_node", namespace="rfm", host=host)
    return [router, NodeSpec(name="door", executable="zenoh_door_node", namespace="rfm", parameters=parameters, host=host)]


def zenoh_router(factory: Factory) -> str:
    """Return the address on which the router listens."""
    return f"tcp/{factory.hosts[factory.scheduler_host].address}:{ZENOH_PORT}"


def _foremen(factory: Factory, parameters: dict[str, Any]) -> list[NodeSpec]:
    """Return a foreman for all robots on DDS, beside the scheduler, and one for each host whose robots are on Zenoh."""
    robots: dict[str, list[RobotEntry]] = {}
    for robot in factory.robots:
        host = factory.host_of(robot.task)
        robots.setdefault(host if host in factory.zenoh_hosts else factory.scheduler_host, []).append(robot)
    return [
        NodeSpec(
            name=f"foreman_{host}" if host in factory.zenoh_hosts else "foreman",
            executable="foreman_node",
            namespace="rfm",
            parameters={**_robots_of_task_loop(factory, theirs), **parameters},
            host=host,
        )
        for host, theirs in robots.items()
    ]


def _robots_of_task_loop(factory: Factory, robots: Sequence[RobotEntry]) -> dict[str, Any]:
    """Return the parameters of a foreman that name its robots. It waits for the resets that the simulated ones offer."""
    simulated = [robot.name for robot in robots if factory.tasks[robot.task].world is not None]
    return {"robots": [robot.name for robot in robots], **({"wait_for_reset": simulated} if simulated else {})}


def robot_nodes(
    factory: Factory, robot: RobotEntry, config_folder: Path, *, fleet_namespace: str = "", work: dict[str, Any] | None = None
) -> list[NodeSpec]:
    """Return the nodes of one robot that joins a running factory, in the order of starting. `work`: as in `node_list`.

    Raises: `ConfigurationError` when its parameter file is missing or contradicts the descriptor.
    """
    common = {"fleet_namespace": fleet_namespace} if fleet_namespace else {}
    nodes = _robot_nodes(factory, robot, config_folder, common)
    if work is not None:
        parameters = {**_robots_of_task_loop(factory, [robot]), **work, **common}
        name = f"{robot.name}_foreman"
        nodes.append(NodeSpec(name=name, executable="foreman_node", namespace=robot.name, parameters=parameters))
    return nodes


def _robot_nodes(factory: Factory, robot: RobotEntry, config_folder: Path, common: dict[str, Any]) -> list[NodeSpec]:
    task, host = factory.tasks[robot.task], factory.host_of(robot.task)
    origin = {"descriptor": factory.fingerprint} if factory.fingerprint else {}
    across = {"zenoh_router": zenoh_router(factory)} if host in factory.zenoh_hosts else {}
    file = params_file(factory, robot.task, config_folder)
    name = robot_node_name(robot, common.get("fleet_namespace", ""))
    own = RobotFile.read(file, name)
    nodes = [
        NodeSpec(
            name=robot.name,
            executable="robot_node",
            namespace=robot.name,
            parameters={
                "robot": robot.name,
                "task": robot.task,
                **robot_parameters(factory, robot.task, own),
                **origin,
                **across,
                **common,
            },
            params_file=str(file),
            graph_name=name,
            host=host,
        )
    ]
    if task.world:
        told = own.parameters.get("action_names")
        commands = {"action_names": told} if told else {}
        nodes.insert(0, _world_node(task.world, robot, max(task.image_size), host, {**commands, **common}))  # before its driver
    return nodes


def _world_node(world: WorldEntry, robot: RobotEntry, image_size_px: int, host: str, common: dict[str, Any]) -> NodeSpec:
    parameters = {
        "robot": robot.name,
        "task": world.task,
        "seed": world.seed + 10_000 * robot.index,
        "control_rate_hz": world.control_rate_hz,
        "camera_rate_hz": world.camera_rate_hz,
        "image_size_px": image_size_px,
    }
    executable, own = WORLD_EXECUTABLES[0], {"interface": world.interface.value}
    if world.simulator != METAWORLD:
        executable, own = WORLD_EXECUTABLES[1], {"simulator": world.simulator}
    return NodeSpec(
        name=f"{robot.name}_world",
        executable=executable,
        namespace=robot.name,
        parameters={**parameters, **own, **common},
        simulated=True,
        host=host,
    )


def _server_parameters(settings: ServerSettings) -> dict[str, Any]:
    parameters = {
        "dispatch": settings.dispatch,
        "batching": settings.batching,
        "refetch_after_s": settings.refetch_after_s if settings.refetch_after_s < math.inf else 0.0,
        "check_parity": settings.check_parity,
        "image_width_px": settings.image_size_px[0],
        "image_height_px": settings.image_size_px[1],
        "threads": settings.threads,
        "cores": settings.cores,
    }
    if settings.overflow is None:
        return parameters
    overflow = settings.overflow
    tier = {
        "overflow_url": overflow.url,
        "overflow_round_trip_s": overflow.round_trip_ms / 1e3,
        "overflow_batches_in_flight": overflow.batches_in_flight,
        "overflow_token_env": overflow.token_env,
    }
    return parameters | tier


def robot_node_name(robot: RobotEntry, fleet_namespace: str = "") -> str:
    """Return the fully qualified name of a robot's node."""
    return "/" + "/".join(filter(None, (fleet_namespace.strip("/"), robot.name, ROBOT_NODE)))


def robot_parameters(factory: Factory, task: str, own: RobotFile) -> dict[str, Any]:
    """Return the descriptor's parameters for a robot of a task, whose own parameters are `own`.

    Empty lists are left out, since ROS cannot infer their type.

    Raises: `ConfigurationError` when the file contradicts the descriptor, or has a control rate that does not fit.
    """
    settings = robot_settings(factory.tasks[task])
    rate_hz = settings.control_rate_hz or own.number("control_rate_hz", CONTROL_RATE_HZ)
    step_rate_hz = rate_hz / own.number("interpolation", 1)
    try:
        horizon_steps = settings.execution_horizon(step_rate_hz)
    except ConfigurationError as error:
        problem = f"{error.problem} ({Path(own.source.file).name})"
        raise ConfigurationError(problem, file=factory.file, key=f"{task}.{error.key}", fix=error.fix) from None
    declared = {
        **({"instruction": settings.instruction} if settings.instruction else {}),
        "component_prompts": [f"{name}={prompt}" for name, prompt in settings.prompts.items()],
        "calls_per_action": [f"{name}={ratio:.9g}" for name, ratio in settings.calls_per_action.items()],
        "component_fallbacks": [f"{name}={fallback.value}" for name, fallback in settings.fallbacks.items()],
        "synchronous": settings.synchronous,
        "execution_horizon": horizon_steps,
        **_horizon_parameters(settings.horizon),
        **_pipelining_parameters(settings.pipelining),
        "num_steps": settings.num_steps,
        **({"accept_other_rate": True} if factory.tasks[task].execution.accept_other_rate else {}),
        "max_task_retries": settings.max_task_retries,
        "on_max_task_retries": settings.on_max_task_retries.value,
        "max_consecutive_safety_replan": settings.max_consecutive_safety_replan,
        "max_consecutive_slo_violation": settings.max_consecutive_slo_violation,
        "on_max_violation": settings.on_max_violation.value,
        **({"control_rate_hz": settings.control_rate_hz} if settings.control_rate_hz else {}),
        **({"max_image_size_px": settings.max_image_size_px} if settings.max_image_size_px else {}),
    }
    own.agree(declared, factory.file, task)
    return {name: value for name, value in declared.items() if value != []}


def _horizon_parameters(horizon: HorizonRequest) -> dict[str, Any]:
    if not horizon.policy:
        return {"horizon_policy": ""}
    return {
        "horizon_policy": horizon.policy,
        "horizon_threshold": horizon.threshold,
        "horizon_min_steps": horizon.min_steps,
    }


def _pipelining_parameters(pipelining: PipelineConfig | None) -> dict[str, Any]:
    if pipelining is None:
        return {"pipelining.pp_perception": 0}
    return {f"pipelining.{name}": value for name, value in vars(pipelining).items()}


def params_file(factory: Factory, task: str, config_folder: Path) -> Path:
    """Return the file with the ROS parameters of a task's robots. Raises: `ConfigurationError` when there is no such file."""
    name = factory.tasks[task].robot
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


LINGER_S = 8.0
"""Time for which the recorder waits for the other nodes to end: `ros2 launch` ends all of them at once."""


def recorder_node(folder: Path | str | None, fleet_namespace: str, factory: Factory) -> list[NodeSpec]:
    """Return the node that records all others, which is therefore the first to start; empty where `folder` is empty."""
    if not folder:
        return []
    fleet = {"fleet_namespace": fleet_namespace} if fleet_namespace else {}
    parameters = {"folder": str(Path(folder).absolute()), "linger_s": LINGER_S, **fleet}
    parameters |= {"robots": [robot.name for robot in factory.robots], "servers": list(factory.servers)}
    return [NodeSpec(name="recorder", executable="recorder_node", namespace="rfm", parameters=parameters)]


def write_parameters(node: NodeSpec, file: Path) -> None:
    """Write a ROS parameter file with all parameters of a node. Raises: `ConfigurationError` when its own file is invalid."""
    text = parameter_file(merged_parameters(node))
    with open(file, "w", encoding="utf-8", opener=private) as opened:
        opened.write(text)


def merged_parameters(node: NodeSpec) -> dict[str, Any]:
    """Return all parameters of a node by name. Raises: `ConfigurationError` when its own file is invalid."""
    own = RobotFile.read(Path(node.params_file), node.graph_name).parameters if node.params_file else {}
    return {**own, **node.parameters}


class _Quoting(yaml.SafeDumper):
    """YAML dumper that quotes every string: ROS reads a bare `y` or `on` as a truth value (YAML 1.1), and PyYAML writes them
    bare."""


_Quoting.add_representer(str, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"'))


def parameter_file(parameters: dict[str, Any]) -> str:
    """Return the text of a ROS parameter file for any node."""
    return yaml.dump({"/**": {"ros__parameters": parameters}}, Dumper=_Quoting, sort_keys=True)

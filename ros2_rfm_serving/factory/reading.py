"""Reading of a descriptor into a validated factory. Each error has its line, its value and a fix."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path

from ros2_rfm_serving.factory import yaml_source
from ros2_rfm_serving.factory.cluster import CONTINUOUS, WAIT, Planning, ServerCluster, Standby
from ros2_rfm_serving.factory.descriptor import CLUSTER, DISCOVERY, FLEET, HOSTS, PLANNING, STANDBY, Factory
from ros2_rfm_serving.factory.fleet import FleetEntry
from ros2_rfm_serving.factory.reading_cores import check_cores
from ros2_rfm_serving.factory.reading_machines import check_located, read_discovery, read_hosts
from ros2_rfm_serving.factory.task import (
    COMPONENTS,
    LAST_RESORTS,
    METAWORLD,
    METAWORLD_ROBOT,
    SIMULATED_TASKS,
    SIMULATORS,
    ComponentEntry,
    InterfaceEntry,
    TaskEntry,
    WorldEntry,
)
from ros2_rfm_serving.factory.yaml_source import YamlSource, did_you_mean
from ros2_rfm_serving.types import MONITOR, SAFETY, SYSTEM1, SYSTEM2, Fallback

SECTIONS = (CLUSTER, FLEET, STANDBY, PLANNING, HOSTS, DISCOVERY)


def load_factory(file: Path) -> Factory:
    """Read and validate a descriptor. Raises: `ConfigurationError` naming file, line, key path, value and fix."""
    return _factory(yaml_source.read(file))


def parse_factory(text: str, file: str = "<text>") -> Factory:
    return _factory(yaml_source.parse(text, file))


def _factory(source: YamlSource) -> Factory:
    for key in (CLUSTER, FLEET):
        if key not in source.data:
            near = did_you_mean(key, [k for k in source.data if isinstance(k, str)])
            raise source.error((key,), "is missing", near if near.startswith("did") else f"add `{key}:`")
    cluster = _cluster(source)
    tasks = {name: _task(source, name, data) for name, data in source.data.items() if name not in SECTIONS}
    _check_pipelining(source, cluster, tasks)
    hosts = read_hosts(source, tasks)
    factory = Factory(
        name=Path(source.file).stem,
        file=source.file,
        fingerprint=_fingerprint(source),
        server_cluster=cluster,
        standby=_standby(source, sum(group.num_servers for group in cluster)),
        planning=source.validate(Planning, (PLANNING,), source.data.get(PLANNING, {})),
        hosts=hosts,
        discovery=read_discovery(source, hosts),
        robot_fleet=_fleet(source, tasks),
        tasks=tasks,
    )
    check_located(source, factory)
    return factory.with_round_trips()


def _fingerprint(source: YamlSource) -> str:
    """Return a hash that ignores comments and white space, but not the order of keys: the first host is the scheduler's."""
    return hashlib.sha256(json.dumps(source.data, default=str).encode()).hexdigest()


def _cluster(source: YamlSource) -> tuple[ServerCluster, ...]:
    data = source.data[CLUSTER]
    if not isinstance(data, list):
        return (_group(source, (CLUSTER,), data),)
    if not data:
        raise source.error((CLUSTER,), "is an empty list", "write `- {num_servers: ..., gpu_type: ...}`")
    groups = tuple(_group(source, (CLUSTER, i), group) for i, group in enumerate(data))
    _check_batching(source, groups)
    _check_dispatch(source, groups)
    return groups


def _group(source: YamlSource, path: yaml_source.KeyPath, data: object) -> ServerCluster:
    check_cores(source, path, data)
    return source.validate(ServerCluster, path, data)


def _check_batching(source: YamlSource, groups: Sequence[ServerCluster]) -> None:
    """Check that all servers of a GPU type batch alike: a schedule identifies servers by that type, and latencies and the cost of
    waiting hold for one kind of batching."""
    told_apart = {CONTINUOUS: "continuously", WAIT: "with `wait`"}
    first: dict[str, str | None] = {}
    for i, group in enumerate(groups):
        way = told_apart.get(group.batching)
        if (other := first.setdefault(group.gpu_type, way)) != way:
            ways = f"batch all servers with {group.gpu_type} {way or other} or none of them"
            problem = f"`{group.batching}`, and other servers of the type do otherwise"
            raise source.error((CLUSTER, i, "batching"), problem, f"{ways}, or give these a gpu_type of their own")


def _check_dispatch(source: YamlSource, groups: Sequence[ServerCluster]) -> None:
    """Check that all servers of a GPU type have one dispatch policy: plans assume one per type, and servers use their group's."""
    first: dict[str, str] = {}
    for i, group in enumerate(groups):
        if (other := first.setdefault(group.gpu_type, group.dispatch)) != group.dispatch:
            fix = f"write `dispatch: {other}` here as in the first group of {group.gpu_type}, or give these a gpu_type of their own"
            problem = f"`{group.dispatch}`, and other servers of the type have `{other}`"
            raise source.error((CLUSTER, i, "dispatch"), problem, fix)


def _standby(source: YamlSource, num_servers: int) -> Standby:
    if STANDBY not in source.data:
        return Standby()
    standby = source.validate(Standby, (STANDBY,), source.data[STANDBY])
    if standby.num_servers >= num_servers:
        fix = f"keep at least one of the {num_servers} servers of server_cluster for the normal routes"
        raise source.error((STANDBY, "num_servers"), f"is {standby.num_servers}", fix)
    return standby


def _fleet(source: YamlSource, tasks: dict[str, TaskEntry]) -> tuple[FleetEntry, ...]:
    entries = source.data[FLEET]
    if not isinstance(entries, list) or not entries:
        raise source.error((FLEET,), "must be a list of `{task, num_robots}`", "write at least one `- task: ...`")
    fleet = tuple(source.validate(FleetEntry, (FLEET, i), entry) for i, entry in enumerate(entries))
    seen: set[str] = set()
    for i, entry in enumerate(fleet):
        if entry.task not in tasks:
            fix = did_you_mean(entry.task, tasks)
            raise source.error((FLEET, i, "task"), f"no task is named {entry.task!r}", fix)
        if entry.task in seen:
            raise source.error((FLEET, i, "task"), f"{entry.task!r} is listed twice", "add up its robots in one entry")
        seen.add(entry.task)
    return fleet


def _task(source: YamlSource, name: object, data: object) -> TaskEntry:
    if not isinstance(name, str) or not re.fullmatch(r"[a-zA-Z][a-zA-Z0-9_]*", name):
        fix = "letters, digits and underscores, a letter first: robots and ROS topics are named after it"
        raise source.error((str(name),), f"{name!r} cannot name a task", fix)
    if not isinstance(data, dict) or "components" not in data:
        raise source.error(
            (name,), "is neither a known section nor a task", did_you_mean(name, SECTIONS) + "; a task has `components:`"
        )
    task = source.validate(TaskEntry, (name,), data)
    for component, spec in task.components.items():
        _check_component(source, (name, "components", component), component, spec)
    _check_systems(source, name, task)
    _check_last_resorts(source, name, task)
    _check_world(source, name, task)
    return task


def _check_systems(source: YamlSource, name: str, task: TaskEntry) -> None:
    """Check that there is an action model, and a planner exactly where its ratio is above zero."""
    if SYSTEM1 not in task.components:
        raise source.error((name, "components"), "has no `system1`", "every task needs an action model")
    ratio = task.pipeline.system2_to_system1_call_ratio
    if (SYSTEM2 in task.components) != (ratio > 0):
        raise source.error(
            (name, "pipeline", "system2_to_system1_call_ratio"),
            f"is {ratio:g}, and components has {'a' if SYSTEM2 in task.components else 'no'} `system2`",
            "declare both or neither; the ratio counts System 2 calls per System 1 call",
        )


def _check_last_resorts(source: YamlSource, name: str, task: TaskEntry) -> None:
    for section, key in (("task_retry", "on_max_task_retries"), ("safety_and_slo_violation", "on_max_violation")):
        resort = getattr(getattr(task, section), key)
        if resort not in LAST_RESORTS:
            fix = f"give one of {', '.join(r.value for r in LAST_RESORTS)}"
            raise source.error((name, section, key), f"`{resort.value}` would go on as before", fix)


def _check_world(source: YamlSource, name: str, task: TaskEntry) -> None:
    """Check the world against the abilities of the simulator and its cameras."""
    if task.world is None:
        return
    if task.world.simulator != METAWORLD:
        _check_other_world(source, name, task, task.world)
    elif task.world.task not in SIMULATED_TASKS:
        raise source.error((name, "world", "task"), f"no task {task.world.task!r}", did_you_mean(task.world.task, SIMULATED_TASKS))
    if len(set(task.image_size)) > 1:
        fix = "its cameras are square: give the same number twice"
        raise source.error((name, "image_size_px"), f"a simulated robot does not send {list(task.image_size)}", fix)


def _check_other_world(source: YamlSource, name: str, task: TaskEntry, world: WorldEntry) -> None:
    """Check a world other than Meta-World. Its node knows its tasks, where it is installed."""
    known = [METAWORLD, *(entry.name for entry in entry_points(group=SIMULATORS))]
    if ":" not in world.simulator and world.simulator not in known:
        fix = f"{did_you_mean(world.simulator, known)}, or `package.module:function` (docs/worlds.md)"
        raise source.error((name, "world", "simulator"), f"no simulator is named {world.simulator!r}", fix)
    if world.interface is not InterfaceEntry.NATIVE:
        raise source.error((name, "world", "interface"), "only Meta-World's arms pretend to be foreign", "leave it out")
    if task.robot == METAWORLD_ROBOT:
        fix = "write `robot:`, a file beside this one (docs/integrate.md)"
        raise source.error((name, "world"), f"{METAWORLD_ROBOT} does not describe a robot of {world.simulator!r}", fix)


def _check_pipelining(source: YamlSource, cluster: tuple[ServerCluster, ...], tasks: Mapping[str, TaskEntry]) -> None:
    """Check that pipelining has a server for it: requests stay in flight between frames, which needs continuous batching."""
    for name, task in tasks.items():
        if task.execution.pipelining and not any(group.batching == CONTINUOUS for group in cluster):
            fix = f"write `batching: continuous` in {CLUSTER}, or leave it out"
            raise source.error((name, "execution", "pipelining"), "no server would take such sessions", fix)


def _check_component(source: YamlSource, path: yaml_source.KeyPath, component: str, spec: ComponentEntry) -> None:
    """Check the rate of a component. Systems 1 and 2 are goal-coupled, safety and monitor periodic (ROSA §3.4.1); any other
    declares it."""
    periodic = spec.freq_hz is not None
    if component in (SAFETY, MONITOR) and not periodic:
        raise source.error((*path, "freq_hz"), "is missing", f"`{component}` runs periodically: give its rate in Hz")
    if component in (SYSTEM1, SYSTEM2) and periodic:
        raise source.error(
            (*path, "freq_hz"), f"does not apply to `{component}` (found {spec.freq_hz:g})", "its rate follows from the schedule"
        )
    if component == SAFETY and spec.fallback is Fallback.USE_LAST_PLAN:
        fix = "give `stop_and_resend`, `stop_and_replan`, `return_to_safe_state` or `stop_and_call_human`"
        raise source.error((*path, "fallback"), "`use_last_plan` would take a late safety verdict for a pass", fix)
    if component in COMPONENTS and spec.call_ratio is not None:
        fix = "`pipeline.system2_to_system1_call_ratio` is System 2's" if component == SYSTEM2 else "remove it"
        raise source.error((*path, "call_ratio"), f"does not apply to `{component}` (found {spec.call_ratio:g})", fix)
    if component not in COMPONENTS and periodic == (spec.call_ratio is not None):
        near = did_you_mean(component, COMPONENTS)
        raise source.error(
            path,
            f"`{component}` is not one of the four of ROSA, and says {'both' if periodic else 'neither'} `freq_hz` "
            f"{'and' if periodic else 'nor'} `call_ratio`",
            "give `freq_hz` when it runs periodically, `call_ratio` (calls per System 1 call) when the action waits for it"
            + (f"; {near}" if near.startswith("did") else ""),
        )

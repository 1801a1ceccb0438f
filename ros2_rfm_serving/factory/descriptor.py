"""The factory descriptor: ROSA §3.3, Fig. 3, as it is printed, plus optional keys of ours.

server_cluster:  {num_servers, gpu_type}
robot_fleet:     [{task, num_robots}, ...]
<task>:          pipeline, task_retry, safety_and_slo_violation, components; ours: value, world, robot
"""

from __future__ import annotations

import enum
import re
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from ros2_rfm_serving.factory import yaml_source
from ros2_rfm_serving.factory.yaml_source import YamlSource, did_you_mean
from ros2_rfm_serving.types import MONITOR, SAFETY, SYSTEM1, SYSTEM2

COMPONENTS = (SYSTEM1, SYSTEM2, SAFETY, MONITOR)
_CLUSTER, _FLEET = "server_cluster", "robot_fleet"


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Fallback(enum.Enum):
    """What a robot does when a component misses its SLO or objects (ROSA §3.3)."""

    STOP_AND_RESEND = "stop_and_resend"
    USE_LAST_PLAN = "use_last_plan"
    STOP_AND_REPLAN = "stop_and_replan"
    RETURN_TO_SAFE_STATE = "return_to_safe_state"
    STOP_AND_CALL_HUMAN = "stop_and_call_human"


class ServerCluster(_Section):
    num_servers: int = Field(ge=1, le=10_000)
    gpu_type: Annotated[str, BeforeValidator(str)] = Field(min_length=1)


class FleetEntry(_Section):
    task: str
    num_robots: int = Field(ge=1, le=100_000)


class Pipeline(_Section):
    action_period_ms: float = Field(gt=0)
    """Execution time of what one System 1 prediction commands, t_act (ROSA §3.4.2)."""
    system2_to_system1_call_ratio: float = Field(default=0.0, ge=0, le=1)
    """System 2 calls per System 1 call, 1/H; 0: no System 2."""


class TaskRetry(_Section):
    max_task_retries: int = Field(default=3, ge=0)
    on_max_task_retries: Fallback = Fallback.STOP_AND_CALL_HUMAN


class SafetyAndSloViolation(_Section):
    max_consecutive_safety_replan: int = Field(default=10, ge=1)
    max_consecutive_slo_violation: int = Field(default=3, ge=1)
    on_max_violation: Fallback = Fallback.STOP_AND_CALL_HUMAN


class Component(_Section):
    model: str = Field(min_length=1)
    prompt: str = ""
    slo_ms: float | None = Field(default=None, gt=0)
    """Request to reply at the SLO percentile; None: no requirement."""
    freq_hz: float | None = Field(default=None, gt=0, le=1000)
    """Of periodic components (obligations); None for System 1 and 2."""
    fallback: Fallback = Fallback.STOP_AND_RESEND


class WorldKind(enum.Enum):
    METAWORLD = "metaworld"


class World(_Section):
    """A simulated robot that `rfm up` starts with the task's robots. Ours; without it, real robots are expected."""

    simulator: WorldKind
    task: str
    control_rate_hz: float = Field(default=20.0, gt=0, le=1000)
    camera_rate_hz: float = Field(default=5.0, gt=0, le=200)
    seed: int = 0
    """Robot i of the task starts its episodes at seed + 10 000 i."""


class Task(_Section):
    pipeline: Pipeline
    task_retry: TaskRetry = TaskRetry()
    safety_and_slo_violation: SafetyAndSloViolation = SafetyAndSloViolation()
    components: dict[str, Component] = Field(min_length=1)
    value: float = Field(default=1.0, gt=0)
    """Weight v_c of one action of this task (ROSA §3.4.1, eq. 1)."""
    world: World | None = None
    robot: str = "metaworld_arm.yaml"
    """ROS parameters of the robot node: a file in config/robots, or a path relative to the descriptor."""


class Robot(_Section):
    """One robot of the fleet."""

    name: str
    task: str
    index: int
    """Within its task, from 0."""


class Factory(_Section):
    """A validated descriptor."""

    name: str
    file: str
    server_cluster: ServerCluster
    robot_fleet: tuple[FleetEntry, ...]
    tasks: dict[str, Task]

    @property
    def robots(self) -> list[Robot]:
        """Named `<task>_<number from 1>`, in the order of the descriptor."""
        counted: dict[str, int] = {}
        robots = []
        for entry in self.robot_fleet:
            for _ in range(entry.num_robots):
                index = counted.get(entry.task, 0)
                counted[entry.task] = index + 1
                robots.append(Robot(name=f"{entry.task}_{index + 1}", task=entry.task, index=index))
        return robots

    @property
    def servers(self) -> list[str]:
        return [f"server_{i + 1}" for i in range(self.server_cluster.num_servers)]


def load_factory(file: Path) -> Factory:
    """Reads and validates a descriptor. Raises: `ConfigurationError` naming file, line, key path, value and fix."""
    return _factory(yaml_source.read(file))


def parse_factory(text: str, file: str = "<text>") -> Factory:
    return _factory(yaml_source.parse(text, file))


def _factory(source: YamlSource) -> Factory:
    for key in (_CLUSTER, _FLEET):
        if key not in source.data:
            near = did_you_mean(key, [k for k in source.data if isinstance(k, str)])
            raise source.error((key,), "is missing", near if near.startswith("did") else f"add `{key}:`")
    cluster = source.validate(ServerCluster, (_CLUSTER,), source.data[_CLUSTER])
    tasks = {name: _task(source, name, data) for name, data in source.data.items() if name not in (_CLUSTER, _FLEET)}
    return Factory(
        name=Path(source.file).stem,
        file=source.file,
        server_cluster=cluster,
        robot_fleet=_fleet(source, tasks),
        tasks=tasks,
    )


def _fleet(source: YamlSource, tasks: dict[str, Task]) -> tuple[FleetEntry, ...]:
    entries = source.data[_FLEET]
    if not isinstance(entries, list) or not entries:
        raise source.error((_FLEET,), "must be a list of `{task, num_robots}`", "write at least one `- task: ...`")
    fleet = tuple(source.validate(FleetEntry, (_FLEET, i), entry) for i, entry in enumerate(entries))
    for i, entry in enumerate(fleet):
        if entry.task not in tasks:
            fix = did_you_mean(entry.task, tasks)
            raise source.error((_FLEET, i, "task"), f"no task is named {entry.task!r}", fix)
    return fleet


def _task(source: YamlSource, name: object, data: object) -> Task:
    if not isinstance(name, str) or not re.fullmatch(r"[a-zA-Z][a-zA-Z0-9_]*", name):
        fix = "letters, digits and underscores, a letter first: robots and ROS topics are named after it"
        raise source.error((str(name),), f"{name!r} cannot name a task", fix)
    if not isinstance(data, dict) or "components" not in data:
        raise source.error(
            (name,), "is neither a known section nor a task", did_you_mean(name, (_CLUSTER, _FLEET)) + "; a task has `components:`"
        )
    task = source.validate(Task, (name,), data)
    for component, spec in task.components.items():
        _check_component(source, (name, "components", component), component, spec)
    if SYSTEM1 not in task.components:
        raise source.error((name, "components"), "has no `system1`", "every task needs an action model")
    if (SYSTEM2 in task.components) != (task.pipeline.system2_to_system1_call_ratio > 0):
        has = "a" if SYSTEM2 in task.components else "no"
        raise source.error(
            (name, "pipeline", "system2_to_system1_call_ratio"),
            f"is {task.pipeline.system2_to_system1_call_ratio:g}, and components has {has} `system2`",
            "declare both or neither; the ratio counts System 2 calls per System 1 call",
        )
    if task.world and task.world.simulator is WorldKind.METAWORLD:
        known = ("reach", "push", "pick-place", "door-open")
        if task.world.task not in known:
            raise source.error((name, "world", "task"), f"no task {task.world.task!r}", did_you_mean(task.world.task, known))
    return task


def _check_component(source: YamlSource, path: yaml_source.KeyPath, component: str, spec: Component) -> None:
    if component not in COMPONENTS:
        raise source.error(path, "unknown component", did_you_mean(component, COMPONENTS))
    periodic = component in (SAFETY, MONITOR)
    if periodic and spec.freq_hz is None:
        raise source.error((*path, "freq_hz"), "is missing", f"`{component}` runs periodically: give its rate in Hz")
    if not periodic and spec.freq_hz is not None:
        raise source.error(
            (*path, "freq_hz"), f"does not apply to `{component}` (found {spec.freq_hz:g})", "its rate follows from the schedule"
        )

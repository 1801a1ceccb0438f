"""The factory descriptor: ROSA §3.3, Fig. 3, as it is printed, plus optional keys of ours.

server_cluster:  {num_servers, gpu_type}; ours: a list of such groups, dispatch, batching, refetch_after_ms, overflow
robot_fleet:     [{task, num_robots}, ...]
standby:         ours: servers kept warm, outside the normal routes
<task>:          pipeline, task_retry, safety_and_slo_violation, components;
                 ours: value, min_action_rate_hz, execution, percentile, world, robot, image_size_px
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.factory import yaml_source
from ros2_rfm_serving.factory.yaml_source import YamlSource, did_you_mean
from ros2_rfm_serving.types import MAX_ALPHA, MAX_STAGES, MONITOR, SAFETY, SYSTEM1, SYSTEM2, Fallback, contracts

COMPONENTS = (SYSTEM1, SYSTEM2, SAFETY, MONITOR)
LAST_RESORTS = (Fallback.STOP_AND_CALL_HUMAN, Fallback.RETURN_TO_SAFE_STATE)
"""What may follow when retries or patience are used up: a person looks after it, or the task ends where it is safe."""
CONTINUOUS = "continuous"
CONTROL_RATE_HZ = 20.0
"""Of a robot that does not say."""
IMAGE_SIZE_PX = (640, 480)
"""Width and height of what a real robot's cameras send unless it is declared: the most that its node lets through by default."""
SIMULATED_IMAGE_SIZE_PX = (96, 96)
"""Of a simulated robot, unless it is declared."""
_CLUSTER, _FLEET, _STANDBY = "server_cluster", "robot_fleet", "standby"


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Overflow(_Section):
    """A server elsewhere that takes what a server of the group cannot answer in time (Kairos §3.2.3). Ours."""

    url: str = Field(pattern=r"^wss?://")
    """Of its door for clients without ROS (docs/gateway.md)."""
    round_trip_ms: float = Field(gt=0)
    token_env: str = ""
    """Environment variable with its token; empty: none."""


class ServerCluster(_Section):
    num_servers: int = Field(ge=1, le=10_000)
    dispatch: str = "balanced"
    """Whose request runs next: `balanced`, `best`, `swift`, `fifo`, `least_attained`, `wait_ratio`, `deadline`, or one of one's own
    (docs/server.md says what each is good at). Ours."""
    batching: str = "fixed"
    """How many run together: `fixed`, `saturation` or `wait`; `continuous`: models that can advance one solver step at a time let
    requests join a running batch. Ours."""
    refetch_after_ms: float = Field(default=0.0, ge=0)
    """An observation that would be older when it is used is asked for again if that costs nothing; 0: never. Ours."""
    overflow: Overflow | None = None
    gpu_type: Annotated[str, BeforeValidator(str)] = Field(min_length=1)

    def __str__(self) -> str:
        return f"{self.num_servers} x {self.gpu_type}" + (" (batching continuously)" if self.batching == CONTINUOUS else "")


class Standby(_Section):
    """Servers that take over when another is lost (ROSA §3.4.4). Ours."""

    num_servers: int = Field(default=0, ge=0)
    """Of the cluster's, kept warm with a model loaded and out of the normal routes."""
    peers: bool = True
    """Where no reserved server covers a loss: another one with the same model, if it still meets every SLO."""


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
    engine: str = ""
    """Which of the model's entries in the catalogue: `<model>@<engine>`; empty: `<model>`. Ours."""
    prompt: str = ""
    slo_ms: float | None = Field(default=None, gt=0)
    """Request to reply at the SLO percentile; None: no requirement."""
    freq_hz: float | None = Field(default=None, gt=0, le=1000)
    """Of periodic components (obligations); None for System 1 and 2."""
    call_ratio: float | None = Field(default=None, gt=0, le=100)
    """Calls per System 1 call, of a goal-coupled component beyond the four of Fig. 3 (those have theirs in `pipeline`)."""
    percentile: float | None = Field(default=None, ge=50, le=99)
    """Of `slo_ms`; None: the task's."""
    fallback: Fallback = Fallback.STOP_AND_RESEND

    @model_validator(mode="before")
    @classmethod
    def _engine_is_part_of_the_model(cls, data: object) -> object:
        if isinstance(data, dict) and data.get("engine") and "@" not in str(data.get("model", "@")):
            return {**data, "model": f"{data['model']}@{data['engine']}"}
        return data


class ExecutionMode(enum.Enum):
    SYNC = "sync"
    """Request, execute, request: a cycle lasts inference and execution (ROSA §3.4.1)."""
    ASYNC = "async"
    """Inference during execution: a cycle lasts the longer of the two."""


class Horizon(_Section):
    policy: str = "static"
    """`static`: the robot's own; else the server says: by `confidence` (Kairos §3.1), `curvature`, or a policy of one's own."""
    threshold: float = Field(default=0.4, gt=-1)
    """How unsure of an action a model may be (docs/server.md)."""
    min_steps: int = Field(default=1, ge=1)
    """H_min: never fewer actions."""
    mean_period_ms: float | None = Field(default=None, gt=0)
    """Mean execution time of what a policy really has executed of a chunk; None: `pipeline.action_period_ms`."""

    @model_validator(mode="after")
    def _static_has_no_mean(self) -> Horizon:
        if self.policy == "static" and self.mean_period_ms is not None:
            raise ValueError("mean_period_ms needs a policy: without one `pipeline.action_period_ms` of every chunk is executed")
        return self


class Pipelining(_Section):
    """Several requests of a robot in flight, one per action period, on one public context (AURAS §4). Ours."""

    pp_perception: int = Field(default=1, ge=1, le=MAX_STAGES)
    """Action periods until an observation is in the public context (§4.3.2)."""
    pp_generation: int = Field(default=1, ge=1, le=MAX_STAGES)
    """Action periods that the solver steps of one request are spread over."""
    alpha: float = Field(default=0.0, ge=-MAX_ALPHA, le=MAX_ALPHA)
    """Skew of that spread: stage i has a share of e^(i alpha)."""
    fetch_offset: Literal[0, -1] = 0
    """0: on the context of this action period's observation; -1: on the one before (§4.3.1)."""


class Execution(_Section):
    mode: ExecutionMode = ExecutionMode.SYNC
    horizon: Horizon = Horizon()
    pipelining: Pipelining | None = None
    """None: one request of a robot in flight."""

    @model_validator(mode="after")
    def _pipelined_robots_do_not_wait(self) -> Execution:
        if self.pipelining is not None and self.mode is ExecutionMode.SYNC:
            raise ValueError("pipelining needs `mode: async`: a robot that waits for each answer has one request in flight")
        return self


class ActionRateFloor(_Section):
    """F_c^min of ROSA eq. 1, said explicitly."""

    per_robot: float | None = Field(default=None, gt=0)
    per_class: float | None = Field(default=None, gt=0)
    """Of all robots of the task together."""

    @model_validator(mode="after")
    def _one_of_them(self) -> ActionRateFloor:
        if (self.per_robot is None) == (self.per_class is None):
            raise ValueError("give one of `per_robot` and `per_class`")
        return self


class WorldKind(enum.Enum):
    METAWORLD = "metaworld"


class Interface(enum.Enum):
    """How a simulated robot shows itself on the graph."""

    NATIVE = "native"
    """As the robot node expects it by default: compressed images, the state as an array."""
    FOREIGN = "foreign"
    """With names, types and an order of its own, as somebody else's robot; `Task.robot` maps it."""


class World(_Section):
    """A simulated robot that `rfm up` starts with the task's robots. Ours; without it, real robots are expected."""

    simulator: WorldKind
    task: str
    control_rate_hz: float = Field(default=CONTROL_RATE_HZ, ge=0.1, le=1000)
    camera_rate_hz: float = Field(default=5.0, ge=0.01, le=200)
    seed: int = Field(default=0, ge=0, le=1_000_000_000)
    """Robot i of the task starts its episodes at seed + 10 000 i."""
    interface: Interface = Interface.NATIVE


Pixels = Annotated[int, Field(ge=8, le=2048)]


class Task(_Section):
    pipeline: Pipeline
    task_retry: TaskRetry = TaskRetry()
    safety_and_slo_violation: SafetyAndSloViolation = SafetyAndSloViolation()
    components: dict[str, Component] = Field(min_length=1)
    value: float = Field(default=1.0, gt=0)
    """Weight v_c of one action of this task (ROSA §3.4.1, eq. 1)."""
    min_action_rate_hz: Annotated[float, Field(gt=0)] | ActionRateFloor | None = None
    """Floor of the action rate. A plain number is per robot; `{per_class: ...}` is of all its robots together."""
    execution: Execution = Execution()
    percentile: float = Field(default=99.0, ge=50, le=99)
    """Of every `slo_ms` of the task."""
    world: World | None = None
    robot: str = "metaworld_arm.yaml"
    """ROS parameters of the robot node: in config/robots, or a path relative to the descriptor, which it may not contradict."""
    image_size_px: tuple[Pixels, Pixels] | None = None
    """Width and height of the images that its robots send; None: 640 x 480, of simulated robots 96 x 96. Ours."""

    @property
    def pipelining(self) -> contracts.Pipelining | None:
        """As a session asks for it."""
        asked = self.execution.pipelining
        return None if asked is None else contracts.Pipelining(**asked.model_dump())

    @property
    def cycle_period_s(self) -> float:
        """Execution time of what is executed of one System 1 prediction, t_act (ROSA §3.4.2)."""
        return (self.execution.horizon.mean_period_ms or self.pipeline.action_period_ms) / 1e3

    @property
    def image_size(self) -> tuple[int, int]:
        """Width and height of the images that its robots send."""
        return self.image_size_px or (SIMULATED_IMAGE_SIZE_PX if self.world else IMAGE_SIZE_PX)

    def calls_per_action(self, component: str) -> float:
        """Of a goal-coupled component: 1 for System 1, 1/H for System 2 (ROSA §3.4.2); 0 for a periodic one."""
        if component == SYSTEM1:
            return 1.0
        if component == SYSTEM2:
            return self.pipeline.system2_to_system1_call_ratio
        return self.components[component].call_ratio or 0.0

    def floor_hz(self, num_robots: int) -> float:
        """Lowest action rate of one of `num_robots`, F_c^min / K_c; 0: none."""
        floor = self.min_action_rate_hz
        if isinstance(floor, ActionRateFloor):
            return floor.per_robot if floor.per_robot is not None else (floor.per_class or 0.0) / max(num_robots, 1)
        return floor or 0.0


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
    server_cluster: tuple[ServerCluster, ...]
    """Groups of equal servers; Fig. 3 has one."""
    standby: Standby = Standby()
    robot_fleet: tuple[FleetEntry, ...]
    tasks: dict[str, Task]

    @property
    def robots(self) -> list[Robot]:
        """Named `<task>_<number from 1>`, in the order of the descriptor."""
        return [
            Robot(name=f"{entry.task}_{index + 1}", task=entry.task, index=index)
            for entry in self.robot_fleet
            for index in range(entry.num_robots)
        ]

    def with_num_robots(self, num_robots: int) -> Factory:
        """The same factory with another fleet size, split among the tasks in the same proportion.

        Raises: `ConfigurationError` when there are fewer robots than tasks.
        """
        if num_robots < len(self.robot_fleet):
            problem = f"{num_robots} robots cannot be split among {len(self.robot_fleet)} tasks"
            raise ConfigurationError(problem, file=self.file, key=_FLEET, fix=f"ask for at least {len(self.robot_fleet)}")
        total = sum(entry.num_robots for entry in self.robot_fleet)
        shares = [num_robots * entry.num_robots / total for entry in self.robot_fleet]
        counts = [max(1, int(share)) for share in shares]
        while sum(counts) != num_robots:  # the largest remainders get what is left; what is over goes where it is most over
            step = 1 if sum(counts) < num_robots else -1
            at = max((i for i in range(len(counts)) if counts[i] + step >= 1), key=lambda i: step * (shares[i] - counts[i]))
            counts[at] += step
        fleet = tuple(FleetEntry(task=e.task, num_robots=n) for e, n in zip(self.robot_fleet, counts, strict=True))
        return self.model_copy(update={"robot_fleet": fleet})

    def with_num_servers(self, num_servers: int) -> Factory:
        """The same factory with another number of servers in its first group."""
        first, *others = self.server_cluster
        group = first.model_copy(update={"num_servers": num_servers})
        return self.model_copy(update={"server_cluster": (group, *others)})

    @property
    def servers(self) -> list[str]:
        """Named `server_<number from 1>`, in the order of the descriptor."""
        return list(self.gpu_types)

    @property
    def gpu_types(self) -> dict[str, str]:
        """Server -> its GPU type."""
        return {server: group.gpu_type for server, group in self.groups.items()}

    @property
    def continuous(self) -> frozenset[str]:
        """GPU types whose servers batch continuously."""
        return frozenset(group.gpu_type for group in self.server_cluster if group.batching == CONTINUOUS)

    @property
    def groups(self) -> dict[str, ServerCluster]:
        """Server -> the group that declares it."""
        groups = [group for group in self.server_cluster for _ in range(group.num_servers)]
        return {f"server_{i + 1}": group for i, group in enumerate(groups)}


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
    cluster = _cluster(source)
    sections = (_CLUSTER, _FLEET, _STANDBY)
    tasks = {name: _task(source, name, data) for name, data in source.data.items() if name not in sections}
    _check_pipelining(source, cluster, tasks)
    return Factory(
        name=Path(source.file).stem,
        file=source.file,
        server_cluster=cluster,
        standby=_standby(source, sum(group.num_servers for group in cluster)),
        robot_fleet=_fleet(source, tasks),
        tasks=tasks,
    )


def _cluster(source: YamlSource) -> tuple[ServerCluster, ...]:
    data = source.data[_CLUSTER]
    if not isinstance(data, list):
        return (source.validate(ServerCluster, (_CLUSTER,), data),)
    if not data:
        raise source.error((_CLUSTER,), "is an empty list", "write `- {num_servers: ..., gpu_type: ...}`")
    groups = tuple(source.validate(ServerCluster, (_CLUSTER, i), group) for i, group in enumerate(data))
    _check_batching(source, groups)
    return groups


def _check_batching(source: YamlSource, groups: Sequence[ServerCluster]) -> None:
    """A schedule tells servers by their GPU type, and latencies are those of one way of batching."""
    first: dict[str, bool] = {}
    for i, group in enumerate(groups):
        if first.setdefault(group.gpu_type, group.batching == CONTINUOUS) != (group.batching == CONTINUOUS):
            fix = f"batch all servers with {group.gpu_type} continuously or none of them, or give these a gpu_type of their own"
            raise source.error((_CLUSTER, i, "batching"), f"`{group.batching}`, and other servers of the type do otherwise", fix)


def _standby(source: YamlSource, num_servers: int) -> Standby:
    if _STANDBY not in source.data:
        return Standby()
    standby = source.validate(Standby, (_STANDBY,), source.data[_STANDBY])
    if standby.num_servers >= num_servers:
        fix = f"keep at least one of the {num_servers} servers of server_cluster for the normal routes"
        raise source.error((_STANDBY, "num_servers"), f"is {standby.num_servers}", fix)
    return standby


def _fleet(source: YamlSource, tasks: dict[str, Task]) -> tuple[FleetEntry, ...]:
    entries = source.data[_FLEET]
    if not isinstance(entries, list) or not entries:
        raise source.error((_FLEET,), "must be a list of `{task, num_robots}`", "write at least one `- task: ...`")
    fleet = tuple(source.validate(FleetEntry, (_FLEET, i), entry) for i, entry in enumerate(entries))
    seen: set[str] = set()
    for i, entry in enumerate(fleet):
        if entry.task not in tasks:
            fix = did_you_mean(entry.task, tasks)
            raise source.error((_FLEET, i, "task"), f"no task is named {entry.task!r}", fix)
        if entry.task in seen:
            raise source.error((_FLEET, i, "task"), f"{entry.task!r} is listed twice", "add up its robots in one entry")
        seen.add(entry.task)
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
    for section, key in (("task_retry", "on_max_task_retries"), ("safety_and_slo_violation", "on_max_violation")):
        resort = getattr(getattr(task, section), key)
        if resort not in LAST_RESORTS:
            fix = f"give one of {', '.join(r.value for r in LAST_RESORTS)}"
            raise source.error((name, section, key), f"`{resort.value}` would go on as before", fix)
    if task.world and task.world.simulator is WorldKind.METAWORLD:
        known = ("reach", "push", "pick-place", "door-open", "visit-then-push")
        if task.world.task not in known:
            raise source.error((name, "world", "task"), f"no task {task.world.task!r}", did_you_mean(task.world.task, known))
        if len(set(task.image_size)) > 1:
            fix = "its cameras are square: give the same number twice"
            raise source.error((name, "image_size_px"), f"a simulated robot does not send {list(task.image_size)}", fix)
    return task


def _check_pipelining(source: YamlSource, cluster: tuple[ServerCluster, ...], tasks: Mapping[str, Task]) -> None:
    """Its requests stay in flight between two frames, which batches that begin and end together do not allow."""
    for name, task in tasks.items():
        if task.execution.pipelining and not any(group.batching == "continuous" for group in cluster):
            fix = f"write `batching: continuous` in {_CLUSTER}, or leave it out"
            raise source.error((name, "execution", "pipelining"), "no server would take such sessions", fix)


def _check_component(source: YamlSource, path: yaml_source.KeyPath, component: str, spec: Component) -> None:
    """System 1 and 2 are goal-coupled, safety and monitor periodic (ROSA §3.4.1); any other says which it is."""
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

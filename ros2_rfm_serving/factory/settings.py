"""Settings of each robot and server in a descriptor, for live nodes and for virtual time.

This is the only way from the descriptor's keys to running processes: `nodes.py` makes ROS parameters of it, and `simulation/` makes
configurations in virtual time. The other keys, which the scheduler reads (SLOs, rates, weights, servers), reach both with its
schedule.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.factory.catalogue import AT_START
from ros2_rfm_serving.factory.cluster import Overflow, ServerCluster
from ros2_rfm_serving.factory.descriptor import Factory
from ros2_rfm_serving.factory.task import CONTROL_RATE_HZ, ExecutionMode, TaskEntry
from ros2_rfm_serving.types import SYSTEM1, Fallback, HorizonRequest, PipelineConfig, Placement

ASYNC_STEPS = 8
"""Control steps that an asynchronous robot executes of one chunk: the granularity at which it can overlap."""
BRIDGED = 3
"""Chunk length where no robot declares its own, as a multiple of the steps executed of it: enough for an inference twice as long as
the execution."""
WHOLE = 0.01
"""Share by which an action period may differ from a whole number of control steps."""


@dataclass(frozen=True, kw_only=True)
class RobotSettingsEntry:
    """Settings of every robot of one task."""

    instruction: str
    """Instruction of System 1; empty: the descriptor has none."""
    prompts: Mapping[str, str]
    """Prompts of the other components."""
    calls_per_action: Mapping[str, float]
    """Calls per action of goal-coupled components other than System 1."""
    fallbacks: Mapping[str, Fallback]
    synchronous: bool
    action_period_s: float
    """Execution time of the steps executed of one chunk, unless a horizon policy decides."""
    mean_period_s: float
    """Mean time that is really executed of a chunk."""
    horizon: HorizonRequest
    """Without a policy, `action_period_s` of every chunk is executed."""
    pipelining: PipelineConfig | None
    """Pipelining of the robot's requests; None: one request in flight."""
    num_steps: int
    """Solver steps of each chunk; 0: the model's own number"""
    max_task_retries: int
    on_max_task_retries: Fallback
    max_consecutive_safety_replan: int
    max_consecutive_slo_violation: int
    on_max_violation: Fallback
    control_rate_hz: float
    """Rate of a simulated robot; 0: the robot's own file has it."""
    image_size_px: tuple[int, int]
    """Width and height of its cameras' images."""
    max_image_size_px: int
    """Size to which its images are reduced; 0: the robot's own file has it."""

    @property
    def virtual_steps(self) -> int:
        """Control steps of the action period in virtual time, where no robot file declares the duration of a step.

        They are real control steps where a horizon policy counts them, and otherwise as few as suffice.
        """
        if self.horizon.policy:
            return self.execution_horizon(self.control_rate_hz or CONTROL_RATE_HZ)
        return 1 if self.synchronous else ASYNC_STEPS

    @property
    def mean_rows(self) -> int:
        """Mean number of steps that are really executed of a chunk in virtual time."""
        return max(1, round(self.virtual_steps * self.mean_period_s / self.action_period_s))

    def execution_horizon(self, step_rate_hz: float) -> int:
        """Return the steps that are executed of one chunk.

        Raises: `ConfigurationError` where the action period is no whole number of them.
        """
        exact = self.action_period_s * step_rate_hz
        steps = max(1, round(exact))
        if not self.horizon.policy and abs(steps - exact) > WHOLE * exact:
            near = " or ".join(f"{1e3 * n / step_rate_hz:g}" for n in sorted({max(1, math.floor(exact)), math.ceil(exact)}))
            raise ConfigurationError(
                f"{1e3 * self.action_period_s:g} ms are {exact:.3g} control steps at {step_rate_hz:g} Hz",
                key="pipeline.action_period_ms",
                fix=f"a robot executes whole steps: give {near}, or another rate",
            )
        return steps


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """Settings of one server."""

    dispatch: str
    batching: str
    refetch_after_s: float
    """Age above which a server requests an observation again; inf: never."""
    overflow: Overflow | None
    check_parity: bool
    image_size_px: tuple[int, int]
    """Width and height of the largest images that any robot of the factory sends: any task may be served here."""
    threads: int = 1
    """Threads of the engine."""
    cores: str = ""
    """Processor cores of the process; empty: any."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    robots: Mapping[str, RobotSettingsEntry]
    """Task -> settings."""
    servers: Mapping[str, ServerSettings]
    """Server -> settings."""
    gpu_types: Mapping[str, ServerSettings]
    """GPU type -> settings of the first group that has it."""

    @property
    def chunk_steps(self) -> int:
        """Length of every chunk in virtual time."""
        return chunk_steps(self.robots.values())

    def of(self, placement: Placement) -> ServerSettings:
        """Return the settings of a placement. One that no group names, in a schedule of a simulation, has those of its GPU type, or
        else of the first server."""
        name = placement.gpu or placement.server
        if name in self.servers:
            return self.servers[name]
        return self.gpu_types.get(placement.gpu_type) or next(iter(self.servers.values()))


def settings_of(factory: Factory) -> Settings:
    robots = {name: robot_settings(task) for name, task in factory.tasks.items()}
    used = [robots[entry.task].image_size_px for entry in factory.robot_fleet]
    largest_px = max(used, key=math.prod)
    cores = factory.cores
    return Settings(
        robots=robots,
        servers={name: server_settings(group, largest_px, cores[name]) for name, group in factory.groups.items()},
        gpu_types={group.gpu_type: server_settings(group, largest_px) for group in reversed(factory.server_cluster)},
    )


def chunk_steps(robots: Iterable[RobotSettingsEntry]) -> int:
    """Return the length of every chunk in virtual time."""
    most = [max(one.virtual_steps, one.mean_rows if one.horizon.policy else 0) for one in robots]
    return BRIDGED * max([ASYNC_STEPS, *most])


def robot_settings(task: TaskEntry) -> RobotSettingsEntry:
    others = {name: component for name, component in task.components.items() if name != SYSTEM1}
    return RobotSettingsEntry(
        instruction=task.components[SYSTEM1].prompt,
        prompts={name: component.prompt for name, component in others.items()},
        calls_per_action={name: ratio for name in others if (ratio := task.calls_per_action(name))},
        fallbacks={name: component.fallback for name, component in task.components.items()},
        synchronous=task.execution.mode is ExecutionMode.SYNC,
        action_period_s=task.pipeline.action_period_ms / 1e3,
        mean_period_s=task.cycle_period_s,
        horizon=_horizon(task),
        pipelining=task.pipelining,
        num_steps=task.execution.num_steps or 0,
        max_task_retries=task.task_retry.max_task_retries,
        on_max_task_retries=task.task_retry.on_max_task_retries,
        max_consecutive_safety_replan=task.safety_and_slo_violation.max_consecutive_safety_replan,
        max_consecutive_slo_violation=task.safety_and_slo_violation.max_consecutive_slo_violation,
        on_max_violation=task.safety_and_slo_violation.on_max_violation,
        control_rate_hz=task.world.control_rate_hz if task.world else 0.0,
        image_size_px=task.image_size,
        max_image_size_px=max(task.image_size_px or (0,)),
    )


def _horizon(task: TaskEntry) -> HorizonRequest:
    """Return the horizon that sessions ask for. A static horizon is the robot's own."""
    asked = task.execution.horizon
    if asked.policy == "static":
        return HorizonRequest()
    return HorizonRequest(policy=asked.policy, min_steps=asked.min_steps, threshold=asked.threshold)


def server_settings(group: ServerCluster, image_size_px: tuple[int, int], cores: str = "") -> ServerSettings:
    return ServerSettings(
        dispatch=group.dispatch,
        batching=group.batching,
        refetch_after_s=group.refetch_after_ms / 1e3 or math.inf,
        overflow=group.overflow,
        check_parity=group.parity == AT_START,
        image_size_px=image_size_px,
        threads=group.threads,
        cores=cores,
    )

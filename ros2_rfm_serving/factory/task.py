"""Sections of the descriptor for a task, its components, and the execution of their answers by robots."""

from __future__ import annotations

import enum
from typing import Annotated, Literal

from pydantic import Field, model_validator

from ros2_rfm_serving.factory.section import Section
from ros2_rfm_serving.types import MAX_ALPHA, MAX_STAGES, MONITOR, SAFETY, SYSTEM1, SYSTEM2, Fallback, contracts

COMPONENTS = (SYSTEM1, SYSTEM2, SAFETY, MONITOR)
LAST_RESORTS = (Fallback.STOP_AND_CALL_HUMAN, Fallback.RETURN_TO_SAFE_STATE)
"""Fallbacks after all retries: an operator attends to the robot, or the task ends in a safe state."""
CONTROL_RATE_HZ = 20.0
"""Rate of a robot that declares none."""
IMAGE_SIZE_PX = (640, 480)
"""Default width and height of a real robot's images: the most that its node sends by default."""
SIMULATED_IMAGE_SIZE_PX = (96, 96)
"""Default width and height of a simulated robot's images."""
METAWORLD = "metaworld"
SIMULATORS = "ros2_rfm_serving.worlds"
"""Group of the entry points with which other packages add simulators."""
SIMULATED_TASKS = (
    *("reach", "push", "pick-place", "door-open", "visit-then-push"),
    *("door-close", "drawer-open", "drawer-close", "button-press-topdown", "button-press", "window-open", "window-close"),
    *("faucet-open", "faucet-close", "handle-press", "handle-press-side", "coffee-button"),
)
"""Tasks of Meta-World."""
METAWORLD_ROBOT = "metaworld_arm.yaml"
LEAST_MS, MOST_MS = 1e-3, 1e9
"""Limits of any duration of a robot: the longest is eleven days. Beyond them, solvers and the wire's 32 bits cannot represent the
duration or its rate."""
LEAST_HZ, MOST_VALUE = 1e-6, 1e6
Milliseconds = Annotated[float, Field(ge=LEAST_MS, le=MOST_MS)]


class Pipeline(Section):
    action_period_ms: Milliseconds
    """Execution time of the actions of one System 1 prediction, t_act (ROSA §3.4.2)."""
    system2_to_system1_call_ratio: float = Field(default=0.0, ge=0, le=1)
    """System 2 calls per System 1 call, 1/H; 0: no System 2."""


class TaskRetry(Section):
    max_task_retries: int = Field(default=3, ge=0)
    on_max_task_retries: Fallback = Fallback.STOP_AND_CALL_HUMAN


class SafetyAndSloViolation(Section):
    max_consecutive_safety_replan: int = Field(default=10, ge=1)
    max_consecutive_slo_violation: int = Field(default=3, ge=1)
    on_max_violation: Fallback = Fallback.STOP_AND_CALL_HUMAN


class ComponentEntry(Section):
    model: str = Field(min_length=1)
    engine: str = ""
    """Engine that selects one of the model's entries in the catalogue, `<model>@<engine>`; empty: `<model>`. Ours."""
    prompt: str = ""
    slo_ms: Milliseconds | None = None
    """Latency from request to reply at the SLO percentile; None: no requirement."""
    freq_hz: float | None = Field(default=None, ge=LEAST_HZ, le=1000)
    """Rate of a periodic component (obligation); None for System 1 and 2."""
    call_ratio: float | None = Field(default=None, gt=0, le=100)
    """Calls per System 1 call of a goal-coupled component beyond the four of Fig. 3 (those have theirs in `pipeline`)."""
    percentile: float | None = Field(default=None, ge=50, le=99)
    """Percentile of `slo_ms`; None: the task's."""
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


class HorizonEntry(Section):
    policy: str = "static"
    """`static`: the robot's own; otherwise the server decides by `confidence` (Kairos §3.1), `curvature`, or a policy of one's
    own."""
    threshold: float = Field(default=0.4, gt=-1)
    """Threshold of the policy for a model's uncertainty about an action (docs/reference/server.md)."""
    min_steps: int = Field(default=1, ge=1)
    """H_min: lower bound of the horizon, in actions."""
    mean_period_ms: Milliseconds | None = None
    """Mean execution time of the part of a chunk that a policy really executes; None: `pipeline.action_period_ms`."""

    @model_validator(mode="after")
    def _static_has_no_mean(self) -> HorizonEntry:
        if self.policy == "static" and self.mean_period_ms is not None:
            raise ValueError("mean_period_ms needs a policy: without one `pipeline.action_period_ms` of every chunk is executed")
        return self


class PipeliningEntry(Section):
    """Execution of several requests of a robot at once, one per action period, on one public context (AURAS §4). Ours."""

    pp_perception: int = Field(default=1, ge=1, le=MAX_STAGES)
    """Action periods until an observation is in the public context (§4.3.2)."""
    pp_generation: int = Field(default=1, ge=1, le=MAX_STAGES)
    """Action periods over which the solver steps of one request are spread."""
    alpha: float = Field(default=0.0, ge=-MAX_ALPHA, le=MAX_ALPHA)
    """Skew of that spread: stage i has a share of e^(i alpha)."""
    fetch_offset: Literal[0, -1] = 0
    """Context of the generation; 0: that of this action period's observation; -1: the one before (§4.3.1)."""


class Execution(Section):
    mode: ExecutionMode = ExecutionMode.SYNC
    horizon: HorizonEntry = HorizonEntry()
    pipelining: PipeliningEntry | None = None
    """Pipelining of the robot's requests; None: one request in flight."""
    accept_other_rate: bool = False
    """Accept a model that was demonstrated at another rate than that of its robots' steps; its motions are accordingly faster or
    slower. Ours."""
    num_steps: int | None = Field(default=None, ge=1, le=1000)
    """Solver steps of each of System 1's chunks, where its model lets robots choose (docs/reference/engines.md); None: the model's
    own number.

    Plans and virtual time use the model's own number: with fewer steps a chunk is ready sooner than planned, with more steps later.
    Ours.
    """

    @model_validator(mode="after")
    def _pipelined_robots_do_not_wait(self) -> Execution:
        if self.pipelining is not None and self.mode is ExecutionMode.SYNC:
            raise ValueError("pipelining needs `mode: async`: a robot that waits for each answer has one request in flight")
        return self


class ActionRateFloor(Section):
    """F_c^min of ROSA eq. 1, declared explicitly."""

    per_robot: float | None = Field(default=None, gt=0)
    per_class: float | None = Field(default=None, gt=0)
    """Rate of all robots of the task together."""

    @model_validator(mode="after")
    def _one_of_them(self) -> ActionRateFloor:
        if (self.per_robot is None) == (self.per_class is None):
            raise ValueError("give one of `per_robot` and `per_class`")
        return self


class InterfaceEntry(enum.Enum):
    """Interface of a simulated robot on the graph."""

    NATIVE = "native"
    """Interface that the robot node expects by default: compressed images, the state as an array."""
    FOREIGN = "foreign"
    """Interface with names, types and an order of its own, like that of another vendor's robot; `TaskEntry.robot` maps it."""


class WorldEntry(Section):
    """Simulated robot that `rfm up` starts for each of the task's robots. Without it, real robots are expected. Ours."""

    simulator: Annotated[str, Field(min_length=1)]
    """`metaworld`, an entry point of other packages, or `package.module:function` (`worlds/registry.py`)."""
    task: str
    control_rate_hz: float = Field(default=CONTROL_RATE_HZ, ge=0.1, le=1000)
    camera_rate_hz: float = Field(default=5.0, ge=0.01, le=200)
    seed: int = Field(default=0, ge=0, le=1_000_000_000)
    """Robot i of the task starts its episodes at seed + 10 000 i."""
    interface: InterfaceEntry = InterfaceEntry.NATIVE


Pixels = Annotated[int, Field(ge=8, le=2048)]


class TaskEntry(Section):
    pipeline: Pipeline
    task_retry: TaskRetry = TaskRetry()
    safety_and_slo_violation: SafetyAndSloViolation = SafetyAndSloViolation()
    components: dict[str, ComponentEntry] = Field(min_length=1)
    value: float = Field(default=1.0, ge=1 / MOST_VALUE, le=MOST_VALUE)
    """Weight v_c of one action of this task (ROSA §3.4.1, eq. 1)."""
    min_action_rate_hz: Annotated[float, Field(gt=0)] | ActionRateFloor | None = None
    """Floor of the action rate. A plain number is per robot; `{per_class: ...}` is for all its robots together."""
    execution: Execution = Execution()
    percentile: float = Field(default=99.0, ge=50, le=99)
    """Percentile of every `slo_ms` of the task."""
    world: WorldEntry | None = None
    robot: str = METAWORLD_ROBOT
    """ROS parameters of the robot node: in config/robots, or a path relative to the descriptor, which it may not contradict."""
    image_size_px: tuple[Pixels, Pixels] | None = None
    """Width and height of its robots' images; None: 640 x 480, or 96 x 96 for simulated robots. Ours."""

    @property
    def pipelining(self) -> contracts.PipelineConfig | None:
        """Pipelining as a session asks for it."""
        asked = self.execution.pipelining
        return None if asked is None else contracts.PipelineConfig(**asked.model_dump())

    @property
    def cycle_period_s(self) -> float:
        """Execution time of the actions executed of one System 1 prediction, t_act (ROSA §3.4.2)."""
        return (self.execution.horizon.mean_period_ms or self.pipeline.action_period_ms) / 1e3

    @property
    def image_size(self) -> tuple[int, int]:
        """Width and height of the images that its robots send."""
        return self.image_size_px or (SIMULATED_IMAGE_SIZE_PX if self.world else IMAGE_SIZE_PX)

    def calls_per_action(self, component: str) -> float:
        """Return the calls of a goal-coupled component: 1 for System 1, 1/H for System 2 (ROSA §3.4.2); 0 for a periodic
        component."""
        if component == SYSTEM1:
            return 1.0
        if component == SYSTEM2:
            return self.pipeline.system2_to_system1_call_ratio
        return self.components[component].call_ratio or 0.0

    def floor_hz(self, num_robots: int) -> float:
        """Return the lowest action rate of one of `num_robots`, F_c^min / K_c; 0: none."""
        floor = self.min_action_rate_hz
        if isinstance(floor, ActionRateFloor):
            return floor.per_robot if floor.per_robot is not None else self.class_floor_hz / max(num_robots, 1)
        return floor or 0.0

    @property
    def class_floor_hz(self) -> float:
        """Lowest action rate of all robots together, F_c^min; 0: none, or a floor for each robot."""
        floor = self.min_action_rate_hz
        return floor.per_class or 0.0 if isinstance(floor, ActionRateFloor) else 0.0

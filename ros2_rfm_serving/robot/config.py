"""Configuration of a robot, and the inputs and outputs of one control period."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ros2_rfm_serving.robot.chunk_validation import ChunkValidatorConfig
from ros2_rfm_serving.robot.limits import MotionLimits
from ros2_rfm_serving.types import (
    Array,
    Conditioning,
    EncodedImage,
    Fallback,
    Guidance,
    HorizonRequest,
    ObservationRequest,
    PipelineConfig,
    SessionRequest,
)
from ros2_rfm_serving.types.record import record


class CommandType(enum.Enum):
    """Meaning of the numbers of an action, which determines how the robot is stopped."""

    POSITION = "position"
    """An absolute position; without a new command the robot stays."""
    VELOCITY = "velocity"
    """A velocity; without a new command the robot keeps moving, so that only zero stops it."""
    DELTA = "delta"
    """A displacement that is made once; without a new command the robot stays."""
    EFFORT = "effort"
    """A force or torque. It lasts until the next command, so that only zero stops it; a controller that needs more than zero to
    stand against gravity has to add that itself."""
    BINARY = "binary"
    """A choice between values, such as an open and a closed gripper. Only values of the policy are commanded, and kept."""


@dataclass(frozen=True, kw_only=True)
class ComponentClientConfig:
    request_timeout_s: float = 1.0
    open_timeout_s: float = 3.0
    max_timeouts: int = 2
    """Consecutive timeouts after which the session is opened again."""
    initial_backoff_s: float = 0.5
    max_backoff_s: float = 3.0
    """Retries are spread over the later half of each backoff, so that robots that lost a server together do not return together."""
    seed: int = 1
    """Seed of the spread of retries; each robot and component draws its own numbers from it."""
    counts_first_latency: bool = False
    """Count the first inference of a session, which may include a warm-up, as any other (LeRobot's older behaviour)."""
    longest_latency: bool = False
    """Expect the longest latency ever (LeRobot's older behaviour)."""
    window_maximum: bool = False
    """Expect the longest of the last 100 latencies; without both flags, their median."""


class Motion(enum.Enum):
    """A rung of the fallback ladder (Remote-RTC §9.2)."""

    HOLD = "hold"
    """Command nothing."""
    REPEAT_LAST = "repeat_last"
    ZERO = "zero"
    RAMP_DOWN = "ramp_down"
    """Repeat the last motion with decreasing size, down to none at the end of the rung."""
    SAFE_POSE = "safe_pose"
    """Move to `RobotConfig.safe_pose` with limited velocities, and stay there."""


class Rung(NamedTuple):
    motion: Motion
    duration_s: float = math.inf
    """Time until the next rung; the last rung lasts."""


class Compatibility(enum.Enum):
    """Rules of the action queue where versions differ; the newer ones are better, the older ones exist for parity."""

    NEWER = "newer"
    """Skip no more actions than were executed since the request, and leave the first inference out of the latency."""
    OLDER = "older"
    """Skip as many actions as the latency, whatever was executed; the latency is the longest ever."""


@dataclass(frozen=True, kw_only=True)
class FailSafeConfig:
    """Watchdogs of the fail-safe states (Remote-RTC §9.2)."""

    buffer_time_s: float = 0.0
    """The next chunk is requested at the latest when the queued actions last for less than this; 0: the expected delay decides."""
    degraded_after_s: float = 1.0
    """Time without a chunk, while requests for one fail, after which the robot is DEGRADED."""
    max_offline_s: float = 60.0
    """Time without a session, while a task runs, after which the robot is DEAD; 0: never."""


@dataclass(frozen=True, kw_only=True)
class TaskPolicy:
    """Rules of the descriptor for late answers, warnings and failures (ROSA §3.3)."""

    fallbacks: Mapping[str, Fallback] = field(default_factory=dict)
    """Component -> reaction to an answer later than its SLO, or to an objection of safety. A component without an entry may be
    late, and its warnings are ignored."""
    safe_words: frozenset[str] = frozenset({"safe", "ok", "yes"})
    """Verdicts of safety that are no warning; every other verdict is one, even if it cannot be understood."""
    max_consecutive_slo_violation: int = 3
    """Consecutive late answers of one component that trigger `on_max_violation`."""
    max_consecutive_safety_replan: int = 10
    """Consecutive warnings, late verdicts included, that trigger `on_max_violation`."""
    on_max_violation: Fallback = Fallback.STOP_AND_CALL_HUMAN
    """This value, or RETURN_TO_SAFE_STATE: the task ends in the safe state."""
    max_task_retries: int = 0
    on_max_task_retries: Fallback = Fallback.RETURN_TO_SAFE_STATE


@dataclass(frozen=True, kw_only=True)
class RobotConfig:
    name: str
    action_names: tuple[str, ...]
    cameras: tuple[str, ...]
    state_size: int
    control_rate_hz: float
    """Commands per second."""
    interpolation: int = 1
    """Commands per step of the policy, on a straight line between two steps; more than one needs position or velocity commands."""
    accept_other_rate: bool = True
    """Accept a model whose demonstrations ran at another rate than this robot's steps; False: refuse its sessions. A robot's
    parameters have False unless the operator accepts other rates; a recording without the field predates the check."""
    execution_horizon: int = 8
    """Steps from one request for a chunk to the next, and so actions of a chunk to execute before the next one."""
    horizon: HorizonRequest = field(default_factory=HorizonRequest)
    """Policy by which servers report how much of each chunk to execute; without a policy `execution_horizon` holds."""
    synchronous: bool = False
    """True: execute the horizon, then send a request, and hold until the reply arrives. False: request early enough to avoid
    pauses."""
    conditioning: Conditioning | None = Conditioning.PREFIX
    """Conditioning that an asynchronous robot requests; a model without it refuses the session. None: the best one offered."""
    guidance: Guidance = field(default_factory=Guidance)
    pipelining: PipelineConfig | None = None
    """Pipelining of System 1: several requests in flight, one per frame of `execution_horizon` steps; a model without it refuses
    the session. It needs an asynchronous robot that replaces its queue."""
    num_steps: int = 0
    """Solver steps of each chunk of System 1; a model that accepts no such number refuses the session. 0: the model's own."""
    blend_steps: int = 0
    """Steps over which commands ease from the last one into a new chunk; 0: the first action of a chunk is commanded unchanged."""
    replace_queue: bool = True
    """True: a new chunk replaces the queue (real-time chunking); False: it is appended."""
    compatibility: Compatibility = Compatibility.NEWER
    calls_per_action: dict[str, float] = field(default_factory=dict)
    """Calls of goal-coupled components per System 1 call, 1/H for System 2 (ROSA §3.4.2); all others are periodic."""
    calls_head_start: float = 0.0
    """Share, in [0, 1), of the second such call that is due when an episode begins, to desynchronise a fleet's plans."""
    trajectory_horizon_s: float = 0.0
    """Seconds of position commands that are sent ahead, before the brakes, to a controller that executes trajectories; 0: none."""
    controller_rate_hz: float = 100.0
    """Rate at which that controller updates its own commands."""
    command_type: CommandType = CommandType.DELTA
    """Type of all columns, unless `command_types` says otherwise."""
    command_types: tuple[CommandType, ...] = ()
    """[A] type of each column; empty: all are `command_type`. `robot/columns.py` describes the consequences."""
    turns: tuple[float, ...] = ()
    """[A] one turn of each continuous joint, in the action's units; 0: the column does not wrap; empty: none does."""
    limits: MotionLimits = field(default_factory=MotionLimits)
    gate: ChunkValidatorConfig = field(default_factory=ChunkValidatorConfig)
    """Checks of a whole chunk before its first action is executed."""
    fallback: tuple[Rung, ...] = (Rung(Motion.HOLD),)
    """Fallback ladder, which is followed while there is no action to execute."""
    safe_pose: tuple[float, ...] = ()
    """[A] in the units of the measured positions; NaN: this column keeps its last command; empty: none."""
    safe_pose_gain: float = 1.0
    """Velocity or delta commanded per unit of the way to the safe pose, before the limits."""
    max_action_age_s: float = 3.0
    """Age of its observation beyond which no action is executed (Remote-RTC §9.2)."""
    max_observation_age_s: float = 0.5
    """Age of sensor readings beyond which no request is sent."""
    max_sensor_skew_s: float = 0.3
    """Time between readings beyond which no request is sent: enough for a camera of 5 Hz; inf: not checked."""
    failsafe: FailSafeConfig = field(default_factory=FailSafeConfig)
    policy: TaskPolicy = field(default_factory=TaskPolicy)
    server_timeout_s: float = 2.0
    """Time without a status message after which a server counts as lost."""
    verdict_votes: int = 2
    default_budget_s: float = 60.0
    prompts: dict[str, str] = field(default_factory=dict)
    """Component -> prompt of the descriptor; the task's instruction replaces System 1's."""
    tick_is_step: bool = True
    """True: a tick is a control step unless it comes too early to be one, as where sensors or a timer set the rhythm. False: ticks
    come whenever there is something to do, and an action lasts one step from the tick that commanded it."""
    link: ComponentClientConfig = field(default_factory=ComponentClientConfig)

    @property
    def step_rate_hz(self) -> float:
        """Return the steps of the policy per second, the unit of latencies, horizons and chunks."""
        return self.control_rate_hz / self.interpolation


@record(frozen=True, slots=True)
class Sensors:
    """Newest readings of the sensors."""

    state: Array
    """[S] measured state."""
    state_s: float
    """Time of the measurement on the robot's clock, by its stamps; without stamps, the time of arrival."""
    images: tuple[EncodedImage, ...]
    images_s: float
    """Time at which the oldest of the images was taken."""
    skew_s: float = 0.0
    """Time between the oldest and the newest reading."""
    positions: Array | None = None
    """[A] measured, for `Motion.SAFE_POSE`; None: unknown."""


@record(frozen=True, slots=True)
class Trajectory:
    """Points for a controller that interpolates between them; the last one is at rest."""

    times_s: npt.NDArray[np.float64]
    """[N] from now on, ascending."""
    positions: npt.NDArray[np.float64]
    """[N, A]"""
    velocities: npt.NDArray[np.float64]
    """[N, A] per second."""


class EpisodeReset(NamedTuple):
    """Start of an episode that a server has to be informed of, and has to acknowledge."""

    server: str
    component: str
    session_epoch: int
    episode: int


@record(frozen=True, slots=True)
class TickResult:
    """Output of one control period."""

    command: Array | None
    """[A] in robot space; None: hold, or the last action is still being executed."""
    requests: tuple[tuple[str, ObservationRequest], ...] = ()
    """(server, request) of each request to send."""
    opens: tuple[tuple[str, SessionRequest], ...] = ()
    """(server, request) of each session to request; answer with `on_session_opened` or `on_session_refused`."""
    resets: tuple[EpisodeReset, ...] = ()
    """Episode resets to send; answer with `on_episode_reset`."""
    trajectory: Trajectory | None = None
    """Trajectory that replaces the one that the controller executes; None: that one continues."""

"""What a robot is told about itself, and what goes into and comes out of one control period."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ros2_rfm_serving.robot.gate import GateConfig
from ros2_rfm_serving.robot.limits import Limits
from ros2_rfm_serving.types import (
    Array,
    Conditioning,
    EncodedImage,
    Fallback,
    Guidance,
    Horizon,
    ObservationRequest,
    Pipelining,
    SessionRequest,
)
from ros2_rfm_serving.types.record import record


class CommandType(enum.Enum):
    """What the numbers of an action mean, and so what stops the robot."""

    POSITION = "position"
    """Absolute; without a new one the robot stays."""
    VELOCITY = "velocity"
    """Without a new one the robot goes on moving: only zero stops it."""
    DELTA = "delta"
    """A displacement, made once; without a new one the robot stays."""
    EFFORT = "effort"
    """A force or torque. It lasts until the next one, so that only zero stops it; a controller that needs more than zero to stand
    against gravity has to add that itself."""
    BINARY = "binary"
    """A choice between values, such as an open and a closed gripper. It only has values that the policy gave, and keeps them."""


@dataclass(frozen=True, kw_only=True)
class LinkConfig:
    request_timeout_s: float = 1.0
    open_timeout_s: float = 3.0
    max_timeouts: int = 2
    """Consecutive timeouts after which the session is opened anew."""
    initial_backoff_s: float = 0.5
    max_backoff_s: float = 3.0
    """Retries are spread over the later half of each backoff, so that robots that lost a server together do not return together."""
    seed: int = 1
    """Of that; each robot and component has numbers of its own."""
    counts_first_latency: bool = False
    """The first inference of a session, which may include a warm-up, counts as any other (LeRobot's older behaviour)."""
    longest_latency: bool = False
    """The latency to expect is the longest ever (LeRobot's older behaviour)."""
    window_maximum: bool = False
    """The latency to expect is the longest of the last 100; without both, their median."""


class Motion(enum.Enum):
    """A rung of the fallback ladder (Remote-RTC §9.2)."""

    HOLD = "hold"
    """Command nothing."""
    REPEAT_LAST = "repeat_last"
    ZERO = "zero"
    RAMP_DOWN = "ramp_down"
    """Less and less of the last motion, none at the end of the rung."""
    SAFE_POSE = "safe_pose"
    """To `RobotConfig.safe_pose` along limited velocities, and stay there."""


class Rung(NamedTuple):
    motion: Motion
    duration_s: float = math.inf
    """Then the next one; the last lasts."""


class Compatibility(enum.Enum):
    """Whose rules the action queue follows where they differ; the newer is better, the older is there for parity."""

    NEWER = "newer"
    """The skip is never beyond what was executed since the request; the first inference does not count as latency."""
    OLDER = "older"
    """The skip is the latency, whatever was executed; the latency is the longest ever."""


@dataclass(frozen=True, kw_only=True)
class FailSafeConfig:
    """Watchdogs of the fail-safe states (Remote-RTC §9.2)."""

    buffer_time_s: float = 0.0
    """The next chunk is asked for no later than when the queued actions last for less than this; 0: the expected delay decides."""
    degraded_after_s: float = 1.0
    """Without a chunk while requests for one fail."""
    max_offline_s: float = 60.0
    """Without a session while a task runs, then DEAD; 0: never."""


@dataclass(frozen=True, kw_only=True)
class TaskPolicy:
    """What the descriptor says about late answers, warnings and failures (ROSA §3.3)."""

    fallbacks: Mapping[str, Fallback] = field(default_factory=dict)
    """Component -> what happens when its answer is later than its SLO, or when safety objects. One that is not named may be late,
    and its warnings are ignored."""
    safe_words: frozenset[str] = frozenset({"safe", "ok", "yes"})
    """Verdicts of safety that are no warning; every other one is, one that cannot be understood too."""
    max_consecutive_slo_violation: int = 3
    """Of one component; that many in a row call for `on_max_violation`."""
    max_consecutive_safety_replan: int = 10
    """Warnings in a row, late verdicts included; that many call for `on_max_violation`."""
    on_max_violation: Fallback = Fallback.STOP_AND_CALL_HUMAN
    """Or RETURN_TO_SAFE_STATE: the task ends there."""
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
    """Commands per step of the policy, a straight line between two steps; more than one needs position or velocity commands."""
    accept_other_rate: bool = True
    """Work with a model whose demonstrations ran at another rate than this robot's steps; False: refuse its sessions. A robot's
    parameters say False unless somebody accepts it; a recording that says nothing was made before robots compared rates."""
    execution_horizon: int = 8
    """Steps from one request for a chunk to the next, and so actions of a chunk to execute before the next takes over."""
    horizon: Horizon = field(default_factory=Horizon)
    """How servers are to say how much of each chunk is executed; without a policy `execution_horizon` holds."""
    synchronous: bool = False
    """True: execute the horizon, then ask, and hold until the answer is there. False: ask early enough to have no pause."""
    conditioning: Conditioning | None = Conditioning.PREFIX
    """What an asynchronous robot asks for; a model that cannot do it refuses the session. None: the best that the model can do."""
    guidance: Guidance = field(default_factory=Guidance)
    pipelining: Pipelining | None = None
    """Of System 1: several requests in flight, one per frame of `execution_horizon` steps; a model that cannot refuses the session.
    Of an asynchronous robot that replaces its queue."""
    num_steps: int = 0
    """Of System 1: solver steps of each chunk; a model that takes no such number refuses the session. 0: its own."""
    blend_steps: int = 0
    """Steps over which commands ease from the last one into a new chunk; 0: the first action of a chunk is commanded as it is."""
    replace_queue: bool = True
    """A new chunk replaces what is queued (real-time chunking); False: it is appended."""
    compatibility: Compatibility = Compatibility.NEWER
    calls_per_action: dict[str, float] = field(default_factory=dict)
    """Calls per System 1 call of goal-coupled components, 1/H for System 2 (ROSA §3.4.2); all others are periodic."""
    calls_head_start: float = 0.0
    """[0, 1): share of the second such call that is owed when an episode begins, so that a fleet does not plan in step."""
    trajectory_horizon_s: float = 0.0
    """Of position commands to a controller that executes trajectories: seconds of motion that are sent ahead, before the brakes;
    0: each command is sent alone."""
    controller_rate_hz: float = 100.0
    """Of that controller: how often it updates its own commands."""
    command_type: CommandType = CommandType.DELTA
    """Type of all columns, unless `command_types` says otherwise."""
    command_types: tuple[CommandType, ...] = ()
    """[A] type of each column; empty: all are `command_type`. `robot/columns.py` describes what follows from it."""
    turns: tuple[float, ...] = ()
    """[A] one turn of each continuous joint, in the action's units; 0: the column does not wrap; empty: none does."""
    limits: Limits = field(default_factory=Limits)
    gate: GateConfig = field(default_factory=GateConfig)
    """What is looked for in a whole chunk before its first row moves anything."""
    fallback: tuple[Rung, ...] = (Rung(Motion.HOLD),)
    """What is done without an action to execute."""
    safe_pose: tuple[float, ...] = ()
    """[A] in the units of the measured positions; NaN: this column keeps its last command; empty: none."""
    safe_pose_gain: float = 1.0
    """Velocity or delta commanded per unit of the way to the safe pose, before the limits."""
    max_action_age_s: float = 3.0
    """No action is executed whose observation is older (Remote-RTC §9.2)."""
    max_observation_age_s: float = 0.5
    """No request is sent with older sensor readings."""
    max_sensor_skew_s: float = 0.3
    """No request is sent with readings further apart: enough for a camera of 5 Hz; inf: not checked."""
    failsafe: FailSafeConfig = field(default_factory=FailSafeConfig)
    policy: TaskPolicy = field(default_factory=TaskPolicy)
    server_timeout_s: float = 2.0
    """Without a status message: the server counts as lost."""
    verdict_votes: int = 2
    default_budget_s: float = 60.0
    prompts: dict[str, str] = field(default_factory=dict)
    """Per component, from the descriptor; the task's instruction replaces System 1's."""
    tick_is_step: bool = True
    """A tick is a control step unless it comes too early to be one, as where sensors or a timer give the rhythm. False: ticks come
    whenever there is something to do, and an action lasts one step from the very tick that commanded it."""
    link: LinkConfig = field(default_factory=LinkConfig)

    @property
    def step_rate_hz(self) -> float:
        """Steps of the policy per second: what latencies, horizons and chunks are counted in."""
        return self.control_rate_hz / self.interpolation


@record(frozen=True, slots=True)
class Sensors:
    """The newest readings."""

    state: Array
    """[S]"""
    state_s: float
    """When it was measured, on the robot's clock: by its stamps, or else received."""
    images: tuple[EncodedImage, ...]
    images_s: float
    """When the oldest of them was taken."""
    skew_s: float = 0.0
    """Between the oldest and the newest reading."""
    positions: Array | None = None
    """[A] measured, for `Motion.SAFE_POSE`; None: not known."""


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
    """To be told to a server, and acknowledged by it."""

    server: str
    component: str
    session_epoch: int
    episode: int


@record(frozen=True, slots=True)
class Tick:
    """What follows from one control period."""

    command: Array | None
    """[A] in robot space; None: hold, or the last action is still being executed"""
    requests: tuple[tuple[str, ObservationRequest], ...] = ()
    """(server, request)"""
    opens: tuple[tuple[str, SessionRequest], ...] = ()
    """(server, request): sessions to ask for; answer with `session_opened` or `session_refused`"""
    resets: tuple[EpisodeReset, ...] = ()
    """Answer with `episode_reset`."""
    trajectory: Trajectory | None = None
    """Replaces what the controller executes; None: that goes on."""

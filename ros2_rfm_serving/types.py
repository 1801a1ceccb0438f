"""The nouns every room shares: frozen dataclasses over numpy. No behaviour beyond what follows from the data.

Spaces: *robot space* is what the robot executes; *model space* is what the policy was trained on (normalised). Arrays are
float32 unless said otherwise. T: chunk length in control steps; A: number of actions; S: state size.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]
Image = npt.NDArray[np.uint8]

SCHEMA_VERSION = 1
"""Of the wire. A session opens only between equal versions; fields are only ever added."""

MAX_INSTRUCTION_CHARACTERS = 2000

MAX_ENCODED_BYTES = 4 << 20
"""Of one compressed image; a larger one is refused wherever it arrives."""

SYSTEM1, SYSTEM2, SAFETY, MONITOR = "system1", "system2", "safety", "monitor"


def empty(*shape: int) -> Array:
    return np.zeros(shape, np.float32)


NO_ROWS, NO_VALUES, NO_UPDATES = empty(0, 0), empty(0), empty(0, 0, 0)


# --- what a model promises and a robot expects ---------------------------------------------------------------------------


class OutputKind(enum.Enum):
    """What a model answers with."""

    ACTION_CHUNK = "action_chunk"
    JUDGEMENT = "judgement"
    PLAN = "plan"


class Conditioning(enum.Enum):
    """How a chunk is made to continue the actions that are executed while it is being computed."""

    NONE = "none"
    """Not at all: the robot waits for it, or skips the rows that are over (naive asynchronous)."""
    PREFIX = "prefix"
    """Training-time real-time chunking: the model was trained to continue a clean prefix."""
    GUIDED = "guided"
    """Real-time chunking by guidance inside the sampling loop, for any flow-matching model."""


class PrefixSchedule(enum.Enum):
    """How guidance fades out over the prefix, beyond the inference delay."""

    ZEROS = "zeros"
    ONES = "ones"
    LINEAR = "linear"
    EXP = "exp"


@dataclass(frozen=True, kw_only=True)
class Guidance:
    """Of `Conditioning.GUIDED`; the defaults are LeRobot's."""

    schedule: PrefixSchedule = PrefixSchedule.LINEAR
    max_weight: float = 10.0
    execution_horizon: int = 10
    """Row at which the prefix has lost all weight."""
    true_jacobian: bool = False
    """The paper's vector-Jacobian product in place of the identity; 2 to 4 times as expensive."""
    zero_padded: bool = False
    """LeRobot's older behaviour: a prefix shorter than the chunk continues with zeros; else with its last action."""


class Serving(enum.Enum):
    """How many sessions may share a model (Remote-RTC §8.3)."""

    SHARED = "shared"
    """Chunk-stateless: nothing of one request is visible to the next."""
    EXCLUSIVE = "exclusive"
    """Chunk-stateful: one session, whose new episode resets the model."""


@dataclass(frozen=True, kw_only=True)
class Horizon:
    """How many rows of a chunk are executed before the next one takes over, as a session asks for it (Kairos §3.1)."""

    policy: str = ""
    """By name, of `server/horizon.py` or an entry point; empty: the robot's own."""
    steps: int = 0
    """Of `static`."""
    min_steps: int = 1
    """H_min: never fewer."""
    threshold: float = 0.4
    """t of `confidence`: the last update of an action may exceed the mean of its earlier ones by this share."""


@dataclass(frozen=True, kw_only=True)
class ModelContract:
    """What must be the same on both sides before anything runs (Remote-RTC §8.4)."""

    model: str
    model_hash: str
    """SHA-256 of weights and configuration, hex; empty for an emulated model."""
    output: OutputKind
    action_names: tuple[str, ...] = ()
    """Names *and order* of the action columns; empty for text models."""
    cameras: tuple[str, ...] = ()
    state_size: int = 0
    chunk_length: int = 0
    """T; 0 for text models."""
    control_rate_hz: float = 0.0
    """The rate of the demonstrations; 0 means any."""
    max_inference_delay_steps: int = 0
    """Longest action prefix that the model was trained to continue; 0: it cannot be conditioned."""
    conditionings: tuple[Conditioning, ...] = (Conditioning.NONE,)
    """What it can do."""
    serving: Serving = Serving.SHARED
    emulated: bool = False
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True, kw_only=True)
class SessionRequest:
    """A robot's side of the contract for one component. Empty action names or cameras mean "I have none"."""

    robot: str
    component: str
    action_names: tuple[str, ...] = ()
    cameras: tuple[str, ...] = ()
    state_size: int = 0
    control_rate_hz: float = 0.0
    expected_model_hash: str = ""
    """Refuse any other model; empty accepts what the server has."""
    conditioning: Conditioning = Conditioning.NONE
    guidance: Guidance = Guidance()
    horizon: Horizon = Horizon()
    instruction: str = ""
    """The only one of this session; empty: each request says its own."""
    slo_s: float = 0.0
    """Request to reply, as the schedule promises it; 0: no requirement."""
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True, kw_only=True)
class SessionGrant:
    """The server's answer when a session opens."""

    session_epoch: int
    contract: ModelContract
    warnings: tuple[str, ...] = ()


# --- requests and replies -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestId:
    """Correlates a reply with its request. A reply counts only if all of it matches the latest request."""

    robot: str
    component: str
    session_epoch: int
    episode: int
    sequence: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ExecutionReport:
    """What the robot did with the last chunk, as durations on the robot's clock (Kairos §3.2)."""

    executed_steps: int = 0
    executing_s: float = 0.0
    """Since its first action began to be executed."""
    remaining_s: float = 0.0
    """Until the queued actions run out; negative: since they did."""
    last_wait_s: float = 0.0
    """Between sending the previous request and its chunk."""


@dataclass(frozen=True, kw_only=True)
class EncodedImage:
    """A compressed camera image as it travels."""

    camera: str
    format: str
    """`jpeg`, or `rgb8` for raw rows."""
    data: memoryview | bytes
    height_px: int = 0
    width_px: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class ObservationRequest:
    """One request of one robot's component, as it travels."""

    id: RequestId
    stamp_ns: int
    """The robot's monotonic clock; opaque to everyone else and echoed back."""
    instruction: str
    state: Array
    """[S]"""
    images: tuple[EncodedImage, ...] = ()
    inference_delay_steps: int = 0
    prefix_model: Array = field(default_factory=lambda: empty(0, 0))
    """[P, A] actions still queued, model space; empty: start afresh."""
    prefix_robot: Array = field(default_factory=lambda: empty(0, 0))
    """[P, A] the same in robot space."""
    report: ExecutionReport = field(default_factory=ExecutionReport)
    episode_start: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class InferenceRequest:
    """One row of a batch, decoded: what an engine sees."""

    id: RequestId
    instruction: str
    state: Array
    images: Mapping[str, Image | EncodedImage]
    """camera -> [H, W, 3] RGB; as it travelled for an engine with `takes_encoded`"""
    inference_delay_steps: int
    prefix_model: Array
    conditioning: Conditioning = Conditioning.NONE
    guidance: Guidance = Guidance()


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineReply:
    """One row of an engine's answer: a chunk, a verdict or a plan."""

    chunk_model: Array = field(default_factory=lambda: NO_ROWS)
    """[T, A]; empty for text models"""
    chunk_robot: Array = field(default_factory=lambda: NO_ROWS)
    """[T, A]"""
    updates: Array = field(default_factory=lambda: NO_UPDATES)
    """[K, T, A] what each of the K solver steps changed, model space (Kairos §3.1); empty: not known"""
    verdict: str = ""
    text: str = ""
    score: float = float("nan")
    """Probability of `verdict`, or NaN."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Served:
    """What happened to a request on the server, as durations on its clock."""

    queue_wait_s: float
    inference_s: float
    batch_size: int
    superseded: int
    """Requests of this session replaced by newer ones since its last reply."""
    server_load: float
    """Share of time that the engine was busy, [0, 1]."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Chunk:
    """System 1's answer."""

    id: RequestId
    stamp_ns: int
    server: str
    model_hash: str
    action_names: tuple[str, ...]
    chunk_model: Array
    chunk_robot: Array
    confidence: Array
    execution_horizon: int
    inference_delay_steps: int
    served: Served
    emulated: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """A judge's answer (monitor, safety): one of the words that the model declares."""

    id: RequestId
    stamp_ns: int
    server: str
    model_hash: str
    verdict: str
    score: float
    text: str
    served: Served
    emulated: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """System 2's answer: the first subgoal becomes System 1's instruction."""

    id: RequestId
    stamp_ns: int
    server: str
    model_hash: str
    subgoals: tuple[str, ...]
    text: str
    served: Served
    emulated: bool = False


Reply = Chunk | Verdict | Plan


# --- schedule -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Which model a server hosts, and how it batches."""

    server: str
    model: str
    components: tuple[str, ...]
    gpu_type: str
    batching: str
    """`fixed` or `continuous`"""
    batch_size: int
    max_sessions: int
    predicted_p99_s: float
    standby: bool = False
    """Warm, and out of the normal routes until another server is lost (ROSA §3.4.4)."""
    gpu: str = ""
    """Placements that name the same GPU share it in equal time slices; empty: a GPU of its own."""


@dataclass(frozen=True, kw_only=True)
class Route:
    """Where one robot sends one component's requests, and how often it may."""

    robot: str
    component: str
    server: str
    max_rate_hz: float
    """inf: as soon as it can"""
    slo_s: float
    predicted_rate_hz: float = 0.0
    """What the schedule expects of it: the scheduler's own book-keeping, not on the wire."""
    standby: str = ""
    """Server to turn to when `server` is lost; empty: none."""


@dataclass(frozen=True, kw_only=True)
class Schedule:
    epoch: int
    placements: tuple[Placement, ...]
    routes: tuple[Route, ...]
    predicted_actions_hz: float
    policy: str

    def routes_of(self, robot: str) -> dict[str, Route]:
        return {route.component: route for route in self.routes if route.robot == robot}

    def placement_of(self, server: str) -> Placement | None:
        return next((p for p in self.placements if p.server == server), None)


# --- status ---------------------------------------------------------------------------------------------------------------


class RobotState(enum.IntEnum):
    """Fail-safe states (Remote-RTC §9.2)."""

    CONNECTING = 0
    STREAMING = 1
    DEGRADED = 2
    STALLED = 3
    RECONNECTING = 4
    DEAD = 5


class Fallback(enum.Enum):
    """What a robot does when a component's answer is late, or safety objects (ROSA §3.3)."""

    STOP_AND_RESEND = "stop_and_resend"
    USE_LAST_PLAN = "use_last_plan"
    """Go on with what the last answer said."""
    STOP_AND_REPLAN = "stop_and_replan"
    RETURN_TO_SAFE_STATE = "return_to_safe_state"
    STOP_AND_CALL_HUMAN = "stop_and_call_human"


class TaskPhase(enum.IntEnum):
    IDLE = 0
    RESETTING = 1
    EXECUTING = 2
    STOPPING = 3
    """Over; the result is being told."""
    STOPPED = 4
    """By a fallback; goes on by itself."""
    WAITING = 5
    """For a person to call `resume` or `abort`."""


class TaskOutcome(enum.IntEnum):
    """`error_code` of ExecuteTask: 0 is success, 400-499 are this action's."""

    NONE = 0
    BUDGET_SPENT = 401
    JUDGED_FAILED = 402
    CANCELED = 403
    RESET_FAILED = 404
    REJECTED = 405
    SHUTDOWN = 406
    ABORTED = 407
    """By a person who had been called."""
    OFFLINE = 408
    """No server for too long, or one with another model."""
    UNSAFE = 409
    """Safety kept objecting."""
    LATE = 410
    """Too many answers in a row came later than their SLO."""

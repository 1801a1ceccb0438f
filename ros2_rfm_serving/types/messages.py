"""Requests and replies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ros2_rfm_serving.types.arrays import NO_ROWS, NO_UPDATES, NO_VALUES, Array, Image, empty
from ros2_rfm_serving.types.contracts import Conditioning, Guidance, HorizonRequest, PipelineConfig
from ros2_rfm_serving.types.record import record, runtime_frozen


@runtime_frozen
@dataclass(frozen=True, slots=True)
class RequestId:
    """Identity that correlates a reply with its request. A reply counts only if all of it matches the latest request."""

    robot: str
    component: str
    session_epoch: int
    episode: int
    sequence: int


@record(frozen=True, slots=True)
class ExecutionReport:
    """Execution of the last chunk, as durations on the robot's clock (Kairos §3.2)."""

    executed_steps: int = 0
    executing_s: float = 0.0
    """Time since its first action began to be executed."""
    remaining_s: float = 0.0
    """Time until the queued actions end; negative: time since they ended."""
    last_wait_s: float = 0.0
    """Time between sending the previous request and receiving its chunk."""


@dataclass(frozen=True, kw_only=True)
class EncodedImage:
    """A compressed camera image as it is transmitted."""

    camera: str
    format: str
    """`jpeg`, or `rgb8` for uncompressed pixels."""
    data: memoryview | bytes
    height_px: int = 0
    width_px: int = 0


@record(frozen=True, slots=True)
class ObservationRequest:
    """One request of one robot's component, as it is transmitted."""

    id: RequestId
    stamp_ns: int
    """Robot's monotonic clock; other processes return it unchanged and do not interpret it."""
    instruction: str
    state: Array
    """[S]"""
    images: tuple[EncodedImage, ...] = ()
    inference_delay_steps: int = 0
    prefix_model: Array = field(default_factory=lambda: empty(0, 0))
    """[P, A] actions still queued, model space; empty: start without a prefix."""
    prefix_robot: Array = field(default_factory=lambda: empty(0, 0))
    """[P, A] the same in robot space."""
    report: ExecutionReport = field(default_factory=ExecutionReport)
    episode_start: bool = False


@runtime_frozen
@dataclass(frozen=True, slots=True)
class InferenceRequest:
    """One slot of a batch, decoded, as an engine receives it."""

    id: RequestId
    instruction: str
    state: Array
    images: Mapping[str, Image | EncodedImage]
    """camera -> [H, W, 3] RGB; for an engine with `takes_encoded`, the image as it was transmitted"""
    inference_delay_steps: int
    prefix_model: Array
    prefix_robot: Array = field(default_factory=lambda: NO_ROWS)
    """[P, A] `prefix_model` in robot space, where it is valid for any observation (Remote-RTC §7); empty: not known"""
    conditioning: Conditioning = Conditioning.NONE
    guidance: Guidance = field(default_factory=Guidance)
    horizon: HorizonRequest = field(default_factory=HorizonRequest)
    """Horizon that the session asks for, which an engine that is itself a server passes on with the request."""
    pipelining: PipelineConfig | None = None
    """Pipelining of its session; None: it reads its own context and no other."""
    num_steps: int = 0
    """Solver steps; 0: the model's own number"""
    decoding_s: float = 0.0
    """Time in which its images were decoded to pixels; 0: not measured"""


@record(frozen=True, slots=True)
class EnginePhases:
    """Durations inside an engine for a batch, on the clock that the engine was given; all its slots have them in common."""

    perception_s: float
    solver_s: float
    """Duration of all solver steps together."""
    solver_steps: int
    """Number of these steps; 0: nothing was measured."""


NO_PHASES = EnginePhases(0.0, 0.0, 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineReply:
    """One slot of an engine's answer: a chunk, a verdict or a plan."""

    chunk_model: Array = field(default_factory=lambda: NO_ROWS)
    """[T, A]; empty for text models"""
    chunk_robot: Array = field(default_factory=lambda: NO_ROWS)
    """[T, A]"""
    updates: Array = field(default_factory=lambda: NO_UPDATES)
    """[K, T, A] change made by each of the K solver steps, model space (Kairos §3.1); empty: not known"""
    confidence: Array = field(default_factory=lambda: NO_VALUES)
    """[T], [0, 1], from an engine without updates: a remote server, or a model that reports how likely its actions are; empty: not
    known"""
    execution_horizon: int = 0
    """Steps to execute, according to the remote server's horizon policy; 0: not given"""
    verdict: str = ""
    text: str = ""
    score: float = float("nan")
    """Probability of `verdict`, or NaN."""
    phases: EnginePhases = NO_PHASES
    ended_with: int | None = None
    """Sequence number of the observation that the last solver steps read, in a pipelined session; None: the request's own."""
    violation: str = ""
    """Reason why a judge's text is no verdict; empty: it is one, or it was not checked."""


@record(frozen=True, slots=True)
class ServingStats:
    """Handling of a request by the server, as durations on its clock."""

    queue_wait_s: float
    inference_s: float
    batch_size: int
    superseded: int
    """Requests of this session replaced by newer ones since its last reply."""
    server_load: float
    """Share of time in which the engine was busy, [0, 1]."""
    perception_s: float = 0.0
    """Part of `inference_s`, as is `solver_s`; 0: not measured. The remainder is processing: filling and reading tensors, and the
    conversion to robot space."""
    solver_s: float = 0.0
    solver_steps: int = 0
    excess_delay_s: float = 0.0
    """Excess of the time from arrival to reply over this server's usual time for all its robots (`types/desynchronisation.py`)."""
    decoding_s: float = 0.0
    """Part of `queue_wait_s` in which this request's images were decoded to pixels; 0: not measured"""


@record(frozen=True, slots=True)
class ActionChunk:
    """Answer of System 1."""

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
    served: ServingStats
    emulated: bool = False
    ended_with: int | None = None
    """Sequence number of the observation that the last solver steps read, in a pipelined session: step 0 belongs to the control
    step at which that observation was made; None: the request's own."""


@record(frozen=True, slots=True)
class JudgeVerdict:
    """Answer of a judge (monitor, safety): one of the verdicts that the model declares."""

    id: RequestId
    stamp_ns: int
    server: str
    model_hash: str
    verdict: str
    score: float
    text: str
    served: ServingStats
    emulated: bool = False


@record(frozen=True, slots=True)
class SubgoalPlan:
    """Answer of System 2. Its first subgoal becomes System 1's instruction."""

    id: RequestId
    stamp_ns: int
    server: str
    model_hash: str
    subgoals: tuple[str, ...]
    text: str
    served: ServingStats
    emulated: bool = False


Reply = ActionChunk | JudgeVerdict | SubgoalPlan

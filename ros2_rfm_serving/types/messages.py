"""Requests and replies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ros2_rfm_serving.types.arrays import NO_ROWS, NO_UPDATES, NO_VALUES, Array, Image, empty
from ros2_rfm_serving.types.contracts import Conditioning, Guidance, Horizon, Pipelining
from ros2_rfm_serving.types.record import record, sealed


@sealed
@dataclass(frozen=True, slots=True)
class RequestId:
    """Correlates a reply with its request. A reply counts only if all of it matches the latest request."""

    robot: str
    component: str
    session_epoch: int
    episode: int
    sequence: int


@record(frozen=True, slots=True)
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


@record(frozen=True, slots=True)
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


@sealed
@dataclass(frozen=True, slots=True)
class InferenceRequest:
    """One row of a batch, decoded: what an engine sees."""

    id: RequestId
    instruction: str
    state: Array
    images: Mapping[str, Image | EncodedImage]
    """camera -> [H, W, 3] RGB; as it travelled for an engine with `takes_encoded`"""
    inference_delay_steps: int
    prefix_model: Array
    prefix_robot: Array = field(default_factory=lambda: NO_ROWS)
    """[P, A] `prefix_model` in robot space, which it is for any observation (Remote-RTC §7); empty: not known"""
    conditioning: Conditioning = Conditioning.NONE
    guidance: Guidance = field(default_factory=Guidance)
    horizon: Horizon = field(default_factory=Horizon)
    """For an engine that is a server itself: the session's wish goes on with the request."""
    pipelining: Pipelining | None = None
    """Its session's; None: it reads its own context and no other."""
    num_steps: int = 0
    """Solver steps; 0: the model's own number"""
    decoding_s: float = 0.0
    """That its images took from bytes to pixels; 0: not measured"""


@record(frozen=True, slots=True)
class Phases:
    """What a batch took inside an engine, on the clock that the engine was given; its rows have it in common."""

    perception_s: float
    solver_s: float
    """All solver steps together."""
    solver_steps: int
    """How many they were; 0: nothing was measured."""


NO_PHASES = Phases(0.0, 0.0, 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineReply:
    """One row of an engine's answer: a chunk, a verdict or a plan."""

    chunk_model: Array = field(default_factory=lambda: NO_ROWS)
    """[T, A]; empty for text models"""
    chunk_robot: Array = field(default_factory=lambda: NO_ROWS)
    """[T, A]"""
    updates: Array = field(default_factory=lambda: NO_UPDATES)
    """[K, T, A] what each of the K solver steps changed, model space (Kairos §3.1); empty: not known"""
    confidence: Array = field(default_factory=lambda: NO_VALUES)
    """[T], [0, 1], of an engine that sends no updates: a server elsewhere, or a model that says how likely its actions are; empty:
    not known"""
    execution_horizon: int = 0
    """Rows to execute, as that server's horizon policy says; 0: it has not said"""
    verdict: str = ""
    text: str = ""
    score: float = float("nan")
    """Probability of `verdict`, or NaN."""
    phases: Phases = NO_PHASES
    ended_with: int | None = None
    """Sequence number of the observation that the last steps saw, of a pipelined session; None: the request's own."""
    violation: str = ""
    """Why a judge's text is no verdict; empty: it is one, or nobody has said."""


@record(frozen=True, slots=True)
class Served:
    """What happened to a request on the server, as durations on its clock."""

    queue_wait_s: float
    inference_s: float
    batch_size: int
    superseded: int
    """Requests of this session replaced by newer ones since its last reply."""
    server_load: float
    """Share of time that the engine was busy, [0, 1]."""
    perception_s: float = 0.0
    """Part of `inference_s`, as is the next; 0: not measured. What is left of it is processing: filling and reading tensors, robot
    space."""
    solver_s: float = 0.0
    solver_steps: int = 0
    unusual_s: float = 0.0
    """From arrival to reply: longer than this server's answers to all its robots usually take (`types/phase.py`)."""
    decoding_s: float = 0.0
    """Part of `queue_wait_s`: this request's images from bytes to pixels; 0: not measured"""


@record(frozen=True, slots=True)
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
    ended_with: int | None = None
    """Sequence number of the observation that the last solver steps saw, of a pipelined session: row 0 belongs to the control step
    at which that was taken; None: the request's own."""


@record(frozen=True, slots=True)
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


@record(frozen=True, slots=True)
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

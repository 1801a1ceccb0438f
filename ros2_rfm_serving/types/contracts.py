"""Contracts between models and robots: what a model provides, and what a session asks for."""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace

from ros2_rfm_serving.types.arrays import SCHEMA_VERSION

MAX_STAGES = 64
"""Maximum number of stages of one kind in a pipelined session. A robot that is served so slowly gains nothing from more."""
MAX_ALPHA = 8.0
"""Limit of `alpha`; above it, one stage has all the steps anyway."""


class OutputKind(enum.Enum):
    """Kind of answer that a model gives."""

    ACTION_CHUNK = "action_chunk"
    JUDGEMENT = "judgement"
    PLAN = "plan"


class Conditioning(enum.Enum):
    """Method that makes a chunk continue the actions that are executed while it is being computed."""

    NONE = "none"
    """No conditioning: the robot waits for the chunk, or skips the steps that are over (naive asynchronous)."""
    PREFIX = "prefix"
    """Training-time real-time chunking: the model was trained to continue a clean prefix."""
    GUIDED = "guided"
    """Real-time chunking by guidance inside the sampling loop, for any flow-matching model."""


AUTO = "auto"
"""Value on the wire and in a robot's file that asks for the best conditioning of the model. In the code it is None."""
BEST_FIRST = (Conditioning.PREFIX, Conditioning.GUIDED, Conditioning.NONE)


class PrefixSchedule(enum.Enum):
    """Shape by which guidance fades out over the prefix, beyond the inference delay."""

    ZEROS = "zeros"
    ONES = "ones"
    LINEAR = "linear"
    EXP = "exp"


@dataclass(frozen=True, kw_only=True)
class Guidance:
    """Parameters of `Conditioning.GUIDED`; the defaults are LeRobot's."""

    schedule: PrefixSchedule = PrefixSchedule.LINEAR
    max_weight: float = 10.0
    execution_horizon: int = 10
    """Step at which the prefix has lost all weight."""
    true_jacobian: bool = False
    """Use the paper's vector-Jacobian product in place of the identity; it costs 2 to 4 times as much."""
    zero_padded: bool = False
    """Continue a prefix shorter than the chunk with zeros, as LeRobot once did; otherwise with its last action."""


class SessionSharing(enum.Enum):
    """Number of sessions that may share a model (Remote-RTC §8.3)."""

    SHARED = "shared"
    """The model is chunk-stateless: nothing of one request is visible to the next."""
    EXCLUSIVE = "exclusive"
    """The model is chunk-stateful: it has one session, and a new episode resets it."""


@dataclass(frozen=True, kw_only=True)
class HorizonRequest:
    """Execution horizon that a session asks for: steps of a chunk executed before the next chunk replaces it (Kairos §3.1)."""

    policy: str = ""
    """Name of a policy of `server/horizon.py` or of an entry point; empty: the robot chooses its horizon itself."""
    steps: int = 0
    """Horizon of the policy `static`."""
    min_steps: int = 1
    """H_min: lower bound of the horizon."""
    threshold: float = 0.4
    """t of the policy `confidence`: share by which the last update of an action may exceed the mean of its earlier ones."""


@dataclass(frozen=True, kw_only=True)
class PipelineConfig:
    """Execution of several requests of one session at once, all of which read its freshest context (AURAS §4).

    A frame begins with each observation: it is perceived, every request in flight advances by one stage, and the one in its last
    stage is answered.
    """

    pp_perception: int = 1
    """Frames until an observation is in the public context (§4.3.2)."""
    pp_generation: int = 1
    """Frames over which the solver steps of one request are spread."""
    alpha: float = 0.0
    """Skew of that spread: stage i has a share of e^(i alpha); 0: equal shares."""
    fetch_offset: int = 0
    """Context of a frame's generation; 0: the one that it has perceived itself; -1: that of the frame before (§4.3.1)."""

    @property
    def depth(self) -> int:
        """L: number of requests in flight at once, and of frames that each of them lasts."""
        return self.pp_perception + self.pp_generation

    @property
    def problem(self) -> str:
        """Description of the first value that cannot be executed; empty: all values are valid."""
        for name in ("pp_perception", "pp_generation"):
            if not 1 <= (stages := getattr(self, name)) <= MAX_STAGES:
                return f"{name} is {stages}; it must be from 1 to {MAX_STAGES}"
        if not abs(self.alpha) <= MAX_ALPHA:
            return f"alpha is {self.alpha:g}; it must be from {-MAX_ALPHA:g} to {MAX_ALPHA:g}"
        if self.fetch_offset not in (0, -1):
            return f"fetch_offset is {self.fetch_offset}; it must be 0 or -1"
        return ""


@dataclass(frozen=True, kw_only=True)
class ModelContract:
    """Properties on which both sides must agree before anything runs (Remote-RTC §8.4)."""

    model: str
    model_hash: str
    """SHA-256 of weights and configuration, hex; empty for an emulated model."""
    output: OutputKind
    action_names: tuple[str, ...] = ()
    """Names *and order* of the action columns; empty for text models."""
    cameras: tuple[str, ...] = ()
    min_image_px: tuple[int, ...] = ()
    """Minimum width and height of the images that the model needs. A JPEG may then be decoded at a half, a quarter or an eighth of
    its size; empty: every image is decoded whole."""
    state_size: int = 0
    chunk_length: int = 0
    """T; 0 for text models."""
    control_rate_hz: float = 0.0
    """Rate of the demonstrations; 0: any."""
    max_inference_delay_steps: int = 0
    """Longest action prefix that the model was trained to continue; 0: it cannot be conditioned."""
    conditionings: tuple[Conditioning, ...] = (Conditioning.NONE,)
    """Conditionings that the model supports."""
    true_jacobian: bool = False
    """The model serves guidance through its Jacobian, which slows its whole batch; otherwise a session that asks for it is refused.
    """
    pipelines: bool = False
    """The model accepts `PipelineConfig` sessions."""
    max_num_steps: int = 0
    """Largest number of solver steps that a session may ask for; 0: a session may not choose."""
    serving: SessionSharing = SessionSharing.SHARED
    action_mean: tuple[float, ...] = ()
    """Mean of the actions that the model was trained on, per column, in robot space; empty: not known."""
    action_std: tuple[float, ...] = ()
    """Standard deviation of the same actions."""
    emulated: bool = False
    schema_version: int = SCHEMA_VERSION

    @property
    def for_remote_engine(self) -> ModelContract:
        """Contract of the same model behind a connection: one answer at a time, with the model's own number of solver steps."""
        return replace(self, pipelines=False, max_num_steps=0)


def agreed_conditioning(requested: Conditioning | None, contract: ModelContract) -> Conditioning:
    """Return the conditioning of a session: the one asked for; where None leaves it to the model, the best that it supports."""
    if requested is not None:
        return requested
    return next((best for best in BEST_FIRST if best in contract.conditionings), Conditioning.NONE)


@dataclass(frozen=True, kw_only=True)
class SessionRequest:
    """A robot's side of the contract for one component. Empty action names or cameras mean that the robot has none."""

    robot: str
    component: str
    action_names: tuple[str, ...] = ()
    cameras: tuple[str, ...] = ()
    state_size: int = 0
    control_rate_hz: float = 0.0
    expected_model_hash: str = ""
    """The server refuses any other model; empty: accept whichever it has."""
    conditioning: Conditioning | None = Conditioning.NONE
    """Conditioning that the session asks for; None: the best that the model supports (`agreed_conditioning`)."""
    guidance: Guidance = Guidance()
    horizon: HorizonRequest = HorizonRequest()
    instruction: str = ""
    """Instruction of all requests of this session; empty: each request has its own."""
    slo_s: float = 0.0
    """Latency from request to reply that the schedule promises; 0: no requirement."""
    pipelining: PipelineConfig | None = None
    """Pipelining of the session; None: one request in flight."""
    num_steps: int = 0
    """Solver steps of each chunk; 0: the model's own number. With fewer steps a chunk is ready sooner, but coarser."""
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True, kw_only=True)
class SessionGrant:
    """The server's answer when a session opens."""

    session_epoch: int
    contract: ModelContract
    warnings: tuple[str, ...] = ()

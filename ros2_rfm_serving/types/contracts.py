"""What a model promises and a robot expects."""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace

from ros2_rfm_serving.types.arrays import SCHEMA_VERSION

MAX_STAGES = 64
"""Of one kind, in a pipelined session; who is served so slowly is better off without."""
MAX_ALPHA = 8.0
"""With more than that, one stage has all the steps anyway."""


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


AUTO = "auto"
"""In place of a conditioning on the wire and in a robot's file: the best that the model can do. In the code it is None."""
BEST_FIRST = (Conditioning.PREFIX, Conditioning.GUIDED, Conditioning.NONE)


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
class Pipelining:
    """Several requests of one session in flight, all of them reading its freshest context (AURAS §4). A frame begins with each
    observation: it is perceived, every request in flight goes on by one stage, and the one in its last stage is answered."""

    pp_perception: int = 1
    """Frames until an observation is in the public context (§4.3.2)."""
    pp_generation: int = 1
    """Frames that the solver steps of one request are spread over."""
    alpha: float = 0.0
    """Skew of that spread: stage i has a share of e^(i alpha); 0: all have the same."""
    fetch_offset: int = 0
    """0: a frame generates on the context that it has perceived itself; -1: on that of the frame before (§4.3.1)."""

    @property
    def depth(self) -> int:
        """L: requests that are in flight at once, and frames that each of them takes."""
        return self.pp_perception + self.pp_generation

    @property
    def problem(self) -> str:
        """What nobody could run, in words; empty: nothing."""
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
    """What must be the same on both sides before anything runs (Remote-RTC §8.4)."""

    model: str
    model_hash: str
    """SHA-256 of weights and configuration, hex; empty for an emulated model."""
    output: OutputKind
    action_names: tuple[str, ...] = ()
    """Names *and order* of the action columns; empty for text models."""
    cameras: tuple[str, ...] = ()
    min_image_px: tuple[int, ...] = ()
    """Width and height at least of what it gets of a JPEG, which may be decoded at a half, a quarter or an eighth; empty: it gets
    every image whole."""
    state_size: int = 0
    chunk_length: int = 0
    """T; 0 for text models."""
    control_rate_hz: float = 0.0
    """The rate of the demonstrations; 0 means any."""
    max_inference_delay_steps: int = 0
    """Longest action prefix that the model was trained to continue; 0: it cannot be conditioned."""
    conditionings: tuple[Conditioning, ...] = (Conditioning.NONE,)
    """What it can do."""
    true_jacobian: bool = False
    """Guidance through the model's Jacobian is served, which slows its whole batch; else a session that asks for it is refused."""
    pipelines: bool = False
    """It takes `Pipelining` sessions."""
    max_num_steps: int = 0
    """Solver steps that a session may ask for; 0: it may not choose."""
    serving: Serving = Serving.SHARED
    action_mean: tuple[float, ...] = ()
    """Of the actions that the model was trained on, per column, in robot space; empty: it does not say."""
    action_std: tuple[float, ...] = ()
    """Standard deviation of the same."""
    emulated: bool = False
    schema_version: int = SCHEMA_VERSION

    @property
    def over_a_connection(self) -> ModelContract:
        """As a server elsewhere serves it: one answer after the other, each with the model's own number of solver steps."""
        return replace(self, pipelines=False, max_num_steps=0)


def agreed_conditioning(asked: Conditioning | None, contract: ModelContract) -> Conditioning:
    """Return what a session uses: what the robot asks for; where it leaves that to the model (None), the best that it can do."""
    if asked is not None:
        return asked
    return next((best for best in BEST_FIRST if best in contract.conditionings), Conditioning.NONE)


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
    conditioning: Conditioning | None = Conditioning.NONE
    """None: the best that the model can do (`agreed_conditioning`)."""
    guidance: Guidance = Guidance()
    horizon: Horizon = Horizon()
    instruction: str = ""
    """The only one of this session; empty: each request says its own."""
    slo_s: float = 0.0
    """Request to reply, as the schedule promises it; 0: no requirement."""
    pipelining: Pipelining | None = None
    """None: one request in flight."""
    num_steps: int = 0
    """Solver steps of each of its chunks; 0: the model's own number. Fewer are sooner done, and coarser."""
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True, kw_only=True)
class SessionGrant:
    """The server's answer when a session opens."""

    session_epoch: int
    contract: ModelContract
    warnings: tuple[str, ...] = ()

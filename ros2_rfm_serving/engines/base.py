"""Interfaces of models that can be served. The loop around them (`sampling.py`) is ours.

Lifecycle: an engine is built once per server process, warmed up, and then called from one thread only (the server's worker), unless
`max_concurrent` allows several concurrent calls of `infer`. It is closed when its model leaves the process. Calls are pure with
respect to sessions: nothing of one request may be visible to another session's request, or in another episode. An engine that
cannot guarantee this says so in its contract (`SessionSharing.EXCLUSIVE`); it gets one session, and a `reset` with each episode.
"""

from __future__ import annotations

import enum
from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from ros2_rfm_serving.errors import ModelError
from ros2_rfm_serving.types import Conditioning, EncodedImage, EngineReply, Image, InferenceRequest, ModelContract, PipelineConfig


@runtime_checkable
class Engine(Protocol):
    """Interface of everything that answers a batch of requests, and the only one that `server/` uses."""

    @property
    @abstractmethod
    def contract(self) -> ModelContract:
        """Agreement that a session must match: action names and order, cameras, state size, chunk length, hash."""

    @property
    @abstractmethod
    def max_batch_size(self) -> int:
        """Largest batch that `infer` accepts."""

    max_concurrent: int = 1
    """Largest number of concurrent calls of `infer`. More than one is for an engine with continuous batching: each call then has
    one request, which is answered as soon as it is done."""

    takes_encoded: bool = False
    """True if the engine takes images as they were encoded for transport, to pass them on; otherwise they are decoded first."""

    fit_image: Callable[[Image], Image] | None = None
    """Transformation of each decoded image before anything else, such as a resize. It runs on a decoder's thread, for several
    images at once and concurrently with `infer`. It is idempotent, as an image may also arrive untransformed."""

    decode_image: Callable[[EncodedImage], Image | None] | None = None
    """Decoder of a JPEG whose header has been checked, which includes all that `fit_image` would do.
    It runs on the same threads. If this is None, or returns None, the server decodes the image."""

    clock: Callable[[], float] | None = None
    """Clock that returns seconds, for `EngineReply.phases`.
    The process that serves the engine sets it; None disables the measurement."""

    on_check: Callable[[int, int], None] | None = None
    """Callback (completed parts of a check, number of parts).
    The caller of the check sets it; it is called on the thread that checks."""

    timeout_s: float = 0.0
    """Seconds after which the engine gives up a batch by itself; 0 if there is no limit.
    A server counts it as hung only beyond this limit."""

    @property
    def is_dead(self) -> bool:
        """True if the engine will never answer again, so that only a new process helps. Any thread may read it at any time."""
        return False

    def prepare(self, batch_size: int) -> None:
        """Prepare batches of a size. Called at start-up and whenever the server's batch size changes, before `infer`.

        Raises: `ModelError` if the model cannot run batches of this size.
        """
        if not 1 <= batch_size <= self.max_batch_size:
            raise ModelError(f"{self.contract.model!r} runs batches of 1 to {self.max_batch_size}, not {batch_size}")

    def warm_up(self) -> None:
        """Run all work that the first request would otherwise have to wait for."""
        return  # mypy takes an empty body for an abstract method

    @abstractmethod
    def infer(self, requests: Sequence[InferenceRequest]) -> Sequence[EngineReply | ModelError]:
        """Return one reply per request, in order, with the error of a row that failed alone in its place.

        Rows are independent: a row in a batch equals the same row alone. Raises: `ModelError` if no row has an answer.
        """

    def reset(self) -> None:
        """Begin a new episode in the single session of an engine with `SessionSharing.EXCLUSIVE`. Shared engines have nothing to
        reset."""
        return

    def close_session(self, robot: str, component: str, epoch: int) -> None:
        """Allow the engine to forget its state of this session, if there is any. Any thread may call it, also while a batch runs.

        The `id` of a request tells its session. An engine that keeps state starts anew when the episode of a session changes.
        """
        return

    def close(self) -> None:
        """Release all resources that outlive the engine: processes, connections, threads. It is the last call."""
        return

    @property
    def must_agree(self) -> bool:
        """True if the engine must agree with its reference to be served, whatever the descriptor's `parity` is.
        This holds for an engine that computes in less than float32, or whose weights are not those that were trained."""
        return False

    @property
    def computed_by(self) -> str:
        """Options and hardware that determine parity figures, beside the model's hash.
        If it is empty, figures are measured at every start."""
        return ""

    def check_precision(self) -> list[Parity]:
        """Run the check that an engine with `must_agree` has to pass at start.
        It is `check_parity`, or the part of it that rounding can change."""
        return self.check_parity()

    def check_parity(self) -> list[Parity]:
        """Compare the engine with its reference, block by block if it is split (vla.cpp §4.6).
        Returns nothing if there is no reference."""
        return []


@runtime_checkable
class Stepping(Protocol):
    """`Engine` whose rows advance one denoising step at a time: they join a running batch, and leave it when they are done.

    One thread calls `enter`, `iterate` and `leave`, never concurrently with `infer`. A row is identified by a number that its
    server draws and never reuses. The answer of a row equals that of `infer` for this row: bit for bit alone, up to rounding in a
    batch.
    """

    @property
    @abstractmethod
    def max_rows(self) -> int:
        """Largest number of rows in flight. Their memory is allocated at warm-up and does not grow."""

    @abstractmethod
    def num_iterations(self, request: InferenceRequest) -> int:
        """Return the number of denoising steps from perception to answer of a request."""

    def require_pipelining(self, pipelining: PipelineConfig, num_steps: int = 0) -> None:
        """Check that a session can be pipelined, when it opens. num_steps: number that it asks for; 0 is the model's own.

        Raises: `ModelError` that names the part that this model cannot do.
        """
        raise ModelError("this model serves no pipelined sessions")

    @abstractmethod
    def enter(self, rows: Mapping[int, InferenceRequest]) -> Mapping[int, ModelError]:
        """Perceive new rows together, and return the errors of those that did not enter.

        A row of a pipelined session begins a frame of that session: the session's rows in flight read the new context from here on
        (or from the next frame on, with `fetch_offset` -1) and may advance by their stage's share of steps. Rows of its earlier
        episodes and epochs are answered with an error in the next turn.
        """

    @abstractmethod
    def ready(self) -> Collection[int]:
        """Return the rows in flight that a turn may advance: all except those that wait for their session's next frame."""

    @abstractmethod
    def iterate(self, rows: Collection[int]) -> Mapping[int, EngineReply | ModelError]:
        """Advance these of the `ready` rows by one denoising step, in one batch.

        Returns the answers of rows that are done, which have left. Raises: `ModelError` if the step failed for all rows, which have
        left too.
        """

    @abstractmethod
    def leave(self, rows: Collection[int]) -> None:
        """Remove rows that are no longer needed. Numbers that are not in flight are ignored."""


def stepping(engine: Engine) -> Stepping:
    """Return the engine as `Stepping`. Raises: `ModelError` if its rows cannot advance one denoising step at a time."""
    if isinstance(engine, Stepping):
        return engine
    why = "its engine answers whole batches, so that no request can join a running one"
    raise ModelError(f"{engine.contract.model!r} cannot be served with `batching: continuous`: {why}; say `batching: fixed`")


@dataclass(frozen=True, kw_only=True)
class Parity:
    """Distance of one block from its reference."""

    block: str
    error: float
    """Largest absolute difference relative to the largest absolute reference value; NaN never passes."""
    tolerance: float
    precision: str = "float32"
    """Precision that the tolerance belongs to."""

    @property
    def passes(self) -> bool:
        return self.error <= self.tolerance


def require_parity(model: str, checks: Sequence[Parity]) -> None:
    """Check that all blocks pass.
    Raises: `ModelError` that names every block outside its tolerance, with error and tolerance, and a precision that may pass."""
    failed = [f"{p.block} is off by {p.error:.2g}, it may be by {p.tolerance:.2g}" for p in checks if not p.passes]
    if failed:
        finer = {"int4": "int8", "int8": "bfloat16", "bfloat16": "float32", "float16": "float32"}
        coarse = next((p.precision for p in checks if not p.passes and p.precision in finer), "")
        fix = f"; at {coarse} it is not served: say `options: {{dtype: {finer[coarse]}}}`" if coarse else ""
        raise ModelError(f"{model!r} does not compute what its reference does: {'; '.join(failed)}{fix}")


Context = Any
"""Result of `perceive`, computed once per batch (encoded prefix, cross-attention keys and values); opaque to the loop."""


class VelocityModel(Protocol):
    """Policy that is split so that our loop can condition, guide and pipeline it (vla.cpp §3).

    The `velocity` of a diffusion or regression policy is the quantity that `SamplingConfig.predicts` names.
    """

    @property
    @abstractmethod
    def contract(self) -> ModelContract: ...

    @property
    @abstractmethod
    def max_batch_size(self) -> int: ...

    @abstractmethod
    def perceive(self, requests: Sequence[InferenceRequest]) -> Context:
        """Encode observations and instructions of B requests once."""

    @abstractmethod
    def velocity(self, x: Any, time: Any, context: Context) -> Any:
        """Return v(x, t | context), [B, T, A]. x: [B, T, A] in model space; time: [B, T], 1 = noise, 0 = clean.

        It is written in PyTorch, independent row by row, and differentiable in x: guidance may need its Jacobian.
        """

    def denormalize(self, actions: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Return actions, [..., A], in robot space from those in model space; the two are the same unless overridden."""
        return actions


Cache = tuple[Any, ...]
"""Keys and values of rows, made by `TokenModel.cache`: tensors [rows, ...], whose rows our loop moves, copies and cuts."""


class TokenModel(Protocol):
    """Autoregressive policy that is split so that our loop can decode, continue and pipeline it (AURAS §4.2.1). PyTorch.

    A chunk is l_a = T A tokens; those of an action are contiguous, and each is one of `num_bins` bins. N: positions; B: rows.
    """

    @property
    @abstractmethod
    def contract(self) -> ModelContract: ...

    @property
    @abstractmethod
    def max_batch_size(self) -> int: ...

    @property
    @abstractmethod
    def num_bins(self) -> int: ...

    @abstractmethod
    def cache(self, num_rows: int) -> Cache:
        """Allocate keys and values for `num_rows` rows: of their context and of all their tokens."""

    @abstractmethod
    def perceive(self, requests: Sequence[InferenceRequest], cache: Cache) -> None:
        """Encode observations and instructions (X_V, X_L) of B requests into the B rows of `cache`."""

    @abstractmethod
    def generate(self, before: Any, first: Sequence[int], cache: Cache) -> Any:
        """Return logits of tokens, [B, N, num_bins], given the tokens before them.

        The positions of row i are first[i] .. first[i] + N - 1. before: [B, N], for each position the token before it; 0 before the
        first. Keys and values of earlier positions are read from `cache`, and those of these positions are written there. A
        position sees the context and no later position. So a prefill of several positions gives the same logits at each of them as
        a decode of that position alone.
        """

    @abstractmethod
    def tokens(self, actions: npt.NDArray[np.float32]) -> npt.NDArray[np.int64]:
        """Return the nearest bins, [..., A], of actions in robot space, [..., A]."""

    @abstractmethod
    def actions(self, tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """Return the actions in robot space, [..., A], that bins, [..., A], stand for."""


@dataclass(frozen=True, kw_only=True)
class TokenSampling:
    """Choice of tokens from logits."""

    temperature: float = 0.0
    """Temperature; 0 selects the most likely token (greedy decoding)."""
    seed: int = 0
    """Seed of the noise, together with the request's session and sequence number: a re-run gives the same chunk."""
    device: str = "cpu"
    """PyTorch device of the loop's tensors."""
    max_rows: int = 0
    """Largest number of rows in flight; 0 for the larger of the largest batch and one more than a chunk has tokens."""


@runtime_checkable
class Anchored(Protocol):
    """`VelocityModel` whose model space may be relative to the robot's observation, so that a prefix has to be expressed anew."""

    @abstractmethod
    def anchored(self, requests: Sequence[InferenceRequest]) -> Sequence[InferenceRequest]:
        """Return the batch that was perceived last, with prefixes in its own model space, from `prefix_robot`."""


@runtime_checkable
class Relative(Anchored, Protocol):
    """Anchored model whose actions may be relative to the state alone: rows of other calls of `perceive` may share a batch."""

    @property
    @abstractmethod
    def is_relative(self) -> bool: ...

    @abstractmethod
    def placed(self, actions: npt.NDArray[np.float32], states: Sequence[npt.NDArray[np.float32]]) -> npt.NDArray[np.float32]:
        """Return actions in robot space, [B, T, A].
        actions: output of `denormalize`, relative to the position of each row's robot. states: [S] of each row."""


class Predicts(enum.Enum):
    """Quantity that a network predicts from noisy actions.
    It decides how our loop gets to clean actions (engines/flow/solvers.py)."""

    VELOCITY = "velocity"
    """Flow matching: noise - actions."""
    NOISE = "noise"
    """Diffusion: the noise (epsilon)."""
    CLEAN = "clean"
    """Diffusion: the actions (x0)."""
    CHUNK = "chunk"
    """Regression: the actions, at once, from x = 0 and time 1."""


def offered(contract: ModelContract, predicts: Predicts) -> ModelContract:
    """Return the contract with the conditionings that our loop offers for this kind of model.
    A regression model offers no real-time chunking, and only flow-matching models can be guided."""
    if predicts is Predicts.CHUNK:
        return replace(contract, conditionings=(Conditioning.NONE,), max_inference_delay_steps=0)
    trained = (Conditioning.PREFIX,) if contract.max_inference_delay_steps else ()
    guided = (Conditioning.GUIDED,) if predicts is Predicts.VELOCITY else ()
    return replace(contract, conditionings=(Conditioning.NONE, *trained, *guided))


@dataclass(frozen=True, kw_only=True)
class SamplingConfig:
    """Settings of our sampling loop."""

    predicts: Predicts = Predicts.VELOCITY
    num_steps: int = 10
    """Denoising steps from noise (time 1) to action (time 0); a regression takes one, whatever this is."""
    train_steps: int = 100
    """Noise levels in the training of a diffusion model. Index i is time (i + 1) / train_steps; the model finds it by `round`."""
    clean_limit: float | None = None
    """Limit of a diffusion model's estimates of the actions, which are clipped to +- this in model space; None if they are not."""
    noise_scale: float = 1.0
    """Standard deviation of the noise; 0 starts sampling from its mean."""
    noise: Literal["normal", "uniform"] = "normal"
    """Distribution of the noise; `uniform` is in [-1, 1) before it is scaled."""
    ramp_rate: float = 0.0
    """Ramp rate of a model that departs from a prefix gradually (engines/flow/ramp.py).
    With 0, all steps after the delay are the model's own."""
    seed: int = 0
    """Seed of the noise, together with the request's session and sequence number: a re-run gives the same chunk."""
    num_columns: int = 0
    """Columns W of x, more than the A actions for a model that pads them; 0 for as many as there are actions."""
    device: str = "cpu"
    """PyTorch device of the loop's tensors."""
    true_jacobian: bool = False
    """True if sessions may ask for guidance through the model's Jacobian.
    It is compiled at warm-up and slows down the whole batch."""
    fixed_shapes: tuple[int, ...] = ()
    """Batch sizes, rising, that are compiled or captured at warm-up.
    A batch is padded to the next size; if empty, any size runs."""
    warm_sizes: tuple[int, ...] = ()
    """Batch sizes that warm up an engine that runs any size. If empty, they are one row and the largest batch."""
    max_rows: int = 0
    """Largest number of rows in flight in a `Stepping` engine; 0 for as many as the largest batch."""

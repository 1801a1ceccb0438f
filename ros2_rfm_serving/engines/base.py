"""What a model offers to be served. The loop around it (`sampling.py`) is ours.

Lifecycle: an engine is built once per server process, warmed up, then called from one thread only (the server's worker), unless
`max_concurrent` says that several may call `infer` at once; closed when its model leaves the process.
Calls are pure with respect to sessions: nothing of one request may be visible to another session's, or in another episode. An
engine for which that does not hold says so in its contract (`Serving.EXCLUSIVE`), gets one session, `reset` with each episode.
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
from ros2_rfm_serving.types import Conditioning, EncodedImage, EngineReply, Image, InferenceRequest, ModelContract, Pipelining


@runtime_checkable
class Engine(Protocol):
    """Anything that answers a batch of requests. This is all that `server/` sees."""

    @property
    @abstractmethod
    def contract(self) -> ModelContract:
        """What a session must agree with (action names and order, cameras, state size, chunk length, hash)."""

    @property
    @abstractmethod
    def max_batch_size(self) -> int:
        """Largest batch `infer` accepts."""

    max_concurrent: int = 1
    """Calls of `infer` that may be under way at once. More than one where the engine batches continuously: then each call has one
    request, which is answered as soon as it is done."""

    takes_encoded: bool = False
    """It wants images as they travelled, to pass them on; else they are decoded before."""

    fit_image: Callable[[Image], Image] | None = None
    """What it does to each decoded image before anything else, such as making it smaller: on a decoder's thread, any of several at
    once, beside `infer`. Idempotent: an image may also come as it is."""

    decode_image: Callable[[EncodedImage], Image | None] | None = None
    """How it makes pixels of a JPEG whose header has been checked, and all that `fit_image` would do, on the same threads.
    None, also as its answer: the server does it."""

    clock: Callable[[], float] | None = None
    """Reads seconds, for `EngineReply.phases`; given by who serves it. None: nothing is measured."""

    on_check: Callable[[int, int], None] | None = None
    """Hears how many parts of a check are done, and of how many, on the thread that checks; given by who waits for it."""

    timeout_s: float = 0.0
    """After which it gives up a batch by itself, s; 0: it has no such limit. A server counts it as hung only beyond it."""

    @property
    def is_dead(self) -> bool:
        """It will never answer again: only a new process helps. Asked at any time, from any thread."""
        return False

    def prepare(self, batch_size: int) -> None:
        """Called at start and whenever the server's batch size changes, before `infer`.

        Raises: `ModelError` when the model cannot run batches of this size.
        """
        if not 1 <= batch_size <= self.max_batch_size:
            raise ModelError(f"{self.contract.model!r} runs batches of 1 to {self.max_batch_size}, not {batch_size}")

    def warm_up(self) -> None:
        """Runs what the first request would otherwise pay for."""
        return  # mypy takes an empty body for an abstract one

    @abstractmethod
    def infer(self, requests: Sequence[InferenceRequest]) -> Sequence[EngineReply | ModelError]:
        """One reply per request, in order; the error of a row that failed alone, in its place.

        Rows are independent: a batched row equals the row run alone. Raises: `ModelError` when no row has an answer.
        """

    def reset(self) -> None:
        """A new episode of the one session of an engine with `Serving.EXCLUSIVE`. Shared engines have nothing to reset."""
        return

    def close_session(self, robot: str, component: str, epoch: int) -> None:
        """What is kept for this session, if anything, may be forgotten. Comes from any thread, also while a batch runs.

        A session is known by its requests' `id`; with another episode in it, an engine that keeps something begins anew.
        """
        return

    def close(self) -> None:
        """Gives back what outlives it: processes, connections, threads. Nothing is called afterwards."""
        return

    @property
    def must_agree(self) -> bool:
        """With its reference, or it is not served, whatever the descriptor says of `parity`: it computes in less than float32, or
        its weights are not those that were trained."""
        return False

    @property
    def computed_by(self) -> str:
        """What its figures follow from beside its model's hash: options and hardware. Empty: they are measured at every start."""
        return ""

    def check_precision(self) -> list[Parity]:
        """What an engine that `must_agree` is asked at start: `check_parity`, or the part of it that rounding can change."""
        return self.check_parity()

    def check_parity(self) -> list[Parity]:
        """Block by block where the engine is split, against its reference (vla.cpp §4.6). Empty: nothing to compare with."""
        return []


@runtime_checkable
class Stepping(Protocol):
    """An `Engine` whose rows go on one solver step at a time: they join a running batch and leave it, each when it is done.

    One thread calls `enter`, `turn` and `leave`, never together with `infer`. A row is known by a number that its server draws and
    never uses again. A row's answer equals that of `infer` with it alone: bit for bit alone, to rounding in company.
    """

    @property
    @abstractmethod
    def max_rows(self) -> int:
        """In flight at once. What they need is allocated at warm-up and does not grow."""

    @abstractmethod
    def num_turns(self, request: InferenceRequest) -> int:
        """Solver steps from perception to answer of such a request."""

    def require_pipelining(self, pipelining: Pipelining, num_steps: int = 0) -> None:
        """Asked when such a session opens; num_steps: that it asks for, 0: the model's own number.

        Raises: `ModelError` that says what of it this model cannot do.
        """
        raise ModelError("this model serves no pipelined sessions")

    @abstractmethod
    def enter(self, rows: Mapping[int, InferenceRequest]) -> Mapping[int, ModelError]:
        """Perceives new rows, together. The errors of those that did not enter.

        With a row of a pipelined session a frame of that session begins: its rows in flight read the new context from here on (or
        from the next frame on, `fetch_offset` -1) and may go on by their stage's share of steps. Rows of its former episodes and
        epochs are answered with an error in the next turn.
        """

    @abstractmethod
    def ready(self) -> Collection[int]:
        """Rows in flight that a turn may advance: all but those that wait for their session's next frame."""

    @abstractmethod
    def turn(self, rows: Collection[int]) -> Mapping[int, EngineReply | ModelError]:
        """Advances these of the `ready` rows by one solver step, in one batch. Answers of those that are done, which have left.

        Raises: `ModelError` when the step failed for all of them: they have left too.
        """

    @abstractmethod
    def leave(self, rows: Collection[int]) -> None:
        """They are not wanted any more. Numbers that are not in flight are passed over."""


def stepping(engine: Engine) -> Stepping:
    """Raises: `ModelError` when its rows cannot go on one solver step at a time."""
    if isinstance(engine, Stepping):
        return engine
    why = "its engine answers whole batches, so that no request can join a running one"
    raise ModelError(f"{engine.contract.model!r} cannot be served with `batching: continuous`: {why}; say `batching: fixed`")


@dataclass(frozen=True, kw_only=True)
class Parity:
    """How far one block is from its reference."""

    block: str
    error: float
    """Largest absolute difference relative to the largest absolute reference value; NaN never passes."""
    tolerance: float
    precision: str = "float32"
    """That the tolerance is for."""

    @property
    def passes(self) -> bool:
        return self.error <= self.tolerance


def require_parity(model: str, checks: Sequence[Parity]) -> None:
    """Raises: `ModelError` naming every block that is further from its reference than it may be, its error and tolerance, and a
    precision that may do."""
    failed = [f"{p.block} is off by {p.error:.2g}, it may be by {p.tolerance:.2g}" for p in checks if not p.passes]
    if failed:
        finer = {"int4": "int8", "int8": "bfloat16", "bfloat16": "float32", "float16": "float32"}
        coarse = next((p.precision for p in checks if not p.passes and p.precision in finer), "")
        fix = f"; at {coarse} it is not served: say `options: {{dtype: {finer[coarse]}}}`" if coarse else ""
        raise ModelError(f"{model!r} does not compute what its reference does: {'; '.join(failed)}{fix}")


Context = Any
"""What `perceive` computes once per batch (encoded prefix, cross-attention keys and values); opaque to the loop."""


class VelocityModel(Protocol):
    """A policy, split so that our loop can condition, guide and pipeline it (vla.cpp §3).

    A diffusion or regression policy gives, as `velocity`, what `SamplingConfig.predicts` says.
    """

    @property
    @abstractmethod
    def contract(self) -> ModelContract: ...

    @property
    @abstractmethod
    def max_batch_size(self) -> int: ...

    @abstractmethod
    def perceive(self, requests: Sequence[InferenceRequest]) -> Context:
        """Encodes observations and instructions of B requests once."""

    @abstractmethod
    def velocity(self, x: Any, time: Any, context: Context) -> Any:
        """v(x, t | context). x: [B, T, A] in model space; time: [B, T], 1 = noise, 0 = clean. Returns [B, T, A].

        PyTorch, row by row independent and differentiable in x: guidance may ask for its Jacobian.
        """

    def denormalize(self, actions: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Model space to robot space, [..., A]; the same unless said otherwise."""
        return actions


Cache = tuple[Any, ...]
"""Keys and values of rows, as `TokenModel.cache` made it: tensors [rows, ...], whose rows are moved, copied and cut by our loop."""


class TokenModel(Protocol):
    """An autoregressive policy, split so that our loop can decode, continue and pipeline it (AURAS §4.2.1). PyTorch.

    A chunk is l_a = T A tokens: those of an action follow one another, each is one of `num_bins` bins. N: positions; B: rows.
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
        """Memory for the keys and values of so many rows: of their context and of all their tokens."""

    @abstractmethod
    def perceive(self, requests: Sequence[InferenceRequest], cache: Cache) -> None:
        """Encodes observations and instructions (X_V, X_L) of B requests into the B rows of `cache`."""

    @abstractmethod
    def generate(self, before: Any, first: Sequence[int], cache: Cache) -> Any:
        """Logits, [B, N, num_bins], of the tokens at positions first[i] .. first[i] + N - 1 of row i, given those before them.

        before: [B, N], for each position the token that stands before it; 0 before the first. Keys and values of earlier
        positions are read from `cache`, those of these are written there. A position sees the context and nothing that comes
        later: so N > 1, a prefill, says at each position what N = 1, a decode, says there.
        """

    @abstractmethod
    def tokens(self, actions: npt.NDArray[np.float32]) -> npt.NDArray[np.int64]:
        """[..., A] robot space -> [..., A], the nearest bins."""

    @abstractmethod
    def actions(self, tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """[..., A] -> [..., A] robot space, what the bins stand for."""


@dataclass(frozen=True, kw_only=True)
class TokenSampling:
    """How tokens are chosen from logits."""

    temperature: float = 0.0
    """0: the likeliest one, greedy."""
    seed: int = 0
    """Of the noise, together with the request's session and sequence number: a re-run gives the same chunk."""
    device: str = "cpu"
    """Where the loop's tensors live, PyTorch's name."""
    max_rows: int = 0
    """In flight at once; 0: as many as its largest batch, or one more than a chunk has tokens."""


@runtime_checkable
class Anchored(Protocol):
    """A `VelocityModel` whose model space may be relative to what the robot observes, so that a prefix has to be expressed anew."""

    @abstractmethod
    def anchored(self, requests: Sequence[InferenceRequest]) -> Sequence[InferenceRequest]:
        """The batch that was perceived last, with prefixes in its own model space, from `prefix_robot`."""


@runtime_checkable
class Relative(Anchored, Protocol):
    """One whose actions may be counted from the state alone: rows of other calls of `perceive` may share a batch."""

    @property
    @abstractmethod
    def is_relative(self) -> bool: ...

    @abstractmethod
    def placed(self, actions: npt.NDArray[np.float32], states: Sequence[npt.NDArray[np.float32]]) -> npt.NDArray[np.float32]:
        """[B, T, A], as `denormalize` gave them, from where each row's robot was to robot space; states: [S] of each."""


class Predicts(enum.Enum):
    """What a network was trained to say about noisy actions, and so how our loop gets to clean ones (engines/flow/solvers.py)."""

    VELOCITY = "velocity"
    """Flow matching: noise - actions."""
    NOISE = "noise"
    """Diffusion: the noise (epsilon)."""
    CLEAN = "clean"
    """Diffusion: the actions (x0)."""
    CHUNK = "chunk"
    """Regression: the actions, at once, from x = 0 and time 1."""


def offered(contract: ModelContract, predicts: Predicts) -> ModelContract:
    """Regression offers no real-time chunking; nothing but flow matching can be guided."""
    if predicts is Predicts.CHUNK:
        return replace(contract, conditionings=(Conditioning.NONE,), max_inference_delay_steps=0)
    trained = (Conditioning.PREFIX,) if contract.max_inference_delay_steps else ()
    guided = (Conditioning.GUIDED,) if predicts is Predicts.VELOCITY else ()
    return replace(contract, conditionings=(Conditioning.NONE, *trained, *guided))


@dataclass(frozen=True, kw_only=True)
class SamplingConfig:
    """Our sampling loop's settings."""

    predicts: Predicts = Predicts.VELOCITY
    num_steps: int = 10
    """Solver steps from noise (time 1) to action (time 0); regression takes one, whatever is said here."""
    train_steps: int = 100
    """Of a diffusion: noise levels in training. Index i is time (i + 1) / train_steps; its model finds it by `round`."""
    clean_limit: float | None = None
    """Of a diffusion: its estimates of the actions are cut to +- this, model space; None: not cut."""
    noise_scale: float = 1.0
    """Standard deviation of the noise; 0: sampling starts from its mean."""
    noise: Literal["normal", "uniform"] = "normal"
    """`uniform`: in [-1, 1), before it is scaled"""
    ramp_rate: float = 0.0
    """Of a model that leaves a prefix little by little (engines/flow/ramp.py); 0: rows behind the delay are the model's own."""
    seed: int = 0
    """Of the noise, together with the request's session and sequence number: a re-run gives the same chunk."""
    num_columns: int = 0
    """Of x, W: more than the A actions for a model that pads them; 0: as many."""
    device: str = "cpu"
    """Where the loop's tensors live, PyTorch's name."""
    true_jacobian: bool = False
    """Sessions may ask for guidance through the model's Jacobian, which is compiled at warm-up and slows a whole batch then."""
    fixed_shapes: tuple[int, ...] = ()
    """Batch sizes that are compiled or captured at warm-up, rising; a batch is filled up to the next one. Empty: any size runs."""
    warm_sizes: tuple[int, ...] = ()
    """Where any size runs: those that are run at warm-up for all others. Empty: one row, and the largest batch."""
    max_rows: int = 0
    """In flight at once in an engine that is `Stepping`; 0: as many as its largest batch."""

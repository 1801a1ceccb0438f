"""Engine for a `TokenModel`: rows decode together, each at its own position, and pipelined sessions share a public context."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

import torch

from ros2_rfm_serving.engines.base import Cache, Parity, Stepping, TokenModel, TokenSampling
from ros2_rfm_serving.engines.flow.frames import FrameRows, blocks_of_stages, require_spread, session_of
from ros2_rfm_serving.engines.flow.memory import Rows, not_entered
from ros2_rfm_serving.engines.reduced_precision import ReducedPrecisionEngine
from ros2_rfm_serving.engines.tokens import parity
from ros2_rfm_serving.engines.tokens.in_flight import DecodingBatch
from ros2_rfm_serving.engines.tokens.public import PublicContexts
from ros2_rfm_serving.engines.tokens.sampling import num_tokens, prefix_of
from ros2_rfm_serving.engines.warmup import warmup_request
from ros2_rfm_serving.errors import ModelError
from ros2_rfm_serving.types import Array, Conditioning, EngineReply, InferenceRequest, ModelContract, PipelineConfig

Answer = EngineReply | ModelError


class TokenEngine(ReducedPrecisionEngine, Stepping):
    """Greedy or sampled decoding of action chunks. A prefix costs nothing to continue, as its tokens are given."""

    def __init__(self, model: TokenModel, sampling: TokenSampling = TokenSampling()) -> None:  # noqa: B008 (frozen)
        self._model, self._sampling = model, sampling
        trained = (Conditioning.PREFIX,) if model.contract.max_inference_delay_steps else ()
        self._contract = replace(model.contract, conditionings=(Conditioning.NONE, *trained), pipelines=True)
        self.fit_image = getattr(model, "fit_image", None)
        self.decode_image = getattr(model, "decode_image", None)
        self._num_tokens = num_tokens(model)
        self._flight = DecodingBatch(model, sampling, self.max_rows)
        self._public = PublicContexts(model, sampling, self.max_rows)
        self._frames = FrameRows()
        self._outdated: set[int] = set()
        """Rows of earlier episodes and epochs, which the next turn answers with an error."""
        self._lock = threading.Lock()
        """Lock around the model: `prepare` may come from another thread while a batch runs."""

    @property
    def contract(self) -> ModelContract:
        return self._contract

    @property
    def max_batch_size(self) -> int:
        return self._model.max_batch_size

    @property
    def max_rows(self) -> int:
        """Largest number of rows in flight.
        Rows of a pipelined session take little memory: with one token per frame, l_a + 1 of them are in flight."""
        return self._sampling.max_rows or max(self.max_batch_size, self._num_tokens + 1)

    def prepare(self, batch_size: int) -> None:
        super().prepare(batch_size)  # any size runs

    def warm_up(self) -> None:
        for size in (1, self.max_batch_size):
            self.infer([warmup_request(self.contract)] * size)

    def check_parity(self) -> list[Parity]:
        with self._lock:
            if self.must_agree and not isinstance(self._model, parity.Referenced):
                raise ModelError(f"{self.contract.model!r} computes in less than float32: give its model a `reference()`")
            return parity.check(self._model, self._sampling)

    def infer(self, requests: Sequence[InferenceRequest]) -> list[Answer]:
        """Run rows without a session, from perception to answer."""
        rows = {-1 - i: replace(request, pipelining=None) for i, request in enumerate(requests)}
        with self._lock:
            try:
                answers: dict[int, Answer] = dict(self._enter(list(rows.items())))
                while going := [row for row in rows if row not in answers]:
                    answers.update(self._turn(going))
            finally:
                self._leave(rows)
        return [answers[row] for row in rows]

    # --- one token at a time (`Stepping`) ---

    def num_iterations(self, request: InferenceRequest) -> int:
        return self._num_tokens if request.pipelining else self._num_tokens - prefix_of(request, self.contract).size

    def require_pipelining(self, pipelining: PipelineConfig, num_steps: int = 0) -> None:
        require_spread(self._num_tokens, pipelining)
        blocks_of_stages([1.0], pipelining.pp_perception)
        if pipelining.depth > self.max_rows:
            raise ModelError(f"{pipelining.depth} requests would be in flight; this model has memory for {self.max_rows}")

    def enter(self, rows: Mapping[int, InferenceRequest]) -> Mapping[int, ModelError]:
        with self._lock:
            try:
                return self._enter(list(rows.items()))
            except BaseException:
                self._leave(rows)
                raise

    def ready(self) -> Collection[int]:
        return [*self._flight, *(row for row in self._public if self._may_go_on(row))]

    def iterate(self, rows: Collection[int]) -> Mapping[int, Answer]:
        with self._lock:
            wanted = set(rows)
            going = [row for row in self.ready() if row in wanted]
            try:
                return self._turn(going)
            except BaseException:
                self._leave(going)
                raise

    def leave(self, rows: Collection[int]) -> None:
        with self._lock:
            self._leave(rows)

    def _enter(self, rows: Rows) -> dict[int, ModelError]:
        room = self.max_rows - len(self._flight) - len(list(self._public))
        full = ModelError(f"{self.max_rows} rows are in flight, which is as many as there is memory for")
        errors = {row: full for row, _ in rows[room:]}
        for start in range(0, len(rows[:room]), self.max_batch_size):
            errors |= not_entered(self._perceive, rows[start : min(start + self.max_batch_size, room)], self)
        return errors

    def __contains__(self, row: object) -> bool:
        return row in self._public or row in self._flight

    def _examined(self, request: InferenceRequest) -> Array:
        """Return the prefix of a request. Raises: `ModelError` if the model cannot continue it, or cannot be pipelined as asked."""
        if request.pipelining:
            self.require_pipelining(request.pipelining)
        return prefix_of(request, self.contract)

    def _perceive(self, rows: Rows) -> list[None]:
        """Perceive all rows at once, in free slots; a context that becomes public is copied from there.
        Raises: `ModelError` if a request asks for something that the model cannot do."""
        rows = sorted(rows, key=lambda each: each[1].pipelining is not None)
        prefixes = [self._examined(request) for _, request in rows]
        num_alone = sum(request.pipelining is None for _, request in rows)
        numbers, requests = [row for row, _ in rows], [request for _, request in rows]
        with torch.inference_mode():
            slots = self._flight.free(len(rows))
            self._model.perceive(requests, slots)
            if num_alone:
                self._flight.enter(numbers[:num_alone], requests[:num_alone], prefixes[:num_alone])
            for i in range(num_alone, len(rows)):
                self._begin_frame(numbers[i], requests[i], prefixes[i], tuple(values[i : i + 1] for values in slots))
        return [None] * len(rows)

    def _begin_frame(self, row: int, request: InferenceRequest, prefix: Array, context: Cache) -> None:
        assert request.pipelining is not None
        self._outdated.update(self._frames.begin(row, session_of(request.id), request.pipelining, self._num_tokens))
        self._public.enter(row, request, prefix, context)

    def _turn(self, rows: Sequence[int]) -> dict[int, Answer]:
        over = ModelError("its episode is over: a newer one of this robot is in flight")
        answers: dict[int, Answer] = {row: over for row in rows if row in self._outdated}
        with torch.inference_mode():
            answers |= self._public.advance([row for row in rows if row in self._public and row not in answers])
            answers |= self._flight.advance([row for row in rows if row not in self._public and row not in answers])
        self._leave(answers)
        return answers

    def _leave(self, rows: Iterable[int]) -> None:
        rows = list(rows)
        self._flight.leave(rows)
        self._outdated.difference_update(rows)
        for row in rows:
            if row in self._public:
                self._public.leave(row)
            if row in self._frames:
                self._frames.leave(row)

    def _may_go_on(self, row: int) -> bool:
        return row in self._outdated or self._public.position(row) < self._frames.limit(row)

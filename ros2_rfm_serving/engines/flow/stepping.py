"""Continuous batching of a `SteppedModel`: requests join a running batch and leave it between denoising steps.

The engine also serves pipelined sessions (AURAS §4).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from ros2_rfm_serving.engines.base import Predicts, Relative, SamplingConfig, Stepping
from ros2_rfm_serving.engines.flow.device import settle
from ros2_rfm_serving.engines.flow.engine import FlowEngine
from ros2_rfm_serving.engines.flow.frames import FrameRows, SessionKey, require_spread, session_of
from ros2_rfm_serving.engines.flow.graphs import Tensors
from ros2_rfm_serving.engines.flow.in_flight import FinishedRow, InFlightBatch, SteppedModel
from ros2_rfm_serving.engines.flow.memory import Rows, not_entered
from ros2_rfm_serving.engines.flow.perception import PerceivedObservation, PublicContext, StagedPerception
from ros2_rfm_serving.engines.flow.perception_stream import PerceptionEvent, PerceptionStream, perception_stream_of
from ros2_rfm_serving.engines.flow.sampling import anchored, filled, held_of, robot_space, start_of
from ros2_rfm_serving.engines.flow.slots import PerceivedContext, Slots
from ros2_rfm_serving.engines.flow.solvers import most_steps, solver_of, steps_for
from ros2_rfm_serving.engines.warmup import warmup_request
from ros2_rfm_serving.errors import ModelError
from ros2_rfm_serving.types import Array, Conditioning, EngineReply, InferenceRequest, PipelineConfig, empty


class SteppingEngine(FlowEngine, Stepping):
    """Engine whose requests advance one denoising step at a time.

    Flow-matching and diffusion models serve pipelined sessions; a regression model has no steps to spread over frames. On a GPU,
    new requests are perceived while those in flight continue (`perception_stream.py`).
    """

    def __init__(
        self,
        model: SteppedModel,
        config: SamplingConfig = SamplingConfig(),  # noqa: B008 (frozen)
        aside: PerceptionStream | None = None,
    ) -> None:
        """Create the engine. aside: where perception runs; None selects it by the device."""
        super().__init__(model, config)
        one_state = isinstance(model, Relative) and model.is_relative  # x of a row is relative to its own observation
        self._contract = replace(self._contract, pipelines=config.predicts is not Predicts.CHUNK and not one_state)
        self._stepped, self._num_steps = model, solver_of(config).num_steps
        self._most_steps = max(most_steps(config), self._num_steps)
        self._aside = aside or perception_stream_of(config.device)
        self._frames, self._staged = FrameRows(), StagedPerception(model, config.fixed_shapes)
        self._states: dict[int, Array] = {}
        """Observed robot state of each row in flight, [S]."""
        self._public: dict[SessionKey, PublicContext] = {}
        self._outdated: set[int] = set()
        """Rows of earlier episodes and epochs, which the next turn answers with an error."""

    @property
    def stepped(self) -> SteppedModel:
        return self._stepped

    @property
    def max_rows(self) -> int:
        return self._config.max_rows or self.max_batch_size

    def num_iterations(self, request: InferenceRequest) -> int:
        return request.num_steps or self._num_steps

    def require_pipelining(self, pipelining: PipelineConfig, num_steps: int = 0) -> None:
        if not self.contract.pipelines:
            model = repr(self.contract.model)
            if isinstance(self._model, Relative) and self._model.is_relative:
                raise ModelError(f"{model} counts actions from the observed state: no row may go on with another observation")
            raise ModelError(f"{model} gives its chunk in one step: there is nothing to spread over frames")
        require_spread(num_steps or self._num_steps, pipelining)
        if pipelining.pp_perception != 1:
            self._staged.require(pipelining)

    # --- rows enter and leave ---

    def enter(self, rows: Mapping[int, InferenceRequest]) -> Mapping[int, ModelError]:
        with self._lock:
            try:
                errors = self._enter(list(rows.items()))
                if not self._aside.is_beside or self._flight.waiting().issuperset(self._able()):  # no row could advance meanwhile
                    self._aside.join()
                    settle(self._config.device)
                return errors
            except BaseException:
                self._leave(rows)
                raise

    def ready(self) -> Collection[int]:
        able, waiting = self._able(), self._flight.waiting()
        return [row for row in able if row not in waiting] or able if waiting else able

    def _able(self) -> list[int]:
        """Return the rows that may take a step, including those for which the device would have to wait."""
        rows = self._flight.steps()
        return [row for row, step in rows if self._may_step(row, step)] if self._frames else [row for row, _ in rows]

    def iterate(self, rows: Collection[int]) -> Mapping[int, EngineReply | ModelError]:
        with self._lock:
            wanted = set(rows)
            outdated = self._outdated & wanted
            answers: dict[int, EngineReply | ModelError] = {
                row: ModelError("its episode is over: a newer one of this robot is in flight") for row in outdated
            }
            self._leave(outdated)
            going = [row for row in self._able() if row in wanted]
            try:
                answers.update(self._replies(self._flight.advance(going)))
                settle(self._config.device)
            except BaseException:
                self._leave(going)
                raise
            self._leave(answers)
            return answers

    def leave(self, rows: Collection[int]) -> None:
        with self._lock:
            self._leave(rows)

    def close(self) -> None:
        """Wait for perception that is still running: it reads the weights, whose memory is reused next."""
        with self._alone():
            settle(self._config.device)

    def _leave(self, rows: Iterable[int]) -> None:
        rows = list(rows)
        self._flight.leave(rows)
        self._outdated.difference_update(rows)
        for row in rows:
            self._states.pop(row, None)
            if row in self._frames and (session := self._frames.leave(row)):
                self._public.pop(session, None)
                self._staged.forget(session)

    # --- perception ---

    def _enter(self, rows: Rows) -> dict[int, ModelError]:
        room = self.max_rows - len(self._flight)
        full = ModelError(f"{self.max_rows} rows are in flight, which is as many as there is memory for")
        errors: dict[int, ModelError] = {row: full for row, _ in rows[room:]}
        staged = [row for row in rows[:room] if _stages(row[1]) != 1]
        together = [row for row in rows[:room] if _stages(row[1]) == 1]
        errors |= not_entered(self._perceive, together, self._flight) if together else {}
        for wave in _one_each(staged):
            errors |= not_entered(self._perceive_staged, wave, self._flight)
        return errors

    def _perceive(self, rows: Rows) -> list[None]:
        requests = anchored(self._model, self._checked(rows))
        x = start_of(requests, self.contract, self._config)
        with torch.inference_mode():
            held = held_of(requests, self.contract, self._config, x)
            with self._aside.perceiving() as there:
                context = self._stepped.perceive(filled(requests, self._config.fixed_shapes))
                later = {i: _row(context, i) for i, request in enumerate(requests) if _reads_later(request)}
            seen = PerceivedContext(held=held, context=tuple(tensor[: len(rows)] for tensor in context), there=there)
            self._flight.enter([row for row, _ in rows], x, seen, [request.num_steps for request in requests])
            for i, (row, request) in enumerate(rows):
                self._states[row] = request.state
                if request.pipelining is not None:
                    own = seen.row(i).with_its_own(later[i]) if i in later else seen.row(i)
                    self._begin_frame(row, request, request.pipelining, (request.id.sequence, own))
        return [None] * len(rows)

    def _perceive_staged(self, rows: Rows) -> list[None]:
        """Perceive one request per session in stages. All requests have the same number of stages."""
        requests = self._checked(rows)
        x = start_of(requests, self.contract, self._config)
        with torch.inference_mode():
            held_of(requests, self.contract, self._config, x)  # raises for an unsupported conditioning before perception begins
            with self._aside.perceiving() as there:
                perceived = self._staged.frame(requests)
            try:
                self._flight.enter([row for row, _ in rows], x, None, [request.num_steps for request in requests])
                for (row, request), end in zip(rows, perceived, strict=True):
                    self._states[row] = request.state
                    assert request.pipelining is not None
                    newest = None if end is None else self._seen(end, x[:1], there)
                    self._begin_frame(row, request, request.pipelining, newest)
            finally:
                for request in requests:
                    if (session := session_of(request.id)) not in self._frames.sessions:  # the request did not enter
                        self._staged.forget(session)
        return [None] * len(rows)

    def _seen(self, observed: PerceivedObservation, like: Tensor, there: PerceptionEvent | None) -> tuple[int, PerceivedContext]:
        held = held_of([observed.request], self.contract, self._config, like)
        return observed.request.id.sequence, PerceivedContext(held=held, context=observed.tensors, there=there)

    def _checked(self, rows: Rows) -> list[InferenceRequest]:
        """Return the requests of these rows.
        Raises: `ModelError` if one of them asks for a number of steps or a pipeline that the model cannot run."""
        for _, request in rows:
            steps_for(request, self._config)
            if request.pipelining is not None:
                self.require_pipelining(request.pipelining, request.num_steps)
        return [request for _, request in rows]

    def _begin_frame(
        self, row: int, request: InferenceRequest, pipelining: PipelineConfig, newest: tuple[int, PerceivedContext] | None
    ) -> None:
        session = session_of(request.id)
        self._outdated.update(self._frames.begin(row, session, pipelining, self.num_iterations(request)))
        public = self._public.setdefault(session, PublicContext(pipelining.fetch_offset))
        if newest is not None and (front := public.put(*newest)) is not None:
            self._flight.read(self._frames.generating(session), front)

    # --- steps ---

    def _may_step(self, row: int, step: int) -> bool:
        return row not in self._frames or row in self._outdated or step < self._frames.limit(row)

    def _replies(self, done: Mapping[int, FinishedRow]) -> dict[int, EngineReply | ModelError]:
        if not done:
            return {}
        robot = robot_space(self._model, np.stack([each.chunk for each in done.values()]), [self._states[row] for row in done])
        return {row: self._reply(row, each, chunk) for (row, each), chunk in zip(done.items(), robot, strict=True)}

    def _reply(self, row: int, done: FinishedRow, chunk_robot: Array) -> EngineReply | ModelError:
        if not np.isfinite(done.chunk).all():
            return ModelError("the model's output is not finite")
        seen = self._public[self._frames.session_of(row)].sequence if row in self._frames else None
        return EngineReply(chunk_model=done.chunk, chunk_robot=chunk_robot, updates=done.updates, ended_with=seen)

    # --- warm-up ---

    def warm_up(self) -> None:
        super().warm_up()
        for size in self._warm_sizes:
            for request in self._all_kinds():
                rows = range(-1, -1 - size, -1)
                self.enter(dict.fromkeys(rows, request))
                self.iterate(rows)
                self.leave(rows)

    def _all_kinds(self) -> list[InferenceRequest]:
        """Return one blank request for each program.
        Rows at different steps, or with a fixed prefix, have a time per token, which takes a program of its own."""
        blank = warmup_request(self.contract)
        if Conditioning.PREFIX not in self.contract.conditionings:
            return super()._all_kinds()
        prefix = empty(1, len(self.contract.action_names))
        fixed = replace(blank, conditioning=Conditioning.PREFIX, inference_delay_steps=1, prefix_model=prefix)
        return [*super()._all_kinds(), fixed]

    @cached_property
    def _flight(self) -> InFlightBatch:
        """Rows in flight, with memory that is shaped after a blank request."""
        blank = [warmup_request(self.contract)]
        x = start_of(blank, self.contract, self._config)
        size = self.max_batch_size
        with torch.inference_mode():
            context = self._stepped.perceive(filled(blank, self._config.fixed_shapes))
            seen = PerceivedContext(held=held_of(blank, self.contract, self._config, x), context=context)
        num_slots = -(-self.max_rows // size) * size  # so that a padded batch ends within the slots
        return InFlightBatch(self._stepped, self._config, Slots(num_slots, x, seen, self._most_steps), size, self._aside)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        with super()._alone():
            self._aside.join()
            yield


def _stages(request: InferenceRequest) -> int:
    """Return the number of frames that the perception of a request takes."""
    return request.pipelining.pp_perception if request.pipelining is not None else 1


def _reads_later(request: InferenceRequest) -> bool:
    """Return whether the context of a request is read only from the next frame on."""
    return request.pipelining is not None and request.pipelining.fetch_offset != 0


def _row(context: Tensors, i: int) -> Tensors:
    return tuple(tensor[i : i + 1].clone() for tensor in context)


def _one_each(rows: Rows) -> list[Rows]:
    """Split rows, in order, into parts with at most one request per session."""
    parts: list[list[tuple[int, InferenceRequest]]] = []
    count = Counter[SessionKey]()
    for row in rows:
        session = session_of(row[1].id)
        if count[session] == len(parts):
            parts.append([])
        parts[count[session]].append(row)
        count[session] += 1
    return list(parts)

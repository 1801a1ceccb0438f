"""Engine that serves a `VelocityModel` through our sampling loop.

It warms the model up, checks it against its reference, and splits a batch when memory runs short.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from ros2_rfm_serving.engines.base import Parity, SamplingConfig, VelocityModel, offered
from ros2_rfm_serving.engines.flow import parity
from ros2_rfm_serving.engines.flow.memory import in_halves
from ros2_rfm_serving.engines.flow.sampling import FlowSample, filled, padded, robot_space, sample
from ros2_rfm_serving.engines.flow.solvers import most_steps, solver_of, steps_for
from ros2_rfm_serving.engines.heap import give_back
from ros2_rfm_serving.engines.reduced_precision import ReducedPrecisionEngine
from ros2_rfm_serving.engines.warmup import guided, warmup_request
from ros2_rfm_serving.errors import ModelError
from ros2_rfm_serving.types import Conditioning, EngineReply, InferenceRequest, ModelContract

WARM_STEPS = 5
"""Denoising steps per kind of request and batch size at warm-up, enough for kernels that are optimised after a few runs."""


class FlowEngine(ReducedPrecisionEngine):
    """Engine that serves a `VelocityModel` through our sampling loop.

    The loop can guide any flow-matching model, and fix the prefix of any model that was trained for it, except a regression model.
    """

    def __init__(self, model: VelocityModel, config: SamplingConfig = SamplingConfig()) -> None:  # noqa: B008 (frozen)
        solver_of(config)  # raises for a configuration that cannot be sampled
        self._model, self._config = model, config
        able = offered(model.contract, config.predicts)
        jacobian = config.true_jacobian and Conditioning.GUIDED in able.conditionings
        self._contract = replace(able, true_jacobian=jacobian, max_num_steps=most_steps(config))
        self.fit_image = getattr(model, "fit_image", None)
        self.decode_image = getattr(model, "decode_image", None)
        self._warm: set[int] = set()
        self._lock = threading.Lock()
        """Lock around the model: `prepare` may come from another thread while a batch runs, and nothing may run during graph
        capture."""

    @property
    def contract(self) -> ModelContract:
        return self._contract

    @property
    def model(self) -> VelocityModel:
        return self._model

    @property
    def sampling(self) -> SamplingConfig:
        return self._config

    @property
    def max_batch_size(self) -> int:
        return min([self._model.max_batch_size, *self._config.fixed_shapes[-1:]])

    def padded(self, rows: int) -> int:
        """Return the number of rows that are computed for a batch of `rows` requests, padding included."""
        return padded(rows, self._config.fixed_shapes)

    def warm_up(self) -> None:
        for size in self._warm_sizes:
            self._warm_up(size)

    def prepare(self, batch_size: int) -> None:
        super().prepare(batch_size)
        self._warm_up(batch_size)

    def infer(self, requests: Sequence[InferenceRequest]) -> list[EngineReply | ModelError]:
        with self._alone():
            alike: dict[int, list[int]] = {}
            for i, request in enumerate(requests):
                alike.setdefault(request.num_steps, []).append(i)
            if len(alike) == 1:
                return in_halves(self._infer, requests)
            answers = {i: answer for own in alike.values() for i, answer in self._answers({i: requests[i] for i in own}).items()}
            return [answers[i] for i in range(len(requests))]

    @property
    def weights_bytes(self) -> int:
        """Size of the weights in memory, in bytes; 0 if the model does not report it."""
        return int(getattr(self._model, "weights_bytes", 0))

    def check_parity(self) -> list[Parity]:
        return self._compared(anew=True)

    def check_precision(self) -> list[Parity]:
        return self._compared(anew=False) if self.must_agree else self.check_parity()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Enter exclusive use of the model, on the host and on the device."""
        with self._lock:
            yield

    def _compared(self, *, anew: bool) -> list[Parity]:
        with self._alone():
            try:
                if isinstance(self._model, parity.Referenced):
                    return parity.check(self._model, self._config, anew=anew, told=self.on_check)
                if self.must_agree:  # rows that equal one another may all be wrong
                    raise ModelError(f"{self.contract.model!r} computes in less than float32: give its model a `reference()`")
                return parity.check_rows(self._model, self._config)
            finally:
                give_back()  # frees the memory of the reference

    def _answers(self, requests: Mapping[int, InferenceRequest]) -> Mapping[int, EngineReply | ModelError]:
        """Answer the requests of a mixed batch that ask for the same number of denoising steps.
        A failure becomes the answer of each of these requests, so that the rest of the batch still runs."""
        try:
            return dict(zip(requests, in_halves(self._infer, list(requests.values())), strict=True))
        except ModelError as error:
            return dict.fromkeys(requests, error)

    def _infer(self, requests: Sequence[InferenceRequest]) -> list[EngineReply | ModelError]:
        """Run one batch whose requests all ask for the same number of denoising steps."""
        rows, batch = len(requests), filled(requests, self._config.fixed_shapes)
        chunks, updates, phases = self._sample(batch)
        if not np.isfinite(chunks[:rows]).all(axis=(1, 2)).any():
            raise ModelError("the model's output is not finite")
        robot = robot_space(self._model, chunks, [request.state for request in batch])
        answers = list(zip(chunks, robot, updates, strict=True))[:rows]
        return [EngineReply(chunk_model=m, chunk_robot=r, updates=u, phases=phases) for m, r, u in answers]

    def _sample(self, requests: Sequence[InferenceRequest]) -> FlowSample:
        config = replace(self._config, num_steps=steps_for(requests[0], self._config))
        return sample(self._model, requests, config, clock=self.clock)

    def _warm_up(self, size: int) -> None:
        size = self.padded(size)
        if size not in self._warm:
            for request in self._all_kinds():
                self.infer([replace(request, num_steps=self._warm_steps)] * size)
            self._warm.add(size)

    @property
    def _warm_steps(self) -> int:
        """Number of denoising steps at warm-up; 0 selects the model's own number.
        Every step is the same program, so a few steps cover all of it."""
        may_choose = most_steps(self._config) >= WARM_STEPS
        return WARM_STEPS if may_choose and self._config.num_steps > WARM_STEPS else 0

    @property
    def _warm_sizes(self) -> tuple[int, ...]:
        return self._config.fixed_shapes or self._config.warm_sizes or (1, self.max_batch_size)

    def _all_kinds(self) -> list[InferenceRequest]:
        """Return one blank request for each program that the model needs."""
        blank = warmup_request(self.contract)
        return [blank, guided(blank, true_jacobian=True)] if self.contract.true_jacobian else [blank]

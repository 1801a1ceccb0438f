"""Emulated engine that answers after the time that a service law or a profile gives. Its answers have no meaning.

It is always marked as emulated.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ros2_rfm_serving.engines.base import Engine, Stepping
from ros2_rfm_serving.engines.flow.frames import FrameRows, SessionKey, session_of, steps_of_stages
from ros2_rfm_serving.engines.registry import EngineSpec
from ros2_rfm_serving.errors import ModelError
from ros2_rfm_serving.factory import CatalogueEntry
from ros2_rfm_serving.profiles import ContinuousService, FixedService, Profile, ServiceLaw, SteppedService, unit_mean_factors
from ros2_rfm_serving.types import (
    MAX_STAGES,
    SAFETY,
    Conditioning,
    EngineReply,
    InferenceRequest,
    ModelContract,
    OutputKind,
    PipelineConfig,
)


@dataclass(frozen=True, kw_only=True)
class EmulatedSpec:
    """Model that an emulated engine imitates."""

    model: str
    output: OutputKind = OutputKind.ACTION_CHUNK
    action_names: tuple[str, ...] = ()
    cameras: tuple[str, ...] = ()
    state_size: int = 0
    chunk_length: int = 16
    batch_sizes: tuple[int, ...] = (64,)
    """Batch sizes, rising, that it is "compiled" for; a batch is padded to the next one. Without a law, only the largest counts."""
    seed: int = 0
    """Seed of the law's jitter."""


def contract_of(spec: EmulatedSpec) -> ModelContract:
    """Return the contract of an emulated engine: everything that its kind of model can do."""
    acts = spec.output is OutputKind.ACTION_CHUNK
    return ModelContract(
        model=f"emulated {spec.model}",
        model_hash="",
        output=spec.output,
        action_names=spec.action_names if acts else (),
        cameras=spec.cameras,
        state_size=spec.state_size,
        chunk_length=spec.chunk_length if acts else 0,
        max_inference_delay_steps=spec.chunk_length if acts else 0,
        conditionings=(Conditioning.NONE, Conditioning.PREFIX, Conditioning.GUIDED) if acts else (Conditioning.NONE,),
        true_jacobian=acts,
        max_num_steps=MAX_NUM_STEPS if acts else 0,
        emulated=True,
    )


def spec_of(model: str, entry: CatalogueEntry, seed: int = 0) -> EmulatedSpec:
    """Return the specification of an emulated engine from the catalogue."""
    return EmulatedSpec(
        model=model,
        output=OutputKind(entry.output),
        action_names=entry.action_names,
        cameras=entry.cameras,
        state_size=entry.state_size,
        chunk_length=entry.chunk_length,
        seed=seed,
    )


VERDICTS = {SAFETY: "safe"}
"""Answer of an emulated judge, by component; all others answer that the task goes on."""
ANSWERS = {component: EngineReply(verdict=verdict, text="emulated") for component, verdict in VERDICTS.items()}
ONGOING = EngineReply(verdict="ongoing", text="emulated")

SHARE = 1 / 8
"""Share of a request's work after which the number of concurrent requests is evaluated again."""


Amend = Callable[[InferenceRequest, EngineReply], EngineReply]
"""Function that changes an answer."""


MAX_NUM_STEPS = 1000
"""Denoising steps that sessions may ask for. Any number is possible, as a law knows the time of the model's own number alone."""


def as_it_is(request: InferenceRequest, reply: EngineReply) -> EngineReply:
    return reply


class EmulatedEngine(Engine):
    """Engine without a model that spends the time of each batch.
    service: a law, or the seconds of one batch by its size. wait: spends them, with a sleep or in virtual time."""

    def __init__(
        self,
        spec: EmulatedSpec,
        service: ServiceLaw | Callable[[int], float],
        wait: Callable[[float], None],
        amend: Amend = as_it_is,
    ) -> None:
        self.computes_nothing = amend is as_it_is and type(self).infer is EmulatedEngine.infer
        """True if its answers are always the same."""
        self._amend = amend
        self._spec, self._service, self._wait = spec, service, wait
        self._batch_size = 1
        self._lock, self._in_service = threading.Lock(), 0
        self.max_concurrent = service.max_concurrent if isinstance(service, ContinuousService) else 1
        self._rng = np.random.default_rng(spec.seed)
        jitter = service.jitter if isinstance(service, FixedService) else 0.0
        self._factors = unit_mean_factors(jitter, np.random.default_rng(spec.seed))
        """Factors by which its batches take longer or less long than the law's mean."""
        self._contract = contract_of(spec)
        self._acts = spec.output is OutputKind.ACTION_CHUNK
        still = np.zeros((spec.chunk_length, len(spec.action_names)), np.float32)
        still.flags.writeable = False  # it answers every request
        self._still = EngineReply(chunk_model=still, chunk_robot=still)

    @property
    def contract(self) -> ModelContract:
        return self._contract

    @property
    def max_batch_size(self) -> int:
        return self._spec.batch_sizes[-1]

    @property
    def service(self) -> ServiceLaw | None:
        """Law that the engine follows, for adapters that compute time instead of spending it; None if it follows a profile."""
        return self._service if isinstance(self._service, ServiceLaw) else None

    def prepare(self, batch_size: int) -> None:
        super().prepare(batch_size)
        self._batch_size = batch_size

    def warm_up(self) -> None:
        """Do nothing, as there is no model."""

    def infer(self, requests: Sequence[InferenceRequest]) -> list[EngineReply]:
        self._spend(len(requests))
        if self.computes_nothing and self._acts:
            return [self._still] * len(requests)
        answers = [self._answer(request) for request in requests]
        if self.computes_nothing:
            return answers
        return [self._amend(request, answer) for request, answer in zip(requests, answers, strict=True)]

    def _answer(self, request: InferenceRequest) -> EngineReply:
        if not self._acts:
            return ANSWERS.get(request.id.component, ONGOING)
        return self._still

    def _spend(self, num_requests: int) -> None:
        service = self._service
        if isinstance(service, ContinuousService):
            self._share(num_requests, service)
        else:
            self._wait(self._batch_s(num_requests, service) if isinstance(service, FixedService) else service(num_requests))

    def _share(self, num_requests: int, law: ContinuousService) -> None:
        """Spend time as in virtual time (`ProcessorSharing`): the more requests are in service, the slower is each."""
        with self._lock:
            self._in_service += num_requests
            left = law.draw_work(self._rng)
        try:
            while left > 0.0:
                share = min(left, SHARE)
                self._wait(share * law.mean_s(self._in_service))
                left -= share
        finally:
            with self._lock:
                self._in_service -= num_requests

    def _batch_s(self, num_requests: int, law: FixedService) -> float:
        return law.mean_s(self.padded(num_requests)) * next(self._factors)

    def padded(self, num_requests: int) -> int:
        """Return the number of rows that it pretends to compute for a batch; with a law, one compiled size serves all."""
        if not isinstance(self._service, FixedService):
            return num_requests
        wanted = max(num_requests, self._batch_size)
        return next((size for size in self._spec.batch_sizes if size >= wanted), wanted)


class EmulatedSteps(EmulatedEngine, Stepping):
    """Emulated engine that can also advance one denoising step at a time, with a law for that, in pipelined sessions too.
    Steps always succeed, as they compute nothing."""

    def __init__(
        self,
        spec: EmulatedSpec,
        service: ServiceLaw | Callable[[int], float],
        wait: Callable[[float], None],
        steps: SteppedService,
        amend: Amend = as_it_is,
    ) -> None:
        super().__init__(spec, service, wait, amend)
        self._contract = replace(self._contract, pipelines=True)
        self._steps, self._frames = steps, FrameRows()
        self._observed: dict[SessionKey, deque[int]] = {}
        """Sequence numbers of the latest frames of each pipelined session that has rows in flight."""
        self._rows: dict[int, InferenceRequest] = {}
        self._left: Counter[int] = Counter()
        """Steps that each row still needs."""
        self._steps_on = False
        """True once rows have advanced one denoising step at a time."""

    @property
    def max_rows(self) -> int:
        return self._steps.max_rows

    def num_iterations(self, request: InferenceRequest) -> int:
        return self._steps.num_steps

    def require_pipelining(self, pipelining: PipelineConfig, num_steps: int = 0) -> None:
        steps_of_stages(self._steps.num_steps, pipelining)

    def _spend(self, num_requests: int) -> None:
        """Spend the time of a batch.
        A server whose rows advance one by one follows the law of steps, not that of a single compiled size."""
        if self._steps_on:
            self._wait(self._steps.draw_s(num_requests, self._rng))
        else:
            super()._spend(num_requests)

    def enter(self, rows: Mapping[int, InferenceRequest]) -> Mapping[int, ModelError]:
        self._steps_on = True
        self._wait(self._steps.draw_perception_s(len(rows), self._rng))
        for row, request in rows.items():
            if request.pipelining is not None:
                session = session_of(request.id)
                self._frames.begin(row, session, request.pipelining, self._steps.num_steps)
                self._observed.setdefault(session, deque(maxlen=MAX_STAGES + 1)).append(request.id.sequence)
        self._rows.update(rows)
        self._left.update(dict.fromkeys(rows, self._steps.num_steps))
        return {}

    def ready(self) -> Collection[int]:
        num_steps = self._steps.num_steps
        return [row for row in self._rows if row not in self._frames or num_steps - self._left[row] < self._frames.limit(row)]

    def iterate(self, rows: Collection[int]) -> Mapping[int, EngineReply | ModelError]:
        self._wait(self._steps.draw_step_s(len(rows), self._rng))
        self._left.subtract(rows)
        done = [row for row in rows if not self._left[row]]
        answers = {row: self._amend(self._rows[row], self._answer_of(row)) for row in done}
        self.leave(done)
        return answers

    def _answer_of(self, row: int) -> EngineReply:
        reply, pipelining = self._answer(self._rows[row]), self._rows[row].pipelining
        if pipelining is None:
            return reply
        seen = self._observed[self._frames.session_of(row)][pipelining.fetch_offset - pipelining.pp_perception]
        return replace(reply, ended_with=seen)

    def leave(self, rows: Collection[int]) -> None:
        for row in rows:
            self._rows.pop(row, None)
            self._left.pop(row, None)
            if row in self._frames and (session := self._frames.leave(row)):
                del self._observed[session]


def build(spec: EngineSpec) -> EmulatedEngine:
    """Build an emulated engine from the catalogue's service law, or else from the profile."""
    entry = spec.entry
    footprint = entry.gpus.get(spec.gpu_type)
    service = footprint.service if footprint else None
    emulated = spec_of(spec.model, entry, spec.seed)
    if service is None:
        return EmulatedEngine(emulated, _service_time(spec.model, spec.profile, spec.gpu_type), spec.wait)
    sizes = service.batch_sizes if service.batching == "fixed" else (service.max_concurrent,)
    emulated, steps = replace(emulated, batch_sizes=sizes), service.stepped_law()
    if steps:
        return EmulatedSteps(emulated, service.law(), spec.wait, steps)
    return EmulatedEngine(emulated, service.law(), spec.wait)


def _service_time(model: str, profile: Profile, gpu_type: str) -> Callable[[int], float]:
    """Return the seconds of one batch: the measured median at the lowest rate, where no request waits in a queue."""
    sizes = profile.batch_sizes(model, gpu_type)

    def service_s(batch_size: int) -> float:
        batching, size = next((s for s in sizes if s[1] >= batch_size), sizes[-1])
        return profile.latency_s(model, gpu_type, batching, size, 0.0, "p50")

    return service_s

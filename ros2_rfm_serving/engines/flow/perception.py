"""Staged perception of pipelined sessions: a frame moves each pending observation one stage further (AURAS §4.3.2).

Stages are contiguous blocks of the model's perception, split so that each does about as much arithmetic as the next. The same stage
of several sessions runs as one batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ros2_rfm_serving.engines.flow.frames import SessionKey, blocks_of_stages, session_of
from ros2_rfm_serving.engines.flow.graphs import Function, Tensors
from ros2_rfm_serving.engines.flow.in_flight import SteppedModel
from ros2_rfm_serving.engines.flow.sampling import filled
from ros2_rfm_serving.engines.flow.slots import PerceivedContext
from ros2_rfm_serving.engines.warmup import warmup_request
from ros2_rfm_serving.errors import ModelError
from ros2_rfm_serving.types import InferenceRequest, PipelineConfig


@runtime_checkable
class InBlocks(Protocol):
    """`SteppedModel` whose `perceive` is a chain: `inputs`, then each block of `perception`. All tensors are [B, ...]."""

    def inputs(self, requests: Sequence[InferenceRequest]) -> Tensors: ...

    @property
    def perception(self) -> Sequence[Function]: ...


class Arithmetic(TorchFunctionMode):
    """Counter of the operations that dominate a network's run time: matrix products, attention and convolutions."""

    multiply_adds = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is F.scaled_dot_product_attention:
            self.multiply_adds += 2 * args[0].numel() * args[1].shape[-2]
        elif func in (F.linear, F.conv2d):
            self.multiply_adds += result.numel() * args[1][0].numel()
        elif func in (torch.matmul, torch.bmm, Tensor.__matmul__):
            self.multiply_adds += args[0].numel() * args[1].shape[-1]
        return result


class PerceivedObservation(NamedTuple):
    """Observation on its way through perception, with its current tensors, [1, ...]."""

    request: InferenceRequest
    tensors: Tensors


class StagedPerception:
    def __init__(self, model: SteppedModel, fixed_shapes: Sequence[int]) -> None:
        self._model, self._fixed_shapes = model, fixed_shapes
        self._on_the_way: dict[SessionKey, list[PerceivedObservation]] = {}
        """Pending observations by session, newest first; the one at index i has passed i + 1 stages."""

    def require(self, pipelining: PipelineConfig) -> None:
        """Check that the model's perception can be split as asked. Raises: `ModelError` if it cannot."""
        self._stages(pipelining.pp_perception)

    def frame(self, requests: Sequence[InferenceRequest]) -> list[PerceivedObservation | None]:
        """Run one frame of several sessions, each with a new observation. Returns, for each session, the observation whose
        perception is complete, or None. Raises: `ModelError` if the model's perception cannot be split as asked."""
        by_depth: dict[int, list[int]] = {}
        for i, request in enumerate(requests):
            assert request.pipelining is not None
            by_depth.setdefault(request.pipelining.pp_perception, []).append(i)
        ends: dict[int, PerceivedObservation | None] = {}
        for stages, members in by_depth.items():
            ends.update(zip(members, self._frame([requests[i] for i in members], stages), strict=True))
        return [ends[i] for i in range(len(requests))]

    def _frame(self, requests: Sequence[InferenceRequest], stages: int) -> list[PerceivedObservation | None]:
        """Run one frame of sessions with the same number of stages."""
        sessions, blocks = [session_of(request.id) for request in requests], self._stages(stages)
        lines = [[new, *self._on_the_way.get(key, [])] for new, key in zip(self._begun(requests), sessions, strict=True)]
        for stage in range(stages):
            at_stage = [line for line in lines if len(line) > stage]
            passed = self._passed([line[stage] for line in at_stage], blocks[stage])
            for line, observed in zip(at_stage, passed, strict=True):
                line[stage] = observed
        self._on_the_way.update(zip(sessions, (line[: stages - 1] for line in lines), strict=True))
        return [line[-1] if len(line) == stages else None for line in lines]

    def forget(self, session: SessionKey) -> None:
        self._on_the_way.pop(session, None)

    def _stages(self, stages: int) -> list[Sequence[Function]]:
        """Return the blocks of each stage. Raises: `ModelError` if the model's perception cannot be split so."""
        if not isinstance(self._model, InBlocks):
            raise ModelError(f"pp_perception is {stages}; this model's perception has no blocks to spread over frames")
        return [self._model.perception[own.start : own.stop] for own in blocks_of_stages(self._costs, stages)]

    @cached_property
    def _costs(self) -> list[int]:
        """Multiply-adds of each block, counted while a blank request passes through the uncompiled blocks."""
        assert isinstance(self._model, InBlocks)
        tensors, costs = self._model.inputs([warmup_request(self._model.contract)]), []
        for block in self._model.perception:
            with torch.enable_grad(), Arithmetic() as counted:  # with gradients on, no block is compiled or recorded
                tensors = block(*tensors)
            costs.append(counted.multiply_adds)
        return costs

    def _begun(self, requests: Sequence[InferenceRequest]) -> list[PerceivedObservation]:
        assert isinstance(self._model, InBlocks)
        return _rows(requests, self._model.inputs(requests))

    def _passed(self, observed: Sequence[PerceivedObservation], blocks: Sequence[Function]) -> list[PerceivedObservation]:
        """Run one stage of these observations as one batch."""
        if not observed:
            return []
        rows = filled([each.tensors for each in observed], self._fixed_shapes)
        tensors: Tensors = tuple(torch.cat(column) for column in zip(*rows, strict=True))
        for block in blocks:
            tensors = block(*tensors)
        return _rows([each.request for each in observed], tensors)


def _rows(requests: Sequence[InferenceRequest], batch: Tensors) -> list[PerceivedObservation]:
    """Split a batch into observations, each with memory of its own, so that none keeps the whole batch alive."""
    return [PerceivedObservation(request, tuple(t[i : i + 1].clone() for t in batch)) for i, request in enumerate(requests)]


@dataclass
class PublicContext:
    """Public context of one session, double-buffered (AURAS §4.3.1).

    Rows in flight read the front buffer; the back buffer is for the next frame. With `fetch_offset` -1, a context that is put has
    memory of its own.
    """

    fetch_offset: int
    sequence: int = 0
    """Sequence number of the observation in the front buffer."""
    _back: tuple[int, PerceivedContext] | None = None

    def put(self, sequence: int, newest: PerceivedContext) -> PerceivedContext | None:
        """Store the newest context, and return the one that rows read in this frame, or None if there is none yet."""
        if self.fetch_offset == 0:
            self.sequence = sequence
            return newest
        front, self._back = self._back, (sequence, newest)
        if front is None:
            return None
        self.sequence = front[0]
        return front[1]

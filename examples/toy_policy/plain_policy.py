"""The same without a flow: a policy that gives whole chunks, in a way of its own."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from toy_policy import FULL_M, GOAL, HAND, ToyPolicy

from ros2_rfm_serving.engines.base import Engine
from ros2_rfm_serving.engines.registry import EngineSpec
from ros2_rfm_serving.types import EngineReply, InferenceRequest


class PlainPolicy(Engine):
    max_batch_size = 32
    contract = replace(ToyPolicy.contract, model="toy/plain", max_inference_delay_steps=0)

    def infer(self, requests: Sequence[InferenceRequest]) -> list[EngineReply]:
        return [self._answer(request) for request in requests]

    def _answer(self, request: InferenceRequest) -> EngineReply:
        chunk = np.zeros((24, 4), np.float32)
        chunk[:8, :3] = np.clip((request.state[GOAL] - request.state[HAND]) / FULL_M / 8, -1, 1)
        return EngineReply(chunk_model=chunk, chunk_robot=chunk)


def build(spec: EngineSpec) -> PlainPolicy:
    return PlainPolicy()

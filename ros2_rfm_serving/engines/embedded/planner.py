"""Embedded planner as an `Engine`: System 2 of a task whose subgoals are instructions of the embedded policy. PyTorch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ros2_rfm_serving.engines.base import Parity
from ros2_rfm_serving.engines.embedded import instructions
from ros2_rfm_serving.engines.embedded.embedded import Embedded
from ros2_rfm_serving.engines.embedded.options import MAX_BATCH_SIZE
from ros2_rfm_serving.engines.embedded.planner_network import END, PlannerNetwork
from ros2_rfm_serving.engines.flow import parity
from ros2_rfm_serving.engines.reduced_precision import ReducedPrecisionEngine
from ros2_rfm_serving.engines.warmup import warmup_request
from ros2_rfm_serving.types import EngineReply, InferenceRequest, ModelContract, OutputKind


class SubgoalPlanner(Embedded[PlannerNetwork], ReducedPrecisionEngine):
    """Engine that answers with the remaining subgoals, in order, one per line; `score` is their probability."""

    def _begin(self, model: str, content_hash: str) -> None:
        network, options = self._network, self._options
        self._device = options.device
        network.to(options.device)
        if options.dtype != "float32":
            network.cast(getattr(torch, options.dtype))
        self._index = {word: i for i, word in enumerate(network.config.vocabulary)}
        self._contract = ModelContract(model=model, model_hash=content_hash, output=OutputKind.PLAN, cameras=network.config.cameras)

    @property
    def contract(self) -> ModelContract:
        return self._contract

    @property
    def max_batch_size(self) -> int:
        return MAX_BATCH_SIZE

    def warm_up(self) -> None:
        self.infer([warmup_request(self._contract)])

    @torch.inference_mode()
    def infer(self, requests: Sequence[InferenceRequest]) -> list[EngineReply]:
        plans, likelihoods = self._network.plan(self._words([request.instruction for request in requests]))
        names = self._network.config.subgoals
        return [
            EngineReply(text="\n".join(names[choice - 1] for choice in plan if choice != END), score=likelihood)
            for plan, likelihood in zip(plans.tolist(), likelihoods.tolist(), strict=True)
        ]

    @torch.inference_mode()
    def check_parity(self) -> list[Parity]:
        """Compare features and logits of a few prompts with the network in float64."""
        network, exact = self._network, self._saved().cpu().double()
        words = self._words([" ".join(network.config.vocabulary[2:]), *network.config.subgoals])
        dtype = self.weights_dtype
        return [
            parity.compare("reading", network.read(words), exact.read(words.cpu()), dtype),
            parity.compare("logits", network(words), exact(words.cpu()), dtype),
        ]

    def _words(self, texts: Sequence[str]) -> Tensor:
        """Return the words of texts, [B, L]."""
        tokens = instructions.encode(texts, self._index, self._network.config.max_words)
        return torch.from_numpy(tokens).to(self._device)

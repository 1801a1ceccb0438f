"""Embedded progress judge as an `Engine`. PyTorch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ros2_rfm_serving.engines.base import Parity
from ros2_rfm_serving.engines.embedded.embedded import Embedded
from ros2_rfm_serving.engines.embedded.inputs import placed
from ros2_rfm_serving.engines.embedded.networks import JudgeNetwork
from ros2_rfm_serving.engines.embedded.options import MAX_BATCH_SIZE
from ros2_rfm_serving.engines.flow import parity
from ros2_rfm_serving.engines.flow.graphs import Tensors, accelerated
from ros2_rfm_serving.engines.flow.memory import in_halves
from ros2_rfm_serving.engines.flow.sampling import filled
from ros2_rfm_serving.engines.reduced_precision import ReducedPrecisionEngine
from ros2_rfm_serving.engines.warmup import warmup_request
from ros2_rfm_serving.types import EngineReply, InferenceRequest, ModelContract, OutputKind


class Judge(Embedded[JudgeNetwork], ReducedPrecisionEngine):
    """Engine that gives one verdict per request."""

    def _begin(self, model: str, content_hash: str) -> None:
        network, options = self._network, self._options
        self._inputs, self._sizes = placed(network, options), options.fixed_shapes
        self.fit_image, self.decode_image = self._inputs.fit_image, self._inputs.decode_image
        self._logits = accelerated(self._logits_of, compiled=options.compiles, recorded=options.records)
        self._contract = ModelContract(
            model=model,
            model_hash=content_hash,
            output=OutputKind.JUDGEMENT,
            cameras=network.config.cameras,
            min_image_px=options.min_image_px(*[network.config.image_size_px] * 2),
        )

    @property
    def contract(self) -> ModelContract:
        return self._contract

    @property
    def max_batch_size(self) -> int:
        return self._sizes[-1] if self._sizes else MAX_BATCH_SIZE

    def warm_up(self) -> None:
        for size in self._sizes or (1,):
            self.infer([warmup_request(self._contract)] * size)

    def infer(self, requests: Sequence[InferenceRequest]) -> list[EngineReply]:
        return in_halves(self._infer, requests)

    @torch.inference_mode()
    def check_parity(self) -> list[Parity]:
        """Compare the image encoder's positions, and the logits, with the network in float64."""
        network, exact = self._network, self._saved().cpu().double()
        requests = parity.probes(self._contract, " ".join(network.config.vocabulary[2:]))
        images, words = self._inputs.images(requests), self._inputs.words(requests)
        batch = filled(requests, self._sizes)
        logits = self._logits(self._inputs.images(batch), self._inputs.words(batch))[0][: len(requests)]
        dtype = self.weights_dtype
        return [
            parity.compare("image encoder", network.points(images), exact.points(images.cpu()), dtype),
            parity.compare("logits", logits, exact(images.cpu(), words.cpu()), dtype),
        ]

    @torch.inference_mode()
    def _infer(self, requests: Sequence[InferenceRequest]) -> list[EngineReply]:
        rows = filled(requests, self._sizes)
        (logits,) = self._logits(self._inputs.images(rows), self._inputs.words(rows))
        probabilities = logits.float().softmax(dim=1).cpu().numpy()[: len(requests)]
        verdicts = self._network.config.verdicts
        return [EngineReply(verdict=verdicts[int(p.argmax())], score=float(p.max())) for p in probabilities]

    def _logits_of(self, images: Tensor, words: Tensor) -> Tensors:
        return (self._network(images, words),)

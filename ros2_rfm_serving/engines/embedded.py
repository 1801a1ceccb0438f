"""The embedded models behind the interface: the flow policy as a `VelocityModel`, the judge as an `Engine`. PyTorch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ros2_rfm_serving.engines import bundle, instructions
from ros2_rfm_serving.engines.base import Engine, SamplingConfig
from ros2_rfm_serving.engines.blank import blank_request
from ros2_rfm_serving.engines.networks import FlowPolicyNetwork, JudgeNetwork
from ros2_rfm_serving.engines.registry import EngineSpec
from ros2_rfm_serving.engines.sampling import FlowEngine
from ros2_rfm_serving.types import Array, EngineReply, Image, InferenceRequest, ModelContract, OutputKind

MAX_BATCH_SIZE = 32
KeysValues = list[tuple[Tensor, Tensor]]


def load_embedded(model: str, folder: Path, device: str = "cpu") -> Engine:
    """A bundle as an engine. Raises: `ModelError`."""
    network, content_hash = bundle.load(folder)
    network.to(device)
    if isinstance(network, FlowPolicyNetwork):
        sampling = SamplingConfig(num_steps=network.config.num_steps, noise_scale=network.config.noise_scale)
        return FlowEngine(FlowPolicy(model, network, content_hash), sampling)
    return Judge(model, network, content_hash)


class _Inputs:
    """Requests to tensors: instruction tokens and images at the network's resolution."""

    def __init__(self, network: FlowPolicyNetwork | JudgeNetwork) -> None:
        self._cameras = network.config.cameras
        self._size_px = network.config.image_size_px
        self._max_words = network.config.max_words
        self._index = {word: i for i, word in enumerate(network.config.vocabulary)}
        self._device = next(network.parameters()).device

    def words(self, requests: Sequence[InferenceRequest]) -> Tensor:
        tokens = instructions.encode([r.instruction for r in requests], self._index, self._max_words)
        return torch.from_numpy(tokens).to(self._device)

    def images(self, requests: Sequence[InferenceRequest]) -> Tensor:
        """[B, C, size, size, 3]"""
        return torch.stack([self._cameras_of(request.images) for request in requests]).to(self._device)

    def _cameras_of(self, images: Mapping[str, Image]) -> Tensor:
        return torch.stack([self._resized(images[camera]) for camera in self._cameras])

    def _resized(self, image: Image) -> Tensor:
        pixels = torch.from_numpy(np.require(image, requirements="W"))
        if image.shape[:2] == (self._size_px, self._size_px):
            return pixels
        planes = pixels.permute(2, 0, 1)[None].float()
        resized = F.interpolate(planes, (self._size_px, self._size_px), mode="bilinear", antialias=True, align_corners=False)
        return resized[0].permute(1, 2, 0).round().to(torch.uint8)


class FlowPolicy:
    """The embedded policy, split for our loop (`VelocityModel`)."""

    def __init__(self, model: str, network: FlowPolicyNetwork, content_hash: str) -> None:
        config = network.config
        self._network, self._inputs = network, _Inputs(network)
        self._contract = ModelContract(
            model=model,
            model_hash=content_hash,
            output=OutputKind.ACTION_CHUNK,
            action_names=config.action_names,
            cameras=config.cameras,
            state_size=config.state_size,
            chunk_length=config.chunk_length,
            control_rate_hz=config.control_rate_hz,
            max_inference_delay_steps=config.max_inference_delay_steps,
        )
        self._action_mean = network.action_mean.cpu().numpy()
        self._action_std = network.action_std.cpu().numpy()

    @property
    def contract(self) -> ModelContract:
        return self._contract

    @property
    def max_batch_size(self) -> int:
        return MAX_BATCH_SIZE

    def perceive(self, requests: Sequence[InferenceRequest]) -> KeysValues:
        state = torch.from_numpy(np.stack([r.state for r in requests]))
        return self._network.encode(state, self._inputs.images(requests), self._inputs.words(requests))

    def velocity(self, x: Tensor, time: Tensor, context: KeysValues) -> Tensor:
        return self._network.velocity(x, time, context)

    def normalize(self, actions: Array) -> Array:
        normalized: Array = (actions - self._action_mean) / self._action_std
        return normalized

    def denormalize(self, actions: Array) -> Array:
        denormalized: Array = actions * self._action_std + self._action_mean
        return denormalized


class Judge(Engine):
    """The embedded progress judge: one verdict per request."""

    def __init__(self, model: str, network: JudgeNetwork, content_hash: str) -> None:
        self._network, self._inputs = network, _Inputs(network)
        self._contract = ModelContract(
            model=model, model_hash=content_hash, output=OutputKind.JUDGEMENT, cameras=network.config.cameras
        )

    @property
    def contract(self) -> ModelContract:
        return self._contract

    @property
    def max_batch_size(self) -> int:
        return MAX_BATCH_SIZE

    def warm_up(self) -> None:
        self.infer([blank_request(self._contract)])

    @torch.inference_mode()
    def infer(self, requests: Sequence[InferenceRequest]) -> list[EngineReply]:
        logits = self._network(self._inputs.images(requests), self._inputs.words(requests))
        probabilities = logits.softmax(dim=1).cpu().numpy()
        verdicts = self._network.config.verdicts
        return [EngineReply(verdict=verdicts[int(p.argmax())], score=float(p.max())) for p in probabilities]


def build(spec: EngineSpec) -> Engine:
    """The bundle that the catalogue names. Raises: `ModelError`."""
    torch.set_num_threads(spec.threads)
    return load_embedded(spec.model, spec.models_folder / spec.entry.bundle)

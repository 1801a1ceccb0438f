"""Requests to tensors: instruction tokens, states, and images at a network's resolution."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ros2_rfm_serving.engines.embedded import instructions
from ros2_rfm_serving.engines.embedded.context import ContextEncoder
from ros2_rfm_serving.engines.embedded.networks import JudgeNetwork
from ros2_rfm_serving.engines.embedded.options import BundleOptions
from ros2_rfm_serving.engines.precision import quantize
from ros2_rfm_serving.types import EncodedImage, Image, InferenceRequest


class Inputs:
    """Of the embedded networks. Each batch gets memory of its own: one copy from an image to where the device reads it."""

    def __init__(self, cameras: Sequence[str], size_px: int, vocabulary: Sequence[str], max_words: int, device: str) -> None:
        self._cameras, self._size_px, self._max_words, self._device = cameras, size_px, max_words, device
        self._index = {word: i for i, word in enumerate(vocabulary)}

    def words(self, requests: Sequence[InferenceRequest]) -> Tensor:
        """[B, max_words] int64"""
        tokens = instructions.encode([r.instruction for r in requests], self._index, self._max_words)
        return torch.from_numpy(tokens).to(self._device)

    def states(self, requests: Sequence[InferenceRequest]) -> Tensor:
        """[B, S]"""
        return torch.from_numpy(np.stack([r.state for r in requests])).to(self._device)

    def images(self, requests: Sequence[InferenceRequest]) -> Tensor:
        """[B, C, size, size, 3] uint8"""
        shape = (len(requests), len(self._cameras), self._size_px, self._size_px, 3)
        batch = torch.empty(shape, dtype=torch.uint8, pin_memory=self._device != "cpu")
        for row, request in zip(batch, requests, strict=True):
            for own, camera in zip(row, self._cameras, strict=True):
                image = request.images[camera]
                assert not isinstance(image, EncodedImage)  # this engine does not take them
                own.numpy()[:] = resized(image, self._size_px)
        return batch.to(self._device, non_blocking=True)


def resized(image: Image, size_px: int) -> Image:
    """[size_px, size_px, 3]; one that is so already is returned as it is. Takes no lock, and lets others run meanwhile."""
    if image.shape == (size_px, size_px, 3):
        return image
    planes = torch.from_numpy(np.require(image, requirements="W")).permute(2, 0, 1)[None]
    smaller = F.interpolate(planes, (size_px, size_px), mode="bilinear", antialias=True, align_corners=False)
    fitted: Image = smaller[0].permute(1, 2, 0).numpy()
    return fitted


def placed(network: ContextEncoder | JudgeNetwork, options: BundleOptions) -> Inputs:
    """Moves and casts the network; how requests become its inputs."""
    if options.quantizes:
        assert isinstance(network, ContextEncoder)  # `load_embedded` refuses the others
        quantize(network, options.dtype, network.EXACT)
    elif options.dtype != "float32":
        network.cast(getattr(torch, options.dtype))
    network.to(options.device)
    config = network.config
    return Inputs(config.cameras, config.image_size_px, config.vocabulary, config.max_words, options.device)

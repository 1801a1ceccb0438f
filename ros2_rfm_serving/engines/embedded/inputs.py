"""Requests to tensors: instruction tokens, states, and images at a network's resolution."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ros2_rfm_serving.engines.embedded import instructions
from ros2_rfm_serving.engines.embedded.context import ContextEncoder
from ros2_rfm_serving.engines.embedded.networks import JudgeNetwork
from ros2_rfm_serving.engines.embedded.options import BundleOptions
from ros2_rfm_serving.engines.nvjpeg import NvJpeg, decoder_for
from ros2_rfm_serving.engines.precision import quantize
from ros2_rfm_serving.engines.uploads import uploads_to
from ros2_rfm_serving.types import EncodedImage, Image, InferenceRequest


class Inputs:
    """Of the embedded networks. Each batch gets memory of its own: one copy from an image to where the device reads it."""

    def __init__(self, cameras: Sequence[str], size_px: int, vocabulary: Sequence[str], max_words: int, device: str) -> None:
        self._cameras, self._size_px, self._max_words, self._device = cameras, size_px, max_words, device
        self.uploads = uploads_to(device)
        self.decode_image: NvJpeg | None = None
        """`Engine.decode_image`"""
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
        pictures = [self._picture(request, camera) for request in requests for camera in self._cameras]
        if self.uploads and pictures:
            return self.uploads.batch([resized(picture, self._size_px) for picture in pictures]).view(shape)
        batch = torch.empty(shape, dtype=torch.uint8)
        for own, picture in zip(batch.flatten(0, 1), pictures, strict=True):
            own.numpy()[:] = resized(picture, self._size_px)
        return batch.to(self._device)

    def fit_image(self, image: Image) -> Image:
        """`Engine.fit_image`"""
        fitted = resized(image, self._size_px)
        return self.uploads.send(fitted) if self.uploads else fitted

    def _picture(self, request: InferenceRequest, camera: str) -> Image:
        image = request.images[camera]
        assert not isinstance(image, EncodedImage)  # this engine does not take them
        return image


def resized(image: Image, size_px: int) -> Image:
    """[size_px, size_px, 3]; one that is so already is returned as it is. Takes no lock, and lets others run meanwhile."""
    if image.shape == (size_px, size_px, 3):
        return image
    planes = torch.from_numpy(np.require(image, requirements="W")).permute(2, 0, 1)[None]
    smaller = F.interpolate(planes, (size_px, size_px), mode="bilinear", antialias=True, align_corners=False)
    fitted: Image = smaller[0].permute(1, 2, 0).numpy()
    return fitted


def resized_there(pixels: Tensor, size_px: int) -> Tensor:
    """The same on a GPU, which knows no whole numbers here: [H, W, 3] uint8, within a level of `resized`."""
    planes = pixels.permute(2, 0, 1)[None].float()
    smaller = F.interpolate(planes, (size_px, size_px), mode="bilinear", antialias=True, align_corners=False)
    return smaller[0].permute(1, 2, 0).round().clamp(0, 255).to(torch.uint8).contiguous()


def placed(network: ContextEncoder | JudgeNetwork, options: BundleOptions) -> Inputs:
    """Moves and casts the network; how requests become its inputs."""
    if options.quantizes:
        assert isinstance(network, ContextEncoder)  # `load_embedded` refuses the others
        quantize(network, options.dtype, network.EXACT)
    elif options.dtype != "float32":
        network.cast(getattr(torch, options.dtype))
    network.to(options.device)
    config = network.config
    inputs = Inputs(config.cameras, config.image_size_px, config.vocabulary, config.max_words, options.device)
    if options.device_decoding:
        first = partial(resized_there, size_px=config.image_size_px)
        inputs.decode_image = decoder_for(inputs.uploads, options.device, first)
    return inputs

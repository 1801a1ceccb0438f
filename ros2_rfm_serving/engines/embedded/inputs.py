"""Conversion of requests to tensors: instruction tokens, states, and images at a network's resolution."""

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


class NetworkInputs:
    """Inputs of the embedded networks.
    Each batch gets memory of its own: an image is copied once, to memory that the device reads."""

    def __init__(self, cameras: Sequence[str], size_px: int, vocabulary: Sequence[str], max_words: int, device: str) -> None:
        self._cameras, self._size_px, self._max_words, self._device = cameras, size_px, max_words, device
        self.uploads = uploads_to(device)
        self.decode_image: NvJpeg | None = None
        """Decoder for `Engine.decode_image`."""
        self._index = {word: i for i, word in enumerate(vocabulary)}

    def words(self, requests: Sequence[InferenceRequest]) -> Tensor:
        """Return the words of the instructions, [B, max_words] int64."""
        tokens = instructions.encode([r.instruction for r in requests], self._index, self._max_words)
        return torch.from_numpy(tokens).to(self._device)

    def states(self, requests: Sequence[InferenceRequest]) -> Tensor:
        """Return the states, [B, S] float32."""
        return torch.from_numpy(np.stack([r.state for r in requests])).to(self._device)

    def images(self, requests: Sequence[InferenceRequest]) -> Tensor:
        """Return the images, [B, C, size, size, 3] uint8."""
        shape = (len(requests), len(self._cameras), self._size_px, self._size_px, 3)
        pictures = [self._picture(request, camera) for request in requests for camera in self._cameras]
        if self.uploads and pictures:
            return self.uploads.batch([resized(picture, self._size_px) for picture in pictures]).view(shape)
        batch = torch.empty(shape, dtype=torch.uint8)
        for own, picture in zip(batch.flatten(0, 1), pictures, strict=True):
            own.numpy()[:] = resized(picture, self._size_px)
        return batch.to(self._device)

    def fit_image(self, image: Image) -> Image:
        """Return a resized image, whose upload is under way; a function for `Engine.fit_image`."""
        fitted = resized(image, self._size_px)
        return self.uploads.send(fitted) if self.uploads else fitted

    def _picture(self, request: InferenceRequest, camera: str) -> Image:
        image = request.images[camera]
        assert not isinstance(image, EncodedImage)  # this engine takes decoded images only
        return image


def resized(image: Image, size_px: int) -> Image:
    """Return an image as [size_px, size_px, 3]; one of this shape is returned unchanged. It takes no lock, and releases the GIL."""
    if image.shape == (size_px, size_px, 3):
        return image
    planes = torch.from_numpy(np.require(image, requirements="W")).permute(2, 0, 1)[None]
    smaller = F.interpolate(planes, (size_px, size_px), mode="bilinear", antialias=True, align_corners=False)
    fitted: Image = smaller[0].permute(1, 2, 0).numpy()
    return fitted


def resized_there(pixels: Tensor, size_px: int) -> Tensor:
    """Resize an image, [H, W, 3] uint8, on a GPU, which has no integers here; within one level of `resized`."""
    planes = pixels.permute(2, 0, 1)[None].float()
    smaller = F.interpolate(planes, (size_px, size_px), mode="bilinear", antialias=True, align_corners=False)
    return smaller[0].permute(1, 2, 0).round().clamp(0, 255).to(torch.uint8).contiguous()


def placed(network: ContextEncoder | JudgeNetwork, options: BundleOptions) -> NetworkInputs:
    """Move and cast the network, and return the conversion of requests to its inputs."""
    if options.quantizes:
        assert isinstance(network, ContextEncoder)  # `load_embedded` refuses other networks
        quantize(network, options.dtype, network.EXACT)
    elif options.dtype != "float32":
        network.cast(getattr(torch, options.dtype))
    network.to(options.device)
    config = network.config
    inputs = NetworkInputs(config.cameras, config.image_size_px, config.vocabulary, config.max_words, options.device)
    if options.device_decoding:
        first = partial(resized_there, size_px=config.image_size_px)
        inputs.decode_image = decoder_for(inputs.uploads, options.device, first)
    return inputs

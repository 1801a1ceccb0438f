"""Conversion of requests to an architecture's tensors, and of its actions back to robot space.

Times are in float32; statistics are in the precision of the library that computed them.
"""

from __future__ import annotations

import math
import re
from bisect import bisect
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ros2_rfm_serving.engines.architectures.base import ArchitectureConfig, Observation
from ros2_rfm_serving.engines.architectures.manifest import BundleManifest, Images, Prompt
from ros2_rfm_serving.engines.architectures.normaliser import Normaliser, Numbers
from ros2_rfm_serving.engines.architectures.recropping import recropped
from ros2_rfm_serving.engines.uploads import HostDevice, uploads_to
from ros2_rfm_serving.types import Array, EncodedImage, Image, InferenceRequest


class PromptEncoding(Protocol):
    ids: list[int]


class Tokenizer(Protocol):
    """Interface of the library `tokenizers`."""

    def encode(self, sequence: str) -> PromptEncoding: ...


class Processor:
    """Processor of one bundle: the same instruction and state give the same tokens in every batch."""

    def __init__(self, manifest: BundleManifest, config: ArchitectureConfig, tokenizer: Tokenizer, device: str) -> None:
        processing, contract = manifest.processing, manifest.contract
        self._images, self._prompt, self._device = processing.images, processing.prompt, device
        self._scales = {where.split(":")[0]: _scale(processing.images, where) for where in ("cpu", device)}
        """Mean and deviation of images, by the place where they are resized: the device, or the host for an image that was not sent
        ahead."""
        self.uploads = uploads_to(device, self._normalized)
        self.ahead = self.uploads or HostDevice(self._normalized)
        """Uploads whose `send` is `Engine.fit_image`."""
        self._tokenizer, self._cameras = tokenizer, contract.cameras
        self._state_columns, self._vocabulary = config.state_columns, config.vocabulary or math.inf
        inputs = processing.state_inputs
        self._state_inputs = [each.column for each in inputs]
        self._sines, self._cosines = (np.array([each.function == name for each in inputs], bool) for name in ("sin", "cos"))
        self._state = Normaliser(processing.state, len(inputs) or contract.state_size)
        self._action = Normaliser(processing.action, len(contract.action_names))
        told = processing.relative
        self._relative = [column for column, source in enumerate(told) if source is not None]
        self._sources = [source for source in told if source is not None]
        """Columns of the state that the actions `_relative` are relative to."""

    @property
    def is_relative(self) -> bool:
        """True if actions are relative to the state."""
        return bool(self._relative)

    def observation(self, requests: Sequence[InferenceRequest]) -> Observation:
        states = np.stack([self._state.normalized(self._read(request.state)) for request in requests])
        rows = [self._tokens(request.instruction, state) for request, state in zip(requests, states, strict=True)]
        tokens = torch.full((len(rows), self._prompt.max_tokens), self._prompt.pad_token)
        words = torch.zeros(tokens.shape, dtype=torch.bool)
        for i, row in enumerate(rows):
            tokens[i, : len(row)], words[i, : len(row)] = torch.tensor(row), True
        absent = self._images.absent
        seen = torch.tensor([True] * len(self._cameras) + [False] * absent).expand(len(rows), -1)
        padded = F.pad(torch.from_numpy(states.astype(np.float32, copy=False)), (0, self._state_columns - states.shape[1]))
        parts = (self._pixels(requests), seen, tokens, words, padded)
        return Observation(*(part.to(self._device) for part in parts))

    def denormalize(self, actions: Array) -> Array:
        """Return actions in robot units, [..., A], or [..., T, A] if statistics differ by step, before `placed`."""
        return self._action.denormalized(actions)

    def placed(self, actions: Array, states: Sequence[Array]) -> Array:
        """Return actions in robot space, [B, T, A]. states: [S] of each row, which the actions are relative to."""
        if not self._relative:
            return actions
        robot = actions.copy()
        robot[..., self._relative] += np.stack(states)[:, None, self._sources]
        return robot

    def model_space(self, prefix: Array, state: Array) -> Array:
        """Return a prefix, [P, A], in the model space of a robot with this state, [S]. prefix: robot space, [P, A]."""
        counted = prefix.astype(np.float32)
        counted[:, self._relative] -= state[self._sources]
        return self._action.normalized(counted).astype(np.float32, copy=False)

    def _read(self, state: Array) -> Array:
        """Return the columns of a robot's state that the network reads."""
        if not self._state_inputs:
            return state
        read = state[self._state_inputs]
        np.sin(read, out=read, where=self._sines)
        np.cos(read, out=read, where=self._cosines)
        return read

    def _tokens(self, instruction: str, state: Numbers) -> list[int]:
        text = instruction.strip().replace("_", " ").replace("\n", " ") if self._prompt.clean else instruction
        text = re.sub(r"[^\w\s]", "", text.lower()) if self._prompt.bare else text
        text = text.lower() if self._prompt.lower else text
        shown = np.pad(state, (0, max(0, self._prompt.state_words - len(state))))
        bins = " ".join(map(str, binned(shown, self._prompt))) if "{state}" in self._prompt.template else ""
        text = text.removesuffix("\n")  # the prompt adds its own line end, if it has one
        template = self._prompt.template.replace("{state}", bins)
        known, most = self._known(template, text), self._prompt.max_tokens
        if len(known) > most and template.partition("{instruction}")[2].strip():
            known = self._known(template, self._shortened(template, text))
        return known[:most]

    def _known(self, template: str, text: str) -> list[int]:
        return [id for id in self._tokenizer.encode(template.replace("{instruction}", text)).ids if id < self._vocabulary]

    def _shortened(self, template: str, text: str) -> str:
        """Return as many words of the text as leave room for the prompt's end: the state, and the mark of the next speaker."""
        words = text.split()
        fits = bisect(
            range(1, len(words) + 1), self._prompt.max_tokens, key=lambda n: len(self._known(template, " ".join(words[:n])))
        )
        return " ".join(words[:fits])

    def _pixels(self, requests: Sequence[InferenceRequest]) -> Tensor:
        """Return images, [B, C, 3, height, width], on the device where they were resized."""
        geometry = self._images
        shape = (len(requests), len(self._cameras), 3, geometry.height_px, geometry.width_px)
        pictures = [self._picture(request, camera) for request in requests for camera in self._cameras]
        pixels = (self.ahead.batch(pictures) if pictures else torch.zeros(0)).view(shape)
        if not geometry.absent:
            return pixels
        mean, std = self._scales[pixels.device.type]
        black = ((0 - mean) / std).expand(len(requests), geometry.absent, *shape[2:])
        return torch.cat([pixels, black], dim=1)

    def _normalized(self, image: Tensor) -> Tensor:
        """Return an image as the network's input, [3, height, width]. image: [H, W, 3] uint8."""
        mean, std = self._scales[image.device.type]
        return fitted(image, self._images).sub_(mean).div_(std)

    def _picture(self, request: InferenceRequest, camera: str) -> Image:
        image = request.images[camera]
        assert not isinstance(image, EncodedImage)  # this engine takes decoded images only
        return image


def binned(state: Numbers, prompt: Prompt) -> list[int]:
    """Return the index of each column's bin in [-1, 1]; -1 below the first bin."""
    edges = np.linspace(-1, 1, prompt.state_bins + 1)[:-1]
    return [int(bin) for bin in np.digitize(state, edges) - 1]


def _scale(geometry: Images, device: str) -> tuple[Tensor, Tensor]:
    """Return mean and deviation, [3, 1, 1] each."""
    mean, std = (torch.tensor(values, device=device)[:, None, None] for values in (geometry.mean, geometry.std))
    return mean, std


def fitted(image: Tensor, geometry: Images) -> Tensor:
    """Return an image resized to the geometry, [3, height, width] in [0, 1], in memory of its own. image: [H, W, 3] uint8.

    Cropped parts are not computed, and all operations run on the image's device where possible. Raises: `BadMessageError`, as
    `recropped` does.
    """
    if geometry.recrop:
        pixels = recropped(image, geometry.recrop).div_(255)
    else:
        pixels = cropped(image.permute(2, 0, 1), geometry.crop).float().div_(255)
    height, width = pixels.shape[1:]
    size = (geometry.height_px, geometry.width_px)
    if geometry.fit != "stretch":
        ratio = max(width / size[1], height / size[0])
        size = (max(1, int(height / ratio)), max(1, int(width / ratio)))
    if (height, width) != size:
        resized = F.interpolate(pixels[None], size, mode="bilinear", antialias=geometry.antialias, align_corners=False)
        pixels = resized[0].clamp_(0, 1)
    pixels = pixels.mul_(255).floor_().div_(255) if geometry.whole else pixels
    rest = (geometry.height_px - size[0], geometry.width_px - size[1])
    before = rest if geometry.fit == "pad_top_left" else (rest[0] // 2, rest[1] // 2)
    sides = (before[1], rest[1] - before[1], before[0], rest[0] - before[0])
    return F.pad(pixels, sides, value=geometry.border) if any(rest) else pixels


def cropped(pixels: Tensor, share: float) -> Tensor:
    """Return the middle of an image, [3, H, W]."""
    (height, width), kept = pixels.shape[1:], [max(1, int(size * share)) for size in pixels.shape[1:]]
    top, left = round((height - kept[0]) / 2.0), round((width - kept[1]) / 2.0)
    return pixels[:, top : top + kept[0], left : left + kept[1]]

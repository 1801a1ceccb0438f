"""Conversion of observations to a LeRobot policy's input, and of its chunks to robot space.

It uses the pipelines that are saved with the checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from lerobot.processor import RenameObservationsProcessorStep
from lerobot.utils.constants import OBS_LANGUAGE_ATTENTION_MASK, OBS_LANGUAGE_TOKENS, OBS_STATE
from torch import Tensor

from ros2_rfm_serving.engines.lerobot.checkpoint import LeRobotCheckpoint
from ros2_rfm_serving.engines.lerobot.sessions import LeRobotSessions, Pipelines
from ros2_rfm_serving.types import Array, EncodedImage, Image, InferenceRequest

SMALLEST_SCALE = 1e-6
"""Smallest scale of a number from which a chunk in model space can be computed."""
Batch = dict[str, Any]
Fit = Callable[[Tensor], Tensor]
"""Function that resizes an image, [1, 3, H, W] in [0, 1], to the size that all rows of the policy share."""


class Processing:
    """Conversion of a batch by the pipelines of its sessions, in turn: `to_policy`, then `to_robot`.

    Consecutive rows of one pipeline are processed together. The state that relative actions are relative to (Remote-RTC §7) is kept
    in the pipeline for the way back.
    """

    def __init__(self, checkpoint: LeRobotCheckpoint, fits: dict[str, Fit]) -> None:
        """Create the processing. fits: resize functions by the policy's image feature, for those that a robot sends."""
        self.sessions = LeRobotSessions(checkpoint.preprocessor, checkpoint.postprocessor)
        self._runs: list[tuple[Pipelines, int]] = []
        """Pipelines of the last batch, in order, with their numbers of rows."""
        self._device = checkpoint.options.device
        self._has_state = checkpoint.policy.config.robot_state_feature is not None
        renames = [step.rename_map for step in checkpoint.preprocessor.steps if isinstance(step, RenameObservationsProcessorStep)]
        named = {policy: robot for rename in renames for robot, policy in rename.items()}
        self._fits = tuple(fits.values())
        self.features = tuple(fits)
        """Image features, with the policy's names."""
        self.sources = tuple(camera.source for camera in checkpoint.cameras)
        """Image features, with the names of a LeRobot robot."""
        self.state_source = named.get(OBS_STATE, OBS_STATE)
        self.cameras = tuple(camera.name for camera in checkpoint.cameras)

    def to_policy(self, requests: Sequence[InferenceRequest]) -> Batch:
        """Return the input of `predict_action_chunk`."""
        runs = [(own, list(rows)) for own, rows in groupby(requests, lambda request: self.sessions.of(request.id))]
        self._runs = [(own, len(rows)) for own, rows in runs]
        return collated([own.before(self._observed(rows)) for own, rows in runs])

    def to_robot(self, chunks: Tensor) -> Array:
        """Return chunks in robot space, [B, T, A], from model space. The rows B are those of `to_policy`."""
        parts = torch.split(chunks, [rows for _, rows in self._runs])
        return np.concatenate([self._back(own.after, part) for (own, _), part in zip(self._runs, parts, strict=True)])

    def to_model(self, robot: Array) -> Array:
        """Return chunks, [B, T, A], in the model space of the last batch of `to_policy`, from robot space, if it `is_linear`."""
        offset, scale = self._line(robot.shape)
        model: Array = (robot - offset) / scale
        return model

    def is_linear(self, shape: tuple[int, ...]) -> bool:
        """Return whether the way to robot space is a scale and an offset for each number. These may depend on the observation."""
        offset, scale = self._line(shape)
        probe = np.random.default_rng(0).standard_normal(shape, np.float32)
        there = self.to_robot(torch.from_numpy(probe))
        return bool((np.abs(scale) > SMALLEST_SCALE).all() and np.allclose(there, offset + scale * probe, rtol=1e-4, atol=1e-5))

    def _line(self, shape: tuple[int, ...]) -> tuple[Array, Array]:
        offset = self.to_robot(torch.zeros(shape))
        return offset, self.to_robot(torch.ones(shape)) - offset

    def reset(self) -> None:
        """Reset all sessions."""
        self.sessions.forget()

    def _observed(self, requests: Sequence[InferenceRequest]) -> Batch:
        """Return observations in the form that a LeRobot robot sends."""
        batch: Batch = {"task": [request.instruction for request in requests]}
        if self._has_state:
            states = torch.from_numpy(np.stack([request.state for request in requests]))
            batch[self.state_source] = states.to(self._device)
        for camera, source, fit in zip(self.cameras, self.sources, self._fits, strict=True):
            batch[source] = torch.cat([fit(self._planes(request.images[camera])) for request in requests])
        return batch

    def _back(self, after: Any, chunks: Tensor) -> Array:
        robot = after(chunks)
        if robot.ndim < chunks.ndim:  # a step that takes one action at a time, such as GR00T's, kept the last one
            robot = torch.stack([after(chunks[:, step]) for step in range(chunks.shape[1])], dim=1)
        values: Array = robot.float().cpu().numpy()
        return values

    def _planes(self, image: Image | EncodedImage) -> Tensor:
        """Return an image as [1, 3, H, W] in [0, 1]."""
        assert not isinstance(image, EncodedImage)  # this engine takes decoded images only
        pixels = torch.from_numpy(np.require(image, requirements="W")).to(self._device)
        return (pixels.type(torch.float32) / 255).permute(2, 0, 1).contiguous()[None]


WORDS = (OBS_LANGUAGE_TOKENS, OBS_LANGUAGE_ATTENTION_MASK)


def collated(batches: Sequence[Batch]) -> Batch:
    """Return one batch of the rows of all batches, in order."""
    first = batches[0]
    return first if len(batches) == 1 else {key: _joined(key, [batch[key] for batch in batches]) for key in first}


def _joined(key: str, values: Sequence[Any]) -> Any:
    """Join the values of a key. Values that are neither tensor nor list are the same for all batches."""
    if isinstance(values[0], list):
        return [item for value in values for item in value]
    if not isinstance(values[0], Tensor) or not values[0].ndim:
        return values[0]
    if key in WORDS:  # padded to the longest instruction: the mask marks zeros as no words
        longest = max(value.shape[1] for value in values)
        values = [F.pad(value, (0, longest - value.shape[1])) for value in values]
    return torch.cat(list(values))


def resized_to(height: int, width: int) -> Fit:
    def fit(image: Tensor) -> Tensor:
        if image.shape[-2:] == (height, width):
            return image
        return F.interpolate(image, (height, width), mode="bilinear", antialias=True, align_corners=False)

    return fit

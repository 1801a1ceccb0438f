"""A robot's observations to a LeRobot policy's input and its chunks back, by the pipelines that are saved with the checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from lerobot.processor import RenameObservationsProcessorStep
from lerobot.utils.constants import OBS_STATE
from torch import Tensor

from ros2_rfm_serving.engines.lerobot.checkpoint import Checkpoint
from ros2_rfm_serving.types import Array, EncodedImage, Image, InferenceRequest

Batch = dict[str, Any]
Fit = Callable[[Tensor], Tensor]
"""An image [1, 3, H, W] in [0, 1] at the size at which the policy's rows agree."""


class Processing:
    """Both pipelines, called once per batch, in turn: `to_policy`, then `to_robot`.

    What a step keeps of the observations for the way back (the state that relative actions are relative to, Remote-RTC §7) is
    kept row by row, and only until the next batch: sessions cannot see each other's.
    """

    def __init__(self, checkpoint: Checkpoint, fits: dict[str, Fit]) -> None:
        """fits: by the policy's image feature, those that a robot sends."""
        self._before, self._after = checkpoint.preprocessor, checkpoint.postprocessor
        self._device = checkpoint.options.device
        self._has_state = checkpoint.policy.config.robot_state_feature is not None
        renames = [step.rename_map for step in self._before.steps if isinstance(step, RenameObservationsProcessorStep)]
        named = {policy: robot for rename in renames for robot, policy in rename.items()}
        self._fits = tuple(fits.values())
        self.features = tuple(fits)
        """Of images, as the policy names them"""
        self.sources = tuple(named.get(feature, feature) for feature in fits)
        """The same as a robot of LeRobot's names them"""
        self.state_source = named.get(OBS_STATE, OBS_STATE)
        self.cameras = tuple(source.removeprefix("observation.").removeprefix("images.") for source in self.sources)

    def to_policy(self, requests: Sequence[InferenceRequest]) -> Batch:
        """What `predict_action_chunk` takes."""
        batch: Batch = {"task": [request.instruction for request in requests]}
        if self._has_state:
            states = torch.from_numpy(np.stack([request.state for request in requests]))
            batch[self.state_source] = states.to(self._device)
        for camera, source, fit in zip(self.cameras, self.sources, self._fits, strict=True):
            batch[source] = torch.cat([fit(self._planes(request.images[camera])) for request in requests])
        processed: Batch = self._before(batch)
        return processed

    def to_robot(self, chunks: Tensor) -> Array:
        """[B, T, A] model space to robot space."""
        robot = self._after(chunks)
        if robot.ndim < chunks.ndim:  # a step that takes one action at a time, such as GR00T's, kept the last one
            robot = torch.stack([self._after(chunks[:, step]) for step in range(chunks.shape[1])], dim=1)
        values: Array = robot.float().cpu().numpy()
        return values

    def reset(self) -> None:
        self._before.reset()
        self._after.reset()

    def _planes(self, image: Image | EncodedImage) -> Tensor:
        """[1, 3, H, W] in [0, 1]"""
        assert not isinstance(image, EncodedImage)  # this engine does not take them
        pixels = torch.from_numpy(np.require(image, requirements="W")).to(self._device)
        return (pixels.type(torch.float32) / 255).permute(2, 0, 1).contiguous()[None]


def resized_to(height: int, width: int) -> Fit:
    def fit(image: Tensor) -> Tensor:
        if image.shape[-2:] == (height, width):
            return image
        return F.interpolate(image, (height, width), mode="bilinear", antialias=True, align_corners=False)

    return fit

"""LeRobot's policies behind the loop's interface: split where that is possible, else a whole chunk per call.

SmolVLA, pi0 and pi0.5 embed images, instruction and state once (*prefix*), keep its keys and values, and run their action expert
once per denoising step. Around these two parts, which are LeRobot's own, the loop is ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from inspect import signature
from typing import Any, NamedTuple, Protocol

import torch
from lerobot.utils.constants import ACTION, OBS_LANGUAGE_ATTENTION_MASK, OBS_LANGUAGE_TOKENS
from torch import Tensor

from ros2_rfm_serving.engines.lerobot.processing import Batch, Fit, resized_to
from ros2_rfm_serving.engines.lerobot_format import CHUNKLESS, LeRobotCamera, served_by
from ros2_rfm_serving.errors import ModelError
from ros2_rfm_serving.types import SessionSharing

SPLIT = ("smolvla", "pi0", "pi05")
CHUNK_STATELESS = (*SPLIT, "act", "groot", "pi0_fast")
"""Policies whose `predict_action_chunk` reads and leaves no state (Remote-RTC §8.3)."""
QUEUED = ("diffusion", "vqbet", "tdmpc")
"""Policies that read queues of past observations, which only `select_action` fills."""
DETERMINISTIC = ("act",)
"""Policies whose whole chunks do not depend on noise.
All others draw their noise themselves, for a whole batch: they run one row at a time."""


def serving_of(kind: str) -> SessionSharing:
    """Return how a policy is served; one of an unknown type may keep state. Raises: `ModelError` for a policy without chunks."""
    if kind in CHUNKLESS:
        raise ModelError(f"LeRobot's {kind!r}: {served_by(kind)}")
    return SessionSharing.SHARED if kind in CHUNK_STATELESS else SessionSharing.EXCLUSIVE


class PrefixContext(NamedTuple):
    """Context that all denoising steps share. B: rows; L: tokens of the prefix."""

    cache: Any
    """Keys and values of the prefix, by layer."""
    mask: Tensor
    """True for tokens that are present, [B, L] bool."""
    state: Tensor | None
    """Robot state, [B, S], for pi0, whose state is a token of the action expert."""


class Split(Protocol):
    """Flow-matching policy in two parts. T: chunk length; W: columns of the model, at least the actions."""

    def fit(self, image: Tensor) -> Tensor:
        """Return an image, [1, 3, H, W], resized as in the policy's first operation.
        So robots with other cameras can share a batch."""

    def perceive(self, batch: Batch) -> PrefixContext: ...

    def velocity(self, x: Tensor, time: Tensor, observed: PrefixContext) -> Tensor:
        """Return the velocity, [B, T, W]. x: [B, T, W]; time: [B], 1 = noise."""


class SmolVla:
    def __init__(self, policy: Any) -> None:
        self._policy, self._flow = policy, policy.model
        self._code: Any = import_module(type(policy).__module__)
        fills = "fill_kv_cache" in signature(self._flow.vlm_with_expert.forward).parameters  # until LeRobot 0.6.0
        self._filling = {"fill_kv_cache": True} if fills else {}

    def fit(self, image: Tensor) -> Tensor:
        size = self._policy.config.resize_imgs_with_padding
        if not size:
            return image
        fitted: Tensor = self._code.resize_with_pad(image, width=size[0], height=size[1], pad_value=0)
        return fitted

    def perceive(self, batch: Batch) -> PrefixContext:
        images, image_masks = self._policy.prepare_images(batch)
        state = self._policy.prepare_state(batch)
        words = batch[OBS_LANGUAGE_TOKENS], batch[OBS_LANGUAGE_ATTENTION_MASK]
        tokens, mask, steps = self._flow.embed_prefix(images, image_masks, *words, state=state)
        _, cache = self._flow.vlm_with_expert.forward(
            attention_mask=self._code.make_att_2d_masks(mask, steps),
            position_ids=mask.cumsum(dim=1) - 1,
            past_key_values=None,
            inputs_embeds=[tokens, None],
            use_cache=self._policy.config.use_cache,
            **self._filling,
        )
        return PrefixContext(cache, mask, None)

    def velocity(self, x: Tensor, time: Tensor, observed: PrefixContext) -> Tensor:
        v: Tensor = self._flow.denoise_step(x_t=x, timestep=time, prefix_pad_masks=observed.mask, past_key_values=observed.cache)
        return v


class Pi0:
    """Parts of pi0, and of pi0.5, whose state is written as words of its instruction."""

    def __init__(self, policy: Any) -> None:
        self._policy, self._flow = policy, policy.model
        self._code: Any = import_module(type(policy).__module__)
        # Masks are [B, 1, L, L] of numbers to add, which only the plain attention kernel reads that way.
        self._flow.paligemma_with_expert.paligemma.model.language_model.config._attn_implementation = "eager"
        own = getattr(self._flow, "_prepare_attention_masks_4d", None)  # a method until LeRobot 0.6.0
        self._masks_of: Any = own or self._code.prepare_attention_masks_4d

    def fit(self, image: Tensor) -> Tensor:
        fitted: Tensor = self._code.resize_with_pad_torch(image, *self._policy.config.image_resolution)
        return fitted

    def perceive(self, batch: Batch) -> PrefixContext:
        images, image_masks = self._policy._preprocess_images(batch)
        words = batch[OBS_LANGUAGE_TOKENS], batch[OBS_LANGUAGE_ATTENTION_MASK]
        tokens, mask, steps = self._flow.embed_prefix(images, image_masks, *words)
        _, cache = self._flow.paligemma_with_expert.forward(
            attention_mask=self._masks_of(self._code.make_att_2d_masks(mask, steps)),
            position_ids=mask.cumsum(dim=1) - 1,
            past_key_values=None,
            inputs_embeds=[tokens, None],
            use_cache=True,
        )
        has_state_token = hasattr(self._flow, "state_proj")
        return PrefixContext(cache, mask, self._policy.prepare_state(batch) if has_state_token else None)

    def velocity(self, x: Tensor, time: Tensor, observed: PrefixContext) -> Tensor:
        state = {} if observed.state is None else {"state": observed.state}
        v: Tensor = self._flow.denoise_step(
            x_t=x, timestep=time, prefix_pad_masks=observed.mask, past_key_values=observed.cache, **state
        )
        return v


def split_of(kind: str, policy: Any) -> Split | None:
    """Return a policy in two parts; None if it gives its whole chunk in one call."""
    if kind not in SPLIT or getattr(policy.config, "adapt_to_pi_aloha", False):
        return None  # actions that leave the model in other units than its noise cannot be guided
    return SmolVla(policy) if kind == "smolvla" else Pi0(policy)


def whole_chunk(kind: str, policy: Any, batch: Batch, seed: int) -> Tensor:
    """Return a chunk, [B, T, A], of one call; random numbers follow from `seed`."""
    device = torch.device(policy.config.device)
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        if kind not in QUEUED:
            chunk: Tensor = policy.predict_action_chunk(batch)
            return chunk
        policy._queues[ACTION].clear()  # otherwise it would answer from the queue
        actions = [policy.select_action(batch), *policy._queues[ACTION]]
        return torch.stack(actions, dim=1)


def fits_of(policy: Any, split: Split | None, cameras: Sequence[LeRobotCamera]) -> dict[str, Fit]:
    """Return the resize function of each camera's feature; cameras that no robot has are left to the policy."""
    features = policy.config.image_features
    return {camera.feature: split.fit if split else resized_to(*features[camera.feature].shape[-2:]) for camera in cameras}

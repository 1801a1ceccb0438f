"""Insertion of images into a prompt, each at the place that one token of it holds."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class JoinedPrompt(NamedTuple):
    """Prompt with images. S: tokens of the prompt and of all images, less the places that they replace."""

    embedded: Tensor
    """Embedded tokens, [B, S, D]."""
    words: Tensor
    """True for tokens that are no padding, [B, S] bool."""
    images: Tensor
    """True for tokens of images, [B, S] bool."""
    which: Tensor
    """Index of the image, for tokens of images, [B, S] int64."""
    patch: Tensor
    """Index of the token in its image, [B, S] int64."""


def joined_images(embedded: Tensor, places: Tensor, words: Tensor, images: Tensor) -> JoinedPrompt:
    """Insert image c of a row at the c-th of its places; the tokens after it move back.

    Output shapes depend on input shapes alone. embedded: [B, L, D] of the tokens; places: [B, L] bool, C of them in each row;
    words: [B, L] bool; images: [B, C, N, D].
    """
    (batch, length, _), (_, cameras, count, _) = embedded.shape, images.shape
    ends = (1 + places * (count - 1)).cumsum(dim=1)
    positions = torch.arange(length + cameras * (count - 1), device=embedded.device).repeat(batch, 1)
    source = torch.searchsorted(ends, positions, right=True).clamp(max=length - 1)
    inside = places.gather(1, source)
    camera = (places.cumsum(dim=1).gather(1, source) - 1).clamp(min=0, max=cameras - 1)
    patch = positions - (ends.gather(1, source) - count)
    patch = patch.clamp(min=0, max=count - 1)
    flat = (camera * count + patch)[..., None].expand(-1, -1, images.shape[-1])
    text = embedded.gather(1, source[..., None].expand(-1, -1, embedded.shape[-1]))
    pictured = images.flatten(1, 2).gather(1, flat)
    there = words.gather(1, source) & (positions < ends[:, -1:])
    return JoinedPrompt(torch.where(inside[..., None], pictured, text), there, inside & there, camera, patch)

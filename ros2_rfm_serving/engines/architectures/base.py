"""Architecture: a PyTorch network that perceives once and is evaluated once per denoising step (vla.cpp §3, Algorithm 1).

It handles tensors alone. `processor.py` converts requests to tensors, and the loop calls the network through `policy.py`; both are
the same for all architectures.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from ros2_rfm_serving.engines.architectures.manifest import Processing, Sampling
from ros2_rfm_serving.engines.flow.graphs import Tensors

MAX_CHUNK = 10_000
"""Largest chunk length, beyond that of any model."""


class Observation(NamedTuple):
    """Tensors of B requests, made by `Processing`.
    C: cameras, including those that are never present; L: tokens, padded; S: state columns."""

    images: Tensor
    """Normalised images, [B, C, 3, height, width] float32."""
    seen: Tensor
    """True for cameras that are present, [B, C] bool."""
    tokens: Tensor
    """Tokens, [B, L] int64."""
    words: Tensor
    """True for tokens that are no padding, [B, L] bool."""
    state: Tensor
    """Normalised state, padded with zeros, [B, S] float32."""


class ArchitectureConfig(BaseModel):
    """Sizes of a network. Its defaults are those of the published model."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    chunk_length: int = Field(ge=1, le=MAX_CHUNK)
    """Chunk length, T."""
    action_columns: int = Field(ge=1)
    """Columns of x, padded, W."""
    state_columns: int = Field(ge=0)
    """Columns of the state, padded, S."""
    vocabulary: int = Field(default=0, ge=0)
    """Number of known tokens; others are left out of a prompt. 0 for as many as its tokenizer has."""


class Architecture(nn.Module, ABC):
    """Network of a `config_class`, whose defaults are the full size.

    Both stages are independent row by row. `velocity` is differentiable in x. Weights may have half precision: values derived from
    a position, a token or a time are computed in float32 even so (vla.cpp §4.6).
    """

    EXACT: ClassVar[tuple[str, ...]] = ("state_in", "action_in", "action_time", "time", "action_out")
    """Layers, or beginnings of their names, that keep their precision if weights are integers."""
    RECORDS_PERCEPTION: ClassVar[bool] = True
    """True if perception may be a CUDA graph: no part of it reads a number from the device, or copies one there."""
    READS_PADDING: ClassVar[bool] = False
    """True if the network reads the padding after a prompt, as in training: every prompt is padded to its full length then."""
    config_class: ClassVar[type[ArchitectureConfig]]
    config: ArchitectureConfig
    computes_in: torch.dtype | None = None
    """Dtype of computation; None for that of the weights."""

    @classmethod
    @abstractmethod
    def toy(cls) -> ArchitectureConfig:
        """Return a configuration with a few hundred thousand parameters at most and every kind of block."""

    @classmethod
    @abstractmethod
    def processing(cls, config: ArchitectureConfig) -> Processing:
        """Return the published processing, with statistics that change nothing; for toys, and for checkpoints without it."""

    @classmethod
    @abstractmethod
    def sampling(cls) -> Sampling:
        """Return the sampling of the model's authors."""

    @abstractmethod
    def image_tokens(self, images: Tensor) -> Tensor:
        """Return the tokens that the language model reads, positions included, [B, C, tokens, width].
        images: [B, C, 3, height, width]."""

    @abstractmethod
    def perceive(self, observation: Observation) -> Tensors:
        """Return the context: tensors [B, ...] of the same shapes for all requests, with all that no denoising step changes."""

    def lengthened(self, context: Tensors, count: int) -> Tensors:
        """Return the context of prompts that were cut by `count` tokens, in the shapes that it has for prompts of full length."""
        return context

    @abstractmethod
    def velocity(self, x: Tensor, time: Tensor, context: Tensors) -> Tensor:
        """Return the quantity that `Sampling.predicts` names, [B, T, W].

        x: [B, T, W]. time: [B, T], 1 = noise, 0 = clean, with a value for each action, or [B, 1] with one for a row.
        """

    def round_activations(self, on: bool) -> None:
        """Turn the quantisation of activations on or off, if there is any.
        With rounding, two kernels differ by a whole step if a value lies between two steps."""

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the weights; if some are integers, that of the others."""
        return self.computes_in or next(parameter.dtype for parameter in self.parameters() if parameter.is_floating_point())

    def cast(self, dtype: torch.dtype) -> None:
        """Cast weights one by one from the dtype in which they were saved.
        Buffers, which are positions and statistics, become float32."""
        for parameter in self.parameters():
            parameter.data = parameter.data.to(dtype)
        for buffer in self.buffers():
            buffer.data = buffer.data.float() if buffer.is_floating_point() else buffer.data

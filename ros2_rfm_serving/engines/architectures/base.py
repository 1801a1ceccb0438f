"""What an architecture is: a network of PyTorch that perceives once and is asked once per solver step (vla.cpp §3, Algorithm 1).

It knows tensors alone. Requests become tensors in `processor.py`, the loop calls it through `policy.py`; both are the same for all.
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
"""Actions; beyond any model"""


class Observation(NamedTuple):
    """Of B requests, as `Processing` says. C: cameras, those that are never there included; L: tokens, padded; S: state columns."""

    images: Tensor
    """[B, C, 3, height, width] float32, normalised"""
    seen: Tensor
    """[B, C] bool: which cameras are there"""
    tokens: Tensor
    """[B, L] int64"""
    words: Tensor
    """[B, L] bool: which tokens are no padding"""
    state: Tensor
    """[B, S] float32, normalised, padded with zeros"""


class ArchitectureConfig(BaseModel):
    """Sizes of a network. Its defaults are those of the published model."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    chunk_length: int = Field(ge=1, le=MAX_CHUNK)
    """T"""
    action_columns: int = Field(ge=1)
    """W: of x, padded"""
    state_columns: int = Field(ge=0)
    """S: of the state, padded"""
    vocabulary: int = Field(default=0, ge=0)
    """Tokens that it knows; others are left out of a prompt. 0: as many as its tokenizer"""


class Architecture(nn.Module, ABC):
    """Of a `config_class`, whose defaults are the full size.

    Both stages are row by row independent. `velocity` is differentiable in x. Weights may be of half precision: what comes from a
    position, a token or a time is computed in float32 all the same (vla.cpp §4.6).
    """

    EXACT: ClassVar[tuple[str, ...]] = ("state_in", "action_in", "action_time", "time", "action_out")
    """Layers, or what begins like this, that keep their precision where weights are integers."""
    RECORDS_PERCEPTION: ClassVar[bool] = True
    """Whether it may be a CUDA graph: nothing in it asks the device for a number, or brings one there."""
    READS_PADDING: ClassVar[bool] = False
    """Whether what stands behind a prompt says something, as it did in training: then every prompt is padded to its full length."""
    config_class: ClassVar[type[ArchitectureConfig]]
    config: ArchitectureConfig
    computes_in: torch.dtype | None = None
    """None: in the dtype of its weights"""

    @classmethod
    @abstractmethod
    def toy(cls) -> ArchitectureConfig:
        """A few hundred thousand parameters at most, with every kind of block."""

    @classmethod
    @abstractmethod
    def processing(cls, config: ArchitectureConfig) -> Processing:
        """As its authors publish it, with statistics that change nothing; for toys, and where a checkpoint does not say."""

    @classmethod
    @abstractmethod
    def sampling(cls) -> Sampling:
        """As its authors sample."""

    @abstractmethod
    def image_tokens(self, images: Tensor) -> Tensor:
        """[B, C, 3, height, width] -> [B, C, tokens, width]: what the language model reads, positions included."""

    @abstractmethod
    def perceive(self, observation: Observation) -> Tensors:
        """The context: tensors [B, ...] of the same shapes for all requests. All that no solver step changes belongs in it."""

    def lengthened(self, context: Tensors, count: int) -> Tensors:
        """A context of prompts that are `count` tokens shorter than others may be, in the shapes that it has of those."""
        return context

    @abstractmethod
    def velocity(self, x: Tensor, time: Tensor, context: Tensors) -> Tensor:
        """x: [B, T, W]; time: [B, T], 1 = noise, 0 = clean, each action's own, or [B, 1], a row's.

        [B, T, W], of what `Sampling.predicts` says.
        """

    def round_activations(self, on: bool) -> None:
        """Where activations are quantised. Rounded, two kernels are whole steps apart where a value lies between two steps."""

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights; of those that are numbers, where others are integers."""
        return self.computes_in or next(parameter.dtype for parameter in self.parameters() if parameter.is_floating_point())

    def cast(self, dtype: torch.dtype) -> None:
        """Weights, one after the other, from what they were saved in. Buffers, which are positions and statistics, are float32."""
        for parameter in self.parameters():
            parameter.data = parameter.data.to(dtype)
        for buffer in self.buffers():
            buffer.data = buffer.data.float() if buffer.is_floating_point() else buffer.data

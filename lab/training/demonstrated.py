"""Examples drawn from arrays of demonstrations (this module needs no simulator).

Training-time real-time chunking: most examples have an action prefix of random length d, given clean and with time 0, and without
loss, so that at run time a chunk continues the actions that are executed while it is computed. The prefix has the actions that were
really executed, with disturbances: the network learns the state that its observation leads to by the time it acts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lab.training.optimizing import TrainingConfig
from ros2_rfm_serving.engines.embedded import instructions
from ros2_rfm_serving.engines.embedded.context import ContextConfig, ContextEncoder


class Frames(Protocol):
    """Training data of a judge; shapes as in `lab.training.demonstrations.Demonstrations`."""

    @property
    def images(self) -> npt.NDArray[np.uint8]: ...
    @property
    def verdict(self) -> npt.NDArray[np.int32]: ...
    @property
    def frame_task(self) -> npt.NDArray[np.int32]: ...
    @property
    def frame_episode(self) -> npt.NDArray[np.int32]: ...


class Dataset(Frames, Protocol):
    """Arrays of demonstrations; `lab.training.demonstrations.Demonstrations` documents the shapes."""

    @property
    def state(self) -> npt.NDArray[np.float32]: ...
    @property
    def action(self) -> npt.NDArray[np.float32]: ...
    @property
    def executed(self) -> npt.NDArray[np.float32]: ...
    @property
    def disturbed(self) -> npt.NDArray[np.bool_]: ...
    @property
    def episode(self) -> npt.NDArray[np.int32]: ...
    @property
    def task(self) -> npt.NDArray[np.int32]: ...
    @property
    def frame(self) -> npt.NDArray[np.int32]: ...


class Words:
    """Instruction tokens per task, with one paraphrase drawn for every row."""

    def __init__(self, vocabulary: Sequence[str], max_words: int, texts: Sequence[Sequence[str]]) -> None:
        index = {word: i for i, word in enumerate(vocabulary)}
        self._tokens = [torch.from_numpy(instructions.encode(list(t), index, max_words)) for t in texts]

    def draw(self, tasks: npt.NDArray[np.int32], rng: np.random.Generator) -> Tensor:
        return torch.stack([self._tokens[t][rng.integers(len(self._tokens[t]))] for t in tasks])


@dataclass(frozen=True)
class Batch:
    rows: npt.NDArray[np.int64]
    """[B], rows of the demonstrations."""
    state: Tensor
    images: Tensor
    """Images of the examples that see theirs."""
    keep_images: Tensor
    """[B], whether an example sees its images."""
    words: Tensor
    action: Tensor
    """[B, T, A], robot space: executed actions in the prefix, the expert's answers after it."""
    valid: Tensor
    """[B, T], False beyond the episode's end, and where a disturbance after the prefix led to another answer."""
    delay: Tensor
    """[B], length of the clean prefix."""


class PolicyBatches:
    def __init__(
        self,
        config: ContextConfig,
        data: Dataset,
        texts: Sequence[Sequence[str]],
        training: TrainingConfig,
        rng: np.random.Generator,
    ) -> None:
        self.config, self.data, self.training, self.rng = config, data, training, rng
        self.words = Words(config.vocabulary, config.max_words, texts)
        self.rows = np.arange(len(data.state))
        ends = np.flatnonzero(np.diff(data.episode, append=-1))
        which = np.searchsorted(ends, self.rows)
        self.first, self.end = np.append(0, ends + 1)[which], ends[which]  # first and last row of each row's episode

    def draw(self) -> Batch:
        size, rng = self.training.batch_size, self.rng
        rows = rng.integers(len(self.rows), size=size)
        ahead = rows[:, None] + np.arange(self.config.chunk_length)
        end = self.end[rows][:, None]
        longest = max(1, self.config.max_inference_delay_steps)
        delay = np.where(rng.random(size) < self.training.prefix_share, rng.integers(1, longest + 1, size), 0)
        at = np.minimum(ahead, end)
        after_prefix = np.arange(self.config.chunk_length) >= delay[:, None]
        disturbed = np.cumsum(self.data.disturbed[at] & after_prefix, axis=1) - (self.data.disturbed[at] & after_prefix)
        keep = rng.random(size) >= self.training.image_dropout
        keep[0] |= not keep.any()  # layers do not accept an empty batch
        return Batch(
            rows=rows,
            state=torch.from_numpy(self.data.state[rows]),
            images=jittered(torch.from_numpy(self.data.images[self.data.frame[rows[keep]]]), rng),
            keep_images=torch.from_numpy(keep),
            words=self.words.draw(self.data.task[rows], rng),
            action=torch.from_numpy(np.where(after_prefix[..., None], self.data.action[at], self.data.executed[at])),
            valid=torch.from_numpy((ahead <= end) & (disturbed == 0)),
            delay=torch.from_numpy(delay),
        )


def set_statistics(network: ContextEncoder, data: Dataset, rows: npt.NDArray[np.int64]) -> None:
    with torch.no_grad():
        for name, values in (
            ("feature", network.features(torch.from_numpy(data.state[rows]))),
            ("action", torch.from_numpy(data.action[rows])),
        ):
            std = values.std(0)
            getattr(network, f"{name}_mean").copy_(values.mean(0))
            getattr(network, f"{name}_std").copy_(torch.where(std < 1e-4, torch.ones_like(std), std))


def jittered(images: Tensor, rng: np.random.Generator) -> Tensor:
    """Return images with random brightness and contrast per example."""
    shape = (len(images), 1, 1, 1, 1)
    gain = torch.from_numpy(rng.uniform(0.85, 1.15, shape).astype(np.float32))
    offset = torch.from_numpy(rng.uniform(-15, 15, shape).astype(np.float32))
    return images.float().mul_(gain).add_(offset).clamp_(0, 255)

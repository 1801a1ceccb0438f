"""Training of the embedded policy and judge on arrays of demonstrations (no simulator here).

Training-time real-time chunking: most examples get an action prefix of random length d, given clean and with time 0, and no
loss on it, so that at run time a chunk continues the actions that are executed while it is being computed. The prefix is what
was really executed, disturbances and all: the network learns where its observation will have led by the time it acts.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from ros2_rfm_serving.engines.base import Predicts
from ros2_rfm_serving.engines.embedded import instructions
from ros2_rfm_serving.engines.embedded.context import ContextConfig, ContextEncoder
from ros2_rfm_serving.engines.embedded.networks import FlowPolicyConfig, FlowPolicyNetwork, JudgeConfig, JudgeNetwork
from ros2_rfm_serving.engines.flow.solvers import cosine_levels

LogRow = dict[str, float]
Report = Callable[[LogRow], None]


class Frames(Protocol):
    """What a judge learns from; shapes as in `worlds.demonstrations.Demonstrations`."""

    @property
    def images(self) -> npt.NDArray[np.uint8]: ...
    @property
    def verdict(self) -> npt.NDArray[np.int32]: ...
    @property
    def frame_task(self) -> npt.NDArray[np.int32]: ...
    @property
    def frame_episode(self) -> npt.NDArray[np.int32]: ...


class Dataset(Frames, Protocol):
    """The arrays of demonstrations; `worlds.demonstrations.Demonstrations` documents the shapes."""

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


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    steps: int = 4000
    batch_size: int = 128
    learning_rate: float = 1e-3
    weight_decay: float = 1e-4
    warm_up_steps: int = 200
    ema_decay: float = 0.999
    prefix_share: float = 0.7
    """Share of examples with an action prefix."""
    image_dropout: float = 0.6
    """Share of examples whose images are hidden, so that the state stays in use."""
    compiled: bool = False
    """By `torch.compile`: a third faster, once a compiler has been found."""
    seed: int = 0
    log_every: int = 100


def train_policy(
    config: FlowPolicyConfig,
    data: Dataset,
    texts: Sequence[Sequence[str]],
    training: TrainingConfig,
    report: Report,
    start: FlowPolicyNetwork | None = None,
) -> FlowPolicyNetwork:
    """Flow matching: x_t = t * noise + (1 - t) * action, target velocity noise - action. Returns the averaged weights.

    texts: instructions per task index; one is drawn for every example. start: weights and statistics to go on from.
    """
    torch.manual_seed(training.seed)
    rng = np.random.default_rng(training.seed)
    network = FlowPolicyNetwork(config)
    batches = PolicyBatches(config, data, texts, training, rng)
    if start is not None:
        network.load_state_dict(start.state_dict())
    else:
        set_statistics(network, data, batches.rows)
    average = copy.deepcopy(network)
    if training.compiled:
        network.velocity = torch.compile(network.velocity)  # type: ignore[method-assign]
        for block in network.encoder:
            block.compile()
    optimizer, rate = make_optimizer(network, training)
    loss_sum = 0.0
    for step in range(1, training.steps + 1):
        loss = _policy_loss(network, batches.draw())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        rate.step()
        update_average(average, network, min(training.ema_decay, step / (step + 10)))
        loss_sum += float(loss.detach())
        if step % training.log_every == 0:
            report({"step": step, "loss": loss_sum / training.log_every, "learning_rate": float(rate.get_last_lr()[0])})
            loss_sum = 0.0
    return average.eval()


def train_judge(
    config: JudgeConfig,
    data: Frames,
    texts: Sequence[Sequence[str]],
    training: TrainingConfig,
    report: Report,
    eyes: JudgeNetwork | None = None,
) -> JudgeNetwork:
    """Cross-entropy on frames; every tenth episode is held out and its accuracy reported.

    eyes: a judge of the same cameras, whose convolutions this one sets out from.
    """
    torch.manual_seed(training.seed)
    rng = np.random.default_rng(training.seed)
    network = JudgeNetwork(config)
    if eyes is not None:
        network.convolutions.load_state_dict(eyes.convolutions.state_dict())
    held_out = data.frame_episode % 10 == 9
    train_rows, test_rows = np.flatnonzero(~held_out), np.flatnonzero(held_out)
    words = _Words(config.vocabulary, config.max_words, texts)
    counts = np.bincount(data.verdict[train_rows], minlength=len(config.verdicts))
    weight = torch.tensor(np.sqrt(counts.max() / np.maximum(counts, 1)), dtype=torch.float32)
    average = copy.deepcopy(network)
    optimizer, rate = make_optimizer(network, training)
    loss_sum = 0.0
    for step in range(1, training.steps + 1):
        rows = rng.choice(train_rows, training.batch_size)
        images = _jitter(torch.from_numpy(data.images[rows]), rng)
        logits = network(images, words.draw(data.frame_task[rows], rng))
        target = torch.from_numpy(data.verdict[rows].astype(np.int64))
        loss = F.cross_entropy(logits, target, weight=weight, label_smoothing=0.02)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        rate.step()
        update_average(average, network, min(training.ema_decay, step / (step + 10)))
        loss_sum += float(loss.detach())
        if step % training.log_every == 0:
            accuracy = judge_accuracy(average.eval(), data, test_rows, words, rng)
            report({"step": float(step), "loss": loss_sum / training.log_every, **accuracy})
            loss_sum = 0.0
    return average.eval()


@torch.no_grad()
def judge_accuracy(
    network: JudgeNetwork, data: Frames, rows: npt.NDArray[np.int64], words: _Words, rng: np.random.Generator
) -> LogRow:
    """Recall per verdict on the given frames, and the share of ONGOING frames taken for DONE."""
    predicted = np.concatenate(
        [
            network(torch.from_numpy(data.images[part]), words.draw(data.frame_task[part], rng)).argmax(1).numpy()
            for part in np.array_split(rows, max(1, len(rows) // 256))
        ]
    )
    truth = data.verdict[rows]
    recall = {
        f"recall_{name}": float((predicted[truth == i] == i).mean())
        for i, name in enumerate(network.config.verdicts)
        if (truth == i).any()
    }
    return {**recall, "false_done": float((predicted[truth == 0] == 1).mean())}


class _Words:
    """Instruction tokens per task, one paraphrase drawn for every row."""

    def __init__(self, vocabulary: Sequence[str], max_words: int, texts: Sequence[Sequence[str]]) -> None:
        index = {word: i for i, word in enumerate(vocabulary)}
        self._tokens = [torch.from_numpy(instructions.encode(list(t), index, max_words)) for t in texts]

    def draw(self, tasks: npt.NDArray[np.int32], rng: np.random.Generator) -> Tensor:
        return torch.stack([self._tokens[t][rng.integers(len(self._tokens[t]))] for t in tasks])


@dataclass(frozen=True)
class Batch:
    rows: npt.NDArray[np.int64]
    """[B], of the demonstrations"""
    state: Tensor
    images: Tensor
    """Of the examples that see theirs"""
    keep_images: Tensor
    """[B]"""
    words: Tensor
    action: Tensor
    """[B, T, A], robot space: what was executed in the prefix, the expert's answers after it"""
    valid: Tensor
    """[B, T], False beyond the episode's end, and where a disturbance after the prefix led to another answer"""
    delay: Tensor
    """[B], length of the clean prefix"""


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
        self.words = _Words(config.vocabulary, config.max_words, texts)
        self.rows = np.arange(len(data.state))
        ends = np.flatnonzero(np.diff(data.episode, append=-1))
        which = np.searchsorted(ends, self.rows)
        self.first, self.end = np.append(0, ends + 1)[which], ends[which]  # rows of each row's episode

    def draw(self) -> Batch:
        size, rng = self.training.batch_size, self.rng
        rows = rng.integers(len(self.rows), size=size)
        ahead = rows[:, None] + np.arange(self.config.chunk_length)
        end = self.end[rows][:, None]
        longest = self.config.max_inference_delay_steps
        delay = np.where(rng.random(size) < self.training.prefix_share, rng.integers(1, longest + 1, size), 0)
        at = np.minimum(ahead, end)
        after_prefix = np.arange(self.config.chunk_length) >= delay[:, None]
        disturbed = np.cumsum(self.data.disturbed[at] & after_prefix, axis=1) - (self.data.disturbed[at] & after_prefix)
        keep = rng.random(size) >= self.training.image_dropout
        keep[0] |= not keep.any()  # layers do not take none at all
        return Batch(
            rows=rows,
            state=torch.from_numpy(self.data.state[rows]),
            images=_jitter(torch.from_numpy(self.data.images[self.data.frame[rows[keep]]]), rng),
            keep_images=torch.from_numpy(keep),
            words=self.words.draw(self.data.task[rows], rng),
            action=torch.from_numpy(np.where(after_prefix[..., None], self.data.action[at], self.data.executed[at])),
            valid=torch.from_numpy((ahead <= end) & (disturbed == 0)),
            delay=torch.from_numpy(delay),
        )


def _policy_loss(network: FlowPolicyNetwork, batch: Batch) -> Tensor:
    clean = (batch.action - network.action_mean) / network.action_std
    noise = torch.randn_like(clean)
    prefix = torch.arange(clean.shape[1]) < batch.delay[:, None]
    if Predicts(network.config.predicts) is Predicts.CHUNK:
        prefix = torch.zeros_like(prefix)
    time = _times(network.config, len(clean)).expand(clean.shape[:2]).masked_fill(prefix, 0.0)
    x, target = _noised(network.config, clean, noise, time)
    context = network.encode(batch.state, batch.images, batch.words, batch.keep_images)
    error = (network.velocity(x, time, context) - target).square().mean(-1)
    counted = batch.valid & ~prefix
    return (error * counted).sum() / counted.sum()


def _times(config: FlowPolicyConfig, size: int) -> Tensor:
    """[size, 1] in (0, 1]; a diffusion's are those of its noise levels."""
    if Predicts(config.predicts) is Predicts.CHUNK:
        return torch.ones(size, 1)
    if Predicts(config.predicts) is Predicts.VELOCITY:
        return torch.rand(size, 1)
    return torch.randint(1, config.train_steps + 1, (size, 1)) / config.train_steps


def _noised(config: FlowPolicyConfig, clean: Tensor, noise: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
    """Actions, [B, T, A], at `time`, [B, T], and what the network is to say about them."""
    predicts = Predicts(config.predicts)
    if predicts is Predicts.CHUNK:
        return torch.zeros_like(clean), clean
    if predicts is Predicts.VELOCITY:
        return time[..., None] * noise + (1 - time[..., None]) * clean, noise - clean
    levels = torch.tensor([1.0, *cosine_levels(config.train_steps)])
    kept = levels[(time * config.train_steps).round().long()][..., None]
    return kept.sqrt() * clean + (1 - kept).sqrt() * noise, noise if predicts is Predicts.NOISE else clean


def set_statistics(network: ContextEncoder, data: Dataset, rows: npt.NDArray[np.int64]) -> None:
    with torch.no_grad():
        for name, values in (
            ("feature", network.features(torch.from_numpy(data.state[rows]))),
            ("action", torch.from_numpy(data.action[rows])),
        ):
            std = values.std(0)
            getattr(network, f"{name}_mean").copy_(values.mean(0))
            getattr(network, f"{name}_std").copy_(torch.where(std < 1e-4, torch.ones_like(std), std))


def _jitter(images: Tensor, rng: np.random.Generator) -> Tensor:
    """Brightness and contrast per example."""
    shape = (len(images), 1, 1, 1, 1)
    gain = torch.from_numpy(rng.uniform(0.85, 1.15, shape).astype(np.float32))
    offset = torch.from_numpy(rng.uniform(-15, 15, shape).astype(np.float32))
    return images.float().mul_(gain).add_(offset).clamp_(0, 255)


def make_optimizer(
    network: torch.nn.Module, training: TrainingConfig
) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    optimizer = torch.optim.AdamW(network.parameters(), lr=training.learning_rate, weight_decay=training.weight_decay)
    warm_up, total = training.warm_up_steps, training.steps

    def scale(step: int) -> float:
        return min(1.0, (step + 1) / warm_up) * 0.5 * (1 + float(np.cos(np.pi * min(1.0, step / total))))

    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, scale)


@torch.no_grad()
def update_average(average: torch.nn.Module, network: torch.nn.Module, decay: float) -> None:
    for mean, value in zip(average.parameters(), network.parameters(), strict=True):
        mean.lerp_(value, 1 - decay)

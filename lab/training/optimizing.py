"""Training loop of every embedded network: AdamW with a cosine schedule, and the running mean of the weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

LogRow = dict[str, float]
Report = Callable[[LogRow], None]
Network = TypeVar("Network", bound=torch.nn.Module)


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
    frozen_eyes: bool = False
    """Whether image features stay as they are at the start: half the work, which is mostly convolutions."""
    max_gradient: float = 1.0
    """Limit of the norm of all gradients together; inf: no limit."""
    compiled: bool = False
    """Use of `torch.compile`: a third faster, where a compiler is installed."""
    seed: int = 0
    log_every: int = 100


class Keeper(Protocol):
    """Checkpoints of a training that can be interrupted."""

    @property
    def every(self) -> int:
        """Return the steps between two checkpoints."""

    @property
    def step(self) -> int:
        """Return the step to resume at; 0: a new training."""

    def restore(self, parts: Mapping[str, Any]) -> None:
        """Restore each part, as `load_state_dict` does."""

    def keep(self, step: int, parts: Mapping[str, Any]) -> None: ...


def optimized(
    network: Network,
    average: Network,
    training: TrainingConfig,
    figures: Callable[[], Mapping[str, Tensor]],
    report: Report,
    judged: Callable[[], LogRow] = dict,
    keeper: Keeper | None = None,
) -> Network:
    """Return `average`, a copy of the network, as the running mean of its weights.

    figures: of a new batch, including "loss"; their means are reported. judged: additional values of a report, of `average`.
    """
    optimizer, rate = _optimizer(network, training)
    parts = {"network": network, "average": average, "optimizer": optimizer, "rate": rate}
    if keeper and keeper.step:
        keeper.restore(parts)
    sums: dict[str, float] = {}
    for step in range(1 + (keeper.step if keeper else 0), training.steps + 1):
        drawn = figures()
        optimizer.zero_grad(set_to_none=True)
        drawn["loss"].backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(network.parameters(), training.max_gradient)
        optimizer.step()
        rate.step()
        _follow(average, network, min(training.ema_decay, step / (step + 10)))
        sums = {name: sums.get(name, 0.0) + value.item() for name, value in drawn.items()}
        if step % training.log_every == 0:
            means = {name: total / training.log_every for name, total in sums.items()}
            average.eval()
            report({"step": step, **means, **judged(), "learning_rate": float(rate.get_last_lr()[0])})
            sums = {}
        if keeper and (step % keeper.every == 0 or step == training.steps):
            keeper.keep(step, parts)
    return average.eval()


def _optimizer(
    network: torch.nn.Module, training: TrainingConfig
) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    optimizer = torch.optim.AdamW(network.parameters(), lr=training.learning_rate, weight_decay=training.weight_decay)
    warm_up, total = training.warm_up_steps, training.steps

    def scale(step: int) -> float:
        return min(1.0, (step + 1) / warm_up) * 0.5 * (1 + float(np.cos(np.pi * min(1.0, step / total))))

    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, scale)


@torch.no_grad()
def _follow(average: torch.nn.Module, network: torch.nn.Module, decay: float) -> None:
    for mean, value in zip(average.parameters(), network.parameters(), strict=True):
        mean.lerp_(value, 1 - decay)

"""What one step of our sampling loop changes, by what a model predicts. Time falls from 1 (noise) to 0 (actions) in equal steps.

B: rows of a batch; T: chunk length; A: number of actions. Rows may be at different steps, and of different numbers of steps
(`Numbers`): numbers of all rows are numbers, those of each row are columns beside them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache
from itertools import accumulate
from operator import mul
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ros2_rfm_serving.engines.base import Predicts, SamplingConfig
from ros2_rfm_serving.engines.flow.guidance import Target, guided_velocity
from ros2_rfm_serving.errors import ModelError
from ros2_rfm_serving.types import InferenceRequest

Number = float | npt.NDArray[np.float64]
"""Of all rows, or [B] of each."""
Numbers = tuple[Number, ...]
"""What a step calculates with; the first is the time at which it asks the model."""
MOST = 2
"""Times as many solver steps as the model has by itself may be asked for."""


class Solver(Protocol):
    """Steps 0 to `num_steps` - 1, each with one call of the model."""

    @property
    def num_steps(self) -> int: ...

    @property
    def num_updates(self) -> int:
        """How many of its steps refine what is there already: all, or none."""

    def numbers(self, step: int) -> tuple[float, ...]:
        """Of `step`."""

    def update(self, predict: Callable[[Tensor], Tensor], x: Tensor, numbers: Numbers, target: Target | None) -> Tensor:
        """What a step changes, [B, T, A]. predict(x): the model's answer, [B, T, A]; target: what rows are guided to."""


@dataclass(frozen=True, kw_only=True)
class Euler:
    """Flow matching; the only one that can be guided."""

    num_steps: int

    @property
    def num_updates(self) -> int:
        return self.num_steps

    def numbers(self, step: int) -> tuple[float, ...]:
        return 1.0 - step / self.num_steps, step / self.num_steps, -float(self.num_steps)

    def update(self, predict: Callable[[Tensor], Tensor], x: Tensor, numbers: Numbers, target: Target | None) -> Tensor:
        tau = numbers[1] if isinstance(numbers[1], float) else numbers[1][:, None, None]
        v = predict(x) if target is None else guided_velocity(predict, x, tau, target)
        return v / _column(numbers[2], x)


@dataclass(frozen=True, kw_only=True)
class Ddim:
    """Diffusion without fresh noise (Song et al., "Denoising Diffusion Implicit Models"), trailing steps, cosine noise levels."""

    predicts: Predicts
    num_steps: int
    train_steps: int
    clean_limit: float | None

    @property
    def num_updates(self) -> int:
        return self.num_steps

    def numbers(self, step: int) -> tuple[float, ...]:
        return self._levels[step]

    def update(self, predict: Callable[[Tensor], Tensor], x: Tensor, numbers: Numbers, target: Target | None) -> Tensor:
        signal, spread, signal_after, spread_after = (_column(number, x) for number in numbers[1:])
        said = predict(x)
        if self.predicts is Predicts.NOISE:
            noise, clean = said, (x - spread * said) / signal
        else:
            noise, clean = (x - signal * said) / spread, said
        if self.clean_limit is not None:
            clean = clean.clamp(-self.clean_limit, self.clean_limit)
        return signal_after * clean + spread_after * noise - x

    @cached_property
    def _levels(self) -> tuple[tuple[float, ...], ...]:
        """Of each step: its time; how much signal and how much noise there is in x, before and after."""
        indices = [round(self.train_steps * left / self.num_steps) - 1 for left in range(self.num_steps, 0, -1)]  # halves are exact
        kept = [*(cosine_levels(self.train_steps)[index] for index in indices), 1.0]
        signal, spread = [math.sqrt(level) for level in kept], [math.sqrt(1.0 - level) for level in kept]
        times = [(index + 1) / self.train_steps for index in indices]
        return tuple(zip(times, signal[:-1], spread[:-1], signal[1:], spread[1:], strict=True))


@dataclass(frozen=True, kw_only=True)
class Direct:
    """Regression: one call gives the chunk."""

    num_steps: int = 1
    num_updates: int = 0

    def numbers(self, step: int) -> tuple[float, ...]:
        return (1.0,)

    def update(self, predict: Callable[[Tensor], Tensor], x: Tensor, numbers: Numbers, target: Target | None) -> Tensor:
        return predict(x) - x


def numbers_of(places: Sequence[tuple[Solver, int]]) -> Numbers:
    """Of rows, each at its own step of its own solver."""
    each = [solver.numbers(step) for solver, step in places]
    return each[0] if len(set(each)) == 1 else tuple(np.array(column) for column in zip(*each, strict=True))


def _column(number: Number, like: Tensor) -> float | Tensor:
    """[B, 1, 1], one for each row, unless it is of all."""
    return number if isinstance(number, float) else torch.from_numpy(number[:, None, None]).to(like)


@cache
def cosine_levels(train_steps: int) -> tuple[float, ...]:
    """Share of the actions' variance that each noise level keeps (alpha bar; Nichol and Dhariwal, with betas of at most 0.999)."""

    def level(time: float) -> float:
        return math.cos((time + 0.008) / 1.008 * math.pi / 2) ** 2

    betas = [min(1.0 - level((i + 1) / train_steps) / level(i / train_steps), 0.999) for i in range(train_steps)]
    return tuple(accumulate((1.0 - beta for beta in betas), mul))


def most_steps(config: SamplingConfig) -> int:
    """That a request may ask for: twice as many as others have, whom it holds up. 0: it may not choose."""
    if config.predicts is Predicts.CHUNK:
        return 0
    most = MOST * config.num_steps
    return most if config.predicts is Predicts.VELOCITY else min(most, config.train_steps)


def steps_for(request: InferenceRequest, config: SamplingConfig) -> int:
    """Solver steps that it asks for. Raises: `ModelError`."""
    asked, most = request.num_steps, most_steps(config)
    if asked and not 1 <= asked <= most:
        can = f"1 to {most}, or 0 for its own {config.num_steps}" if most else "its own number alone"
        raise ModelError(f"num_steps is {asked}; this model takes {can}")
    return asked or config.num_steps


@lru_cache(maxsize=256)
def solver_of(config: SamplingConfig, num_steps: int = 0) -> Solver:
    """num_steps: instead of the configuration's. Raises: `ModelError`."""
    config = replace(config, num_steps=num_steps or config.num_steps)
    if config.predicts is Predicts.CHUNK:
        return Direct()
    if config.num_steps < 1:
        raise ModelError(f"num_steps is {config.num_steps}; the solver needs at least 1")
    if config.predicts is Predicts.VELOCITY:
        return Euler(num_steps=config.num_steps)
    if config.num_steps > config.train_steps:
        raise ModelError(f"num_steps is {config.num_steps}; a diffusion of {config.train_steps} noise levels takes at most as many")
    return Ddim(
        predicts=config.predicts,
        num_steps=config.num_steps,
        train_steps=config.train_steps,
        clean_limit=config.clean_limit,
    )

"""Solvers: the change by one step of our sampling loop, for each quantity that a model may predict.

Time falls from 1 (noise) to 0 (actions) in equal steps. B: rows of a batch; T: chunk length; A: number of actions. Rows may be at
different steps and have different numbers of steps (`Numbers`): a value that all rows share is a scalar, any other an array [B].
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
from ros2_rfm_serving.engines.flow.guidance import GuidanceTarget, guided_velocity
from ros2_rfm_serving.errors import ModelError
from ros2_rfm_serving.types import InferenceRequest

Number = float | npt.NDArray[np.float64]
"""Scalar that all rows share, or [B] with one value per row."""
Numbers = tuple[Number, ...]
"""Values that a step calculates with; the first is the time at which it evaluates the model."""
MOST = 2
"""Factor by which a request may at most raise the model's own number of denoising steps."""


class Solver(Protocol):
    """Solver with steps 0 to `num_steps` - 1, each with one model evaluation."""

    @property
    def num_steps(self) -> int: ...

    @property
    def num_updates(self) -> int:
        """Number of steps that refine an existing estimate: all of them, or 0."""

    def numbers(self, step: int) -> tuple[float, ...]:
        """Return the values that `step` calculates with."""

    def update(self, predict: Callable[[Tensor], Tensor], x: Tensor, numbers: Numbers, target: GuidanceTarget | None) -> Tensor:
        """Return the change of x by one step, [B, T, A].
        predict(x): the model's output, [B, T, A]. target: guidance target of the rows."""


@dataclass(frozen=True, kw_only=True)
class Euler:
    """Euler solver for flow matching, the only solver that supports guidance."""

    num_steps: int

    @property
    def num_updates(self) -> int:
        return self.num_steps

    def numbers(self, step: int) -> tuple[float, ...]:
        return 1.0 - step / self.num_steps, step / self.num_steps, -float(self.num_steps)

    def update(self, predict: Callable[[Tensor], Tensor], x: Tensor, numbers: Numbers, target: GuidanceTarget | None) -> Tensor:
        tau = numbers[1] if isinstance(numbers[1], float) else numbers[1][:, None, None]
        v = predict(x) if target is None else guided_velocity(predict, x, tau, target)
        return v / _column(numbers[2], x)


@dataclass(frozen=True, kw_only=True)
class Ddim:
    """DDIM solver: diffusion without fresh noise, with trailing steps and cosine noise levels.
    Source: Song et al., "Denoising Diffusion Implicit Models"."""

    predicts: Predicts
    num_steps: int
    train_steps: int
    clean_limit: float | None

    @property
    def num_updates(self) -> int:
        return self.num_steps

    def numbers(self, step: int) -> tuple[float, ...]:
        return self._levels[step]

    def update(self, predict: Callable[[Tensor], Tensor], x: Tensor, numbers: Numbers, target: GuidanceTarget | None) -> Tensor:
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
        """Time of each step, with the amounts of signal and noise in x before it and after it."""
        indices = [round(self.train_steps * left / self.num_steps) - 1 for left in range(self.num_steps, 0, -1)]  # halves are exact
        kept = [*(cosine_levels(self.train_steps)[index] for index in indices), 1.0]
        signal, spread = [math.sqrt(level) for level in kept], [math.sqrt(1.0 - level) for level in kept]
        times = [(index + 1) / self.train_steps for index in indices]
        return tuple(zip(times, signal[:-1], spread[:-1], signal[1:], spread[1:], strict=True))


@dataclass(frozen=True, kw_only=True)
class Direct:
    """Regression, where one model evaluation gives the chunk."""

    num_steps: int = 1
    num_updates: int = 0

    def numbers(self, step: int) -> tuple[float, ...]:
        return (1.0,)

    def update(self, predict: Callable[[Tensor], Tensor], x: Tensor, numbers: Numbers, target: GuidanceTarget | None) -> Tensor:
        return predict(x) - x


def numbers_of(places: Sequence[tuple[Solver, int]]) -> Numbers:
    """Return the values of rows, each at its own step of its own solver."""
    each = [solver.numbers(step) for solver, step in places]
    return each[0] if len(set(each)) == 1 else tuple(np.array(column) for column in zip(*each, strict=True))


def _column(number: Number, like: Tensor) -> float | Tensor:
    """Return a value per row as [B, 1, 1], or the scalar that all rows share."""
    return number if isinstance(number, float) else torch.from_numpy(number[:, None, None]).to(like)


@cache
def cosine_levels(train_steps: int) -> tuple[float, ...]:
    """Return the share of the actions' variance that each noise level keeps, in [0, 1].
    This is alpha bar of Nichol and Dhariwal, with betas of at most 0.999."""

    def level(time: float) -> float:
        return math.cos((time + 0.008) / 1.008 * math.pi / 2) ** 2

    betas = [min(1.0 - level((i + 1) / train_steps) / level(i / train_steps), 0.999) for i in range(train_steps)]
    return tuple(accumulate((1.0 - beta for beta in betas), mul))


def most_steps(config: SamplingConfig) -> int:
    """Return the largest number of denoising steps that a request may ask for, or 0 if it may not choose.
    The limit is twice the model's own number, as a request with more steps delays the others of its batch."""
    if config.predicts is Predicts.CHUNK:
        return 0
    most = MOST * config.num_steps
    return most if config.predicts is Predicts.VELOCITY else min(most, config.train_steps)


def steps_for(request: InferenceRequest, config: SamplingConfig) -> int:
    """Return the number of denoising steps of a request. Raises: `ModelError` if the model cannot take as many."""
    asked, most = request.num_steps, most_steps(config)
    if asked and not 1 <= asked <= most:
        can = f"1 to {most}, or 0 for its own {config.num_steps}" if most else "its own number alone"
        raise ModelError(f"num_steps is {asked}; this model takes {can}")
    return asked or config.num_steps


@lru_cache(maxsize=256)
def solver_of(config: SamplingConfig, num_steps: int = 0) -> Solver:
    """Return the solver of a configuration. num_steps: replaces the configuration's number unless it is 0.
    Raises: `ModelError` for a number of steps that is out of range."""
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

"""Training of the embedded planner on pairs of a prompt and its plan."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from lab.training.optimizing import Report, TrainingConfig, optimized
from ros2_rfm_serving.engines.embedded import instructions
from ros2_rfm_serving.engines.embedded.planner_network import END, PlannerConfig, PlannerNetwork


class Lesson(NamedTuple):
    prompt: str
    plan: tuple[str, ...]
    """Subgoals of the configuration."""


def train_planner(
    config: PlannerConfig, lessons: Sequence[Lesson], held_out: Sequence[Lesson], training: TrainingConfig, report: Report
) -> PlannerNetwork:
    """Train with cross-entropy on every subgoal of a plan and its end; report the share of fully right held-out plans."""
    torch.manual_seed(training.seed)
    rng = np.random.default_rng(training.seed)
    network = PlannerNetwork(config)
    words, plans = _tensors(config, lessons)
    average = copy.deepcopy(network)

    def figures() -> dict[str, Tensor]:
        rows = torch.from_numpy(rng.choice(len(lessons), training.batch_size))
        return {"loss": F.cross_entropy(network(words[rows]).flatten(0, 1), plans[rows].flatten())}

    return optimized(network, average, training, figures, report, lambda: {"plans_right": plan_accuracy(average, held_out)})


@torch.no_grad()
def plan_accuracy(network: PlannerNetwork, lessons: Sequence[Lesson]) -> float:
    words, plans = _tensors(network.config, lessons)
    return float((network.plan(words)[0] == plans).all(dim=1).float().mean())


def _tensors(config: PlannerConfig, lessons: Sequence[Lesson]) -> tuple[Tensor, Tensor]:
    """Return words [N, max_words] and choices [N, max_subgoals]."""
    index = {word: i for i, word in enumerate(config.vocabulary)}
    choices = {subgoal: i + 1 for i, subgoal in enumerate(config.subgoals)}
    plans = np.full((len(lessons), config.max_subgoals), END, np.int64)
    for row, lesson in zip(plans, lessons, strict=True):
        row[: len(lesson.plan)] = [choices[subgoal] for subgoal in lesson.plan]
    words = instructions.encode([lesson.prompt for lesson in lessons], index, config.max_words)
    return torch.from_numpy(words), torch.from_numpy(plans)

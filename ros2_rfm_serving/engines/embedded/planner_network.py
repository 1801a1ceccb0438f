"""Embedded planner: from the words of a task and its history to the remaining subgoals. PyTorch; no I/O.

It answers in whole subgoals, of those that System 1 was trained on, and has no other words.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ros2_rfm_serving.engines.embedded.layers import EncoderBlock

END = 0
"""Choice that ends a plan; subgoal i is choice i + 1."""


@dataclass(frozen=True, kw_only=True)
class PlannerConfig:
    cameras: tuple[str, ...]
    """Cameras of the robots, which a session agrees on. The planner reads words alone."""
    vocabulary: tuple[str, ...]
    subgoals: tuple[str, ...]
    """Subgoals that it may answer with."""
    max_subgoals: int = 3
    max_words: int = 96
    width: int = 64
    heads: int = 4
    blocks: int = 2


class PlannerNetwork(nn.Module):
    """Transformer over the prompt's words and one empty place per subgoal; each place names its own subgoal."""

    def __init__(self, config: PlannerConfig) -> None:
        super().__init__()
        self.config = config
        self.word = nn.Embedding(len(config.vocabulary), config.width)
        self.position = nn.Parameter(torch.randn(config.max_subgoals + config.max_words, config.width) * 0.1)
        self.blocks = nn.ModuleList(EncoderBlock(config.width, config.heads) for _ in range(config.blocks))
        self.choice = nn.Sequential(nn.LayerNorm(config.width), nn.Linear(config.width, len(config.subgoals) + 1))

    def forward(self, words: Tensor) -> Tensor:
        """Return logits, [B, max_subgoals, choices]. words: [B, L]."""
        logits: Tensor = self.choice(self.read(words))
        return logits

    def read(self, words: Tensor) -> Tensor:
        """Return the features of each place, [B, max_subgoals, W]. words: [B, L]."""
        places = self.config.max_subgoals
        tokens = torch.nn.functional.pad(self.word(words), (0, 0, places, 0)) + self.position
        for block in self.blocks:
            tokens = block(tokens)
        return tokens[:, :places]

    def plan(self, words: Tensor) -> tuple[Tensor, Tensor]:
        """Return the most likely choices, [B, max_subgoals], with `END` after the last, and the probability of all of them, [B].
        words: [B, L]."""
        logits = self(words).float()
        logits[:, 0, END] = -torch.inf  # a plan has at least one subgoal
        probability, plan = logits.softmax(dim=-1).max(dim=-1)
        over = (plan == END).cumsum(dim=1) > 0
        return plan.masked_fill(over, END), probability.prod(dim=1)

    def cast(self, dtype: torch.dtype) -> None:
        """Cast the weights alone."""
        for parameter in self.parameters():
            parameter.data = parameter.data.to(dtype)

"""The embedded planner: from the words of a task and of what became of it so far to the subgoals that are left. PyTorch; no I/O.

It answers in whole subgoals, of those that System 1 was trained on: there is no word that it could say beyond them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ros2_rfm_serving.engines.embedded.layers import EncoderBlock

END = 0
"""Of a plan, among the choices; subgoal i is choice i + 1."""


@dataclass(frozen=True, kw_only=True)
class PlannerConfig:
    cameras: tuple[str, ...]
    """That the robots have: a session agrees on them. The planner reads words alone."""
    vocabulary: tuple[str, ...]
    subgoals: tuple[str, ...]
    """That it may answer with."""
    max_subgoals: int = 3
    max_words: int = 96
    width: int = 64
    heads: int = 4
    blocks: int = 2


class PlannerNetwork(nn.Module):
    """A transformer over the prompt's words and one empty place per subgoal; each place names its own."""

    def __init__(self, config: PlannerConfig) -> None:
        super().__init__()
        self.config = config
        self.word = nn.Embedding(len(config.vocabulary), config.width)
        self.position = nn.Parameter(torch.randn(config.max_subgoals + config.max_words, config.width) * 0.1)
        self.blocks = nn.ModuleList(EncoderBlock(config.width, config.heads) for _ in range(config.blocks))
        self.choice = nn.Sequential(nn.LayerNorm(config.width), nn.Linear(config.width, len(config.subgoals) + 1))

    def forward(self, words: Tensor) -> Tensor:
        """words [B, L] -> logits [B, max_subgoals, choices]"""
        logits: Tensor = self.choice(self.read(words))
        return logits

    def read(self, words: Tensor) -> Tensor:
        """[B, L] -> what each place has taken from them, [B, max_subgoals, W]"""
        places = self.config.max_subgoals
        tokens = torch.nn.functional.pad(self.word(words), (0, 0, places, 0)) + self.position
        for block in self.blocks:
            tokens = block(tokens)
        return tokens[:, :places]

    def plan(self, words: Tensor) -> tuple[Tensor, Tensor]:
        """words [B, L] -> the likeliest choices, [B, max_subgoals], `END` after the last; the probability of all of them, [B]."""
        logits = self(words).float()
        logits[:, 0, END] = -torch.inf  # a plan has a subgoal
        probability, plan = logits.softmax(dim=-1).max(dim=-1)
        over = (plan == END).cumsum(dim=1) > 0
        return plan.masked_fill(over, END), probability.prod(dim=1)

    def cast(self, dtype: torch.dtype) -> None:
        """Weights alone."""
        for parameter in self.parameters():
            parameter.data = parameter.data.to(dtype)

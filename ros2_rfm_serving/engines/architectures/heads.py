"""Parts that several action experts share."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ros2_rfm_serving.engines.architectures.layers import time_embedding


class ActionTime(nn.Module):
    """Encoder of each noisy action with its own time into one token."""

    def __init__(self, columns: int, width: int) -> None:
        super().__init__()
        self.action_in = nn.Linear(columns, width)
        self.time_in, self.time_out = nn.Linear(2 * width, width), nn.Linear(width, width)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """Return tokens, [B, T, width]. x: [B, T, W]; time: [B, T], or [B, 1] if a row has one time."""
        actions = self.action_in(x.to(self.action_in.weight.dtype))
        times = time_embedding(time, actions.shape[-1]).to(actions.dtype).expand_as(actions)
        out: Tensor = self.time_out(F.silu(self.time_in(torch.cat([actions, times], dim=-1))))
        return out


class TimeCondition(nn.Module):
    """Condition of adaptive norms, from each action's time."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.time_in, self.time_out = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, time: Tensor) -> Tensor:
        """Return the condition, [B, T, width] or [B, 1, width], of times, [B, T] or [B, 1]."""
        times = time_embedding(time, self.time_in.in_features).to(self.time_in.weight.dtype)
        return F.silu(self.time_out(F.silu(self.time_in(times))))

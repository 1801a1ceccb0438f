"""Generated tokens of each row, and the replies made of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ros2_rfm_serving.engines.base import TokenModel, TokenSampling
from ros2_rfm_serving.engines.tokens.sampling import confidence_of, noise_of, num_tokens
from ros2_rfm_serving.errors import ModelError
from ros2_rfm_serving.types import Array, EngineReply, InferenceRequest

RULED_OUT = -1e9
"""Logit of a token that differs from a given one; finite, as a value that is not finite is an error."""


class GeneratedTokens:
    """Tokens and logits of `num_rows` rows. A row belongs to a request, or to a session whose requests share it."""

    def __init__(self, model: TokenModel, sampling: TokenSampling, num_rows: int) -> None:
        self._model, self._sampling = model, sampling
        self.length = num_tokens(model)
        self.tokens = torch.zeros(num_rows, self.length, dtype=torch.int64, device=sampling.device)
        self.logits = torch.zeros(num_rows, self.length, model.num_bins, device=sampling.device)
        noise = (self.length, model.num_bins) if sampling.temperature else (1, 1)
        self.noise = torch.zeros(num_rows, *noise, device=sampling.device)

    @property
    def memory(self) -> tuple[Tensor, ...]:
        return self.tokens, self.logits, self.noise

    def begin(self, row: int, request: InferenceRequest) -> None:
        self.noise[row] = noise_of(request, self.length, self._model.num_bins, self._sampling)

    def set_prefix(self, row: int, prefix: Array) -> int:
        """Set the tokens of the prefix, which are given and so certain, and return their number."""
        held = torch.from_numpy(self._model.tokens(prefix).reshape(-1)).to(self.tokens.device)
        self.tokens[row, : len(held)] = held
        self.logits[row, : len(held)] = RULED_OUT
        self.logits[row, : len(held)].scatter_(1, held[:, None], 0.0)
        return len(held)

    def before(self, rows: slice | Sequence[int], positions: range) -> Tensor:
        """Return the tokens before these positions, [B, N]; 0 before the first."""
        if positions.start:
            return self.tokens[rows, positions.start - 1 : positions.stop - 1]
        return F.pad(self.tokens[rows, : positions.stop - 1], (1, 0))

    def before_each(self, rows: slice, positions: Sequence[int]) -> Tensor:
        """Return the token before the position of each of these rows, [B, 1]."""
        if len(set(positions)) == 1:
            return self.before(rows, range(positions[0], positions[0] + 1))
        at = torch.tensor(positions, device=self.tokens.device)[:, None]
        return self.tokens[rows].gather(1, (at - 1).clamp(min=0)) * (at > 0)

    def choose(self, rows: Sequence[int], positions: Sequence[int], logits: Tensor) -> None:
        """Choose one token for each row, at its position, from logits, [B, V]."""
        at: Any = (rows[0], positions[0]) if len(rows) == 1 else (list(rows), list(positions))
        self.logits[at] = logits[0] if len(rows) == 1 else logits
        noisy = self.logits[at] + self.noise[at] if self._sampling.temperature else self.logits[at]
        self.tokens[at] = noisy.argmax(-1)

    def reply(self, row: int, prefix: Array) -> EngineReply | ModelError:
        """Return the reply of a row whose tokens are complete. Its first actions are those of the prefix, unchanged."""
        columns, held = prefix.shape[1], len(prefix)
        tokens, logits = self.tokens[row], self.logits[row]
        if not torch.isfinite(logits).all():
            return ModelError("the model's output is not finite")
        chunk = self._model.actions(tokens.view(-1, columns).cpu().numpy())
        chunk[:held] = prefix
        confidence = np.ascontiguousarray(confidence_of(logits, tokens, columns))
        return EngineReply(chunk_model=chunk, chunk_robot=chunk.copy(), confidence=confidence)

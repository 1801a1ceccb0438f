"""Network of the embedded autoregressive policy: a decoder over binned actions. PyTorch only; no I/O.

Every action has one token per dimension, and every token is one of a few bins. A token attends to the context (`context.py`) and to
the tokens before it: so one prefill gives the same logits at every position as a decode per token would (AURAS §4.2.3).
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ros2_rfm_serving.engines.embedded.context import ContextConfig, ContextEncoder
from ros2_rfm_serving.engines.embedded.layers import Attention, at_least_float32, feed_forward

KeysValues = tuple[Tensor, Tensor]
_SENSES = {field.name for field in fields(ContextConfig)} - {"chunk_length", "max_inference_delay_steps", "control_rate_hz"}


@dataclass(frozen=True, kw_only=True)
class TokenPolicyConfig(ContextConfig):
    chunk_length: int = 8
    max_inference_delay_steps: int = 4
    num_bins: int = 65
    """Bins per action dimension, evenly from its smallest to its largest value in training."""
    decoder_blocks: int = 3
    temperature: float = 0.0
    """Sampling temperature; 0 selects the most likely token."""

    @classmethod
    def of_senses(cls, other: ContextConfig) -> TokenPolicyConfig:
        """Return a configuration with the inputs of another policy, so that training can start from its weights."""
        senses = {name: value for name, value in vars(other).items() if name in _SENSES}
        return cls(**senses)

    @property
    def num_tokens(self) -> int:
        """Number of tokens of a chunk, l_a; those of an action are contiguous."""
        return self.chunk_length * self.num_actions


class DecoderBlock(nn.Module):
    """Attention to context and tokens at once, then an MLP."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.context = nn.Linear(width, 2 * width)
        self.mlp = feed_forward(width)

    def context_keys_values(self, context: Tensor) -> KeysValues:
        return self.attention.split(*self.context(context).chunk(2, dim=-1))

    def forward(self, tokens: Tensor, context: KeysValues, seen: Tensor) -> Tensor:
        """Run the block. tokens: [B, N, width]; seen: [N, context + N] bool, the keys that a token attends to."""
        normed = self.norm1(tokens)
        own = self.attention.keys_values(normed)
        both = torch.cat([context[0], own[0]], dim=2), torch.cat([context[1], own[1]], dim=2)
        return self.after(tokens, self.attention(normed, both, seen))

    def after(self, tokens: Tensor, attended: Tensor) -> Tensor:
        tokens = tokens + attended
        out: Tensor = tokens + self.mlp(self.norm2(tokens))
        return out


class TokenPolicyNetwork(ContextEncoder):
    """Logits of action tokens; see the module's docstring."""

    config: TokenPolicyConfig
    bin_low: Tensor
    bin_high: Tensor
    seen: Tensor

    def __init__(self, config: TokenPolicyConfig) -> None:
        super().__init__(config)
        width, bins = config.width, config.num_bins
        self.register_buffer("bin_low", -torch.ones(config.num_actions))
        self.register_buffer("bin_high", torch.ones(config.num_actions))
        self.token = nn.Embedding(config.num_actions * bins, width)
        with torch.no_grad():  # neighbouring bins start with similar embeddings
            place = torch.linspace(-1, 1, bins).repeat(config.num_actions)[:, None]
            ways = torch.randn(config.num_actions, width).repeat_interleave(bins, dim=0)
            self.token.weight.mul_(0.02).add_(0.5 * place * ways)
        self.begin = nn.Parameter(0.02 * torch.randn(width))
        self.position = nn.Parameter(0.02 * torch.randn(config.num_tokens, width))
        self.decoder = nn.ModuleList(DecoderBlock(width, config.heads) for _ in range(config.decoder_blocks))
        self.decoder_norm = nn.LayerNorm(width)
        self.to_bins = nn.Linear(width, bins)
        self.register_buffer("seen", seen_from(config.num_context_tokens, config.num_tokens), persistent=False)

    def encode(self, state: Tensor, images: Tensor, words: Tensor, keep_images: Tensor | None = None) -> list[KeysValues]:
        """Return keys and values of the context for each block."""
        tokens = self.context(state, images, words, keep_images)
        return [block.context_keys_values(tokens) for block in self.decoder]  # type: ignore[operator]

    def context(self, state: Tensor, images: Tensor, words: Tensor, keep_images: Tensor | None = None) -> Tensor:
        """Return the context that all blocks read, [B, num_context_tokens, width]."""
        out: Tensor = self.encoder_norm(self.context_tokens(state, images, words, keep_images))
        return out

    def prefill(self, tokens: Tensor, context: list[KeysValues]) -> Tensor:
        """Return the logits of each token given those before it, [B, l_a, bins], without a cache, as in training.
        tokens: [B, l_a]."""
        dimension = torch.arange(tokens.shape[1] - 1, device=tokens.device) % self.config.num_actions
        before = self.token(tokens[:, :-1] + dimension * self.config.num_bins)
        hidden = torch.cat([self.begin.expand(len(tokens), 1, -1), before], dim=1) + self.position
        for block, keys_values in zip(self.decoder, context, strict=True):
            hidden = block(hidden, keys_values, self.seen)
        return self.logits(hidden)

    def logits(self, hidden: Tensor) -> Tensor:
        out: Tensor = self.to_bins(self.decoder_norm(hidden))
        return out.to(at_least_float32(out.dtype))

    # --- actions and bins ---

    def place(self, actions: Tensor) -> Tensor:
        """Return the place of actions among the bins, [..., A] in [0, num_bins - 1], before rounding.
        actions: robot space, [..., A]."""
        share = (actions - self.bin_low) / (self.bin_high - self.bin_low)
        return share.clamp(0, 1) * (self.config.num_bins - 1)

    def nearest(self, actions: Tensor) -> Tensor:
        """Return the nearest bins, [..., A], of actions in robot space, [..., A]."""
        return self.place(actions).round().long()

    def centres(self, bins: Tensor) -> Tensor:
        """Return the actions in robot space, [..., A], of bins, [..., A]."""
        return self.bin_low + bins / (self.config.num_bins - 1) * (self.bin_high - self.bin_low)


def seen_from(num_context: int, num_tokens: int) -> Tensor:
    """Return the mask [num_tokens, num_context + num_tokens]: all of the context, and no token that comes later."""
    return F.pad(torch.ones(num_tokens, num_tokens, dtype=torch.bool).tril(), (num_context, 0), value=True)

"""Embedded autoregressive policy behind the interface (`TokenModel`). PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from ros2_rfm_serving.engines.base import TokenModel
from ros2_rfm_serving.engines.embedded.contract import contract_of
from ros2_rfm_serving.engines.embedded.embedded import Embedded
from ros2_rfm_serving.engines.embedded.inputs import placed
from ros2_rfm_serving.engines.embedded.layers import Linear
from ros2_rfm_serving.engines.embedded.options import MAX_BATCH_SIZE
from ros2_rfm_serving.engines.embedded.token_network import DecoderBlock, TokenPolicyNetwork
from ros2_rfm_serving.types import Array, InferenceRequest, ModelContract

Cache = tuple[Tensor, ...]
"""Keys and values of the context, then of the tokens; per block [rows, 2, heads, context + l_a, width / heads]."""


class TokenPolicy(Embedded[TokenPolicyNetwork], TokenModel):
    def _begin(self, model: str, content_hash: str) -> None:
        network, options, config = self._network, self._options, self._network.config
        self._inputs, self._device = placed(network, options), options.device
        self.fit_image, self.decode_image = self._inputs.fit_image, self._inputs.decode_image
        self._contract = contract_of(model, network, content_hash, options)
        self._blocks = [_Block.of(block) for block in network.decoder if isinstance(block, DecoderBlock)]
        self._words = torch.cat([network.token.weight, network.begin[None]]).detach()
        begin = config.num_actions * config.num_bins  # the last word; a token is preceded by one of the dimension before
        places = [begin, *((position - 1) % config.num_actions * config.num_bins for position in range(1, config.num_tokens))]
        self._place = torch.tensor(places, device=options.device)

    @property
    def contract(self) -> ModelContract:
        return self._contract

    @property
    def max_batch_size(self) -> int:
        return MAX_BATCH_SIZE

    @property
    def num_bins(self) -> int:
        return self._network.config.num_bins

    def cache(self, num_rows: int) -> Cache:
        config = self._network.config
        shape = (num_rows, 2, config.heads, config.num_context_tokens + config.num_tokens, config.width // config.heads)
        return tuple(torch.zeros(shape, dtype=self.weights_dtype, device=self._device) for _ in self._blocks)

    def perceive(self, requests: Sequence[InferenceRequest], cache: Cache) -> None:
        tokens = self._context(self._inputs.states(requests), self._inputs.images(requests), self._inputs.words(requests))
        for block, memory in zip(self._blocks, cache, strict=True):
            keys_values = _in_heads(block.context(tokens), 2, memory.shape[2])
            memory[:, :, :, : tokens.shape[1]] = keys_values.permute(0, 2, 3, 1, 4)

    def generate(self, before: Tensor, first: Sequence[int], cache: Cache) -> Tensor:
        """Return logits, [B, N, num_bins].
        One program serves a prefill, and decodes at one position or at many; rows at one position need no index."""
        at = self._at(before.shape[1], first)
        hidden = F.embedding(before + self._place[at.positions], self._words) + self._network.position[at.positions]
        for block, memory in zip(self._blocks, cache, strict=True):
            hidden = block.run(hidden, memory, at)
        return self._network.logits(hidden)

    def tokens(self, actions: Array) -> npt.NDArray[np.int64]:
        return self._network.nearest(torch.from_numpy(actions).to(self._network.bin_low)).cpu().numpy()

    def actions(self, tokens: npt.NDArray[np.int64]) -> Array:
        return self._network.centres(torch.from_numpy(tokens).to(self._device)).float().cpu().numpy()

    # --- members for `engines/tokens/parity.py` ---

    @property
    def probe_instruction(self) -> str:
        return " ".join(self._network.config.vocabulary[2:])

    def reference(self) -> TokenPolicy:
        return TokenPolicy(self._contract.model, self._saved().cpu().double(), self._contract.model_hash)

    # --- the network ---

    def _context(self, state: Tensor, images: Tensor, words: Tensor) -> Tensor:
        return self._network.context(state, images, words)

    def _at(self, count: int, first: Sequence[int]) -> _At:
        """Return the positions of rows, each at its own or all at the same."""
        context, seen = self._network.config.num_context_tokens, self._network.seen
        end = max(first) + count
        if len(set(first)) == 1:
            own = slice(first[0], end)
            masked = seen[own, : context + end] if count > 1 else None
            return _At(own, slice(context + own.start, context + end), context + end, masked, None)
        positions = torch.tensor(first, device=self._device)[:, None] + torch.arange(count, device=self._device)
        rows = torch.arange(len(first), device=self._device)[:, None]
        return _At(positions, context + positions, context + end, seen[positions, : context + end][:, None], rows)


class _At(NamedTuple):
    """Positions of a call of `generate`."""

    positions: slice | Tensor
    """Positions, [B, N], or a slice for all rows."""
    keys: slice | Tensor
    """Places of their keys in the cache."""
    end: int
    """End of the places that are attended to, in the cache."""
    seen: Tensor | None
    """Mask, [N, end] or [B, 1, N, end]; None if all is attended to."""
    rows: Tensor | None
    """Row indices, [B, 1], if positions differ."""


class _Block(NamedTuple):
    """Decoder block with query, key and value in one product."""

    block: DecoderBlock
    project: Linear

    @classmethod
    @torch.no_grad()
    def of(cls, block: DecoderBlock) -> _Block:
        parts = block.attention.to_query, block.attention.to_key_value
        like = block.attention.to_query.weight
        project = Linear(like.shape[1], 3 * like.shape[1], device=like.device, dtype=like.dtype).requires_grad_(False)
        project.weight.copy_(torch.cat([part.weight for part in parts]))
        project.bias.copy_(torch.cat([part.bias for part in parts]))
        return cls(block, project)

    def context(self, tokens: Tensor) -> Tensor:
        out: Tensor = self.block.context(tokens)
        return out

    def run(self, hidden: Tensor, memory: Tensor, at: _At) -> Tensor:
        projected = _in_heads(self.project(self.block.norm1(hidden)), 3, memory.shape[2])
        query, keys_values = projected[:, :, 0].transpose(1, 2), projected[:, :, 1:]
        if at.rows is None:
            memory[:, :, :, at.keys] = keys_values.permute(0, 2, 3, 1, 4)
        else:
            memory[at.rows, :, :, at.keys] = keys_values
        keys, values = memory[:, 0, :, : at.end], memory[:, 1, :, : at.end]
        mixed = F.scaled_dot_product_attention(query, keys, values, attn_mask=at.seen)
        return self.block.after(hidden, self.block.attention.to_out(mixed.transpose(1, 2).flatten(2)))


def _in_heads(projected: Tensor, parts: int, heads: int) -> Tensor:
    """Return [B, N, parts, heads, width / heads] from [B, N, parts width]."""
    return projected.view(*projected.shape[:2], parts, heads, -1)

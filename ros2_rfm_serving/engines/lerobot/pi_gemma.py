"""Gemma with the changes of pi0 and pi0.5, on a transformers from the package index.

LeRobot 0.4 expects a transformers with openpi's changes (openpi, `models_pytorch/transformers_replace`), which no release has:
- norms of the action expert that are conditioned on the denoising time, with a gate at each residual (adaptive RMSNorm);
- embeddings that enter unscaled, not times the root of their width, and image features accordingly;
- keys and values of the prefix that a denoising step reads and does not append to.

Names of parameters are openpi's, so that its checkpoints load.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import DynamicCache
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.models.gemma import modeling_gemma
from transformers.models.gemma.modeling_gemma import GemmaDecoderLayer, GemmaForCausalLM, GemmaModel
from transformers.models.paligemma.modeling_paligemma import PaliGemmaForConditionalGeneration, PaliGemmaModel

PI = ("pi0", "pi05", "pi0_fast")
CHECK = ModuleType("transformers.models.siglip.check")
"""Module that LeRobot imports to check whether transformers has the changes."""
CHECK.check_whether_transformers_replace_is_installed_correctly = lambda: True  # type: ignore[attr-defined]


def provide(kind: str) -> None:
    """Add these changes to LeRobot 0.4's code of a policy.
    A transformers that has them, and LeRobot 0.5, which brings its own, are left unchanged."""
    if (
        kind not in PI
        or find_spec("lerobot.policies.pi_gemma")
        or (sys.modules.get(CHECK.__name__) is not CHECK and find_spec(CHECK.__name__))
    ):
        return
    sys.modules[CHECK.__name__] = CHECK
    modeling_gemma._gated_residual = gated_residual
    code: Any = import_module(f"lerobot.policies.{kind}.modeling_{kind}")
    if code.PaliGemmaForConditionalGeneration is PaliGemmaForConditionalGeneration:
        code.PaliGemmaForConditionalGeneration, code.GemmaForCausalLM = PiPaliGemma, PiGemmaForCausalLM


def gated_residual(x: Tensor, y: Tensor, gate: Tensor | None) -> Tensor:
    return x + y if gate is None else x + y * gate


class AdaptiveNorm(nn.Module):
    """RMSNorm whose scale, shift and gate follow from a condition; without a condition it is Gemma's own."""

    def __init__(self, width: int, eps: float, condition_width: int | None) -> None:
        super().__init__()
        self.eps = eps
        if condition_width is None:
            self.weight = nn.Parameter(torch.zeros(width))
        else:
            self.dense = nn.Linear(condition_width, 3 * width)

    def forward(self, x: Tensor, cond: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Return the normed x, and the gate of the residual after it. x: [B, L, width]; cond: [B, condition width]."""
        normed = x * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + self.eps)
        if cond is None:
            return (normed * (1.0 + self.weight.float())).to(x.dtype), None
        scale, shift, gate = self.dense(cond).unsqueeze(1).chunk(3, dim=-1)
        return (normed * (1.0 + scale.float()) + shift.float()).to(x.dtype), gate.to(x.dtype)


class Prefix:
    """Keys and values for a denoising step: its own are appended to those of the prefix, and are not kept."""

    def __init__(self, cache: Any) -> None:
        self._cache = cache

    def update(self, keys: Tensor, values: Tensor, layer: int, _: Any = None) -> tuple[Tensor, Tensor]:
        known_keys, known_values = self._cache[layer][:2]
        return torch.cat([known_keys, keys], dim=2), torch.cat([known_values, values], dim=2)


class PiGemmaLayer(GemmaDecoderLayer):  # type: ignore[misc]
    def forward(self, x: Tensor, adarms_cond: Tensor | None, **attention: Any) -> Tensor:
        normed, gate = self.input_layernorm(x, adarms_cond)
        x = gated_residual(x, self.self_attn(hidden_states=normed, **attention)[0], gate)
        normed, gate = self.post_attention_layernorm(x, adarms_cond)
        return gated_residual(x, self.mlp(normed), gate)


class PiGemmaModel(GemmaModel):  # type: ignore[misc]
    def forward(
        self,
        inputs_embeds: Tensor,
        attention_mask: Tensor,
        position_ids: Tensor,
        past_key_values: Any = None,
        use_cache: bool | None = None,
        adarms_cond: Tensor | None = None,
    ) -> BaseModelOutputWithPast:
        """Run the model.
        inputs_embeds: [B, L, width]; attention_mask: [B, 1, L, prefix + L], to add; adarms_cond: [B, condition width]."""
        cache = (past_key_values or DynamicCache()) if use_cache else past_key_values and Prefix(past_key_values)
        x = inputs_embeds.to(self.layers[0].self_attn.q_proj.weight.dtype)
        rotation = self.rotary_emb(x, position_ids)
        for layer in self.layers:
            x = layer(x, adarms_cond, attention_mask=attention_mask, past_key_values=cache, position_embeddings=rotation)
        return BaseModelOutputWithPast(last_hidden_state=self.norm(x, adarms_cond)[0], past_key_values=cache if use_cache else None)


class PiGemmaForCausalLM(GemmaForCausalLM):  # type: ignore[misc]
    def __init__(self, config: Any) -> None:
        super().__init__(config)
        _become_pi(self.model)


class PiPaliGemmaModel(PaliGemmaModel):  # type: ignore[misc]
    def get_image_features(self, pixel_values: Tensor) -> Tensor:
        features: Tensor = self.multi_modal_projector(self.vision_tower(pixel_values).last_hidden_state)
        return features


class PiPaliGemma(PaliGemmaForConditionalGeneration):  # type: ignore[misc]
    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.model.__class__ = PiPaliGemmaModel
        _become_pi(self.model.language_model)
        vision = self.model.vision_tower.vision_model  # its embeddings stay in float32 when the rest is bfloat16
        first: nn.Module = vision.encoder.layers[0].self_attn.q_proj
        vision.embeddings.register_forward_hook(lambda module, given, embedded: embedded.to(first.weight.dtype))


def _become_pi(gemma: GemmaModel) -> None:
    """Change a language model in place: to build it a second time would take as much time and memory again."""
    config = gemma.config
    width = config.adarms_cond_dim if getattr(config, "use_adarms", False) else None
    gemma.__class__ = PiGemmaModel
    gemma.norm = AdaptiveNorm(config.hidden_size, config.rms_norm_eps, width)
    for layer in gemma.layers:
        layer.__class__ = PiGemmaLayer
        layer.input_layernorm = AdaptiveNorm(config.hidden_size, config.rms_norm_eps, width)
        layer.post_attention_layernorm = AdaptiveNorm(config.hidden_size, config.rms_norm_eps, width)

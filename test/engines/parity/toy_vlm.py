"""What SmolVLA, pi0 and pi0.5 stand on, at toy size."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from test.engines.parity.toy_tokenizer import save_tokenizer

TEXT = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "num_hidden_layers": 4,
    "vocab_size": 128,
}
VISION = {
    "hidden_size": 24,
    "intermediate_size": 32,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "image_size": 64,
    "patch_size": 16,
}
NOTHING: Mapping[str, int] = MappingProxyType({})


def save_smolvlm(
    folder: Path, text: Mapping[str, int] = NOTHING, vision: Mapping[str, int] = NOTHING, scale_factor: int = 2
) -> None:
    """Tokenizer, configuration and processors; its weights are the policy's. text, vision: in place of the toy's sizes."""
    from transformers import SmolVLMConfig, SmolVLMImageProcessor

    save_tokenizer(folder)
    texts, images = {**TEXT, **text}, {**VISION, **vision}
    config = SmolVLMConfig(text_config=texts, vision_config=images, scale_factor=scale_factor, image_token_id=2)
    config.save_pretrained(folder)
    SmolVLMImageProcessor().save_pretrained(folder)
    (folder / "processor_config.json").write_text(json.dumps({"processor_class": "SmolVLMProcessor", "image_seq_len": 4}))


def small_gemma(module: Any, vlm: str, expert: str) -> dict[str, Any]:
    """In place of what LeRobot's `module` of pi0 or pi0.5 names so, for `mock.patch.multiple`: sizes are in its code, not in its
    configuration. vlm, expert: names of the two networks' classes."""
    whole, half = getattr(module, vlm), getattr(module, expert)

    def sizes(variant: str) -> Any:
        width = 32 if variant == "gemma_2b" else 16
        return module.GemmaConfig(width=width, depth=2, mlp_dim=48, num_heads=2, num_kv_heads=1, head_dim=8)

    def small_vlm(config: Any) -> Any:
        config.text_config.vocab_size = 128
        vision = config.vision_config
        vision.hidden_size, vision.num_attention_heads, vision.num_hidden_layers, vision.intermediate_size = 24, 2, 1, 32
        vision.projection_dim = config.text_config.hidden_size
        return whole(config=config)

    def small_expert(config: Any) -> Any:
        config.vocab_size = 128
        return half(config=config)

    return {"get_gemma_config": sizes, vlm: small_vlm, expert: small_expert}

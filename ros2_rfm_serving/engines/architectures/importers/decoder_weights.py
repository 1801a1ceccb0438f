"""Names and sizes of the parts that most checkpoints share: SigLIP, and decoders with the names of `transformers`."""

from __future__ import annotations

import re
from typing import Any

from torch import Tensor

from ros2_rfm_serving.engines.architectures.importers.base import Rule
from ros2_rfm_serving.engines.architectures.importers.files import layers_of

_PARTS: tuple[Rule, ...] = (
    (r"input_layernorm\.(.+)", r"norm1.\1"),
    (r"post_attention_layernorm\.(.+)", r"norm2.\1"),
    (r"self_attn\.q_proj\.weight", "query.weight"),
    (r"self_attn\.k_proj\.weight", "key.weight"),
    (r"self_attn\.v_proj\.weight", "value.weight"),
    (r"self_attn\.o_proj\.weight", "out.weight"),
    (r"mlp\.(gate|up|down)_proj\.weight", r"mlp.\1.weight"),
    (r"self_attn\.q_proj\.bias", "query.bias"),
    (r"self_attn\.k_proj\.bias", "key.bias"),
    (r"self_attn\.v_proj\.bias", "value.bias"),
    (r"self_attn\.q_norm\.weight", "query_norm.weight"),
    (r"self_attn\.k_norm\.weight", "key_norm.weight"),
)
_READ = ("input_layernorm", r"self_attn\.k_proj", r"self_attn\.v_proj")
"""Parts of a prefix's last block that are read."""


def decoder_rules(theirs: str, ours: str) -> list[Rule]:
    """Return the rules for all blocks of a stack. theirs: a regular expression without groups."""
    return [(rf"{theirs}\.layers\.(\d+)\.{_shifted(pattern)[0]}", rf"{ours}.\1.{_shifted(name)[1]}") for pattern, name in _PARTS]


def prefix_rules(theirs: str, ours: str, last: int) -> list[Rule]:
    """Return the rules for a `LanguagePrefix`, without its last norm; of its last block only keys and values are kept."""
    own = [
        (rf"{theirs}\.layers\.{last}\.{pattern}", f"{ours}.last.{name}") for pattern, name in _PARTS if pattern.startswith(_READ)
    ]
    left_out = [(rf"{theirs}\.layers\.{last}\..+", ""), (rf"{theirs}\.norm\.weight", "")]
    return [*own, *left_out, *decoder_rules(theirs, f"{ours}.blocks")]


def siglip_rules(theirs: str, ours: str = "vision") -> list[Rule]:
    """Return the rules for SigLIP; its pooling head, if it has one, is left out."""
    kept = rf"{theirs}\.((?:embeddings|encoder|post_layernorm)\..+)"
    return [(rf"{theirs}\.embeddings\.position_ids", ""), (kept, rf"{ours}.\1"), (rf"{theirs}\.head\..+", "")]


def _shifted(text: str) -> tuple[str, str]:
    """Return a pattern and a name in which the layer's number is group 1, and the rest group 2."""
    return text, text.replace(r"\1", r"\2")


def siglip_sizes(weights: dict[str, Tensor], heads: int, name: str = "vision") -> dict[str, Any]:
    """Return the sizes of SigLIP from its weights, by our names. Raises: `KeyError` for a weight that is missing."""
    patch, positions = weights[f"{name}.embeddings.patch_embedding.weight"], weights[f"{name}.embeddings.position_embedding.weight"]
    return {
        "image_px": round(len(positions) ** 0.5) * patch.shape[-1],
        "patch_px": patch.shape[-1],
        "width": patch.shape[0],
        "layers": layers_of(weights, f"{name}.encoder.layers."),
        "heads": heads,
        "mlp_width": len(weights[f"{name}.encoder.layers.0.mlp.fc1.weight"]),
    }


def decoder_sizes(weights: dict[str, Tensor], blocks: str, head_size: int, **told: Any) -> dict[str, Any]:
    """Return the sizes of a decoder from its weights, by our names.
    blocks: name of the stack. Raises: `KeyError` for a weight that is missing."""
    query, key = weights[f"{blocks}.0.query.weight"], weights[f"{blocks}.0.key.weight"]
    return {
        "width": query.shape[1],
        "layers": layers_of(weights, f"{blocks}."),
        "heads": len(query) // head_size,
        "kv_heads": len(key) // head_size,
        "head_size": head_size,
        "mlp_width": len(weights[f"{blocks}.0.mlp.gate.weight"]),
        **told,
    }


def last_layer(weights: dict[str, Tensor], pattern: str) -> int:
    """Return the largest number at the place of the pattern's group; -1 if there is none."""
    return max((int(m[1]) for name in weights if (m := re.match(pattern, name))), default=-1)

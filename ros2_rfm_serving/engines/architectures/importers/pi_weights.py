"""Weights of pi0 and pi0.5 as openpi and LeRobot save them, of any release of transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from ros2_rfm_serving.engines.architectures.importers.base import Rule, renamed
from ros2_rfm_serving.engines.architectures.importers.decoder_weights import (
    decoder_rules,
    decoder_sizes,
    last_layer,
    prefix_rules,
    siglip_rules,
    siglip_sizes,
)
from ros2_rfm_serving.engines.architectures.importers.files import Json
from ros2_rfm_serving.engines.architectures.pi import GEMMA, PiConfig
from ros2_rfm_serving.errors import ModelError

_PALIGEMMA = r"(?:model\.)?paligemma_with_expert\.paligemma(?:\.model)?"
_TEXT = rf"{_PALIGEMMA}\.language_model(?:\.model)?"
_EXPERT = r"(?:model\.)?paligemma_with_expert\.gemma_expert"
HEAD = r"(?:model\.)?paligemma_with_expert\.paligemma(?:\.model)?(?:\.language_model)?\.lm_head\.weight"
LEFT_OUT = (
    "left out, as it acts on nothing: the language models' heads, PaliGemma's last norm, and its last block behind keys and values",
)


def read(kind: str, tensors: dict[str, Tensor], config: Json, backbone: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the weights by our names, and the network's sizes. Raises: `ModelError` if a weight is missing or unknown."""
    file = config.file.parent / "model.safetensors"
    last = last_layer(tensors, rf"{_TEXT}\.layers\.(\d+)\.")
    weights = renamed(tensors, _rules(kind, last), file)
    if "word.weight" not in weights and "head" in weights:
        weights["word.weight"] = weights["head"]  # tied, and saved once
    weights.pop("head", None)
    published = PiConfig()
    try:
        width = weights["word.weight"].shape[1]
        head_size = config.count("head_dim", published.expert.head_size)
        sizes: dict[str, Any] = {
            "chunk_length": config.get("chunk_size") or config.get("action_horizon") or published.chunk_length,
            "action_columns": len(weights["action_out.weight"]),
            "state_columns": weights["state_in.weight"].shape[1] if kind == "pi0" else _padded(config),
            "vocabulary": len(weights["word.weight"]),
            "vision": siglip_sizes(weights, config.count("vision_heads", published.vision.heads)),
            "language": decoder_sizes(weights, "language.blocks", head_size, **GEMMA) | {"layers": last + 1, "width": width},
            "expert": decoder_sizes(weights, "expert", head_size, **GEMMA),
        }
    except KeyError as error:
        raise ModelError(f"{file}: a weight is missing, by our name {error}; is it really {kind!r}?") from error
    return weights, sizes


def _padded(config: Json) -> int:
    return config.count("max_state_dim", config.count("action_dim", PiConfig().state_columns))


def _rules(kind: str, last: int) -> list[Rule]:
    own: list[Rule] = [
        (r"(?:model\.)?state_proj\.(.+)", r"state_in.\1"),
        (r"(?:model\.)?action_in_proj\.(.+)", r"action_time.action_in.\1"),
        (r"(?:model\.)?action_time_mlp_(in|out)\.(.+)", r"action_time.time_\1.\2"),
    ]
    if kind == "pi05":
        own = [
            (r"(?:model\.)?action_in_proj\.(.+)", r"action_in.\1"),
            (r"(?:model\.)?(?:action_)?time_mlp_(in|out)\.(.+)", r"time.time_\1.\2"),
        ]
    return [
        *siglip_rules(rf"{_PALIGEMMA}\.vision_tower(?:\.vision_model)?"),
        (rf"{_PALIGEMMA}\.multi_modal_projector\.linear\.(.+)", r"projector.\1"),
        (rf"{_TEXT}\.embed_tokens\.weight", "word.weight"),
        (HEAD, "head"),
        *prefix_rules(_TEXT, "language", last),
        (rf"{_EXPERT}\.(?:lm_head|model\.embed_tokens)\.weight", ""),
        *decoder_rules(rf"{_EXPERT}\.model", "expert"),
        (rf"{_EXPERT}\.model\.norm\.(.+)", r"expert_norm.\1"),
        *own,
        (r"(?:model\.)?action_out_proj\.(.+)", r"action_out.\1"),
    ]

"""Weights of SmolVLA as LeRobot saves them."""

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
from ros2_rfm_serving.engines.architectures.importers.files import Json, read_json
from ros2_rfm_serving.engines.architectures.smolvla import SmolVlaConfig
from ros2_rfm_serving.errors import ModelError

_VLM = r"model\.vlm_with_expert\.vlm"
_TEXT = rf"{_VLM}\.model\.text_model"
LEFT_OUT = ("left out, as it acts on nothing: the language model's head, last norm, and its last block behind keys and values",)


def read(kind: str, tensors: dict[str, Tensor], config: Json, backbone: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the weights by our names, and the network's sizes. backbone: folder with the language model's `config.json`.

    Raises: `ModelError` if a weight is missing or unknown.
    """
    weights = renamed(tensors, _rules(last_layer(tensors, rf"{_TEXT}\.layers\.(\d+)\.")), config.file.parent / "model.safetensors")
    text, vision = _backbone(weights, config, backbone)
    mode, self_every = config.get("attention_mode") or "cross_attn", config.count("self_attn_every_n_layers", 2)
    sizes: dict[str, Any] = {
        "chunk_length": config.get("chunk_size") or 50,
        "action_columns": config.get("max_action_dim") or 32,
        "state_columns": config.get("max_state_dim") or 32,
        "self_every": max(self_every, 0) if "cross" in mode else 1,
    }
    try:
        language = decoder_sizes(weights, "language.blocks", text["head_size"], norm_eps=text["norm_eps"])
        expert = decoder_sizes(weights, "expert", text["head_size"], norm_eps=text["norm_eps"])
        sizes |= {
            "vocabulary": len(weights["word.weight"]),
            "vision": siglip_sizes(weights, vision["heads"]),
            "shuffle": round((weights["connector.weight"].shape[1] / weights["vision.post_layernorm.weight"].shape[0]) ** 0.5),
            "language": language | {"layers": language["layers"] + 1},
            "expert": expert,
        }
    except KeyError as error:
        raise ModelError(f"{config.file.parent / 'model.safetensors'}: a weight is missing, by our name {error}") from error
    if sizes["language"]["layers"] != expert["layers"]:
        layers = f"{expert['layers']} layers of the expert for {sizes['language']['layers']} of the language model"
        raise ModelError(f"{config.file}: num_expert_layers: {layers}; each needs one of its own here; use the engine `lerobot`")
    return weights, sizes


def _rules(last: int) -> list[Rule]:
    expert = r"model\.vlm_with_expert\.lm_expert"
    return [
        *siglip_rules(rf"{_VLM}\.model\.vision_model"),
        (rf"{_VLM}\.model\.connector\.modality_projection\.proj\.weight", "connector.weight"),
        (rf"{_TEXT}\.embed_tokens\.weight", "word.weight"),
        (rf"{_VLM}\.lm_head\.weight", ""),
        *prefix_rules(_TEXT, "language", last),
        *decoder_rules(expert, "expert"),
        (rf"{expert}\.norm\.weight", "expert_norm.weight"),
        (r"model\.state_proj\.(.+)", r"state_in.\1"),
        (r"model\.action_in_proj\.(.+)", r"action_time.action_in.\1"),
        (r"model\.action_time_mlp_(in|out)\.(.+)", r"action_time.time_\1.\2"),
        (r"model\.action_out_proj\.(.+)", r"action_out.\1"),
    ]


def _backbone(weights: dict[str, Tensor], config: Json, folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the sizes that no shape tells: those of heads, and the epsilon of norms."""
    published = SmolVlaConfig()
    file = folder / "config.json"
    if file.is_file() and file != config.file:
        vlm = read_json(file)
        text, vision = vlm.map("text_config"), vlm.map("vision_config")
        head_size = text.get("head_dim") or text["hidden_size"] // text["num_attention_heads"]
        return {"head_size": head_size, "norm_eps": text.get("rms_norm_eps", 1e-5)}, {"heads": vision["num_attention_heads"]}
    width = weights["word.weight"].shape[1] if "word.weight" in weights else 0
    if width != published.language.width:
        name = config.get("vlm_model_name")
        raise ModelError(f"{folder}: config.json of the language model {name!r} is missing: give --tokenizer a folder that has it")
    language = published.language
    return {"head_size": language.head_size, "norm_eps": language.norm_eps}, {"heads": published.vision.heads}

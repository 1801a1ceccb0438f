"""Importer of GR00T N1.7: the files of N1.6, with Qwen3-VL."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError
from torch import Tensor

from ros2_rfm_serving.engines.architectures.groot_n1_5 import QWEN3
from ros2_rfm_serving.engines.architectures.groot_n1_7 import MAX_DELAY_STEPS, SHUFFLE, GrootN17, GrootN17Config, QwenVisionConfig
from ros2_rfm_serving.engines.architectures.importers.base import Imported, ImportOptions, Rule, renamed
from ros2_rfm_serving.engines.architectures.importers.decoder_weights import decoder_rules, decoder_sizes
from ros2_rfm_serving.engines.architectures.importers.files import Json, is_of_type, layers_of
from ros2_rfm_serving.engines.architectures.importers.groot_n1_6 import head_of
from ros2_rfm_serving.engines.architectures.importers.groot_pictures import recrop_of
from ros2_rfm_serving.engines.architectures.importers.groot_saved import imported_of, saved_in
from ros2_rfm_serving.engines.architectures.importers.tokens import token_id
from ros2_rfm_serving.engines.architectures.manifest import Recrop, first_of
from ros2_rfm_serving.errors import ModelError

TYPE = "Gr00tN1d7"
SHORTEST_EDGE = 256
"""Default for a `processor_config.json` without such a key."""
_MODEL = r"backbone\.model(?:\.model)?"
RULES: list[Rule] = [
    (rf"{_MODEL}\.visual\.(.+)", r"vision.\1"),
    (rf"{_MODEL}\.language_model\.embed_tokens\.weight", "language.embedding.weight"),
    (rf"{_MODEL}\.language_model\.norm\.weight", ""),
    *decoder_rules(rf"{_MODEL}\.language_model", "language.blocks"),
    (r"backbone\.model\.lm_head\..+", ""),
    (r"action_head\.mask_token", ""),
    (r"action_head\.(.+)", r"head.\1"),
]


def recognises(folder: Path) -> bool:
    return is_of_type(folder, TYPE)


def read(folder: Path, wishes: ImportOptions) -> Imported:
    """Read a checkpoint. Raises: `ModelError`."""
    saved = saved_in(folder, wishes, "nvidia/Cosmos-Reason2-2B")
    weights = renamed(saved.weights, RULES, saved.files[-1])
    recrop = recrop_of(saved.processor, SHORTEST_EDGE, stretches=True)
    network = _network(saved.config, weights, saved.embodiment, saved.tokenizer, image_px_of(recrop))
    return imported_of(saved, wishes, weights, network, ("groot_n1_7", GrootN17), recrop, MAX_DELAY_STEPS)


def image_px_of(recrop: Recrop) -> int:
    """Return the side of a square image as its processor makes it, in pixels: whole patches, in pairs."""
    pair = SHUFFLE * QwenVisionConfig().patch_px
    return max(1, round(recrop.side_px / pair)) * pair


def _network(config: Json, weights: dict[str, Tensor], embodiment: int, tokenizer: str, image_px: int) -> GrootN17Config:
    """Return the sizes of the network. Raises: `ModelError` if one is missing or unsupported.
    Those of the backbone follow from its weights, or are those of Qwen3-VL with 2 B parameters."""
    told, published = config.content, QwenVisionConfig()
    wanted = {"use_alternate_vl_dit": True, "state_history_length": 1, "strict_action_padding_mask": False}
    other = [key for key, value in wanted.items() if told.get(key, value) != value]
    if other:
        raise ModelError(f"{config.file}: {', '.join(other)}: only {', '.join(str(wanted[key]) for key in other)} is supported")
    try:
        patch, head_size = weights["vision.patch_embed.proj.weight"], len(weights["language.blocks.0.query_norm.weight"])
        layers = layers_of(weights, "vision.blocks.")
        own = config.map("vl_self_attention_cfg") if told.get("vl_self_attention_cfg") else {}
        deep = published.deep if layers == published.layers else tuple(range(layers_of(weights, "vision.deepstack_merger_list.")))
        language = QWEN3.model_copy(update=decoder_sizes(weights, "language.blocks", head_size) | {"rope_theta": 5e6})
        return GrootN17Config(
            chunk_length=told["action_horizon"],
            action_columns=told["max_action_dim"],
            state_columns=told["max_state_dim"],
            vision=QwenVisionConfig(
                image_px=image_px,
                patch_px=patch.shape[-1],
                width=len(patch),
                layers=layers,
                heads=published.heads,
                mlp_width=len(weights["vision.blocks.0.mlp.linear_fc1.weight"]),
                positions=len(weights["vision.pos_embed.weight"]),
                deep=deep,
            ),
            language=language,
            rope_parts=rope_parts(head_size // 2),
            vocabulary=len(weights["language.embedding.weight"]),
            image_token=token_id(tokenizer, "<|image_pad|>"),
            head=head_of(config, embodiment, own.get("num_layers", 0), own.get("num_attention_heads", 1)),
        )
    except KeyError as error:
        raise ModelError(f"{config.file}: {error} is missing") from error
    except ValidationError as error:
        raise ModelError(f"{config.file}: sizes that no GR00T has: {error.title}.{first_of(error)}") from error


def rope_parts(pairs: int) -> tuple[int, int, int]:
    """Return Qwen3-VL's division of pairs: of 64 pairs 24, 20 and 20."""
    part = pairs * 5 // 16
    return pairs - 2 * part, part, part

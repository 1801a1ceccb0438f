"""Importer of GR00T N1.6: `config.json`, sharded safetensors, and the files that its processor saves beside them."""

from __future__ import annotations

from pathlib import Path

import torch.nn.functional as F
from pydantic import ValidationError
from torch import Tensor

from ros2_rfm_serving.engines.architectures.groot_head import HeadConfig
from ros2_rfm_serving.engines.architectures.groot_n1_5 import QWEN3
from ros2_rfm_serving.engines.architectures.groot_n1_6 import SIGLIP2, GrootN16, GrootN16Config
from ros2_rfm_serving.engines.architectures.importers.base import Imported, ImportOptions, Rule, renamed
from ros2_rfm_serving.engines.architectures.importers.decoder_weights import decoder_rules, decoder_sizes, siglip_rules
from ros2_rfm_serving.engines.architectures.importers.files import Json, is_of_type, layers_of
from ros2_rfm_serving.engines.architectures.importers.groot_pictures import recrop_of
from ros2_rfm_serving.engines.architectures.importers.groot_saved import imported_of, saved_in
from ros2_rfm_serving.engines.architectures.importers.tokens import token_id
from ros2_rfm_serving.engines.architectures.manifest import Recrop, first_of
from ros2_rfm_serving.engines.architectures.vision import VisionConfig
from ros2_rfm_serving.errors import ModelError

TYPE = "Gr00tN1d6"
PATCH, POSITION = "vision.embeddings.patch_embedding.weight", "vision.embeddings.position_embedding.weight"
SHUFFLE = 2
SHORTEST_EDGE = 512
"""Default for a `processor_config.json` without such a key."""
_LANGUAGE = r"backbone\.model\.language_model"
RULES: list[Rule] = [
    *siglip_rules(r"backbone\.model\.vision_model\.vision_model"),
    (r"backbone\.model\.mlp1\.0\.(.+)", r"connector.norm.\1"),
    (r"backbone\.model\.mlp1\.1\.(.+)", r"connector.fc1.\1"),
    (r"backbone\.model\.mlp1\.3\.(.+)", r"connector.fc2.\1"),
    (rf"{_LANGUAGE}\.model\.embed_tokens\.weight", "language.embedding.weight"),
    (rf"{_LANGUAGE}\.model\.norm\.weight", "language.norm.weight"),
    *decoder_rules(rf"{_LANGUAGE}\.model", "language.blocks"),
    (rf"{_LANGUAGE}\.lm_head\..+", ""),
    (r"action_head\.mask_token", ""),
    (r"action_head\.(.+)", r"head.\1"),
]


def recognises(folder: Path) -> bool:
    return is_of_type(folder, TYPE)


def read(folder: Path, wishes: ImportOptions) -> Imported:
    """Read a checkpoint. Raises: `ModelError`."""
    saved = saved_in(folder, wishes, "nvidia/Eagle-Block2A-2B-v2, in Isaac-GR00T")
    recrop = recrop_of(saved.processor, SHORTEST_EDGE, stretches=False)
    weights = by_our_names(saved.weights, saved.files[-1], image_px_of(recrop))
    network = _network(saved.config, weights, saved.embodiment, saved.tokenizer)
    return imported_of(saved, wishes, weights, network, ("groot_n1_6", GrootN16), recrop)


def image_px_of(recrop: Recrop) -> int:
    """Return the side of a square image as its processor makes it, in pixels: whole patches, in pairs."""
    pair = SHUFFLE * SIGLIP2.patch_px
    return max(1, round(recrop.side_px / pair)) * pair


def by_our_names(theirs: dict[str, Tensor], file: Path, image_px: int) -> dict[str, Tensor]:
    """Return the weights by our names, with patches in our order of columns and positions for images of this size.
    Raises: `ModelError` for an unknown weight."""
    weights = renamed(theirs, RULES, file)
    patch_px, side = SIGLIP2.patch_px, image_px // SIGLIP2.patch_px
    weights[PATCH] = weights[PATCH].reshape(-1, patch_px, patch_px, 3).permute(0, 3, 1, 2).contiguous()
    table = weights[POSITION].float()
    grid = table.T.reshape(1, table.shape[1], round(len(table) ** 0.5), -1)
    resized = F.interpolate(grid, (side, side), mode="bilinear", align_corners=False, antialias=True)
    weights[POSITION] = resized[0].flatten(1).T.contiguous().to(weights[POSITION].dtype)
    for name in ("connector.norm.weight", "connector.norm.bias", "connector.fc1.weight"):
        own = weights[name]
        weights[name] = own.reshape(*own.shape[:-1], -1, SHUFFLE**2).transpose(-1, -2).flatten(-2).contiguous()
    return weights


def _network(config: Json, weights: dict[str, Tensor], embodiment: int, tokenizer: str) -> GrootN16Config:
    """Return the sizes of the network; those of the backbone follow from its weights. Raises: `ModelError`."""
    told = config.content
    if not told.get("use_alternate_vl_dit", True):
        raise ModelError(f"{config.file}: use_alternate_vl_dit: only true is supported")
    try:
        head_size, patch = len(weights["language.blocks.0.query_norm.weight"]), weights[PATCH]
        return GrootN16Config(
            chunk_length=told["action_horizon"],
            action_columns=told["max_action_dim"],
            state_columns=told["max_state_dim"],
            vision=VisionConfig(
                image_px=round(len(weights[POSITION]) ** 0.5) * patch.shape[-1],
                patch_px=patch.shape[-1],
                width=len(patch),
                layers=layers_of(weights, "vision.encoder.layers."),
                heads=SIGLIP2.heads,
                mlp_width=len(weights["vision.encoder.layers.0.mlp.fc1.weight"]),
            ),
            language=QWEN3.model_copy(update=decoder_sizes(weights, "language.blocks", head_size)),
            vocabulary=len(weights["language.embedding.weight"]),
            image_token=token_id(tokenizer, "<IMG_CONTEXT>"),
            head=head_of(config, embodiment, 0, 0),
        )
    except KeyError as error:
        raise ModelError(f"{config.file}: {error} is missing") from error
    except ValidationError as error:
        raise ModelError(f"{config.file}: sizes that no GR00T has: {error.title}.{first_of(error)}") from error


def head_of(config: Json, embodiment: int, prefix_layers: int, prefix_heads: int) -> HeadConfig:
    """Return the sizes of the action head. Raises: `KeyError` for one that is missing."""
    told, dit = config.content, config.map("diffusion_model_cfg")
    return HeadConfig(
        layers=dit["num_layers"],
        heads=dit["num_attention_heads"],
        width=told["input_embedding_dim"],
        hidden=told["hidden_size"],
        prefix_width=told["backbone_embedding_dim"],
        prefix_layers=prefix_layers,
        prefix_heads=max(1, prefix_heads),
        future_tokens=0,
        text_every=told["attend_text_every_n_blocks"],
        positions=told["max_seq_len"],
        embodiments=told["max_num_embodiments"],
        embodiment=embodiment,
        buckets=told["num_timestep_buckets"],
    )

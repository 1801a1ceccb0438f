"""Importer of BitVLA's checkpoints.

It reads `config.json`, `dataset_statistics.json`, master or packed weights, and head and projector as safetensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ros2_rfm_serving.engines.architectures.bitnet import BitNetConfig
from ros2_rfm_serving.engines.architectures.bitvla import IMAGE, QUESTION, STATE, BitVla, BitVlaConfig
from ros2_rfm_serving.engines.architectures.importers import chats
from ros2_rfm_serving.engines.architectures.importers.base import Imported, ImportOptions, Rule, listed, renamed
from ros2_rfm_serving.engines.architectures.importers.decoder_weights import decoder_rules, siglip_rules
from ros2_rfm_serving.engines.architectures.importers.files import Json, layers_of, read_json, read_tensors, tokenizer_file
from ros2_rfm_serving.engines.architectures.importers.shards import read_weights
from ros2_rfm_serving.engines.architectures.importers.tokens import token_id
from ros2_rfm_serving.engines.architectures.manifest import Affine, BundleManifest, Promise
from ros2_rfm_serving.engines.architectures.ternary import Ternary, TernaryLinear, ternary_of
from ros2_rfm_serving.engines.architectures.vision import VisionConfig
from ros2_rfm_serving.errors import ModelError

STATISTICS = "dataset_statistics.json"
PARTS = ("action_head", "proprio_projector")
"""Parts beside the model; its authors save them as pickles."""
CAMERAS = ("full_image", "wrist_image")
_VIT, _LANGUAGE = r"vision_tower\.vision_model", r"language_model\.model"
_LAYER = rf"{_LANGUAGE}\.layers\.(\d+)"
RULES: list[Rule] = [
    (rf"{_VIT}\.post_layernorm\..+", ""),
    *siglip_rules(_VIT),
    (r"multi_modal_projector\.linear_([12])\.(.+)", r"connector.fc\1.\2"),
    (rf"{_LANGUAGE}\.embed_tokens\.weight", "language.embedding.weight"),
    (rf"{_LANGUAGE}\.norm\.weight", "language.norm.weight"),
    (r"language_model\.lm_head\.weight", ""),
    (rf"{_LAYER}\.self_attn\.attn_sub_norm\.weight", r"language.blocks.\1.attention_norm.weight"),
    (rf"{_LAYER}\.mlp\.ffn_sub_norm\.weight", r"language.blocks.\1.mlp.norm.weight"),
    *decoder_rules(_LANGUAGE, "language.blocks"),
    (r"proprio_projector\.(fc[12]\..+)", r"state_in.\1"),
    (r"action_head\.model\.layer_norm([12])\.(.+)", r"head.norm\1.\2"),
    (r"action_head\.model\.(fc[12]\..+)", r"head.\1"),
    (r"action_head\.model\.mlp_resnet_blocks\.(\d+)\.ffn\.0\.(.+)", r"head.blocks.\1.norm.\2"),
    (r"action_head\.model\.mlp_resnet_blocks\.(\d+)\.ffn\.1\.(.+)", r"head.blocks.\1.fc.\2"),
]


class Platform(NamedTuple):
    """Settings of a robot that are in its authors' code alone."""

    chunk_length: int
    least: str
    most: str
    """Names of the statistics that become -1 and 1."""


PLATFORMS = {
    (7, 8): Platform(8, "q01", "q99"),
    (14, 14): Platform(25, "min", "max"),
    (7, 7): Platform(5, "q01", "q99"),
}
"""Settings of LIBERO, ALOHA and BRIDGE, by the numbers of columns of actions and state."""


def recognises(folder: Path) -> bool:
    file = folder / "config.json"
    if not file.is_file():
        return False
    text = read_json(file).get("text_config")
    return isinstance(text, dict) and str(text.get("model_type")).lower() == "bitnet"


def read(folder: Path, wishes: ImportOptions) -> Imported:
    """Read a checkpoint. Raises: `ModelError`."""
    config, statistics = read_json(folder / "config.json"), read_json(folder / STATISTICS)
    files, theirs = _weights(folder)
    tokenizer_json = tokenizer_file(folder, wishes.tokenizer, "hongyuw/bitvla-bitsiglipL-224px-bf16")
    tokenizer = tokenizer_json.read_text(encoding="utf-8")
    robot = robot_of(statistics, wishes.kind)
    network = _network(config, theirs, robot, tokenizer)
    names = wishes.action_names or tuple(f"action_{i}" for i in range(network.action_columns))
    if len(names) != network.action_columns:
        raise ModelError(f"{statistics.file}: {network.action_columns} actions, {len(names)} names were given for them")
    cameras = wishes.cameras or CAMERAS
    published = BitVla.processing(network)
    prompt = published.prompt.model_copy(update={"template": chats.asked(folder, IMAGE * len(cameras) + QUESTION)})
    return Imported(
        manifest=BundleManifest(
            architecture="bitvla",
            network=network.model_dump(),
            contract=Promise(
                action_names=names,
                cameras=cameras,
                state_size=network.state_columns,
                control_rate_hz=wishes.control_rate_hz,
            ),
            sampling=BitVla.sampling(),
            processing=published.model_copy(update={"prompt": prompt, "state": robot.state, "action": robot.action}),
        ),
        weights=by_our_names(theirs, network, files[0]),
        tokenizer=tokenizer,
        files=(config.file, statistics.file, tokenizer_json, *chats.files(folder), *files),
        notes=(
            f"statistics of {robot.name}",
            "linear layers are ternary: two bits a weight",
            "trained with cropped images: its authors keep 0.949 of height and width (processing.images.crop); here all is kept",
        ),
    )


def _weights(folder: Path) -> tuple[tuple[Path, ...], dict[str, Tensor]]:
    """Return the files and weights of all parts. Raises: `ModelError` for a part that is a pickle."""
    files, theirs = read_weights(folder, packed=".q_weight")
    for part in PARTS:
        file = folder / f"{part}.safetensors"
        pickles = sorted(folder.glob(f"{part}--*.pt"))
        if pickles and not file.is_file():
            raise ModelError(
                f"{pickles[-1]}: a pickle can run anything, so it is not read; save what is in it as {file.name} beside it"
            )
        theirs |= {f"{part}.{name.removeprefix('module.')}": tensor for name, tensor in read_tensors(file).items()}
        files += (file,)
    return files, theirs


def by_our_names(theirs: Mapping[str, Tensor], network: BitVlaConfig, file: Path) -> dict[str, Tensor]:
    """Return the weights by our names; master weights become ternary, packed ones stay unchanged. Raises: `ModelError`."""
    steps = {name.removesuffix("w_step") + "weight": tensor for name, tensor in theirs.items() if name.endswith(".w_step")}
    bare = {name: tensor for name, tensor in theirs.items() if not name.endswith(".w_step")}
    weights = renamed({name.replace(".q_weight", ".weight"): tensor for name, tensor in bare.items()}, RULES, file)
    step_of = renamed(steps, RULES, file)
    weights = {name: tensor for name, tensor in weights.items() if not _beyond(name, network)}
    with torch.device("meta"):
        linears = [name for name, module in BitVla(network).named_modules() if isinstance(module, TernaryLinear)]
    absent = [name for name in linears if f"{name}.weight" not in weights]
    if absent:
        raise ModelError(f"{file}: {len(absent)} weights are missing: {listed(absent)}")
    for name in linears:
        own = weights.pop(f"{name}.weight")
        packed, step = ternary_of(own) if own.is_floating_point() else _packed(own, step_of, f"{name}.weight", file)
        weights |= {f"{name}.packed": packed, f"{name}.step": step}
    return weights


def _packed(own: Tensor, step_of: Mapping[str, Tensor], name: str, file: Path) -> Ternary:
    """Return packed weights unchanged. Raises: `ModelError` if they are not ternary."""
    if own.dtype is not torch.uint8:
        raise ModelError(f"{file}: {name}: packed weights are bytes, these are of {own.dtype}")
    if name not in step_of:
        raise ModelError(f"{file}: {name}: packed weights without their w_step")
    step = step_of[name].float().reshape(())
    if (own & own >> 1 & 0b01010101).any() or not step > 0:
        raise ModelError(f"{file}: {name}: not ternary: codes are 0, 1 and 2, a step is above 0; it is {float(step):g}")
    return Ternary(own, step)


def _beyond(name: str, network: BitVlaConfig) -> bool:
    """Return whether a weight belongs to a block of SigLIP that is not read."""
    start = "vision.encoder.layers."
    return name.startswith(start) and int(name.removeprefix(start).partition(".")[0]) >= network.vision.layers


class Robot(NamedTuple):
    name: str
    chunk_length: int
    state: Affine
    action: Affine


def robot_of(statistics: Json, wished: str) -> Robot:
    """Return the statistics of one robot. wished: a data set. Raises: `ModelError`."""
    name = wished or (next(iter(statistics.content)) if len(statistics.content) == 1 else "")
    if name not in statistics.content:
        raise ModelError(f"{statistics.file}: which data set? Say one of {', '.join(statistics.content)}, not {name!r}")
    action, state = (statistics.map(name, key) for key in ("action", "proprio"))
    try:
        sizes = (len(action["min"]), len(state["min"]))
        if sizes not in PLATFORMS:
            known = ", ".join(f"{actions} and {states}" for actions, states in PLATFORMS)
            raise ModelError(f"{statistics.file}: {name}: actions and state of {sizes} columns are of no known robot: {known}")
        platform = PLATFORMS[sizes]
        own_state = spans(state, platform).model_copy(update={"clip": 1.0})
        return Robot(name, platform.chunk_length, own_state, spans(action, platform))
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(f"{statistics.file}: {name}: {error} is missing or of another kind") from error


def spans(statistics: Mapping[str, Any], platform: Platform) -> Affine:
    """Return the scaling in float64, as its authors compute it (BitVLA 3738a94: `normalize_proprio` and `_unnormalize_actions`).

    Columns that its mask leaves out are unscaled.
    """
    low, high = ([float(value) for value in statistics[name]] for name in (platform.least, platform.most))
    mask = [bool(own) for own in statistics.get("mask") or [True] * len(low)]
    return Affine(
        offset=tuple(least if own else 0.0 for least, own in zip(low, mask, strict=True)),
        scale=tuple(most - least + 1e-8 if own else 1.0 for least, most, own in zip(low, high, mask, strict=True)),
        ranged=tuple(mask),
        precision="float64",
    )


def _network(config: Json, theirs: Mapping[str, Tensor], robot: Robot, tokenizer: str) -> BitVlaConfig:
    """Return the sizes of the network; those that its JSON lacks have the defaults of its authors' classes.
    Raises: `ModelError`."""
    text, eyes = config.map("text_config"), config.map("vision_config")
    vision = VisionConfig(
        image_px=eyes.get("image_size", 224),
        patch_px=eyes.get("patch_size", 16),
        width=eyes.get("hidden_size", 768),
        layers=_vision_layers(config, layers_of(dict(theirs), "vision_tower.vision_model.encoder.layers.")),
        heads=eyes.get("num_attention_heads", 12),
        mlp_width=eyes.get("intermediate_size", 3072),
    )
    bits = (eyes.get("vit_weight_bits", 32), eyes.get("vit_act_bits", 32))
    if bits not in ((1, 8), (32, 32)):
        raise ModelError(f"{config.file}: vision_config: weights and activations of {bits} bits; 1 and 8, or 32 and 32, are known")
    try:
        vocabulary, width = theirs["language_model.model.embed_tokens.weight"].shape
        heads = text.get("num_attention_heads", 20)
        return BitVlaConfig(
            chunk_length=robot.chunk_length,
            action_columns=len(robot.action.offset),
            state_columns=len(robot.state.offset),
            vision=vision,
            ternary_vision=bits == (1, 8),
            language=BitNetConfig(
                width=width,
                layers=layers_of(dict(theirs), "language_model.model.layers."),
                heads=heads,
                kv_heads=text.get("num_key_value_heads", 5),
                mlp_width=text.get("intermediate_size", 6912),
                norm_eps=text.get("rms_norm_eps", 1e-5),
                rope_theta=text.get("rope_theta", 500_000.0),
            ),
            vocabulary=vocabulary,
            image_token=token_id(tokenizer, IMAGE),
            state_token=token_id(tokenizer, STATE),
            stop_token=token_id(tokenizer, "<|end_of_text|>"),
        )
    except (KeyError, ValueError) as error:
        raise ModelError(f"{config.file}: {error}") from error


def _vision_layers(config: Json, count: int) -> int:
    """Return the number of `count` blocks that are read. Raises: `ModelError` for an unknown selection."""
    strategy, layer = config.get("vision_feature_select_strategy") or "default", config.content.get("vision_feature_layer", -2)
    if strategy != "full" or not isinstance(layer, int):
        raise ModelError(
            f"{config.file}: vision_feature_select_strategy is {strategy!r} of layer {layer!r}; only all patches of one are known"
        )
    return count + 1 + layer if layer < 0 else layer

"""Importer of NVIDIA's Isaac-GR00T N1.5: `config.json`, sharded safetensors, statistics in `experiment_cfg/metadata.json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError
from torch import Tensor

from ros2_rfm_serving.engines.architectures.groot_head import HeadConfig
from ros2_rfm_serving.engines.architectures.groot_n1_5 import QWEN3, SIGLIP, GrootN15, GrootN15Config
from ros2_rfm_serving.engines.architectures.importers.base import Imported, ImportOptions, Rule, renamed
from ros2_rfm_serving.engines.architectures.importers.decoder_weights import (
    decoder_rules,
    decoder_sizes,
    siglip_rules,
    siglip_sizes,
)
from ros2_rfm_serving.engines.architectures.importers.files import Json, is_of_type, read_json, tokenizer_file
from ros2_rfm_serving.engines.architectures.importers.groot_columns import (
    MODES,
    Key,
    Statistics,
    inputs_of,
    joined,
    require_one_line,
)
from ros2_rfm_serving.engines.architectures.importers.shards import read_weights
from ros2_rfm_serving.engines.architectures.importers.tokens import token_id
from ros2_rfm_serving.engines.architectures.manifest import BundleManifest, Processing, Promise, first_of
from ros2_rfm_serving.engines.architectures.vision import VisionConfig
from ros2_rfm_serving.errors import ModelError

TYPE = "gr00t_n1_5"
METADATA = Path("experiment_cfg/metadata.json")
EMBODIMENTS = {"new_embodiment": 31, "oxe_droid": 17, "agibot_genie1": 26, "gr1": 24}
"""Index of the weights of each kind of robot."""
_EAGLE = r"backbone\.eagle_model"
_LANGUAGE = rf"{_EAGLE}\.language_model"
RULES: list[Rule] = [
    *siglip_rules(rf"{_EAGLE}\.vision_model\.vision_model"),
    (rf"{_EAGLE}\.mlp1\.0\.(.+)", r"connector.\1"),
    (rf"{_LANGUAGE}\.model\.embed_tokens\.weight", "language.embedding.weight"),
    (rf"{_LANGUAGE}\.model\.norm\.weight", "language.norm.weight"),
    *decoder_rules(rf"{_LANGUAGE}\.model", "language.blocks"),
    (rf"{_LANGUAGE}\.lm_head\..+", ""),
    (r"action_head\.(.+)", r"head.\1"),
]


def recognises(folder: Path) -> bool:
    return is_of_type(folder, TYPE)


def read(folder: Path, wishes: ImportOptions) -> Imported:
    """Read a checkpoint. Raises: `ModelError`."""
    config, metadata = read_json(folder / "config.json"), read_json(folder / METADATA)
    files, theirs = read_weights(folder)
    weights = renamed(theirs, RULES, files[0])
    robot = robot_of(metadata, wishes)
    tokenizer_json = tokenizer_file(folder, wishes.tokenizer, "nvidia/Eagle2.5, in Isaac-GR00T")
    tokenizer = tokenizer_json.read_text(encoding="utf-8")
    network = _network(config, weights, robot, tokenizer)
    names = wishes.action_names or tuple(f"{key.name}_{i}" for key in robot.action for i in range(key.num_columns))
    if len(names) != (count := sum(key.num_columns for key in robot.action)):
        raise ModelError(f"{metadata.file}: {count} actions, {len(names)} names were given for them")
    processing = GrootN15.processing(network, len(robot.cameras))
    steps = Json(config.file, config.map("action_head_cfg")).count("num_inference_timesteps", GrootN15.sampling().num_steps)
    state = joined(robot.state, "float32", f"{metadata.file}: {robot.tag}.statistics.state")
    manifest = BundleManifest(
        architecture="groot_n1_5",
        network=network.model_dump(),
        contract=Promise(
            action_names=names,
            cameras=robot.cameras,
            state_size=sum(key.num_columns for key in robot.state),
            control_rate_hz=wishes.control_rate_hz or robot.rate_hz,
        ),
        sampling=GrootN15.sampling().model_copy(update={"num_steps": steps}),
        processing=Processing(
            images=processing.images,
            prompt=processing.prompt,
            state_inputs=inputs_of(robot.state),
            state=state.model_copy(update={"clip": 1.0 if any(key.clipped for key in robot.state) else None}),
            action=joined(robot.action, "float32", f"{metadata.file}: {robot.tag}.statistics.action"),
        ),
    )
    notes = (
        f"the weights of embodiment {robot.tag!r} are used",
        f"state: {_listed(robot.state)}; actions: {_listed(robot.action)}",
        f"cameras in this order: {', '.join(robot.cameras) or 'none'}; --cameras says another, as the data config has them",
        "the newest observation alone is seen, and pictures are cropped to 0.95 and stretched, as its data configs do",
    )
    return Imported(
        manifest=manifest,
        weights=weights,
        tokenizer=tokenizer,
        files=(config.file, metadata.file, tokenizer_json, *files),
        notes=notes,
    )


class Robot(NamedTuple):
    """Description of one embodiment from `metadata.json` and the options."""

    tag: str
    cameras: tuple[str, ...]
    state: list[Key]
    action: list[Key]
    rate_hz: float


def robot_of(metadata: Json, wishes: ImportOptions) -> Robot:
    """Return the description of one embodiment. Raises: `ModelError`."""
    tag = _tag_of(metadata, wishes.kind)
    metadata.map(tag, "statistics")
    video = metadata.map(tag, "modalities", "video")
    try:
        rate_hz = max((float(each.get("fps") or 0.0) for each in video.values()), default=0.0)
    except (TypeError, AttributeError, ValueError) as error:
        raise ModelError(f"{metadata.file}: {tag}.modalities.video: {error}") from error
    return Robot(
        tag=tag,
        cameras=_cameras(metadata, tag, tuple(video), wishes.cameras),
        state=_keys(metadata, tag, "state", wishes.state_keys),
        action=_keys(metadata, tag, "action", wishes.action_keys),
        rate_hz=rate_hz,
    )


def _tag_of(metadata: Json, tag: str) -> str:
    """Return the tag of the embodiment. Raises: `ModelError` if it is ambiguous or unknown."""
    known = [name for name in metadata.content if name in EMBODIMENTS]
    if not tag and len(known) == 1:
        tag = known[0]
    if tag not in known:
        raise ModelError(f"{metadata.file}: which embodiment? --kind {tag!r} is none of {', '.join(known) or 'none that is known'}")
    return tag


def _cameras(metadata: Json, tag: str, known: tuple[str, ...], wished: tuple[str, ...]) -> tuple[str, ...]:
    """Return the cameras in the network's order. Raises: `ModelError` for an unknown one."""
    cameras = tuple(name.removeprefix("video.") for name in wished) or known
    if unknown := [name for name in cameras if name not in known]:
        raise ModelError(f"{metadata.file}: --cameras: {unknown[0]!r} is none of {tag}.modalities.video: {', '.join(known)}")
    return cameras


def _keys(metadata: Json, tag: str, part: str, wished: Sequence[str]) -> list[Key]:
    """Return the keys that the network reads or writes, in its order. Raises: `ModelError` if they are not known."""
    statistics = metadata.map(tag, "statistics", part)
    modalities = metadata.content[tag].get("modalities", {}).get(part) or {}
    if not wished and len(statistics) > 1:
        raise ModelError(
            f"{metadata.file}: {tag}.statistics.{part} has {len(statistics)} keys: {', '.join(statistics)}; which of them the "
            f"network has, and in which order, is in the data config that trained it ({part}_keys), not in the checkpoint: give "
            f"--{part}-keys A,B,..; a key that the data config does not scale by min_max as A:MODE, of {', '.join(MODES)}"
        )
    found: list[Key] = []
    for text in wished or tuple(statistics):
        name, _, said = text.removeprefix(f"{part}.").partition(":")
        mode = said or "min_max"
        _require_key(metadata, f"{tag}.statistics.{part}", part, name, mode, statistics)
        if name in (key.name for key in found):
            raise ModelError(f"{metadata.file}: --{part}-keys: {name!r} is there twice")
        where = f"{tag}.statistics.{part}.{name}"
        bounds = ("q01", "q99") if mode == "q99" else ("min", "max")
        key = Statistics(metadata.file, where, statistics[name], "float32", close=False).scaled(name, mode, bounds)
        _require_columns(metadata, f"{tag}.modalities.{part}.{name}", modalities.get(name) or {}, key, is_said=bool(said))
        found.append(key)
    require_one_line(metadata.file, f"{tag}.statistics.{part}", found)
    return found


def _require_key(metadata: Json, where: str, part: str, name: str, mode: str, known: Mapping[str, Any]) -> None:
    """Check that a key and its mode exist. Raises: `ModelError`."""
    if name not in known:
        raise ModelError(f"{metadata.file}: --{part}-keys: {name!r} is none of {where}: {', '.join(known)}")
    modes = MODES if part == "state" else tuple(each for each in MODES if each != "sin_cos")
    if mode not in modes:
        raise ModelError(f"{metadata.file}: --{part}-keys: {name}: no mode is named {mode!r}; there are {', '.join(modes)}")


def _require_columns(metadata: Json, where: str, told: Mapping[str, Any], key: Key, *, is_said: bool) -> None:
    """Check that a data config does not transform the key's columns, and that its statistics fit its description.

    is_said: the user gave the key's mode, and so confirmed that the data config leaves its columns alone: the data config names the
    target_rotations, which `metadata.json` does not. Raises: `ModelError`.
    """
    if (rotation := told.get("rotation_type")) and not is_said:
        option = f"--{where.split('.')[2]}-keys"
        raise ModelError(
            f"{metadata.file}: {where}.rotation_type is {rotation!r}: where the data config's target_rotations turn {key.name} to "
            "another type, as rotation_6d, it is not supported; where they do not name it, or name the same type, give its mode in "
            f"normalization_modes: {option} ..,{key.name}:min_max, or {key.name}:none where it has none"
        )
    if told.get("continuous") is False and key.mode != "binary":
        raise ModelError(f"{metadata.file}: {where}.continuous is false: such a key is binary; say so as {key.name}:binary")
    shape = told.get("shape")
    if shape is not None and list(shape) != [key.num_columns]:
        raise ModelError(f"{metadata.file}: {where}.shape is {shape!r}, its statistics have {key.num_columns} columns")


def _listed(keys: Sequence[Key]) -> str:
    return ", ".join(f"{key.name} ({key.mode})" for key in keys) or "none"


def _network(config: Json, weights: dict[str, Tensor], robot: Robot, tokenizer: str) -> GrootN15Config:
    """Return the sizes of the network; those of the backbone follow from its weights, as the checkpoint has no others.
    Raises: `ModelError` if one is missing or impossible."""
    try:
        head, dit = config.map("action_head_cfg"), config.map("action_head_cfg", "diffusion_model_cfg")
        prefix, head_size = (
            config.map("action_head_cfg", "vl_self_attention_cfg"),
            len(weights["language.blocks.0.query_norm.weight"]),
        )
        return GrootN15Config(
            chunk_length=config.content["action_horizon"],
            action_columns=config.content["action_dim"],
            state_columns=weights["head.state_encoder.layer1.W"].shape[1],
            vision=VisionConfig(**siglip_sizes(weights, SIGLIP.heads)),
            language=QWEN3.model_copy(update=decoder_sizes(weights, "language.blocks", head_size)),
            vocabulary=len(weights["language.embedding.weight"]),
            image_token=token_id(tokenizer, "<IMG_CONTEXT>"),
            head=HeadConfig(
                layers=dit["num_layers"],
                heads=dit["num_attention_heads"],
                width=head["input_embedding_dim"],
                hidden=head["hidden_size"],
                prefix_width=head["backbone_embedding_dim"],
                prefix_layers=prefix["num_layers"],
                prefix_heads=prefix["num_attention_heads"],
                future_tokens=head["num_target_vision_tokens"],
                positions=head["max_seq_len"],
                embodiments=head["max_num_embodiments"],
                embodiment=EMBODIMENTS[robot.tag],
                buckets=head["num_timestep_buckets"],
            ),
        )
    except KeyError as error:
        raise ModelError(f"{config.file}: {error} is missing") from error
    except ValidationError as error:
        raise ModelError(f"{config.file}: sizes that no GR00T has: {error.title}.{first_of(error)}") from error

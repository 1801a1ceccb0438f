"""Checkpoints of NVIDIA's Isaac-GR00T: `config.json`, sharded safetensors, statistics in `experiment_cfg/metadata.json`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from ros2_rfm_serving.engines.architectures.groot_head import HeadConfig
from ros2_rfm_serving.engines.architectures.groot_n1_5 import QWEN3, SIGLIP, GrootN15, GrootN15Config
from ros2_rfm_serving.engines.architectures.importers.base import Imported, Rule, Wishes, renamed
from ros2_rfm_serving.engines.architectures.importers.decoder_weights import (
    decoder_rules,
    decoder_sizes,
    siglip_rules,
    siglip_sizes,
)
from ros2_rfm_serving.engines.architectures.importers.files import Json, is_of_type, read_json, tokenizer_file
from ros2_rfm_serving.engines.architectures.importers.shards import read_weights
from ros2_rfm_serving.engines.architectures.importers.tokens import token_id
from ros2_rfm_serving.engines.architectures.manifest import Affine, Manifest, Processing, Promise
from ros2_rfm_serving.engines.architectures.vision import VisionConfig
from ros2_rfm_serving.errors import ModelError

TYPE = "gr00t_n1_5"
METADATA = Path("experiment_cfg/metadata.json")
EMBODIMENTS = {"new_embodiment": 31, "oxe_droid": 17, "agibot_genie1": 26, "gr1": 24}
"""Whose weights are whose"""
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


def read(folder: Path, wishes: Wishes) -> Imported:
    """Raises: `ModelError`."""
    config, metadata = read_json(folder / "config.json"), read_json(folder / METADATA)
    files, theirs = read_weights(folder)
    weights = renamed(theirs, RULES, files[0])
    robot = robot_of(metadata, wishes.kind)
    tokenizer_json = tokenizer_file(folder, wishes.tokenizer, "nvidia/Eagle2.5, in Isaac-GR00T")
    tokenizer = tokenizer_json.read_text(encoding="utf-8")
    network = _network(config, weights, robot, tokenizer)
    names = wishes.action_names or robot.action_names
    if len(names) != len(robot.action_names):
        raise ModelError(f"{metadata.file}: {len(robot.action_names)} actions, {len(names)} names were given for them")
    processing = GrootN15.processing(network, len(robot.cameras))
    steps = Json(config.file, config.map("action_head_cfg")).count("num_inference_timesteps", GrootN15.sampling().num_steps)
    manifest = Manifest(
        architecture="groot_n1_5",
        network=network.model_dump(),
        contract=Promise(
            action_names=names,
            cameras=robot.cameras,
            state_size=len(robot.state.offset),
            control_rate_hz=wishes.control_rate_hz or robot.rate_hz,
        ),
        sampling=GrootN15.sampling().model_copy(update={"num_steps": steps}),
        processing=Processing(images=processing.images, prompt=processing.prompt, state=robot.state, action=robot.action),
    )
    notes = (
        f"the weights of embodiment {robot.tag!r} are used",
        "state and actions are taken in the order of metadata.json, all scaled from least and largest to -1 and 1",
    )
    return Imported(
        manifest=manifest,
        weights=weights,
        tokenizer=tokenizer,
        files=(config.file, metadata.file, tokenizer_json, *files),
        notes=notes,
    )


class Robot(NamedTuple):
    """What `metadata.json` says of one embodiment."""

    tag: str
    cameras: tuple[str, ...]
    state: Affine
    action: Affine
    action_names: tuple[str, ...]
    rate_hz: float


def robot_of(metadata: Json, tag: str) -> Robot:
    """Raises: `ModelError`."""
    known = [name for name in metadata.content if name in EMBODIMENTS]
    if not tag and len(known) == 1:
        tag = known[0]
    if tag not in known:
        raise ModelError(f"{metadata.file}: which embodiment? Say one of {', '.join(known) or 'none that is known'}, not {tag!r}")
    try:
        modalities, statistics = metadata.map(tag, "modalities"), metadata.map(tag, "statistics")
        video, action = modalities["video"], statistics["action"]
        return Robot(
            tag=tag,
            cameras=tuple(video),
            state=span_of(statistics["state"]),
            action=span_of(action),
            action_names=tuple(f"{key}_{i}" for key, values in action.items() for i in range(len(values["min"]))),
            rate_hz=max((float(each.get("fps") or 0.0) for each in video.values()), default=0.0),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{metadata.file}: {tag}: {error} is missing or of another kind") from error


def span_of(statistics: Mapping[str, Mapping[str, list[float]]]) -> Affine:
    """[least, largest] to [-1, 1]; what never changes becomes 0 there, as theirs does, for all but infinite values."""
    least = [value for each in statistics.values() for value in each["min"]]
    most = [value for each in statistics.values() for value in each["max"]]
    pairs = list(zip(least, most, strict=True))
    return Affine(offset=tuple((a + b) / 2 for a, b in pairs), scale=tuple((b - a) / 2 for a, b in pairs))


def _network(config: Json, weights: dict[str, Tensor], robot: Robot, tokenizer: str) -> GrootN15Config:
    """Sizes of the backbone are those of its weights: the checkpoint says nothing else about them."""
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

"""LeRobot's checkpoints of SmolVLA, pi0 and pi0.5: `config.json`, `model.safetensors` and the two processors' files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ros2_rfm_serving.engines.architectures.base import Architecture, ArchitectureConfig
from ros2_rfm_serving.engines.architectures.importers import pi_weights, smolvla_weights
from ros2_rfm_serving.engines.architectures.importers.base import Imported, Wishes
from ros2_rfm_serving.engines.architectures.importers.files import Json, read_json, read_tensors, tokenizer_file
from ros2_rfm_serving.engines.architectures.importers.lerobot_processors import POST, PRE, Processors
from ros2_rfm_serving.engines.architectures.manifest import Images, Manifest, Processing, Promise, first_of
from ros2_rfm_serving.engines.architectures.names import architecture_of
from ros2_rfm_serving.errors import ModelError

CONFIG, WEIGHTS = "config.json", "model.safetensors"
TOKENIZERS = {"pi0": "google/paligemma-3b-pt-224", "pi05": "google/paligemma-3b-pt-224"}
UNSERVED = {
    "use_peft": "it holds an adapter only; merge it into its policy",
    "adapt_to_pi_aloha": "its actions leave in other units than those of its noise; serve it with the engine `lerobot`",
    "use_delta_joint_actions_aloha": "LeRobot has no such actions itself",
    "use_visual_memory": "it remembers images; no robot sends older ones",
    "use_proprioceptive_memory": "it remembers states; no robot sends older ones",
    "add_image_special_tokens": "its images stand between special tokens, which is not served here; use the engine `lerobot`",
}
"""Keys of a configuration that have to be false."""


def recognises(folder: Path) -> bool:
    return (folder / CONFIG).is_file() and (folder / WEIGHTS).is_file() and "type" in read_json(folder / CONFIG).content


def read(folder: Path, wishes: Wishes) -> Imported:
    """Raises: `ModelError`."""
    for name in (CONFIG, WEIGHTS, PRE, POST):
        if not (folder / name).is_file():
            older = "; LeRobot's migrate_policy_normalization makes it for older checkpoints" if name in (PRE, POST) else ""
            raise ModelError(f"{folder}: not a LeRobot checkpoint, {name} is missing{older}")
    config = read_json(folder / CONFIG)
    kind = config.text("type")
    if kind not in ("smolvla", "pi0", "pi05"):
        raise ModelError(f"{config.file}: type is {kind!r}; smolvla, pi0 and pi05 are imported, others are served by `lerobot`")
    for key, why in UNSERVED.items():
        if config.get(key):
            raise ModelError(f"{config.file}: {key} is true: {why}")
    processors = Processors(folder)
    weights_of = smolvla_weights if kind == "smolvla" else pi_weights
    backbone = str(config.get("vlm_model_name") or TOKENIZERS.get(kind, ""))
    tokenizer = tokenizer_file(folder, wishes.tokenizer, backbone)
    weights, sizes = weights_of.read(kind, read_tensors(folder / WEIGHTS), config, tokenizer.parent)
    network, promise = sized(kind, sizes, config), _promise(config, processors, wishes)
    relative = processors.relative(len(promise.action_names), promise.state_size)
    if bool(relative) != bool(config.get("use_relative_actions")):
        raise ModelError(
            f"{config.file}: use_relative_actions is {config.get('use_relative_actions')!r}, its processors do otherwise"
        )
    processing = _processing(architecture_of(kind), network, config, processors, wishes.state_words)
    manifest = Manifest(
        architecture=kind,
        network=network.model_dump(mode="json"),
        contract=promise,
        sampling=_sampling(architecture_of(kind), config),
        processing=processing.model_copy(update={"relative": relative}),
    )
    return Imported(
        manifest=manifest,
        weights=weights,
        tokenizer=tokenizer.read_text(encoding="utf-8"),
        files=(folder / CONFIG, folder / WEIGHTS, *processors.files, tokenizer),
        notes=(*weights_of.LEFT_OUT, *_unscaled(manifest)),
    )


def _unscaled(manifest: Manifest) -> list[str]:
    parts = (("action", manifest.processing.action), ("state", manifest.processing.state))
    return [
        f"its processors have no statistics of the {name}: it is taken as the network has it"
        for name, affine in parts
        if not affine.scale
    ]


def sized(kind: str, sizes: dict[str, Any], config: Json) -> ArchitectureConfig:
    """Raises: `ModelError`."""
    try:
        return architecture_of(kind).config_class.model_validate(sizes)
    except ValidationError as error:
        raise ModelError(f"{config.file}: sizes that no {kind!r} has: {first_of(error)}") from error


def _features(config: Json, key: str, kind: str) -> dict[str, Any]:
    features: dict[str, Any] = config.map(key)
    return {name: feature for name, feature in features.items() if feature.get("type") == kind}


def _columns(config: Json, key: str, feature: dict[str, Any]) -> int:
    """Raises: `ModelError`."""
    shape = feature.get("shape")
    if not isinstance(shape, list) or len(shape) != 1 or type(shape[0]) is not int:
        raise ModelError(f"{config.file}: {key}.shape: a list of one whole number is expected, it is {shape!r}")
    return shape[0]


def _promise(config: Json, processors: Processors, wishes: Wishes) -> Promise:
    columns = _columns(config, "output_features.action", config.map("output_features", "action"))
    own = config.get("action_feature_names") or []
    if not isinstance(own, list):
        raise ModelError(f"{config.file}: action_feature_names: a list is expected, it is {own!r}")
    names = wishes.action_names or tuple(own)
    if len(names) != columns:
        told = f"{len(names)} action names ({', '.join(names)}) for" if names else "a LeRobot checkpoint does not name its"
        raise ModelError(f"{config.file}: {told} {columns} action columns: give --action-names, in the robot's order")
    cameras = [processors.robot_name(name) for name in _features(config, "input_features", "VISUAL") if "empty_camera" not in name]
    state = _features(config, "input_features", "STATE").get("observation.state", {"shape": [0]})
    return Promise(
        action_names=names,
        cameras=tuple(name.removeprefix("observation.").removeprefix("images.") for name in cameras),
        state_size=_columns(config, "input_features.observation.state", state),
        control_rate_hz=wishes.control_rate_hz,
        max_inference_delay_steps=config.count("rtc_training_max_delay", 0),
    )


def _sampling(architecture: type[Architecture], config: Json) -> Any:
    published = architecture.sampling()
    steps = config.count("num_steps", config.count("num_inference_steps", published.num_steps))
    return published.model_copy(update={"num_steps": steps})


def _processing(
    architecture: type[Architecture], network: ArchitectureConfig, config: Json, processors: Processors, state_words: int
) -> Processing:
    own = architecture.processing(network)
    sides = config.get("resize_imgs_with_padding") or config.get("image_resolution")
    if not sides or [sides[1], sides[0]] != [own.images.height_px, own.images.width_px]:
        raise ModelError(
            f"{config.file}: images are {sides}, its image encoder has positions for {own.images.width_px} x {own.images.height_px}"
        )
    absent = config.count("empty_cameras", 0)
    images = Images.model_validate({**own.images.model_dump(), "absent": absent})
    longest = config.count("tokenizer_max_length", own.prompt.max_tokens)
    prompt = own.prompt.model_copy(update={"max_tokens": longest, "state_words": state_words})
    return Processing(images=images, prompt=prompt, state=processors.state(), action=processors.action())

"""Importer of LeRobot's checkpoints of SmolVLA, pi0 and pi0.5: `config.json`, `model.safetensors` and the two processors' files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ros2_rfm_serving.engines.architectures.base import Architecture, ArchitectureConfig
from ros2_rfm_serving.engines.architectures.importers import pi_weights, smolvla_weights
from ros2_rfm_serving.engines.architectures.importers.base import Imported, ImportOptions
from ros2_rfm_serving.engines.architectures.importers.files import Json, read_json, read_tensors, tokenizer_file
from ros2_rfm_serving.engines.architectures.importers.lerobot_processors import Processors
from ros2_rfm_serving.engines.architectures.importers.lerobot_release import DARKER, Release, release_of
from ros2_rfm_serving.engines.architectures.manifest import (
    TOKENIZER,
    BundleManifest,
    Images,
    Processing,
    Promise,
    Prompt,
    first_of,
)
from ros2_rfm_serving.engines.architectures.names import architecture_of
from ros2_rfm_serving.engines.lerobot_format import (
    ADAPTER,
    CONFIG,
    IMPORTED,
    PADDED_STATE,
    WEIGHTS,
    cameras_of,
    names_of,
    require_checkpoint,
    served_by,
)
from ros2_rfm_serving.errors import ModelError

TOKENIZERS = {"pi0": "google/paligemma-3b-pt-224", "pi05": "google/paligemma-3b-pt-224"}
UNSERVED = {
    "use_peft": "it holds an adapter only; merge it into its policy",
    "adapt_to_pi_aloha": "its actions leave in other units than those of its noise; serve it with the engine `lerobot`",
    "use_delta_joint_actions_aloha": "LeRobot has no such actions itself",
    "use_visual_memory": "it remembers images; no robot sends older ones",
    "use_proprioceptive_memory": "it remembers states; no robot sends older ones",
    "add_image_special_tokens": "its images stand between special tokens, which is not served here; use the engine `lerobot`",
}
"""Keys of a configuration that have to be false, with the reason."""
PERIODS = {"min_period": 4e-3, "max_period": 4.0}
"""Shortest and longest period of the time embedding, the same in all releases and in openpi (`layers.time_embedding`)."""


def recognises(folder: Path) -> bool:
    has_weights = any((folder / name).is_file() for name in (WEIGHTS, ADAPTER))
    return has_weights and (folder / CONFIG).is_file() and "type" in read_json(folder / CONFIG).content


def read(folder: Path, wishes: ImportOptions) -> Imported:
    """Read a checkpoint. Raises: `ModelError`."""
    require_checkpoint(folder)
    config = read_json(folder / CONFIG)
    kind = config.text("type")
    if kind not in IMPORTED:
        raise ModelError(f"{config.file}: type is {kind!r}, which is not imported: {served_by(kind)}")
    for key, why in UNSERVED.items():
        if config.get(key):
            raise ModelError(f"{config.file}: {key} is true: {why}")
    for key, published in PERIODS.items():
        if config.content.get(key, published) != published:
            raise ModelError(
                f"{config.file}: {key} is {config.get(key)!r}, a bundle embeds time with {published}; use the engine `lerobot`"
            )
    processors = Processors(folder)
    weights_of = smolvla_weights if kind == "smolvla" else pi_weights
    tokenizer = _tokenizer(folder, config, processors, wishes)
    weights, sizes = weights_of.read(kind, read_tensors(folder / WEIGHTS), config, tokenizer.parent)
    network, promise = sized(kind, sizes, config), _promise(config, processors, wishes)
    relative = processors.relative(len(promise.action_names), promise.state_size)
    if bool(relative) != bool(config.get("use_relative_actions")):
        raise ModelError(
            f"{config.file}: use_relative_actions is {config.get('use_relative_actions')!r}, its processors do otherwise"
        )
    release = Release(False) if kind == "smolvla" else release_of(config, kind, promise.state_size, wishes)
    processing = _processing(architecture_of(kind), network, config, processors, wishes, release)
    manifest = BundleManifest(
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
        notes=(*weights_of.LEFT_OUT, *_unscaled(manifest), *_absent(config, promise), *filter(None, [release.note])),
    )


def _tokenizer(folder: Path, config: Json, processors: Processors, wishes: ImportOptions) -> Path:
    """Return the tokenizer's file: the one in the options, else the checkpoint's, else that of its language model.
    Raises: `ModelError`."""
    step = processors.tokenizer()
    own = step.get("folder")
    if wishes.tokenizer is None and own is not None and (own / TOKENIZER).is_file():
        return Path(own / TOKENIZER)
    named = "" if own is not None else str(step.get("tokenizer_name") or "")
    published = str(config.get("vlm_model_name") or TOKENIZERS.get(config.text("type"), ""))
    return tokenizer_file(folder, wishes.tokenizer, named or published)


def _absent(config: Json, promise: Promise) -> list[str]:
    """Return a note on image features for which the robot has no camera."""
    features = _features(config, "input_features", "VISUAL")
    count = len(features) - len(promise.cameras)
    return (
        [f"cameras: {', '.join(promise.cameras) or 'none'}; {count} of its image features are none of the robot's"] if count else []
    )


def _unscaled(manifest: BundleManifest) -> list[str]:
    parts = (("action", manifest.processing.action), ("state", manifest.processing.state))
    return [
        f"its processors have no statistics of the {name}: it is taken as the network has it"
        for name, affine in parts
        if not affine.scale
    ]


def sized(kind: str, sizes: dict[str, Any], config: Json) -> ArchitectureConfig:
    """Return the sizes of the network. Raises: `ModelError` if they do not fit the policy type."""
    try:
        return architecture_of(kind).config_class.model_validate(sizes)
    except ValidationError as error:
        raise ModelError(f"{config.file}: sizes that no {kind!r} has: {first_of(error)}") from error


def _features(config: Json, key: str, kind: str) -> dict[str, Any]:
    """Return the features of one kind, by name. Raises: `ModelError` for a feature that is no map."""
    features: dict[str, Any] = config.map(key)
    for name, feature in features.items():
        if not isinstance(feature, dict):
            raise ModelError(f"{config.file}: {key}.{name}: a map with type and shape is expected, it is {feature!r}")
    return {name: feature for name, feature in features.items() if feature.get("type") == kind}


def _columns(config: Json, key: str, feature: dict[str, Any]) -> int:
    """Return the number of columns of a feature. Raises: `ModelError` if its shape is not one whole number."""
    shape = feature.get("shape")
    if not isinstance(shape, list) or len(shape) != 1 or type(shape[0]) is not int:
        raise ModelError(f"{config.file}: {key}.shape: a list of one whole number is expected, it is {shape!r}")
    return shape[0]


def _promise(config: Json, processors: Processors, wishes: ImportOptions) -> Promise:
    columns = _columns(config, "output_features.action", config.map("output_features", "action"))
    own = _own_names(config, columns)
    names = wishes.action_names or own
    if len(names) != columns:
        has = f"{len(names)} action names ({', '.join(names)}) for" if names else "a LeRobot checkpoint does not name its"
        raise ModelError(f"{config.file}: {has} {columns} action columns: give --action-names, in the robot's order")
    features = list(_features(config, "input_features", "VISUAL"))
    try:
        cameras = cameras_of(features, processors.rename_map, processors.statistics, wishes.cameras)
    except ModelError as error:
        raise ModelError(f"{config.file}: input_features: {error} (--cameras)") from error
    state = _features(config, "input_features", "STATE").get("observation.state", {"shape": [0]})
    return Promise(
        action_names=names,
        cameras=tuple(camera.name for camera in cameras),
        state_size=_columns(config, "input_features.observation.state", state),
        control_rate_hz=wishes.control_rate_hz,
        max_inference_delay_steps=config.count("rtc_training_max_delay", 0),
    )


def _own_names(config: Json, columns: int) -> tuple[str, ...]:
    """Return the names of the actions in the data set, or nothing if they are not one per column.

    LeRobot takes `list(names)` of them, which keeps only the groups' names of grouped ones (`make_policy`, 0.5.1 to 0.6.1).
    Raises: `ModelError` if they have no known form.
    """
    own = config.get("action_feature_names")
    if isinstance(own, str):
        raise ModelError(f"{config.file}: action_feature_names: a list is expected, it is {own!r}")
    try:
        names = names_of(own)
    except ValueError as error:
        raise ModelError(f"{config.file}: action_feature_names: {error}: give --action-names, in the robot's order") from error
    return names if len(names) == columns else ()


def _sampling(architecture: type[Architecture], config: Json) -> Any:
    published = architecture.sampling()
    steps = config.count("num_steps", config.count("num_inference_steps", published.num_steps))
    return published.model_copy(update={"num_steps": steps})


def _processing(
    architecture: type[Architecture],
    network: ArchitectureConfig,
    config: Json,
    processors: Processors,
    wishes: ImportOptions,
    release: Release,
) -> Processing:
    own = architecture.processing(network)
    key = "resize_imgs_with_padding" if config.get("resize_imgs_with_padding") else "image_resolution"
    sides, (height, width) = config.get(key), (own.images.height_px, own.images.width_px)
    if sides not in ([width, height], (width, height)):
        raise ModelError(
            f"{config.file}: {key}: [{width}, {height}] is expected, for which its image encoder has positions; it is {sides!r}"
        )
    absent = config.count("empty_cameras", 0)
    border = DARKER if release.of_0_4 else own.images.border
    images = Images.model_validate({**own.images.model_dump(), "absent": absent, "border": border})
    raw_units = wishes.raw_units
    return Processing(
        images=images,
        prompt=_prompt(own.prompt, config, processors, wishes, release),
        state=processors.state(raw_units=raw_units),
        action=processors.action(raw_units=raw_units),
    )


def _prompt(own: Prompt, config: Json, processors: Processors, wishes: ImportOptions, release: Release) -> Prompt:
    """Return the prompt that the pipeline makes; its length is that of the pipeline's step, if it has one, as in LeRobot."""
    longest = processors.tokenizer().get("max_length") or config.count("tokenizer_max_length", own.max_tokens)
    template, state_words = own.template, wishes.state_words
    if "{state}" in template:
        processors.require_state_in_prompt()
        state_words = state_words or (PADDED_STATE if release.of_0_4 else 0)
    elif not processors.ends_lines:
        template = template.removesuffix("\n")
    return Prompt.model_validate({**own.model_dump(), "template": template, "max_tokens": longest, "state_words": state_words})

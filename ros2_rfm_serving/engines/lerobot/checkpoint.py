"""LeRobot checkpoint: a folder, or a repository of the Hugging Face hub. JSON and safetensors only; no code in it is run."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from lerobot.configs.policies import PreTrainedConfig
from lerobot.policies.factory import get_policy_class, make_pre_post_processors
from pydantic import BaseModel, ConfigDict, Field
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file

from ros2_rfm_serving.engines.embedded.options import DEVICE
from ros2_rfm_serving.engines.identity import model_hash
from ros2_rfm_serving.engines.lerobot import pi_gemma
from ros2_rfm_serving.engines.lerobot_format import (
    CHUNKLESS,
    CONFIG,
    IMPORTED,
    PADDED_STATE,
    POSTPROCESSOR,
    PREPROCESSOR,
    RUN,
    WEIGHTS,
    LeRobotCamera,
    cameras_of,
    is_of_0_4,
    names_of,
    require_checkpoint,
    served_by,
    without_statistics,
)
from ros2_rfm_serving.engines.weights_header import check_header
from ros2_rfm_serving.errors import ModelError

LOADING = (AttributeError, ImportError, KeyError, OSError, RuntimeError, SafetensorError, TypeError, ValueError)
"""Errors of LeRobot's loaders."""
RELEASE = metadata.version("lerobot")
_log = logging.getLogger(__name__)
LACK_CAMERAS = (*IMPORTED, "pi0_fast", "xvla")
"""Types that run without an image feature that is missing (0.4.4 and 0.6.1, where their code looks for `missing_img_keys`)."""


class LeRobotOptions(BaseModel):
    """`options` of a catalogue entry with `engine: lerobot`."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    path: str
    """Folder, relative to models/; or `owner/name` on the hub."""
    revision: str | None = None
    """Commit of a repository on the hub, for a model that does not change unnoticed."""
    device: str = Field(default="auto", pattern=DEVICE)
    """Device; `auto` selects the first GPU, or the CPU if there is none or the placement says `CPU`."""
    dtype: Literal["float32", "bfloat16"] | None = None
    """Dtype of pi0 and its family; by default the checkpoint's."""
    num_steps: int | None = Field(default=None, ge=1)
    """Denoising steps; by default the checkpoint's."""
    action_names: tuple[str, ...] = ()
    """Names and order of the action columns, which no checkpoint has; or give `dataset`."""
    dataset: str = ""
    """Folder of the LeRobot dataset that it was trained on: its meta/info.json has names and rate."""
    control_rate_hz: float = Field(default=0.0, ge=0.0)
    """Rate of the demonstrations; 0 for the dataset's, if it is given."""
    rename_map: dict[str, str] = {}
    """Policy's feature for a robot's, `observation.images.front: observation.images.camera1`; replaces the checkpoint's map."""
    cameras: tuple[str, ...] = ()
    """Robot's names of the cameras, in the policy's order; by default those that the checkpoint was trained with."""
    release: str = Field(default="", pattern=r"^(0\.[456](\.\d+)?)?$")
    """LeRobot release that trained a pi0 or pi0.5, if the checkpoint does not tell it: `0.4` or `0.5`."""
    raw_units: bool = False
    """True if states and actions without statistics are the network's own numbers, as LeRobot uses them."""
    vlm: str = ""
    """Folder with configuration and tokenizer of SmolVLA's language model, for a machine without the hub."""
    tokenizer: str = ""
    """Folder with the tokenizer; by default that of `vlm`, or the checkpoint's."""
    max_batch_size: int = Field(default=32, ge=1)
    true_jacobian: bool = False
    """True if sessions may ask for guidance through the model's Jacobian: it takes 2 to 4 times as long, for all robots of a
    batch."""


@dataclass(frozen=True, kw_only=True)
class LeRobotCheckpoint:
    """Policy ready for inference, with its processing and its identity."""

    model: str
    kind: str
    """LeRobot's name of the policy type."""
    policy: Any
    preprocessor: Any
    postprocessor: Any
    options: LeRobotOptions
    content_hash: str
    """SHA-256 over configurations and weights as saved, and over the settings that it runs with: steps, precision, names, words.
    Hex."""
    cameras: tuple[LeRobotCamera, ...]
    action_names: tuple[str, ...]
    control_rate_hz: float


def load(model: str, options: LeRobotOptions, models_folder: Path) -> LeRobotCheckpoint:
    """Load a checkpoint. Raises: `ModelError` that names the folder or option and its problem."""
    folder = _folder(model, options, models_folder)
    require_checkpoint(folder)
    config = _config(model, options, folder)
    names, rate_hz = _names_and_rate(model, options, config.action_feature.shape[0])
    cameras = _cameras(model, config, options, folder)
    _require_its_release(model, config, options, folder, cameras)
    try:
        pi_gemma.provide(config.type)
        policy = get_policy_class(config.type)(config)
        _load_weights(policy, folder / WEIGHTS)
        before, after = make_pre_post_processors(config, str(folder), preprocessor_overrides=_overrides(options, folder, cameras))
    except LOADING as error:
        raise ModelError(f"{model!r}: {folder}: {_why(error, config, options, folder)}") from error
    if not options.raw_units:
        _require_statistics(folder, before, after)
    policy.to(options.device).eval().requires_grad_(False)
    return LeRobotCheckpoint(
        model=model,
        kind=config.type,
        policy=policy,
        preprocessor=before,
        postprocessor=after,
        options=options,
        content_hash=model_hash(_content_hash(folder), _runs_as(config, before)),
        cameras=cameras,
        action_names=names,
        control_rate_hz=rate_hz,
    )


def _folder(model: str, options: LeRobotOptions, models_folder: Path) -> Path:
    folder = models_folder / options.path
    if folder.is_dir():
        return folder
    if options.path.count("/") != 1 or options.path.startswith((".", "/", "~")):
        raise ModelError(f"{model!r}: options.path: {folder} is no folder, and {options.path!r} is not `owner/name` on the hub")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(options.path, revision=options.revision, allow_patterns=["*.json", "*.safetensors"]))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise ModelError(
            f"{model!r}: options.path: {options.path!r} is no folder and cannot be had from the hub: {error}"
        ) from error


def _why(error: Exception, config: Any, options: LeRobotOptions, folder: Path) -> str:
    """Return advice if a tokenizer or a language model of the hub is missing, else the error."""
    backbone = getattr(config, "vlm_model_name", "")
    message = str(error)
    if any(isinstance(cause, OSError) for cause in _causes(error)):
        for name, option, files in (
            *((name, "tokenizer", "tokenizer*") for name in _tokenizers(folder)),
            (backbone, "vlm", "*.json"),
        ):
            if name and name in message and not getattr(options, option):
                how = f" (hf download {name} --include '{files}' --local-dir DIR)" if name.count("/") == 1 else ""
                return f"{name!r} cannot be had from the hub: give options.{option}, a folder with it{how}"
    return (
        f"cannot be loaded as {config.type!r} by LeRobot {RELEASE}: {message.splitlines()[0] if message else type(error).__name__}"
    )


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and its causes: LeRobot raises `ValueError` for any error of a step."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _tokenizers(folder: Path) -> list[str]:
    """Return the names by which the checkpoint's preprocessor asks for tokenizers."""
    steps = read_json(folder / PREPROCESSOR)["steps"]
    keys = ("tokenizer_name", "action_tokenizer_name", "paligemma_tokenizer_name")
    return [str(name) for step in steps for key in keys if (name := (step.get("config") or {}).get(key))]


def _cameras(model: str, config: Any, options: LeRobotOptions, folder: Path) -> tuple[LeRobotCamera, ...]:
    """Return the cameras of a checkpoint. Raises: `ModelError` if they cannot be told from it and the options."""
    steps = read_json(folder / PREPROCESSOR)["steps"]
    saved = [(step.get("config") or {}).get("rename_map") or {} for step in steps]
    own_map = {robot: policy for names in saved for robot, policy in names.items()}
    rename_map = options.rename_map or own_map
    features = list(config.image_features)
    try:
        found = cameras_of(features, own_map, _with_statistics(folder, steps), options.cameras)
        if options.rename_map:
            trained = {camera.feature for camera in found} | set(options.rename_map.values())
            kept = [feature for feature in features if feature in trained]
            found = cameras_of(kept, rename_map, () if options.cameras else features, options.cameras)
        if config.type in LACK_CAMERAS or options.cameras:
            missing = len(cameras_of(features, {}, (), ())) - len(found)
            if missing and config.type not in LACK_CAMERAS:
                raise ModelError(f"{config.type!r} needs all of its cameras, {missing} more")
            return found
        return cameras_of(features, rename_map, features)
    except ModelError as error:
        raise ModelError(f"{model!r}: {folder / CONFIG}: input_features: {error} (options.cameras)") from error


def _with_statistics(folder: Path, steps: list[dict[str, Any]]) -> set[str]:
    """Return the features of the data set whose statistics the pipeline has."""
    found: set[str] = set()
    for step in steps:
        if (name := step.get("state_file")) and (file := folder / Path(name).name).is_file():
            check_header(file)
            with safe_open(file, "pt") as tensors:
                found |= {key.rpartition(".")[0] for key in tensors.keys()}  # noqa: SIM118 (no mapping)
    return found


def _require_its_release(model: str, config: Any, options: LeRobotOptions, folder: Path, cameras: Sequence[LeRobotCamera]) -> None:
    """Check that the installed LeRobot gives a pi0 or pi0.5 the inputs that it had in training. Raises: `ModelError`."""
    differs = _differs_by_release(config, cameras)
    if not differs:
        return
    run = folder / RUN
    of_0_4 = is_of_0_4(read_json(folder / CONFIG), read_json(run) if run.is_file() else None)
    of_0_4 = options.release.startswith("0.4") if options.release else of_0_4
    installed_0_4 = RELEASE.startswith("0.4.")
    unsaid = f"{model!r}: {folder / CONFIG}: LeRobot 0.4 or 0.5.0 trained it, which differ in {differs}, and no {RUN} says which"
    if of_0_4 is None and not installed_0_4:
        raise ModelError(f"{unsaid}: give options.release, 0.4 or 0.5")
    if of_0_4 is None:
        _log.warning("%s: it is taken for 0.4's (options.release)", unsaid)
    elif of_0_4 != installed_0_4:
        trained = "0.4" if of_0_4 else "0.5 or later"
        raise ModelError(
            f"{model!r}: {folder / CONFIG}: LeRobot {trained} trained it, and {RELEASE} is installed, which differs in {differs}: "
            "`rfm import` makes a bundle that has the right ones"
        )


def _differs_by_release(config: Any, cameras: Sequence[LeRobotCamera]) -> str:
    """Return the inputs of a policy in which LeRobot 0.4 differs from 0.5 and later; empty if there are none."""
    state = config.robot_state_feature
    shapes = [config.image_features[camera.feature].shape[-2:] for camera in cameras]
    padded = config.type == "pi05" and state is not None and state.shape[0] < PADDED_STATE
    bordered = config.type in ("pi0", "pi05") and any(height != width for height, width in shapes)
    differences = {"the state in its prompt": padded, "the borders of its images": bordered}
    return " and ".join(name for name, holds in differences.items() if holds)


def _require_statistics(folder: Path, before: Any, after: Any) -> None:
    """Check that pipelines have the statistics with which they normalise. Raises: `ModelError`."""
    for name, pipeline, kinds in ((PREPROCESSOR, before, ("STATE",)), (POSTPROCESSOR, after, ("ACTION",))):
        for step in pipeline.steps:
            known = getattr(step, "_tensor_stats", None)
            if known is None:
                continue
            only = step.normalize_observation_keys
            for feature, own in step.features.items():
                mode = step.norm_map.get(own.type)
                wanted = own.type.value in kinds and (own.type.value == "ACTION" or only is None or feature in only)
                if wanted and mode is not None and mode.value != "IDENTITY" and feature not in known:
                    problem = without_statistics(feature, mode.value, known)
                    raise ModelError(f"{folder / name}: {problem}; options.raw_units serves it so")


def _config(model: str, options: LeRobotOptions, folder: Path) -> Any:
    """Return the saved configuration, changed by the options. LeRobot never fetches weights that the checkpoint has.
    Raises: `ModelError` for a policy that cannot be served, or options that it does not have."""
    config = _saved_config(model, folder)
    if config.use_peft:
        raise ModelError(f"{folder}: holds an adapter only; merge it into its policy and save that")
    if config.action_feature is None:
        raise ModelError(f"{folder}: {config.type!r} has no output feature `action`")
    if config.env_state_feature is not None:
        raise ModelError(f"{folder}: needs the state of its simulation, which no robot has")
    changes: dict[str, Any] = {"load_vlm_weights": False, "pretrained_backbone_weights": None, "compile_model": False}
    changes |= {"dtype": options.dtype} if options.dtype else {}
    changes |= {"vlm_model_name": options.vlm} if options.vlm else {}
    steps = "num_steps" if hasattr(config, "num_steps") else "num_inference_steps"
    changes |= {steps: options.num_steps} if options.num_steps else {}
    for key, option in (("dtype", options.dtype), (steps, options.num_steps)):
        if option and not hasattr(config, key):
            raise ModelError(f"{model!r}: {config.type!r} has no {key}; leave {option!r} out of its options")
    for key, value in changes.items():
        if hasattr(config, key):
            setattr(config, key, value)
    config.device = options.device
    return config


def _saved_config(model: str, folder: Path) -> Any:
    """Return the saved configuration.
    Raises: `ModelError` that says which part serves a type or a release that the installed LeRobot does not know."""
    saved = read_json(folder / CONFIG)
    kind = str(saved.get("type"))
    if kind in CHUNKLESS:
        raise ModelError(f"{model!r}: {folder / CONFIG}: type is {kind!r}: {served_by(kind)}")
    if kind not in PreTrainedConfig.get_known_choices():
        raise ModelError(f"{model!r}: {folder / CONFIG}: LeRobot {RELEASE} does not know the type {kind!r}: {served_by(kind)}")
    try:
        return PreTrainedConfig.from_pretrained(folder)
    except Exception as error:  # LeRobot's parser raises errors of its own
        known = {field.name for field in fields(PreTrainedConfig.get_choice_class(kind))}
        newer = ", ".join(sorted(saved.keys() - known - {"type"}))
        other = f"; {served_by(kind)}" if kind in IMPORTED else ""
        why = f"another release has written {newer}{other}" if newer else str(error).splitlines()[0]
        raise ModelError(f"{model!r}: {folder / CONFIG}: LeRobot {RELEASE} cannot read it: {why}") from error


def _names_and_rate(model: str, options: LeRobotOptions, num_actions: int) -> tuple[tuple[str, ...], float]:
    names, rate_hz = options.action_names, options.control_rate_hz
    if options.dataset:
        file = Path(options.dataset) / "meta" / "info.json"
        try:
            info = json.loads(file.read_text(encoding="utf-8"))
            names, rate_hz = names or names_of(info["features"]["action"]["names"]), rate_hz or float(info["fps"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ModelError(f"{model!r}: options.dataset: {file} does not tell names and rate: {error!r}") from error
    if not names:
        raise ModelError(f"{model!r}: a LeRobot checkpoint does not name its {num_actions} actions: give action_names, or dataset")
    if len(names) != num_actions:
        raise ModelError(f"{model!r}: {len(names)} action names ({', '.join(names)}) for a policy with {num_actions} actions")
    return names, rate_hz


def _load_weights(policy: Any, file: Path) -> None:
    """Load all weights, strictly: LeRobot's own loaders continue without those that are missing.
    Precision is the checkpoint's, except if the policy's configuration has a `dtype`. Raises: `ValueError`, `ModelError`."""
    check_header(file)
    weights = load_file(file)
    if hasattr(policy, "_fix_pytorch_state_dict_keys"):  # pi0 and pi0.5 with openpi's names of their parts
        fixed = policy._fix_pytorch_state_dict_keys(weights, policy.config)
        weights = {key if key.startswith("model.") else f"model.{key}": value for key, value in fixed.items()}
    own = dict(policy.named_parameters(remove_duplicate=False))
    if not hasattr(policy.config, "dtype"):
        for name in own.keys() & weights.keys():
            own[name].data = own[name].data.to(weights[name].dtype)
    missing, unexpected = policy.load_state_dict(weights, strict=False)
    state = policy.state_dict()
    loaded = {state[name].data_ptr() for name in weights.keys() & state.keys()}
    missing = [name for name in missing if state[name].data_ptr() not in loaded]  # one name of tied weights is enough
    if missing or unexpected:
        parts = [
            f"{len(names)} {what} ({names[0]}, ...)" for what, names in (("missing", missing), ("unknown", unexpected)) if names
        ]
        raise ValueError(f"weights: {' and '.join(parts)}")
    if not all(tensor.isfinite().all() for tensor in weights.values()):
        raise ValueError("weights are not finite")


def _overrides(options: LeRobotOptions, folder: Path, cameras: Sequence[LeRobotCamera]) -> dict[str, Any]:
    """Return the arguments of the preprocessor's steps that replace the saved ones, for the steps that it has."""
    steps, _ = _steps(folder, PREPROCESSOR), _steps(folder, POSTPROCESSOR)
    tokenizer = options.tokenizer or options.vlm
    overrides: dict[str, Any] = {"device_processor": {"device": options.device}}
    overrides |= {"tokenizer_processor": {"tokenizer_name": tokenizer}} if tokenizer else {}
    rename_map = options.rename_map
    if options.cameras:
        rename_map = rename_map | {camera.source: camera.feature for camera in cameras}
    overrides |= {"rename_observations_processor": {"rename_map": rename_map}} if rename_map else {}
    return {name: value for name, value in overrides.items() if name in steps}


def _steps(folder: Path, name: str) -> set[str]:
    """Return the names of a pipeline's steps. A step that is given as a class of any module would be called with arguments from the
    checkpoint. Raises: `ModelError` for such a step."""
    steps = read_json(folder / name)["steps"]
    for step in steps:
        if not step.get("registry_name"):
            raise ModelError(f"{folder}: {name} has a step {step.get('class')!r} that is not registered with LeRobot by name")
    return {step["registry_name"] for step in steps}


def _runs_as(config: Any, preprocessor: Any) -> dict[str, Any]:
    """Return the settings that options or the hub decide: denoising steps, precision, rename maps, and the tokenizers' words."""
    steps = {key: getattr(config, key) for key in ("num_steps", "num_inference_steps", "dtype") if hasattr(config, key)}
    renamed = [step.rename_map for step in preprocessor.steps if hasattr(step, "rename_map")]
    words = [_words_hash(step.input_tokenizer) for step in preprocessor.steps if hasattr(step, "input_tokenizer")]
    return {**steps, "rename_maps": renamed, "tokenizers": words}


def _words_hash(tokenizer: Any) -> str:
    """Return the hash of a tokenizer's effect on a text, wherever it came from."""
    fast = getattr(tokenizer, "backend_tokenizer", None)
    words = fast.to_str() if fast is not None else json.dumps(tokenizer.get_vocab(), sort_keys=True)
    return hashlib.sha256(words.encode()).hexdigest()


def read_json(file: Path) -> dict[str, Any]:
    """Return the JSON object in a file. Raises: `ModelError` if it cannot be read."""
    try:
        content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{file}: no JSON can be read from it: {error}") from error
    return content


def _content_hash(folder: Path) -> str:
    digest = hashlib.sha256()
    processors = [*folder.glob("policy_preprocessor*"), *folder.glob("policy_postprocessor*")]
    for file in sorted([folder / CONFIG, folder / WEIGHTS, *processors]):
        with file.open("rb") as stream:
            while block := stream.read(1 << 24):
                digest.update(block)
    return digest.hexdigest()

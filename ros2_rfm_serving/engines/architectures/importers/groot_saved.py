"""What GR00T N1.6 and N1.7 save beside their weights: a processor, statistics, which robot has which weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from ros2_rfm_serving.engines.architectures.groot_n1_6 import GrootN16, GrootN16Config
from ros2_rfm_serving.engines.architectures.importers.base import Imported, Wishes
from ros2_rfm_serving.engines.architectures.importers.files import Json, read_json, tokenizer_file
from ros2_rfm_serving.engines.architectures.importers.groot import span_of
from ros2_rfm_serving.engines.architectures.importers.groot_relative import Relative, relative_of
from ros2_rfm_serving.engines.architectures.importers.shards import read_weights
from ros2_rfm_serving.engines.architectures.manifest import Affine, Manifest, Processing, Promise
from ros2_rfm_serving.errors import ModelError

UNSUPPORTED = ("sin_cos_embedding_keys", "mean_std_embedding_keys")
REFUSED = ("use_mean_std", "exclude_state")
"""Of its processor; each would need other code here"""


class Saved(NamedTuple):
    config: Json
    processor: Json
    statistics: Json
    robots: Json
    weights: dict[str, Tensor]
    """By their names"""
    files: tuple[Path, ...]
    """All that were read, weights last"""
    tokenizer: str
    tag: str
    """Of its embodiment"""

    @property
    def processing(self) -> dict[str, Any]:
        return self.processor.map("processor_kwargs")

    @property
    def embodiment(self) -> int:
        return int(self.robots.content[self.tag])


def saved_in(folder: Path, wishes: Wishes, language: str) -> Saved:
    """language: whose tokenizer it is. Raises: `ModelError`."""
    names = ("config", "processor_config", "statistics", "embodiment_id")
    config, processor, statistics, robots = (read_json(folder / f"{name}.json") for name in names)
    files, weights = read_weights(folder)
    tokenizer = tokenizer_file(folder, wishes.tokenizer, language)
    return Saved(
        config=config,
        processor=processor,
        statistics=statistics,
        robots=robots,
        weights=weights,
        files=(config.file, processor.file, statistics.file, robots.file, tokenizer, *files),
        tokenizer=tokenizer.read_text(encoding="utf-8"),
        tag=robot_of(statistics, robots, wishes.kind),
    )


def imported_of(
    saved: Saved,
    wishes: Wishes,
    weights: dict[str, Tensor],
    network: GrootN16Config,
    kind: tuple[str, type[GrootN16]],
    crop: float,
    max_delay_steps: int = 0,
) -> Imported:
    """weights: by our names; kind: of the architecture. Raises: `ModelError`."""
    modalities = _modalities(saved.processor, saved.tag)
    trained = len(modalities["action"]["delta_indices"])
    keys = {part: [str(key) for key in modalities[part]["modality_keys"]] for part in ("video", "state", "action")}
    own = {part: {key: saved.statistics.map(saved.tag, part, key) for key in keys[part]} for part in ("state", "action")}
    percentiles = bool(saved.processing.get("use_percentiles"))
    configs = modalities["action"].get("action_configs") if saved.processing.get("use_relative_action") else None
    relative = relative_of(saved.statistics, saved.tag, configs, own, percentiles) if configs else Relative()
    state, action = _spans(own["state"], percentiles), relative.action or _spans(own["action"], percentiles)
    columns = sum(len(each["min"]) for each in own["action"].values())
    told = wishes.action_names or tuple(f"{key}_{i}" for key, each in own["action"].items() for i in range(len(each["min"])))
    if len(told) != columns:
        raise ModelError(f"{saved.statistics.file}: {columns} actions, {len(told)} names were given for them")
    name, architecture = kind
    steps = saved.config.count("num_inference_timesteps", architecture.sampling().num_steps)
    manifest = Manifest(
        architecture=name,
        network=network.model_dump(),
        contract=Promise(
            action_names=told,
            cameras=tuple(keys["video"]),
            state_size=len(state.offset),
            control_rate_hz=wishes.control_rate_hz,
            max_inference_delay_steps=min(max_delay_steps, network.chunk_length - 1),
        ),
        sampling=architecture.sampling().model_copy(update={"num_steps": steps}),
        processing=_processing(
            saved.processing, architecture.processing(network, len(keys["video"])), state, action, crop
        ).model_copy(update={"relative": relative.sources}),
    )
    notes = (
        f"the weights of embodiment {saved.tag!r} are used",
        f"it was trained for {trained} of its {network.chunk_length} actions: execute no more of them",
        "images are resized by bilinear means, not by OpenCV's areas",
    )
    return Imported(
        manifest=manifest,
        weights=weights,
        tokenizer=saved.tokenizer,
        files=saved.files,
        notes=notes,
    )


def _processing(kwargs: dict[str, Any], published: Processing, state: Affine, action: Affine, crop: float) -> Processing:
    inside = {"clip": 1.0} if kwargs.get("clip_outliers", True) else {}
    return Processing(
        images=published.images.model_copy(update={"crop": crop}),
        prompt=published.prompt.model_copy(update={"bare": bool(kwargs.get("formalize_language", True))}),
        state=state.model_copy(update=inside),
        action=action.model_copy(update={"clip_back": 1.0}),
    )


def robot_of(statistics: Json, robots: Json, tag: str) -> str:
    """Raises: `ModelError`."""
    known = [name for name in statistics.content if name in robots.content]
    if not tag and len(known) == 1:
        tag = known[0]
    if tag not in known:
        raise ModelError(f"{statistics.file}: which embodiment? Say one of {', '.join(known) or 'none that is known'}, not {tag!r}")
    return tag


def _modalities(processor: Json, tag: str) -> dict[str, Any]:
    """Raises: `ModelError` for what this importer cannot do, too."""
    modalities = processor.map("processor_kwargs", "modality_configs", tag)
    kwargs = processor.map("processor_kwargs")
    refused = [key for key in REFUSED if kwargs.get(key)]
    if refused:
        raise ModelError(f"{processor.file}: {', '.join(refused)}: not supported")
    used = [key for key in UNSUPPORTED if (modalities.get("state") or {}).get(key)]
    if modalities["action"].get("mean_std_embedding_keys"):
        raise ModelError(f"{processor.file}: {tag}: action: mean_std_embedding_keys: not supported")
    if used and (used != ["sin_cos_embedding_keys"] or kwargs.get("apply_sincos_state_encoding")):
        raise ModelError(f"{processor.file}: {tag}: state: {', '.join(used)}: not supported")
    return modalities


def _spans(statistics: dict[str, dict[str, Any]], percentiles: bool) -> Affine:
    low, high = ("q01", "q99") if percentiles else ("min", "max")
    return span_of({key: {"min": each[low], "max": each[high]} for key, each in statistics.items()})

"""Files that GR00T N1.6 and N1.7 save beside their weights: a processor, statistics, the weights' index of each robot."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from ros2_rfm_serving.engines.architectures.groot_n1_6 import GrootN16, GrootN16Config
from ros2_rfm_serving.engines.architectures.importers.base import Imported, ImportOptions
from ros2_rfm_serving.engines.architectures.importers.files import Json, read_json, tokenizer_file
from ros2_rfm_serving.engines.architectures.importers.groot_columns import (
    Key,
    Precision,
    Statistics,
    inputs_of,
    joined,
    require_one_line,
)
from ros2_rfm_serving.engines.architectures.importers.groot_pictures import told_of
from ros2_rfm_serving.engines.architectures.importers.groot_relative import relative_keys, sources_of
from ros2_rfm_serving.engines.architectures.importers.shards import read_weights
from ros2_rfm_serving.engines.architectures.manifest import BundleManifest, Processing, Promise, Recrop
from ros2_rfm_serving.errors import ModelError

REFUSED = ("use_mean_std", "exclude_state", "use_tactile")
"""Keys of the processor that are not supported; each would need other code here."""
SCALED_OTHERWISE = (
    ("state", "sin_cos_embedding_keys"),
    ("state", "mean_std_embedding_keys"),
    ("action", "mean_std_embedding_keys"),
)
PRECISION: Precision = "float64"


class Saved(NamedTuple):
    config: Json
    processor: Json
    statistics: Json
    robots: Json
    weights: dict[str, Tensor]
    """Weights, by their names."""
    files: tuple[Path, ...]
    """Files that were read, weights last."""
    tokenizer: str
    tag: str
    """Tag of the embodiment."""

    @property
    def processing(self) -> dict[str, Any]:
        return self.processor.map("processor_kwargs")

    @property
    def embodiment(self) -> int:
        return self.robots.count(self.tag, 0)


def saved_in(folder: Path, wishes: ImportOptions, language: str) -> Saved:
    """Return the files of a checkpoint. language: name of the language model with the tokenizer. Raises: `ModelError`."""
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
    wishes: ImportOptions,
    weights: dict[str, Tensor],
    network: GrootN16Config,
    kind: tuple[str, type[GrootN16]],
    recrop: Recrop,
    max_delay_steps: int = 0,
) -> Imported:
    """Return the import of a checkpoint. weights: by our names; kind: name and class of the architecture. Raises: `ModelError`."""
    modalities = _modalities(saved.processor, saved.tag, network.chunk_length)
    trained = len(modalities["action"]["delta_indices"])
    cameras = _cameras(saved, modalities, wishes.cameras)
    columns = _columns(saved, modalities)
    count = sum(key.num_columns for key in columns.action)
    names = wishes.action_names or tuple(f"{key.name}_{i}" for key in columns.action for i in range(key.num_columns))
    if len(names) != count:
        raise ModelError(f"{saved.statistics.file}: {count} actions, {len(names)} names were given for them")
    name, architecture = kind
    steps = saved.config.count("num_inference_timesteps", architecture.sampling().num_steps)
    manifest = BundleManifest(
        architecture=name,
        network=network.model_dump(),
        contract=Promise(
            action_names=names,
            cameras=cameras,
            state_size=sum(key.num_columns for key in columns.state),
            control_rate_hz=wishes.control_rate_hz,
            max_inference_delay_steps=min(max_delay_steps, network.chunk_length - 1),
        ),
        sampling=architecture.sampling().model_copy(update={"num_steps": steps}),
        processing=_processing(saved, columns, architecture.processing(network, len(cameras)), recrop),
    )
    notes = (
        f"the weights of embodiment {saved.tag!r} are used",
        f"it was trained for {trained} of its {network.chunk_length} actions: execute no more of them",
        told_of(recrop),
    )
    return Imported(
        manifest=manifest,
        weights=weights,
        tokenizer=saved.tokenizer,
        files=saved.files,
        notes=notes,
    )


class Columns(NamedTuple):
    state: list[Key]
    action: list[Key]
    relative: tuple[int | None, ...]
    """Column of the state that each action is relative to; empty if all are absolute."""


def _columns(saved: Saved, modalities: dict[str, Any]) -> Columns:
    """Return the keys in the network's order, each with its own statistics. Raises: `ModelError`."""
    kwargs, statistics, tag = saved.processing, saved.statistics, saved.tag
    bounds = ("q01", "q99") if kwargs.get("use_percentiles") else ("min", "max")
    sines = set(modalities["state"].get("sin_cos_embedding_keys") or ()) if kwargs.get("apply_sincos_state_encoding") else set()
    configs = modalities["action"].get("action_configs") if kwargs.get("use_relative_action") else None
    counted = relative_keys(saved.processor, tag, modalities["action"]["modality_keys"], configs) if configs else {}

    def scaled(part: str, name: str) -> Key:
        group = "relative_action" if part == "action" and name in counted else part
        if name not in statistics.map(tag, group):
            raise ModelError(f"{statistics.file}: {tag}.{group}.{name} is missing")
        deviations = modalities[part].get("mean_std_embedding_keys") or ()
        mode = "sin_cos" if part == "state" and name in sines else "mean_std" if name in deviations else "min_max"
        told = Statistics(statistics.file, f"{tag}.{group}.{name}", statistics.content[tag][group][name], PRECISION, close=True)
        return told.scaled(name, mode, bounds if group == part else ("min", "max"))

    state, action = ([scaled(part, str(name)) for name in modalities[part]["modality_keys"]] for part in ("state", "action"))
    require_one_line(statistics.file, f"{tag}.state", state)
    relative = sources_of(saved.processor, tag, counted, state, action) if counted else ()
    return Columns(state, action, relative)


def _processing(saved: Saved, columns: Columns, published: Processing, recrop: Recrop) -> Processing:
    kwargs, where = saved.processing, f"{saved.statistics.file}: {saved.tag}"
    state = joined(columns.state, PRECISION, f"{where}.state")
    action = joined(columns.action, PRECISION, f"{where}.relative_action")
    inside = {"clip": 1.0} if kwargs.get("clip_outliers", True) else {}
    return Processing(
        images=published.images.model_copy(update={"crop": 1.0, "fit": "stretch", "recrop": recrop}),
        prompt=published.prompt.model_copy(update={"bare": bool(kwargs.get("formalize_language", True))}),
        state_inputs=inputs_of(columns.state),
        state=state.model_copy(update=inside),
        action=action.model_copy(update={"clip_back": 1.0}),
        relative=columns.relative,
    )


def _cameras(saved: Saved, modalities: dict[str, Any], wished: tuple[str, ...]) -> tuple[str, ...]:
    """Return the robot's names of the cameras, in the network's order. Raises: `ModelError` if their number is wrong."""
    known = tuple(str(key) for key in modalities["video"]["modality_keys"])
    if wished and len(wished) != len(known):
        raise ModelError(f"{saved.processor.file}: --cameras: {len(wished)} for a network with {len(known)}: {', '.join(known)}")
    return wished or known


def robot_of(statistics: Json, robots: Json, tag: str) -> str:
    """Return the tag of the embodiment. Raises: `ModelError` if it is ambiguous or unknown."""
    known = [name for name in statistics.content if name in robots.content]
    if not tag and len(known) == 1:
        tag = known[0]
    if tag not in known:
        raise ModelError(
            f"{statistics.file}: which embodiment? --kind {tag!r} is none of {', '.join(known) or 'none that is known'}"
        )
    return tag


def _modalities(processor: Json, tag: str, chunk_length: int) -> dict[str, Any]:
    """Return the modality configurations of an embodiment. Raises: `ModelError`, also for those that are not supported."""
    modalities = processor.map("processor_kwargs", "modality_configs", tag)
    kwargs = processor.map("processor_kwargs")
    refused = [key for key in REFUSED if kwargs.get(key)]
    if refused:
        raise ModelError(f"{processor.file}: {', '.join(refused)}: not supported")
    for part in ("video", "state", "action"):
        keys = processor.map("processor_kwargs", "modality_configs", tag, part).get("modality_keys")
        if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
            where = f"{processor.file}: modality_configs.{tag}.{part}.modality_keys"
            raise ModelError(f"{where}: a list of names is expected, it is {keys!r}")
    if modalities["state"].get("exclude_state"):
        raise ModelError(f"{processor.file}: modality_configs.{tag}.state.exclude_state: not supported")
    _require_known_keys(processor, tag, modalities)
    _require_indices(processor, tag, modalities, chunk_length)
    return modalities


def _require_known_keys(processor: Json, tag: str, modalities: dict[str, Any]) -> None:
    """Check that keys with a scaling of their own exist. Raises: `ModelError`."""
    for part, key in SCALED_OTHERWISE:
        known = modalities[part]["modality_keys"]
        if unknown := [name for name in modalities[part].get(key) or () if name not in known]:
            raise ModelError(
                f"{processor.file}: modality_configs.{tag}: {part}: {key}: not supported: {unknown[0]!r} is none of "
                f"modality_keys: {', '.join(map(str, known))}"
            )


def _require_indices(processor: Json, tag: str, modalities: dict[str, Any], chunk_length: int) -> None:
    """Check that there are no histories or strides, and no chunks longer than the network's. Raises: `ModelError`."""
    for part in ("video", "state"):
        if modalities[part].get("delta_indices", [0]) != [0]:
            what = "histories of observations are not supported, only the newest, [0]"
            raise ModelError(_wrong_indices(processor, tag, part, modalities, what))
    indices = modalities["action"].get("delta_indices") or []
    if indices != list(range(len(indices))) or not indices:
        what = "only a chunk that begins now and takes every step is supported, [0, 1, 2, ..]"
        raise ModelError(_wrong_indices(processor, tag, "action", modalities, what))
    if len(indices) > chunk_length:
        what = f"{len(indices)} actions, of a network that gives {chunk_length} (action_horizon of config.json)"
        raise ModelError(_wrong_indices(processor, tag, "action", modalities, what))


def _wrong_indices(processor: Json, tag: str, part: str, modalities: dict[str, Any], what: str) -> str:
    indices = modalities[part].get("delta_indices")
    shown = f"{str(indices[:6])[:-1]}, ..]" if isinstance(indices, list) and len(indices) > 6 else indices
    return f"{processor.file}: modality_configs.{tag}.{part}.delta_indices is {shown}: {what}"

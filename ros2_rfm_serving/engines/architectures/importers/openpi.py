"""Importer of openpi's PyTorch checkpoints of pi0 and pi0.5: `model.safetensors` and `assets/NAME/norm_stats.json`.

`examples/convert_jax_model_to_pytorch.py` writes a `config.json` beside them, `scripts/train_pytorch.py` writes `metadata.pt` and
`optimizer.pt`, which are pickles and are not read (both at 15a9616a). The training configuration is in openpi's code, not in the
checkpoint: cameras, names of actions, the size of the state, whether pi0.5 has its state in its prompt. Options give these.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ros2_rfm_serving.engines.architectures.importers import pi_weights
from ros2_rfm_serving.engines.architectures.importers.base import Imported, ImportOptions
from ros2_rfm_serving.engines.architectures.importers.files import Json, read_json, read_tensors, tokenizer_file
from ros2_rfm_serving.engines.architectures.manifest import (
    Affine,
    BundleManifest,
    Processing,
    Promise,
    Prompt,
    first_of,
    ranges_of,
)
from ros2_rfm_serving.engines.architectures.names import architecture_of
from ros2_rfm_serving.engines.architectures.pi import Pi0
from ros2_rfm_serving.errors import ModelError

CONFIG, WEIGHTS, STATS = "config.json", "model.safetensors", "norm_stats.json"
PICKLES = ("metadata.pt", "optimizer.pt")
"""Files that `train_pytorch.py` writes beside the weights, and that are not read here."""
ORBAX = ("params", "train_state", "_CHECKPOINT_METADATA", "_METADATA", "manifest.ocdbt")
"""Files of a checkpoint of openpi's JAX training, of which it has at least one."""
CONVERT = "python examples/convert_jax_model_to_pytorch.py --checkpoint_dir {folder} --config_name NAME --output_path OUT"
CAMERAS = ("base_0_rgb", "left_wrist_0_rgb", "right_wrist_0_rgb")
"""Cameras in the order of the networks."""
EPS = 1e-6
NOTES = (
    *pi_weights.LEFT_OUT,
    "openpi's transforms of one robot (flipped joints, grippers) are no part of a checkpoint: its actions are taken as they leave "
    "the network; which of them are relative to the state is what --relative said",
)
STATE_IN_PROMPT = (
    "the state is in the prompt, openpi's default for pi0.5 (the checkpoint does not say it); a model that was trained with "
    "discrete_state_input=False, as pi05_libero was, wants --no-discrete-state-input"
)
NO_STATE_IN_PROMPT = "the prompt is the instruction alone, without the state (discrete_state_input is false)"


def recognises(folder: Path) -> bool:
    if (folder / CONFIG).is_file():
        return (folder / WEIGHTS).is_file() and "paligemma_variant" in read_json(folder / CONFIG).content
    return _is_trained_by_openpi(folder) or _is_orbax(folder) or bool(_steps_of(folder))


def _is_trained_by_openpi(folder: Path) -> bool:
    """Return whether a folder has the files that `train_pytorch.py` saves, of which a copy may lack the pickles."""
    beside = any((folder / name).is_file() for name in PICKLES) or any((folder / "assets").rglob(STATS))
    return (folder / WEIGHTS).is_file() and beside


def _is_orbax(folder: Path) -> bool:
    return not (folder / WEIGHTS).is_file() and any((folder / name).exists() for name in ORBAX)


def _steps_of(folder: Path) -> list[Path]:
    """Return the checkpoints of a training run, the newest last: folders with numbers for names."""
    if not folder.is_dir():
        return []
    steps = [each for each in folder.iterdir() if each.name.isdecimal() and each.is_dir()]
    return sorted((each for each in steps if (each / WEIGHTS).is_file() or _is_orbax(each)), key=lambda each: int(each.name))


def _require_weights(folder: Path) -> None:
    """Check that a folder has weights. Raises: `ModelError` with the step to take instead."""
    if _is_orbax(folder):
        whole = folder.parent if folder.name == "params" else folder
        raise ModelError(
            f"{folder}: a checkpoint of openpi's JAX training (orbax), which is not read; convert it with openpi: "
            f"{CONVERT.format(folder=whole)}; then copy {whole / 'assets'} into OUT, and import OUT"
        )
    if steps := _steps_of(folder):
        raise ModelError(f"{folder}: a training run with {len(steps)} checkpoints; import one of them: {steps[-1]}")
    if not (folder / WEIGHTS).is_file():
        raise ModelError(
            f"{folder}: not an openpi checkpoint, {WEIGHTS} is missing; train_pytorch.py and convert_jax_model_to_pytorch.py "
            "write it"
        )


def _config(folder: Path, wishes: ImportOptions) -> Json:
    """Return the content of `config.json`, with the length of a chunk.
    Raises: `ModelError` if neither it nor an option gives that."""
    file = folder / CONFIG
    config = read_json(file) if file.is_file() else Json(folder / WEIGHTS, {})
    told = config.count("action_horizon", wishes.chunk_length)
    if not told:
        raise ModelError(
            f"{config.file}: how many actions a chunk has is not in it: give --chunk-length, the action_horizon of your training "
            "configuration (openpi's default is 50; pi05_libero has 10, pi05_droid 15)"
        )
    if wishes.chunk_length not in (0, told):
        raise ModelError(f"{config.file}: action_horizon is {told}, --chunk-length says {wishes.chunk_length}")
    return Json(config.file, config.content | {"action_horizon": told})


def read(folder: Path, wishes: ImportOptions) -> Imported:
    """Read a checkpoint. Raises: `ModelError`."""
    _require_weights(folder)
    config, tensors = _config(folder, wishes), read_tensors(folder / WEIGHTS)
    kind = wishes.kind or ("pi05" if any(name.startswith("time_mlp_in") for name in tensors) else "pi0")
    weights, sizes = pi_weights.read(kind, tensors, config, folder)
    architecture = architecture_of(kind)
    try:
        network = architecture.config_class.model_validate(sizes)
    except ValidationError as error:
        raise ModelError(f"{config.file}: sizes that no {kind!r} has: {first_of(error)}") from error
    stats = _stats(folder, wishes.assets)
    tokenizer = tokenizer_file(folder, wishes.tokenizer, "google/paligemma-3b-pt-224")
    own = architecture.processing(network)
    promise = _promise(config, stats, wishes)
    images = own.images.model_copy(update={"absent": len(CAMERAS) - len(promise.cameras), "antialias": True})
    longest = config.count("max_token_len", own.prompt.max_tokens)
    state_in_prompt = _state_in_prompt(config, kind, wishes)
    prompt = _prompt(own.prompt, kind, state_in_prompt).model_copy(update={"clean": True, "max_tokens": longest})
    manifest = BundleManifest(
        architecture=kind,
        network=network.model_dump(mode="json"),
        contract=promise,
        sampling=architecture.sampling().model_copy(update={"num_steps": config.count("num_steps", 10)}),
        processing=Processing(
            images=images,
            prompt=prompt,
            state=affine_of(stats, "state", promise.state_size, quantiles=kind == "pi05"),
            action=affine_of(stats, "actions", len(promise.action_names), quantiles=kind == "pi05"),
            relative=_relative(promise, wishes),
        ),
    )
    return Imported(
        manifest=manifest,
        weights=weights,
        tokenizer=tokenizer.read_text(encoding="utf-8"),
        files=tuple(dict.fromkeys((config.file, folder / WEIGHTS, stats.file, tokenizer))),
        notes=(*NOTES, *_notes(kind, state_in_prompt, stats, longest)),
    )


def _state_in_prompt(config: Json, kind: str, wishes: ImportOptions) -> bool | None:
    """Return whether the state is in the prompt; None if neither the checkpoint nor an option tells it.

    The converter does not write it, but its `config.json` may have been completed. Raises: `ModelError` if the two contradict each
    other, or if they put the state of pi0 into its prompt.
    """
    saved, wished = config.get("discrete_state_input"), wishes.discrete_state_input
    if kind != "pi05" and wished:
        raise ModelError("--discrete-state-input: pi0 has its state beside its prompt, never in it; leave the option out")
    if saved is not None and not isinstance(saved, bool):
        raise ModelError(f"{config.file}: discrete_state_input: true or false is expected, it is {saved!r}")
    if None not in (saved, wished) and saved != wished:
        raise ModelError(f"{config.file}: discrete_state_input is {str(saved).lower()}, which the option contradicts: leave it out")
    return saved if wished is None else wished


def _prompt(own: Prompt, kind: str, state_in_prompt: bool | None) -> Prompt:
    """Return the prompt of the training."""
    if kind != "pi05" or state_in_prompt is not False:
        return own
    return Pi0.prompt().model_copy(update={"max_tokens": own.max_tokens})


def _notes(kind: str, state_in_prompt: bool | None, stats: Json, max_tokens: int) -> list[str]:
    """Return notes on assumptions that the checkpoint does not confirm."""
    notes = [f"statistics: {stats.file.parent.name}", f"prompts have at most {max_tokens} tokens (max_token_len)"]
    if kind == "pi05":
        notes.append(NO_STATE_IN_PROMPT if state_in_prompt is False else STATE_IN_PROMPT)
    return notes


def _stats(folder: Path, wished: str) -> Json:
    """Return the statistics of one asset. Raises: `ModelError` if there is none, or several and none was chosen."""
    assets = folder / "assets"
    found = {file.parent.relative_to(assets).as_posix(): file for file in sorted(assets.rglob(STATS))}
    if not found:
        raise ModelError(f"{assets}: {STATS} is missing: copy it to assets/NAME/{STATS}")
    name = wished.strip("/") or (next(iter(found)) if len(found) == 1 else "")
    if name not in found:
        has = f"--assets: {name!r} is not there" if name else f"{STATS} is there {len(found)} times, say which counts"
        raise ModelError(f"{assets}: {has}: --assets with one of {', '.join(found)}")
    return read_json(found[name])


def _promise(config: Json, stats: Json, wishes: ImportOptions) -> Promise:
    most = config.count("action_dim", 32)
    if not 1 <= len(wishes.action_names) <= most:
        raise ModelError(
            f"{config.file}: an openpi checkpoint does not name its actions, of at most {most} columns: give --action-names, in "
            "the order of your training configuration"
        )
    cameras = wishes.cameras or CAMERAS
    if len(cameras) > len(CAMERAS):
        raise ModelError(f"--cameras: {len(cameras)} for a network with {len(CAMERAS)}: {', '.join(CAMERAS)}")
    mean = stats.map("norm_stats", "state").get("mean", [])
    if not isinstance(mean, list):
        raise ModelError(f"{stats.file}: norm_stats.state.mean: a list of numbers is expected, it is {mean!r}")
    size = wishes.state_size or len(mean)
    return Promise(action_names=wishes.action_names, cameras=cameras, state_size=size, control_rate_hz=wishes.control_rate_hz)


def _relative(promise: Promise, wishes: ImportOptions) -> tuple[int | None, ...]:
    """Return the column of the state that each action is relative to, the one with the same number, as in openpi's `DeltaActions`.
    Raises: `ModelError` for a name that is no such action."""
    if not wishes.relative:
        return ()
    names = promise.action_names
    if unknown := [name for name in wishes.relative if name not in names[: promise.state_size]]:
        raise ModelError(f"--relative: {unknown[0]!r} is none of the first {promise.state_size} actions: {', '.join(names)}")
    return tuple(column if name in wishes.relative else None for column, name in enumerate(names))


def affine_of(stats: Json, key: str, columns: int, *, quantiles: bool) -> Affine:
    """Return the scaling of the first columns, in float64. Source: openpi's `Normalize` and `Unnormalize` (src/openpi/transforms.py
    at 15a9616a). Raises: `ModelError` if the statistics are missing or not finite."""
    own = stats.map("norm_stats", key)

    def of(name: str) -> list[float]:
        values: Any = own.get(name)
        if not isinstance(values, list) or len(values) < columns:
            raise ModelError(f"{stats.file}: norm_stats.{key}.{name} has fewer than {columns} numbers: {values!r}")
        if wrong := [value for value in values[:columns] if not isinstance(value, int | float) or not math.isfinite(value)]:
            raise ModelError(f"{stats.file}: norm_stats.{key}.{name}: finite numbers are expected, it has {wrong[0]!r}")
        return [float(value) for value in values[:columns]]

    if quantiles:
        low, high = of("q01"), of("q99")
        if any(b < a for a, b in zip(low, high, strict=True)):
            raise ModelError(f"{stats.file}: norm_stats.{key}: q99 is below q01")
        return ranges_of(low, [b - a + EPS for a, b in zip(low, high, strict=True)], "float64")
    return Affine(offset=tuple(of("mean")), scale=tuple(std + EPS for std in of("std")), precision="float64")

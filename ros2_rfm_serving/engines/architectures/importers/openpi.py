"""openpi's PyTorch checkpoints of pi0 and pi0.5: `model.safetensors`, `config.json`, `assets/NAME/norm_stats.json`.

What its training configuration says beside them is in openpi's code, not in the checkpoint: cameras, names of actions, the size
of the state. It is asked for.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ros2_rfm_serving.engines.architectures.importers import pi_weights
from ros2_rfm_serving.engines.architectures.importers.base import Imported, Wishes
from ros2_rfm_serving.engines.architectures.importers.files import Json, read_json, read_tensors, tokenizer_file
from ros2_rfm_serving.engines.architectures.manifest import Affine, Manifest, Processing, Promise, first_of, ranges_of
from ros2_rfm_serving.engines.architectures.names import architecture_of
from ros2_rfm_serving.errors import ModelError

CONFIG, WEIGHTS, STATS = "config.json", "model.safetensors", "norm_stats.json"
CAMERAS = ("base_0_rgb", "left_wrist_0_rgb", "right_wrist_0_rgb")
"""As its networks have them, in this order"""
EPS = 1e-6
NOTES = (
    *pi_weights.LEFT_OUT,
    "openpi's transforms of one robot (flipped joints, grippers) are no part of a checkpoint: its actions are taken as they leave "
    "the network; which of them are relative to the state is what --relative said",
)


def recognises(folder: Path) -> bool:
    return (
        (folder / CONFIG).is_file() and (folder / WEIGHTS).is_file() and "paligemma_variant" in read_json(folder / CONFIG).content
    )


def read(folder: Path, wishes: Wishes) -> Imported:
    """Raises: `ModelError`."""
    for name in (CONFIG, WEIGHTS):
        if not (folder / name).is_file():
            raise ModelError(f"{folder}: not an openpi checkpoint, {name} is missing; convert_jax_model_to_pytorch.py writes both")
    config, tensors = read_json(folder / CONFIG), read_tensors(folder / WEIGHTS)
    kind = wishes.kind or ("pi05" if any(name.startswith("time_mlp_in") for name in tensors) else "pi0")
    weights, sizes = pi_weights.read(kind, tensors, config, folder)
    architecture = architecture_of(kind)
    try:
        network = architecture.config_class.model_validate(sizes)
    except ValidationError as error:
        raise ModelError(f"{config.file}: sizes that no {kind!r} has: {first_of(error)}") from error
    stats = _stats(folder)
    tokenizer = tokenizer_file(folder, wishes.tokenizer, "google/paligemma-3b-pt-224")
    own = architecture.processing(network)
    promise = _promise(config, stats, wishes)
    images = own.images.model_copy(update={"absent": len(CAMERAS) - len(promise.cameras), "antialias": True})
    longest = config.count("max_token_len", own.prompt.max_tokens)
    prompt = own.prompt.model_copy(update={"clean": True, "max_tokens": longest})
    manifest = Manifest(
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
        files=(folder / CONFIG, folder / WEIGHTS, stats.file, tokenizer),
        notes=NOTES,
    )


def _stats(folder: Path) -> Json:
    """Raises: `ModelError` unless there is one."""
    found = sorted((folder / "assets").rglob(STATS))
    if len(found) != 1:
        what = f"has {len(found)}: keep that of your robot" if found else f"is missing: copy it to assets/NAME/{STATS}"
        raise ModelError(f"{folder / 'assets'}: {STATS} {what}")
    return read_json(found[0])


def _promise(config: Json, stats: Json, wishes: Wishes) -> Promise:
    most = config.count("action_dim", 32)
    if not 1 <= len(wishes.action_names) <= most:
        raise ModelError(
            f"{config.file}: an openpi checkpoint does not name its actions, of at most {most} columns: give --action-names, in "
            "the order of your training configuration"
        )
    cameras = wishes.cameras or CAMERAS
    if len(cameras) > len(CAMERAS):
        raise ModelError(f"--cameras: {len(cameras)} for a network with {len(CAMERAS)}: {', '.join(CAMERAS)}")
    size = wishes.state_size or len(stats.map("norm_stats", "state").get("mean", ()))
    return Promise(action_names=wishes.action_names, cameras=cameras, state_size=size, control_rate_hz=wishes.control_rate_hz)


def _relative(promise: Promise, wishes: Wishes) -> tuple[int | None, ...]:
    """As openpi's `DeltaActions` has them: action by action the column of the state with the same number. Raises: `ModelError`."""
    if not wishes.relative:
        return ()
    names = promise.action_names
    if unknown := [name for name in wishes.relative if name not in names[: promise.state_size]]:
        raise ModelError(f"--relative: {unknown[0]!r} is none of the first {promise.state_size} actions: {', '.join(names)}")
    return tuple(column if name in wishes.relative else None for column, name in enumerate(names))


def affine_of(stats: Json, key: str, columns: int, *, quantiles: bool) -> Affine:
    """Return the scaling of the first columns, in float64 as openpi's `Normalize` and `Unnormalize` compute it
    (src/openpi/transforms.py at 15a9616a). Raises: `ModelError`."""
    own = stats.map("norm_stats", key)

    def of(name: str) -> list[float]:
        values: Any = own.get(name)
        if not isinstance(values, list) or len(values) < columns:
            raise ModelError(f"{stats.file}: norm_stats.{key}.{name} has fewer than {columns} numbers: {values!r}")
        return [float(value) for value in values[:columns]]

    if quantiles:
        low, high = of("q01"), of("q99")
        return ranges_of(low, [b - a + EPS for a, b in zip(low, high, strict=True)], "float64")
    return Affine(offset=tuple(of("mean")), scale=tuple(std + EPS for std in of("std")), precision="float64")

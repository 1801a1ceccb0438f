"""Bundles of architectures: the format of the embedded ones (`engines/embedded/bundle.py`) with a tokenizer's file."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from pydantic import ValidationError
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ros2_rfm_serving.engines.architectures.base import Architecture, ArchitectureConfig
from ros2_rfm_serving.engines.architectures.manifest import FORMAT, TOKENIZER, Affine, BundleManifest, first_of
from ros2_rfm_serving.engines.architectures.names import architecture_of
from ros2_rfm_serving.engines.architectures.processor import Tokenizer
from ros2_rfm_serving.engines.embedded.bundle import CONFIG, WEIGHTS, content_hash, read_config, read_weights, write_weights
from ros2_rfm_serving.errors import ModelError

BY_DEVIATION = frozenset({"pi0", "smolvla"})
"""Architectures whose checkpoints their authors scale by mean and deviation."""

PER_NUMBER = frozenset({"constant", "unscaled"})
"""Flags of an `Affine` that each line of a chunk has for itself."""


@dataclass(frozen=True, kw_only=True)
class LoadedBundle:
    manifest: BundleManifest
    network: Architecture
    tokenizer: Tokenizer
    content_hash: str


def manifest_of(folder: Path) -> BundleManifest:
    """Return the manifest of a bundle. Raises: `ModelError` that names the key."""
    try:
        return BundleManifest.model_validate(read_config(folder))
    except ValidationError as error:
        raise ModelError(f"{folder / CONFIG}: {first_of(error)}") from error


def require_current(manifest: BundleManifest, folder: Path) -> None:
    """Check that a bundle of format 1 has numbers with the same meaning today: those by mean and deviation.

    That format kept the middle and half of each range, which loses columns that hardly moved; only pi0 and SmolVLA are published
    with mean and deviation. Raises: `ModelError` that says how to import the checkpoint again.
    """
    processing = manifest.processing
    if manifest.format == FORMAT or not (processing.state.scale or processing.action.scale):
        return
    lost = any(_lost(affine) for affine in (processing.state, processing.action))
    if lost or manifest.architecture not in BY_DEVIATION:
        raise ModelError(
            f"{folder / CONFIG}: format: 1: it keeps the middle of each range, which loses columns that hardly moved and states at "
            f"their lowest value; import the checkpoint again: rfm import SOURCE {folder.name}"
        )


def _lost(affine: Affine) -> bool:
    """Return whether a column's scale is below the precision that its offset has in float32."""
    return any(
        scale and np.float32(offset + scale) == np.float32(offset)
        for offset, scale in zip(affine.offset, affine.scale, strict=False)
    )


def network_config(manifest: BundleManifest, folder: Path) -> ArchitectureConfig:
    """Return the sizes of the network. Raises: `ModelError` that names the key."""
    try:
        return architecture_of(manifest.architecture).config_class.model_validate(manifest.network)
    except ValidationError as error:
        raise ModelError(f"{folder / CONFIG}: network.{first_of(error)}") from error


def load(folder: Path, *, as_saved: bool = False) -> LoadedBundle:
    """Load a bundle, ready for inference, in float32 or as it was saved.

    Raises: `ModelError` that names the file, the key and its problem.
    """
    manifest = manifest_of(folder)
    require_current(manifest, folder)
    if not (folder / TOKENIZER).is_file():
        raise ModelError(f"{folder}: not a bundle of an architecture, {TOKENIZER} is missing")
    tokenizer = tokenizer_of((folder / TOKENIZER).read_text(encoding="utf-8"), folder / TOKENIZER)
    require_words(tokenizer, network_config(manifest, folder), folder / TOKENIZER)
    weights = read_weights(folder)
    network = network_of(manifest, weights, folder)
    network.load_state_dict(weights, assign=True)
    return LoadedBundle(
        manifest=manifest,
        network=(network if as_saved else network.float()).eval().requires_grad_(False),
        tokenizer=tokenizer,
        content_hash=content_hash(folder),
    )


def save(folder: Path, manifest: BundleManifest, weights: dict[str, Tensor], tokenizer: str) -> str:
    """Write a bundle and return its hash.
    tokenizer: content of its file. Raises: `ModelError` if the weights are not the network's."""
    require_whole(folder, manifest, weights, tokenizer)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CONFIG).write_text(json.dumps(manifest.model_dump(mode="json"), indent=1) + "\n")
    (folder / TOKENIZER).write_text(tokenizer, encoding="utf-8")
    write_weights(folder, {name: tensor.contiguous() for name, tensor in weights.items()})
    return content_hash(folder)


def require_whole(folder: Path, manifest: BundleManifest, weights: dict[str, Tensor], tokenizer: str) -> None:
    """Check the parts of a bundle before any is written. folder: for the errors alone. Raises: `ModelError`."""
    try:
        BundleManifest.model_validate(manifest.model_dump(mode="json"))
    except ValidationError as error:
        raise ModelError(f"{folder / CONFIG}: {first_of(error)}") from error
    config = network_config(manifest, folder)
    _shaped(manifest, config, weights, folder)
    require_words(tokenizer_of(tokenizer, folder / TOKENIZER), config, folder / TOKENIZER)


def network_of(manifest: BundleManifest, weights: dict[str, Tensor], folder: Path) -> Architecture:
    """Return the network without its weights, which fit it and are to be assigned. Raises: `ModelError` if they do not fit."""
    config = network_config(manifest, folder)
    _shaped(manifest, config, weights, folder)
    with Weightless():
        return architecture_of(manifest.architecture)(config)


def _shaped(manifest: BundleManifest, config: ArchitectureConfig, weights: dict[str, Tensor], folder: Path) -> None:
    """Check that the parts of a bundle belong to one network. Raises: `ModelError` if they do not."""
    require_room(manifest, config, folder)
    try:
        with torch.device("meta"):
            network = architecture_of(manifest.architecture)(config)
    except (ArithmeticError, AssertionError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise ModelError(f"{folder / CONFIG}: network: none can be made of these sizes: {error}") from error
    require_same(network, weights, folder / WEIGHTS)


def require_room(manifest: BundleManifest, config: ArchitectureConfig, folder: Path) -> None:
    """Check that the columns of the contract fit into the network. Raises: `ModelError` that names the key."""
    promise, prompt = manifest.contract, manifest.processing.prompt
    sources = [column for column in manifest.processing.relative if column is not None]
    inputs = manifest.processing.state_inputs
    told: tuple[tuple[str, float, float], ...] = (
        ("processing.state_inputs", max((each.column for each in inputs), default=-1), promise.state_size - 1),
        ("processing.state_inputs", len(inputs), config.state_columns),
        ("contract.action_names", len(promise.action_names), config.action_columns),
        ("contract.state_size", 0 if inputs else promise.state_size, config.state_columns),
        ("contract.max_inference_delay_steps", promise.max_inference_delay_steps, config.chunk_length - 1),
        ("processing.prompt.pad_token", prompt.pad_token, (config.vocabulary or math.inf) - 1),
        ("processing.relative", max(sources, default=-1), promise.state_size - 1),
    )
    for key, value, most in told:
        if value > most:
            raise ModelError(f"{folder / CONFIG}: {key}: {value}, of a network for at most {most}")
    _require_columns(manifest, folder)


def _require_columns(manifest: BundleManifest, folder: Path) -> None:
    """Check that there are as many statistics as the contract has columns. Raises: `ModelError` that names the key."""
    processing, num_actions = manifest.processing, len(manifest.contract.action_names)
    for key, affine, columns in (
        ("state", processing.state, len(processing.state_inputs) or manifest.contract.state_size),
        ("action", processing.action, num_actions),
    ):
        times = f"{affine.lines} lines of " if affine.lines > 1 else ""
        for name, values in (("offset", affine.offset), ("scale", affine.scale)):
            if values and len(values) != affine.lines * columns:
                has = f"has {len(values)} numbers for {times}{columns} columns"
                raise ModelError(f"{folder / CONFIG}: processing.{key}.{name} {has}")
        if len(affine.offset) != len(affine.scale):
            raise ModelError(f"{folder / CONFIG}: processing.{key}: offset and scale are given together, or neither is")
        for name in ("ranged", "constant", "unscaled", "binary", "unclipped"):
            flags, count = getattr(affine, name), (affine.lines if name in PER_NUMBER else 1) * columns if affine.scale else 0
            if flags and len(flags) != count:
                raise ModelError(f"{folder / CONFIG}: processing.{key}.{name} has {len(flags)} flags for {count} columns")
    if processing.relative and len(processing.relative) != num_actions:
        has = f"has {len(processing.relative)} columns for {num_actions} actions"
        raise ModelError(f"{folder / CONFIG}: processing.relative {has}")


class _Words(Tokenizer, Protocol):
    def get_vocab(self, with_added_tokens: bool = True) -> dict[str, int]: ...

    def get_added_tokens_decoder(self) -> dict[int, object]: ...


def tokenizer_of(text: str, file: Path) -> _Words:
    """Return the tokenizer in the content of a file. Raises: `ModelError` if it cannot be read."""
    from tokenizers import Tokenizer as FastTokenizer

    try:
        tokenizer = FastTokenizer.from_str(text)
    except Exception as error:  # the library raises no narrower type
        raise ModelError(f"{file}: no tokenizer can be read from it: {error}") from error
    tokenizer.no_padding()
    tokenizer.no_truncation()
    found: _Words = tokenizer
    return found


def require_words(tokenizer: _Words, config: ArchitectureConfig, file: Path) -> None:
    """Check that a tokenizer belongs to the network. Raises: `ModelError` if it does not.

    Added tokens may be beyond the network's rows, and are left out of prompts then (PaliGemma's `<image>`). With the tokenizer of
    another model words would be left out as well, without any message.
    """
    added = tokenizer.get_added_tokens_decoder().keys()
    most = max((id for id in tokenizer.get_vocab(with_added_tokens=False).values() if id not in added), default=-1)
    if config.vocabulary and most >= config.vocabulary:
        raise ModelError(f"{file}: has words up to number {most}, the network {config.vocabulary} rows: it is another model's")


def require_same(network: Architecture, weights: dict[str, Tensor], file: Path) -> None:
    """Check names, shapes and kinds of all weights, without missing or unknown ones. Raises: `ModelError`."""
    own = network.state_dict()
    told = (("missing", own.keys() - weights.keys()), ("unknown", weights.keys() - own.keys()))
    wrong = [f"{len(names)} {what} ({', '.join(sorted(names)[:3])})" for what, names in told if names]
    for name in sorted(own.keys() & weights.keys()):
        if own[name].shape != weights[name].shape:
            wrong.append(f"{name} is {list(weights[name].shape)}, config.json makes it {list(own[name].shape)}")
            break
        floats = own[name].is_floating_point() and weights[name].is_floating_point()
        if not floats and own[name].dtype != weights[name].dtype:
            wrong.append(f"{name} is of {weights[name].dtype}, config.json makes it {own[name].dtype}")
            break
    if wrong:
        raise ModelError(f"{file}: not the weights of this network: {'; '.join(wrong)}")


class Unfilled(TorchFunctionMode):
    """Context in which layers are created without drawing their first weights, which takes long and is replaced anyway."""

    DRAWS = frozenset({"uniform_", "normal_", "trunc_normal_", "kaiming_uniform_", "xavier_uniform_"})

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return args[0] if args and getattr(func, "__name__", "") in self.DRAWS else func(*args, **(kwargs or {}))


class Weightless(TorchFunctionMode):
    """Context in which layers have shapes and no memory.
    Code that draws a weight from the values of others would touch all of their memory in vain."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **{**(kwargs or {}), **({"device": "meta"} if func is torch.empty else {})})

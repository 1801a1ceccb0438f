"""Trained model as a folder: `config.json`, `model.safetensors`, `MODEL_CARD.md`, `training_log.csv`. No pickle."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from ros2_rfm_serving.engines.embedded.networks import FlowPolicyConfig, FlowPolicyNetwork, JudgeConfig, JudgeNetwork
from ros2_rfm_serving.engines.embedded.planner_network import PlannerConfig, PlannerNetwork
from ros2_rfm_serving.engines.embedded.token_network import TokenPolicyConfig, TokenPolicyNetwork
from ros2_rfm_serving.engines.weights_header import check_header
from ros2_rfm_serving.errors import ModelError

FORMAT = 1
CONFIG, WEIGHTS = "config.json", "model.safetensors"
FILES = (CONFIG, WEIGHTS)
"""Files that a bundle must have; both go into its hash."""
PROCESSOR_FILES = ("tokenizer.json",)
"""Files that a bundle may have beside them, which then go into its hash too."""
FLOATS = frozenset({torch.float64, torch.float32, torch.float16, torch.bfloat16})
PACKED = ".packed"
"""End of the names of weights with fewer bits than a number has."""
Network = FlowPolicyNetwork | TokenPolicyNetwork | JudgeNetwork | PlannerNetwork
_KINDS: dict[str, tuple[type[Any], type[Any]]] = {
    "flow_policy": (FlowPolicyConfig, FlowPolicyNetwork),
    "token_policy": (TokenPolicyConfig, TokenPolicyNetwork),
    "judge": (JudgeConfig, JudgeNetwork),
    "planner": (PlannerConfig, PlannerNetwork),
}


def save(folder: Path, network: Network) -> str:
    """Write configuration and weights, and return the bundle's hash."""
    folder.mkdir(parents=True, exist_ok=True)
    kind = next(name for name, (_, cls) in _KINDS.items() if isinstance(network, cls))
    config = {"format": FORMAT, "kind": kind, "network": dataclasses.asdict(network.config)}
    (folder / CONFIG).write_text(json.dumps(config, indent=1) + "\n")
    write_weights(folder, network.state_dict())
    return content_hash(folder)


def load(folder: Path) -> tuple[Network, str]:
    """Return the network, ready for inference, and its hash.

    Raises: `ModelError` that names the folder and its problem.
    """
    config = read_config(folder)
    weights = read_weights(folder)
    try:
        config_class, network_class = _KINDS[config["kind"]]
        network: Network = network_class(config_class(**_tuples(config["network"])))
        network.load_state_dict(weights)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise ModelError(f"{folder}: the model bundle cannot be loaded: {error}") from error
    return network.eval().requires_grad_(False), content_hash(folder)


def read_config(folder: Path) -> dict[str, Any]:
    """Return the content of `config.json` of any kind of bundle. Raises: `ModelError`."""
    for name in FILES:
        if not (folder / name).is_file():
            raise ModelError(f"{folder}: not a model bundle, {name} is missing")
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{folder / CONFIG}: no JSON: {error}") from error
    if not isinstance(config, dict):
        raise ModelError(f"{folder / CONFIG}: a map is expected, not {type(config).__name__}")
    return config


def read_weights(folder: Path) -> dict[str, Tensor]:
    """Return all weights. Raises: `ModelError` if they cannot be read, have an unknown dtype, or are not finite."""
    try:
        check_header(folder / WEIGHTS)
        weights: dict[str, Tensor] = load_file(folder / WEIGHTS)
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{folder / WEIGHTS}: cannot be read: {error}") from error
    for name, tensor in weights.items():
        if tensor.dtype is torch.uint8 and name.endswith(PACKED):
            continue
        if tensor.dtype not in FLOATS:
            raise ModelError(f"{folder / WEIGHTS}: {name} is of {tensor.dtype}; weights are float32, float16, bfloat16 or float64")
        if not torch.isfinite(tensor).all():
            raise ModelError(f"{folder / WEIGHTS}: weights are not finite: {name}")
    return weights


def write_weights(folder: Path, weights: dict[str, Tensor]) -> None:
    """Write weights that are as readable as the configuration beside them: the library may restrict them to their owner."""
    save_file(weights, folder / WEIGHTS)
    (folder / WEIGHTS).chmod((folder / CONFIG).stat().st_mode)


def content_hash(folder: Path) -> str:
    """Return the SHA-256 over configuration, weights and processor files, hex."""
    digest = hashlib.sha256()
    for name in (*FILES, *(name for name in PROCESSOR_FILES if (folder / name).is_file())):
        with (folder / name).open("rb") as stream:
            while block := stream.read(1 << 24):
                digest.update(block)
    return digest.hexdigest()


def _tuples(value: Any) -> Any:
    """Return a JSON value with tuples for lists, as frozen configurations need them."""
    if isinstance(value, list):
        return tuple(_tuples(v) for v in value)
    return {k: _tuples(v) for k, v in value.items()} if isinstance(value, dict) else value

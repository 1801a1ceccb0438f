"""A trained model as a folder: `config.json`, `model.safetensors`, `MODEL_CARD.md`, `training_log.csv`. No pickle."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from ros2_rfm_serving.engines.embedded.networks import FlowPolicyConfig, FlowPolicyNetwork, JudgeConfig, JudgeNetwork
from ros2_rfm_serving.engines.embedded.planner_network import PlannerConfig, PlannerNetwork
from ros2_rfm_serving.engines.embedded.token_network import TokenPolicyConfig, TokenPolicyNetwork
from ros2_rfm_serving.errors import ModelError

FORMAT = 1
FILES = ("config.json", "model.safetensors")
"""What a bundle must have; both go into its hash."""
Network = FlowPolicyNetwork | TokenPolicyNetwork | JudgeNetwork | PlannerNetwork
_KINDS: dict[str, tuple[type[Any], type[Any]]] = {
    "flow_policy": (FlowPolicyConfig, FlowPolicyNetwork),
    "token_policy": (TokenPolicyConfig, TokenPolicyNetwork),
    "judge": (JudgeConfig, JudgeNetwork),
    "planner": (PlannerConfig, PlannerNetwork),
}


def save(folder: Path, network: Network) -> str:
    """Writes configuration and weights; returns the bundle's hash."""
    folder.mkdir(parents=True, exist_ok=True)
    kind = next(name for name, (_, cls) in _KINDS.items() if isinstance(network, cls))
    config = {"format": FORMAT, "kind": kind, "network": dataclasses.asdict(network.config)}
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    save_file(network.state_dict(), folder / "model.safetensors")
    return content_hash(folder)


def load(folder: Path) -> tuple[Network, str]:
    """The network, ready for inference, and its hash.

    Raises: `ModelError` naming the folder and what is wrong with it.
    """
    for name in FILES:
        if not (folder / name).is_file():
            raise ModelError(f"{folder}: not a model bundle, {name} is missing")
    try:
        config = json.loads((folder / "config.json").read_text())
        config_class, network_class = _KINDS[config["kind"]]
        network: Network = network_class(config_class(**_tuples(config["network"])))
        network.load_state_dict(load_file(folder / "model.safetensors"))
    except (KeyError, TypeError, ValueError, RuntimeError, SafetensorError) as error:
        raise ModelError(f"{folder}: the model bundle cannot be loaded: {error}") from error
    for parameter in network.parameters():
        if not torch.isfinite(parameter).all():
            raise ModelError(f"{folder}: weights are not finite")
        parameter.requires_grad_(False)
    return network.eval(), content_hash(folder)


def content_hash(folder: Path) -> str:
    """SHA-256 over configuration and weights, hex."""
    digest = hashlib.sha256()
    for name in FILES:
        digest.update((folder / name).read_bytes())
    return digest.hexdigest()


def _tuples(value: Any) -> Any:
    """JSON knows no tuples; frozen configurations hold nothing else."""
    if isinstance(value, list):
        return tuple(_tuples(v) for v in value)
    return {k: _tuples(v) for k, v in value.items()} if isinstance(value, dict) else value

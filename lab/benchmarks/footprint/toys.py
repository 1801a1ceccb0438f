"""Bundles of published architectures with random weights: of toy size, or as large as the published ones."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from ros2_rfm_serving.engines.architectures.base import Architecture, ArchitectureConfig
    from ros2_rfm_serving.engines.architectures.manifest import BundleManifest

ACTIONS = ("x", "y", "z", "gripper")
SPECIAL = ("<pad>", "<unk>", "<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>")
TERNARY = 3


def drawn(name: str, folder: Path, *, full: bool = False) -> Path:
    """Write a bundle of an architecture to `folder`. Raises: `ModelError`; `ImportError` without the extra `architectures`."""
    from ros2_rfm_serving.engines.architectures.bundle import Unfilled, save
    from ros2_rfm_serving.engines.architectures.names import architecture_of

    architecture = architecture_of(name)
    config = architecture.config_class() if full else architecture.toy()  # type: ignore[call-arg]  # defaults are the full size
    with Unfilled():
        network = architecture(config)
    save(folder, manifest_of(name, architecture, config), _weights(network), _tokenizer(config.vocabulary))
    return folder


def manifest_of(name: str, architecture: type[Architecture], config: ArchitectureConfig) -> BundleManifest:
    from ros2_rfm_serving.engines.architectures.manifest import BundleManifest, Promise

    promise = Promise(
        action_names=ACTIONS[: config.action_columns], cameras=("front", "wrist"), state_size=min(6, config.state_columns)
    )
    return BundleManifest(
        architecture=name,
        network=config.model_dump(mode="json"),
        contract=promise,
        sampling=architecture.sampling(),
        processing=architecture.processing(config),
    )


def _weights(network: Architecture) -> dict[str, Tensor]:
    """Return random weights whose scale keeps the size of activations from layer to layer."""
    torch.manual_seed(0)
    weights = network.state_dict()
    for tensor in weights.values():
        if tensor.dtype is torch.uint8:
            codes = torch.randint(TERNARY, (4, *tensor.shape), dtype=torch.uint8)
            tensor.copy_(codes[0] | codes[1] << 2 | codes[2] << 4 | codes[3] << 6)
        elif tensor.ndim > 1:
            tensor.normal_(std=(tensor.numel() / tensor.shape[0]) ** -0.5)
        elif tensor.ndim == 0:
            tensor.fill_(network.config.chunk_length**-0.5)
    return weights


def _tokenizer(rows: int) -> str:
    """Return a tokenizer with a token per character, limited by a network's rows; 0: no limit."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = [*SPECIAL, "\n", *map(chr, range(32, 127))]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words[: rows or None])}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    text: str = tokenizer.to_str()
    return text

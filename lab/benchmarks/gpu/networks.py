"""Published architectures with random weights, made on the device: they take the time of a checkpoint, with meaningless output."""

from __future__ import annotations

import re
import zlib
from types import SimpleNamespace

import torch
from torch import Tensor, nn

from lab.benchmarks.gpu.machine import Machine, Size
from ros2_rfm_serving.engines.architectures.base import Architecture, ArchitectureConfig
from ros2_rfm_serving.engines.architectures.bundle import Unfilled
from ros2_rfm_serving.engines.architectures.engine import sampling_of
from ros2_rfm_serving.engines.architectures.manifest import BundleManifest, Processing, Promise
from ros2_rfm_serving.engines.architectures.names import architecture_of
from ros2_rfm_serving.engines.architectures.policy import ArchitecturePolicy, contract_of
from ros2_rfm_serving.engines.architectures.processor import PromptEncoding
from ros2_rfm_serving.engines.architectures.ternary import TernaryLinear
from ros2_rfm_serving.engines.embedded.options import BundleOptions
from ros2_rfm_serving.engines.flow.stepping import SteppingEngine

ACTIONS = ("x", "y", "z", "roll", "pitch", "yaw", "gripper")
CAMERAS = ("front", "wrist")
STATE_SIZE = 7
IMAGES, STATE = ("<IMG_CONTEXT>", "<|image_pad|>"), "<proprio_pad>"
"""Placeholders in prompts."""
MOST_WORDS = 32
"""Limit below every network's own tokens for images."""
SPREAD = 0.02
"""Standard deviation of random weights, as in the initialisation of language models."""


def config_of(name: str, size: Size) -> ArchitectureConfig:
    """Return the configuration. The full size is the default, that of the published checkpoint (see docs/reference/engines.md)."""
    architecture = architecture_of(name)
    return architecture.config_class() if size == "full" else architecture.toy()  # type: ignore[call-arg]  # all have defaults


def recorded(machine: Machine, batch_sizes: tuple[int, ...]) -> BundleOptions:
    """Return options for recorded graphs without compilation: a shape takes a second to record, and a minute to compile."""
    return BundleOptions(
        device=machine.device,
        dtype="float32" if machine.size == "toy" else "bfloat16",
        compile=False,
        cuda_graphs=machine.on_gpu,
        trace=False,
        batch_sizes=batch_sizes,
    )


def network_of(name: str, size: Size, device: str, dtype: torch.dtype) -> Architecture:
    """Return a network that is allocated on the device from the start."""
    config = config_of(name, size)
    with Unfilled(), torch.device(device):
        network = architecture_of(name)(config)
    network.cast(dtype)
    fill(network, seed=zlib.crc32(name.encode()))
    return network.eval().requires_grad_(requires_grad=False)


def parameters_of(name: str) -> int:
    """Return the parameters at full size, with each weight of a ternary layer counted. It allocates no memory."""
    with torch.device("meta"):
        network = architecture_of(name)(config_of(name, "full"))
    packed = sum(module.inputs * module.outputs for module in network.modules() if isinstance(module, TernaryLinear))
    return packed + sum(parameter.numel() for parameter in network.parameters())


def fill(network: nn.Module, seed: int) -> None:
    """Fill weights: matrices small and random, norms 1, biases 0. Integers are packed weights, valid with any value."""
    generators: dict[torch.device, torch.Generator] = {}
    parameters = dict(network.named_parameters(remove_duplicate=False))
    for name, weight in network.state_dict().items():
        generator = generators.setdefault(weight.device, torch.Generator(weight.device).manual_seed(seed))
        _fill(name, weight, generator, name in parameters)


def _fill(name: str, weight: Tensor, generator: torch.Generator, is_parameter: bool) -> None:
    if not weight.is_floating_point():
        return
    if is_parameter and weight.dim() > 1:
        weight.normal_(std=SPREAD, generator=generator)
    elif is_parameter:
        weight.fill_(0.0 if name.endswith("bias") else 1.0)


def engine_of(name: str, size: Size, options: BundleOptions, cameras: tuple[str, ...] = CAMERAS) -> SteppingEngine:
    """Return an engine of random weights. Raises: `ModelError`."""
    options = options.on_device(name)
    architecture = architecture_of(name)
    network = network_of(name, size, options.device, getattr(torch, options.dtype))
    config = network.config
    promise = Promise(
        action_names=ACTIONS[: config.action_columns], cameras=cameras, state_size=min(STATE_SIZE, config.state_columns)
    )
    manifest = BundleManifest(
        architecture=name,
        network=config.model_dump(mode="json"),
        contract=promise,
        sampling=architecture.sampling(),
        processing=_for_cameras(architecture.processing(config), len(cameras)),
    )
    contract = contract_of(name, manifest, config.chunk_length, f"random-{size}")
    policy = ArchitecturePolicy(contract, manifest, network, Words(config), options)
    return SteppingEngine(policy, sampling_of(manifest.sampling, config.action_columns, options))


def _for_cameras(processing: Processing, num_cameras: int) -> Processing:
    """Return a prompt with places for more images than there are cameras: the others are absent."""
    places = len(re.findall("|".join(map(re.escape, IMAGES)), processing.prompt.template))
    images = processing.images.model_copy(update={"absent": max(0, places - num_cameras)})
    return processing.model_copy(update={"images": images})


class Words:
    """Tokenizer without a vocabulary: a word's number follows from its letters, that of an image's place is the network's."""

    def __init__(self, config: ArchitectureConfig) -> None:
        self._places = dict.fromkeys(IMAGES, getattr(config, "image_token", 0))
        self._places[STATE] = getattr(config, "state_token", 0)
        self._known = min(config.vocabulary or MOST_WORDS, MOST_WORDS)

    def encode(self, sequence: str) -> PromptEncoding:
        found = re.findall(r"<[^<>]*>|\w+|[^\w\s]", sequence)
        return SimpleNamespace(ids=[self._places.get(word, 1 + zlib.crc32(word.encode()) % (self._known - 1)) for word in found])

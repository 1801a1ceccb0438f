"""How far chunks of BitVLA are from those in float64, where a value between two steps of 8 bits goes either way:
python -m test.engines.parity.rounding. Random weights: the toy, and a narrow one as deep as the published."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from test.engines import operators  # noqa: F401  before torchvision

# isort: split

from ros2_rfm_serving.engines.architectures.base import Observation
from ros2_rfm_serving.engines.architectures.bitnet import BitNetConfig
from ros2_rfm_serving.engines.architectures.bitvla import BitVla, BitVlaConfig
from ros2_rfm_serving.engines.architectures.ternary import TernaryLinear, ternary_of
from ros2_rfm_serving.engines.architectures.vision import VisionConfig

TOY = BitVla.toy()
DEEP = TOY.model_copy(
    update={
        "vision": VisionConfig(image_px=56, patch_px=14, width=128, layers=26, heads=4, mlp_width=256),
        "language": BitNetConfig(width=256, layers=30, heads=8, kv_heads=2, mlp_width=512),
    }
)
WORDS = 12


def drawn(config: BitVlaConfig) -> BitVla:
    network = BitVla(config).eval().requires_grad_(False)
    for module in network.modules():
        if isinstance(module, TernaryLinear):
            packed, step = ternary_of(torch.randn(module.outputs, module.inputs) / module.inputs**0.5)
            module.packed.copy_(packed)
            module.step.copy_(step)
    return network


def observation(config: BitVlaConfig) -> Observation:
    tokens, side = torch.randint(0, 60, (1, WORDS)), config.vision.image_px
    tokens[0, :3] = torch.tensor([config.image_token, config.image_token, config.state_token])
    seen, words = torch.ones(1, 2, dtype=torch.bool), torch.ones(1, WORDS, dtype=torch.bool)
    return Observation(torch.randn(1, 2, 3, side, side), seen, tokens, words, torch.randn(1, config.state_columns))


def chunk(network: BitVla, asked: Observation) -> Tensor:
    return network.head(network.perceive(asked)[0]).double()


def main() -> None:
    torch.manual_seed(0)
    for name, config, draws in (("toy", TOY, 100), ("deep", DEEP, 6)):
        network = drawn(config)
        exact, asked = copy.deepcopy(network).double(), [observation(config) for _ in range(draws)]
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            own = copy.deepcopy(network)
            own.cast(dtype)
            pairs = [(chunk(own, each), chunk(exact, each)) for each in asked]
            errors = torch.stack([(one - other).abs().max() / other.abs().max() for one, other in pairs])
            print(f"{name:5} {dtype!s:15} median {errors.median():.1e}  most {errors.max():.1e}", flush=True)


if __name__ == "__main__":
    main()

"""BitVLA against its authors' own code: python -m test.engines.parity.bitvla REFERENCE --revision REV records what that says,
python -m test.engines.parity.bitvla, in an environment of ours, compares: their `transformers` is not one that ours runs with.

REFERENCE is a clone of ustcwhy/BitVLA at 3738a94633ec031773f1b31b6676d20437f052ac, whose own `transformers` (transformers/src)
stands first on PYTHONPATH. In an environment that has what transformers 4.51 needs, and diffusers. Their bfloat16 is read as
float32, and the TensorFlow of their image files is left out: images have the size that the network sees.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from test.engines import operators  # noqa: F401  before torchvision
from test.engines.parity.common import (
    INSTRUCTIONS,
    SEED,
    Recording,
    inputs,
    judged,
    read,
    seeded,
    write,
)
from test.engines.parity.word_tokenizer import word_tokenizer

PIXELS, PATCH, CAMERAS, STATE, ACTIONS, LENGTH, WIDTH, TOKENS = 28, 14, 2, 8, 7, 8, 32, 128
SPECIAL = ("<|begin_of_text|>", "<|eot_id|>", "<|end_of_text|>", "<proprio_pad>", "<|image_pad|>")
WORDS = "User: What action should the robot take to push? open drawer and put cube into it? Assistant:"
STOP, STATE_TOKEN, IMAGE_TOKEN, ACTION_BEGIN = 61, 62, 63, 64
CHAT = (
    "{% for message in messages %}"
    "{% set content = message['role'] | capitalize + ': ' + message['content'] | trim + '<|eot_id|>' %}"
    "{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}"
    "{% if add_generation_prompt %}{{ ' Assistant: ' }}{% endif %}"
)
VISION = {
    "model_type": "siglip_vision_model",
    "hidden_size": WIDTH,
    "image_size": PIXELS,
    "patch_size": PATCH,
    "intermediate_size": 48,
    "num_attention_heads": 2,
    "num_hidden_layers": 3,
    "vision_use_head": False,
    "vit_weight_bits": 1,
    "vit_act_bits": 8,
}
TEXT = {
    "model_type": "BitNet",
    "hidden_size": WIDTH,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "vocab_size": 64,
    "attn_implementation": "eager",
}
STATISTICS = {
    "toy": {
        "action": {
            "q01": [-1.0, -0.5, -0.25, 0.0, -0.1, -0.2, 0.0],
            "q99": [1.0, 0.75, 0.5, 1.0, 0.1, 0.3, 1.0],
            "min": [-2.0] * ACTIONS,
            "max": [2.0] * ACTIONS,
            "mask": [True] * 6 + [False],
        },
        "proprio": {
            "q01": [-1.5, -1.0, -2.0, -1.2, -0.5, -1.0, -1.0, -0.9],
            "q99": [1.0, 0.5, 2.0, 1.25, 1.0, 0.8, 1.0, 1.0],
            "min": [-3.0] * STATE,
            "max": [3.0] * STATE,
        },
    }
}


class AsFloat32(ModuleType):
    """PyTorch without a half precision."""

    bfloat16 = torch.float32

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def package(name: str, folder: Path) -> Any:
    """Without what its __init__ imports."""
    made: Any = ModuleType(name)
    made.__path__ = [str(folder)]
    sys.modules[name] = made
    return made


def functions(file: Path, *names: str) -> dict[str, Any]:
    """Of a module that imports what is not there."""
    from prismatic.vla import constants

    defined = (node for node in ast.parse(file.read_text()).body if isinstance(node, ast.FunctionDef))
    wanted: list[ast.stmt] = [node for node in defined if node.name in names]
    found: dict[str, Any] = {**vars(constants), "np": np, "Dict": dict, "Any": Any}
    exec(compile(ast.Module(wanted, []), str(file), "exec"), found)
    return {name: found[name] for name in names}


def modules(clone: Path) -> Any:
    """Their `bitnet_utils`, and what it stands on."""
    own = clone / "openvla-oft"
    sys.path[:0] = [str(own / "bitvla")]
    for name in ("prismatic", "prismatic.vla", "prismatic.training", "prismatic.models", "experiments", "experiments.robot"):
        package(name, own / name.replace(".", "/"))
    bitvla = package("bitvla", own / "bitvla")
    import bitnet_action_tokenizer
    import configuration_bit_vla
    from model import bitvla_for_action_prediction

    bitvla.Bitnet_ActionTokenizer = bitnet_action_tokenizer.Bitnet_ActionTokenizer
    bitvla.Bitvla_Config = configuration_bit_vla.Bitvla_Config
    bitvla.BitVLAForActionPrediction = bitvla_for_action_prediction.BitVLAForActionPrediction
    tools: Any = ModuleType("experiments.robot.openvla_utils")
    names = ("model_is_on_hf_hub", "update_auto_map", "check_model_logic_mismatch", "_load_dataset_stats")
    vars(tools).update(dict.fromkeys(names))
    vars(tools).update(functions(own / "experiments/robot/openvla_utils.py", "normalize_proprio"))
    tools.prepare_images_for_vla = lambda images, *_, **__: images
    sys.modules[tools.__name__] = tools
    from experiments.robot import bitnet_utils

    bitnet_utils.torch = AsFloat32("torch")
    return bitnet_utils


def reference(bitvla: Any) -> tuple[Any, Any, Any, Any]:
    """Model, head, projector and processor at toy size, with weights that are drawn."""
    from prismatic.models.action_heads import L1RegressionActionHead
    from prismatic.models.projectors import ProprioProjector
    from transformers import PreTrainedTokenizerFast, SiglipImageProcessor

    settings = {
        "vision_feature_select_strategy": "full",
        "vision_feature_layer": -2,
        "image_token_index": IMAGE_TOKEN,
        "vocab_size": 64,
    }
    config = bitvla.Bitvla_Config(norm_stats=STATISTICS, vision_config=VISION, text_config=TEXT, **settings)
    model = bitvla.BitVLAForActionPrediction(config).eval()
    model.set_constant(IMAGE_TOKEN, STATE_TOKEN, -100, ACTION_BEGIN, STOP)
    head = L1RegressionActionHead(WIDTH, WIDTH, ACTIONS).eval()
    projector = ProprioProjector(WIDTH, STATE).eval()
    for part in (model, head, projector):
        part.load_state_dict(seeded(shapes_of(part), SEED), strict=False)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=word_tokenizer(WORDS, SPECIAL), bos_token=SPECIAL[0], chat_template=CHAT)
    images = SiglipImageProcessor(size={"height": PIXELS, "width": PIXELS})
    processor = SimpleNamespace(tokenizer=tokenizer, image_processor=images, patch_size=PATCH, num_additional_image_tokens=0)
    return model, head, projector, processor


def shapes_of(module: Any) -> dict[str, list[int]]:
    return {name: list(tensor.shape) for name, tensor in module.state_dict().items() if "lm_head" not in name}


@torch.no_grad()
def answers(utils: Any, parts: tuple[Any, Any, Any, Any], given: dict[str, Tensor]) -> dict[str, Tensor]:
    """Of each block, rows alone, as their evaluation asks."""
    model, head, projector, processor = parts
    blocks: dict[str, list[list[Tensor]]] = {}
    heard: dict[str, Any] = {}

    def predict(**asked: Any) -> Any:
        heard.update(asked)
        heard["said"] = type(model).predict_action(model, **asked)
        return heard["said"]

    asking = SimpleNamespace(predict_action=predict, norm_stats=STATISTICS)
    settings = SimpleNamespace(num_images_in_input=CAMERAS, use_proprio=True, unnorm_key="toy", num_open_loop_steps=LENGTH)
    for row, instruction in enumerate(INSTRUCTIONS):
        one, two = given["images"][row].numpy()
        seen = {"full_image": one, "wrist_image": two, "state": given["state"][row].numpy()}
        utils.get_bitnet_vla_action(settings, asking, processor, seen, instruction, head, projector)
        actions, hidden = heard["said"]
        chunk = head.predict_action(hidden)[0]
        pixels = heard["pixel_values"][0]
        tokens, words = one_each(heard["input_ids"][0])
        said = {
            "observation": [
                pixels,
                torch.ones(CAMERAS, dtype=torch.bool),
                tokens,
                words,
                torch.from_numpy(heard["proprio"]).float(),
            ],
            "image encoder": [model.get_image_features(pixels, -2, "full")],
            "prefix": [hidden[0]],
            "one step": [chunk],
            "full loop": [chunk],
            "robot space": [torch.from_numpy(actions)],
        }
        for block, tensors in said.items():
            blocks.setdefault(block, []).append(tensors)
    return {
        f"said/{block}/{i}": torch.stack(each) for block, rows in blocks.items() for i, each in enumerate(zip(*rows, strict=True))
    }


def one_each(tokens: Tensor) -> tuple[Tensor, Tensor]:
    """An image's places as one, padded."""
    images, patches = (tokens == IMAGE_TOKEN), (PIXELS // PATCH) ** 2
    kept = tokens[~images | (images.cumsum(0) % patches == 1)]
    padded = torch.zeros(TOKENS, dtype=torch.long)
    padded[: len(kept)] = kept
    return padded, torch.arange(TOKENS) < len(kept)


@torch.no_grad()
def ternary(model: Any) -> dict[str, Tensor]:
    """Weights as their `WeightQuant` leaves them: [outputs, inputs] int8, and what 1 stands for."""
    from transformers.models.llava.modeling_bitnet import BitLinear, WeightQuant
    from transformers.models.siglip import modeling_siglip

    found: dict[str, Tensor] = {}
    for name, module in model.named_modules():
        if isinstance(module, BitLinear | modeling_siglip.BitLinear) and not name.startswith(READ_BY_NOBODY):
            weight = WeightQuant.apply(module.weight)
            found |= {f"ternary/{name}": weight.sign().to(torch.int8), f"step/{name}": weight.abs().max()}
    return found


READ_BY_NOBODY = "vision_tower.vision_model.encoder.layers.2"


def record(clone: Path, revision: str) -> None:
    utils = modules(clone)
    parts = reference(sys.modules["bitvla"])
    given = inputs(CAMERAS, STATE, LENGTH, ACTIONS, (PIXELS, PIXELS))
    plain = {key.removeprefix("given/"): tensor for key, tensor in given.items()}
    recording = Recording(
        reference=f"ustcwhy/BitVLA {revision}; its transformers 4.51.0.dev0",
        files={
            "config.json": json.loads(parts[0].config.to_json_string()),
            "dataset_statistics.json": STATISTICS,
            "tokenizer.json": word_tokenizer(WORDS, SPECIAL).to_str(),
            "tokenizer_config.json": {"bos_token": SPECIAL[0], "chat_template": CHAT},
        },
        shapes={
            "model.safetensors": shapes_of(parts[0]),
            "action_head.safetensors": shapes_of(parts[1]),
            "proprio_projector.safetensors": shapes_of(parts[2]),
        },
        tensors=given | answers(utils, parts, plain) | ternary(parts[0]),
    )
    write("bitvla", recording)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("reference", type=Path, nargs="?", help="without it: the recording against ours")
    parser.add_argument("--revision", default="")
    told = parser.parse_args()
    if told.reference:
        record(told.reference, told.revision)
        return 0
    return judged("bitvla", read("bitvla"))


if __name__ == "__main__":
    sys.exit(main())

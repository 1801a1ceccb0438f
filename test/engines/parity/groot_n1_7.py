"""GR00T N1.7 against NVIDIA's own code: python -m test.engines.parity.groot_n1_7 REFERENCE --revision REV [--write]

REFERENCE is a clone of Isaac-GR00T at its release of N1.7 (23ace64f17aa5015259b8609d371eb61a357c776), in an environment that has
transformers 4.57, diffusers, dm-tree and torchvision.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from test.engines import operators  # noqa: F401  before torchvision
from test.engines.parity import groot_n1_6 as older
from test.engines.parity.common import (
    INSTRUCTIONS,
    SEED,
    Recording,
    finished,
    inputs,
    options,
    padded,
    seeded,
)
from test.engines.parity.groot_n1_5 import one_each, saved_shapes
from test.engines.parity.groot_n1_6 import ACTIONS, CAMERAS, COLUMNS, EMBODIMENT, LENGTH, MAX_TOKENS, STATE, STATE_COLUMNS, TAG
from test.engines.parity.word_tokenizer import word_tokenizer

PIXELS, PATCH_TOKENS = 64, 4
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
WORDS = "user push open the drawer and put cube into it"
CONFIG = older.CONFIG | {
    "model_type": "Gr00tN1d7",
    "select_layer": 3,
    "vl_self_attention_cfg": {
        "num_attention_heads": 3,
        "attention_head_dim": 8,
        "num_layers": 2,
        "final_dropout": True,
        "positional_embeddings": None,
    },
}
PROCESSOR = older.PROCESSOR | {"processor_class": "Gr00tN1d7Processor"}
DELAY, OVERLAP = 2, 5
CONTINUED = {"action_horizon": OVERLAP, "rtc_overlap_steps": OVERLAP, "rtc_frozen_steps": DELAY, "rtc_ramp_rate": 6.0}
TEXT = {
    "hidden_size": 24,
    "head_dim": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 40,
    "num_hidden_layers": 4,
    "vocab_size": 64,
    "max_position_embeddings": 256,
    "rope_theta": 5e6,
    "rope_scaling": {"mrope_section": [2, 1, 1], "mrope_interleaved": True, "rope_type": "default"},
}
VISION = {
    "hidden_size": 64,
    "depth": 3,
    "num_heads": 16,
    "intermediate_size": 24,
    "patch_size": 16,
    "num_position_embeddings": 36,
    "deepstack_visual_indexes": [0, 1],
    "out_hidden_size": 24,
}


def reference(clone: Path) -> Any:
    """Its model at toy size, with weights that are drawn."""
    import transformers

    sys.path.insert(0, str(clone))
    for name in ("gr00t.model", "gr00t.model.gr00t_n1d7", "gr00t.configs", "gr00t.configs.model"):
        package: Any = ModuleType(name)  # without what its __init__ imports for training
        package.__path__ = [str(clone / name.replace(".", "/"))]
        package.register_model_config = lambda *_: None
        sys.modules[name] = package

    import gr00t.model.modules.qwen3_backbone as backbone
    from gr00t.configs.model.gr00t_n1d7 import Gr00tN1d7Config
    from gr00t.model.gr00t_n1d7.gr00t_n1d7 import Gr00tN1d7ActionHead

    token_of = word_tokenizer(WORDS, SPECIAL).token_to_id
    places = {
        "image_token_id": token_of("<|image_pad|>"),
        "video_token_id": token_of("<|video_pad|>"),
        "vision_start_token_id": token_of("<|vision_start|>"),
        "vision_end_token_id": token_of("<|vision_end|>"),
    }
    config = transformers.Qwen3VLConfig(text_config=TEXT, vision_config=VISION, tie_word_embeddings=True, **places)
    config._attn_implementation = "eager"

    class Toy:
        @staticmethod
        def from_pretrained(*_: Any, **__: Any) -> Any:
            return transformers.Qwen3VLForConditionalGeneration(config)

    backbone.Qwen3VLForConditionalGeneration = Toy
    model: Any = nn.Module()
    model.backbone = backbone.Qwen3Backbone(select_layer=CONFIG["select_layer"])
    sizes = {key: value for key, value in json.loads(json.dumps(CONFIG)).items() if key != "model_type"}
    model.action_head = Gr00tN1d7ActionHead(Gr00tN1d7Config(**sizes))
    model.eval().load_state_dict(seeded(saved_shapes(model), SEED), strict=False)
    return model


def seen_by_reference(images: Tensor, instruction: str) -> dict[str, Tensor]:
    """Qwen3-VL's processor of images, and its chat."""
    from transformers import PreTrainedTokenizerFast
    from transformers.models.qwen2_vl.image_processing_qwen2_vl_fast import Qwen2VLImageProcessorFast

    tokenizer = PreTrainedTokenizerFast(tokenizer_object=word_tokenizer(WORDS, SPECIAL), pad_token="<|endoftext|>")
    half = [0.5, 0.5, 0.5]
    size = {"shortest_edge": 32 * 32, "longest_edge": 2**24}
    processor = Qwen2VLImageProcessorFast(
        patch_size=16, merge_size=2, temporal_patch_size=2, image_mean=half, image_std=half, size=size
    )
    seen = processor(images=[each.permute(2, 0, 1) for each in images], return_tensors="pt")
    language = re.sub(r"[^\w\s]", "", instruction.lower())
    pictures = "".join(f"<|vision_start|>{'<|image_pad|>' * (int(t.prod()) // 4)}<|vision_end|>" for t in seen["image_grid_thw"])
    ids = tokenizer(f"<|im_start|>user\n{pictures}{language}<|im_end|>\n", return_tensors="pt")["input_ids"]
    return {**seen, "input_ids": ids, "attention_mask": torch.ones_like(ids)}


@torch.no_grad()
def answers(model: Any, given: dict[str, Tensor]) -> dict[str, Tensor]:
    """Of each block, rows alone, padded as ours."""
    from transformers.feature_extraction_utils import BatchFeature

    head, image_token = model.action_head, model.backbone.model.config.image_token_id
    spans = older.SPANS
    low, high, least, most = (torch.tensor([v for own in spans[part].values() for v in own[i]]) for part in spans for i in (0, 1))
    state = padded((2 * (given["state"] - low) / (high - low) - 1).clamp(-1, 1), STATE_COLUMNS)
    length, robot = MAX_TOKENS + len(CAMERAS) * (PATCH_TOKENS - 1), torch.tensor([EMBODIMENT])
    blocks: dict[str, list[list[Tensor]]] = {}
    for row, instruction in enumerate(INSTRUCTIONS):
        asked = seen_by_reference(given["images"][row], instruction)
        ids = asked["input_ids"][0]
        own = one_each(ids, image_token)
        action_inputs = BatchFeature({"state": state[row][None, None], "embodiment_id": robot})
        features = model.backbone(asked)
        prefix = head.vl_self_attention(head.vlln(features.backbone_features))
        kept = [
            each for block in head.model.transformer_blocks[::2] for each in (block.attn1.to_k(prefix), block.attn1.to_v(prefix))
        ]
        kept = [F.pad(each[0].unflatten(-1, (4, 8)).transpose(0, 1), (0, 0, 0, length - len(ids))) for each in kept]
        encoded = head.state_encoder(action_inputs.state, robot)
        own_step = older.step(head, given["x"][row], 1 - given["time"][row], encoded, prefix, features)
        real, torch.randn = torch.randn, lambda *_, noise=given["noise"][row], **__: noise[None].clone()
        before = BatchFeature({**action_inputs, "action": padded(given["prefix"][row], COLUMNS)[None]})
        try:
            chunk = head.get_action(model.backbone(asked), action_inputs).action_pred[0]
            continued = head.get_action(model.backbone(asked), before, CONTINUED).action_pred[0]
        finally:
            torch.randn = real
        pixels = (given["images"][row].permute(0, 3, 1, 2).float() / 255 - 0.5) / 0.5
        tokens, _ = model.backbone.model.visual(asked["pixel_values"], grid_thw=asked["image_grid_thw"])
        said = {
            "observation": [
                pixels,
                torch.ones(len(CAMERAS), dtype=torch.bool),
                F.pad(own, (0, MAX_TOKENS - len(own))),
                torch.arange(MAX_TOKENS) < len(own),
                state[row],
            ],
            "image encoder": [tokens.unflatten(0, (len(CAMERAS), -1))],
            "prefix": [torch.arange(length) < len(ids), F.pad(ids, (0, length - len(ids))) == image_token, encoded[0], *kept],
            "one step": [-own_step],
            "full loop": [chunk[:, :ACTIONS]],
            "continued": [continued[:, :ACTIONS]],
            "robot space": [(chunk[:, :ACTIONS].clamp(-1, 1) + 1) / 2 * (most - least) + least],
        }
        for block, tensors in said.items():
            blocks.setdefault(block, []).append(tensors)
    return {
        f"said/{block}/{i}": torch.stack(each) for block, rows in blocks.items() for i, each in enumerate(zip(*rows, strict=True))
    }


def main() -> int:
    told = options(__doc__, "reference").parse_args()
    model = reference(told.reference)
    processor = json.loads(json.dumps(PROCESSOR))
    sizes = {"image_target_size": [PIXELS, PIXELS], "image_crop_size": [PIXELS, PIXELS]}
    processor["processor_kwargs"] |= {"shortest_image_edge": PIXELS, **sizes}
    given = inputs(len(CAMERAS), STATE, LENGTH, COLUMNS, (PIXELS, PIXELS))
    drawn = np.random.default_rng(SEED).uniform(-1, 1, (len(INSTRUCTIONS), OVERLAP, ACTIONS))
    prefix = torch.from_numpy(drawn.astype(np.float32))
    given |= {"given/prefix": prefix, "given/delay": torch.tensor(DELAY)}
    plain = {key.removeprefix("given/"): tensor for key, tensor in given.items()}
    recording = Recording(
        reference=f"NVIDIA/Isaac-GR00T {told.revision}, N1.7; transformers 4.57.3",
        files={
            "config.json": CONFIG,
            "processor_config.json": processor,
            "statistics.json": older.STATISTICS,
            "embodiment_id.json": {TAG: EMBODIMENT, "new_embodiment": 10},
            "tokenizer.json": word_tokenizer(WORDS, SPECIAL).to_str(),
        },
        shapes={"model.safetensors": saved_shapes(model)},
        tensors=given | answers(model, plain),
    )
    return finished("groot_n1_7", recording, kept=told.write)


if __name__ == "__main__":
    sys.exit(main())

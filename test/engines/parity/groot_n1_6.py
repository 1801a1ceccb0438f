"""GR00T N1.6 against NVIDIA's own code: python -m test.engines.parity.groot_n1_6 REFERENCE --revision REV [--write]

REFERENCE is a clone of Isaac-GR00T at d6a011619ba5cb93e4a42c07a6bdbefd5e084674, in the environment of `groot_n1_5`. Its attention
over images that are packed into one sequence is a GPU's kernel: here they pass one by one.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import tempfile
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from test.engines import operators  # noqa: F401  before torchvision
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
from test.engines.parity.groot_n1_5 import SPECIAL, TEXT, one_each, saved_shapes, without_gpu
from test.engines.parity.word_tokenizer import word_tokenizer

PIXELS, PATCH_TOKENS, CAMERAS, STATE, ACTIONS, LENGTH, COLUMNS = 56, 4, ("front", "wrist"), 5, 4, 7, 6
STATE_COLUMNS, MAX_TOKENS, TAG, EMBODIMENT, GRID = 8, 128, "libero_panda", 2, 9
WORDS = "system You are a helpful assistant. user <image 1> 2> push open the drawer and put cube into it"
CONFIG = {
    "model_type": "Gr00tN1d6",
    "action_horizon": LENGTH,
    "max_action_dim": COLUMNS,
    "max_state_dim": STATE_COLUMNS,
    "hidden_size": 20,
    "input_embedding_dim": 32,
    "backbone_embedding_dim": 24,
    "max_num_embodiments": 32,
    "max_seq_len": 16,
    "num_timestep_buckets": 1000,
    "num_inference_timesteps": 4,
    "attend_text_every_n_blocks": 2,
    "use_alternate_vl_dit": True,
    "select_layer": 2,
    "diffusion_model_cfg": {
        "num_attention_heads": 4,
        "attention_head_dim": 8,
        "num_layers": 8,
        "output_dim": 20,
        "interleave_self_attention": True,
        "final_dropout": True,
        "norm_type": "ada_norm",
        "positional_embeddings": None,
    },
}
VISION = {
    "hidden_size": 64,
    "intermediate_size": 24,
    "num_attention_heads": 16,
    "num_hidden_layers": 2,
    "num_patches": GRID**2,
    "torch_dtype": "float32",
}
SPANS = {
    "state": {"arm": ([-1.5, -1.0, -2.0, -1.2], [1.0, 0.5, 2.0, 1.25]), "gripper": ([-0.5], [1.0])},
    "action": {"arm": ([-1.0, -0.5, -0.25], [1.0, 0.75, 0.5]), "gripper": ([0.0], [1.0])},
}
STATISTICS = {TAG: {part: {key: {"min": a, "max": b} for key, (a, b) in own.items()} for part, own in SPANS.items()}}
MODALITIES = {
    "video": {"delta_indices": [0], "modality_keys": list(CAMERAS)},
    "state": {"delta_indices": [0], "modality_keys": ["arm", "gripper"]},
    "action": {"delta_indices": list(range(LENGTH)), "modality_keys": ["arm", "gripper"]},
}
PROCESSOR = {
    "processor_class": "Gr00tN1d6Processor",
    "processor_kwargs": {
        "modality_configs": {TAG: MODALITIES},
        "shortest_image_edge": PIXELS,
        "image_target_size": [PIXELS, PIXELS],
        "image_crop_size": [PIXELS, PIXELS],
        "crop_fraction": 1.0,
        "formalize_language": True,
        "use_percentiles": False,
        "clip_outliers": True,
        "use_relative_action": False,
    },
}


class OneByOne(nn.Module):
    """A vision tower whose images do not see one another."""

    def __init__(self, tower: nn.Module) -> None:
        super().__init__()
        self.vision_model = tower.vision_model

    def forward(self, pixel_values: list[Tensor], **told: Any) -> Any:
        each = [self.vision_model(pixel_values=[image]) for image in pixel_values]
        hidden, shapes = (
            torch.cat([getattr(one, key) for one in each], dim) for key, dim in (("last_hidden_state", 1), ("spatial_shapes", 0))
        )
        return SimpleNamespace(last_hidden_state=hidden, spatial_shapes=shapes)


def reference(clone: Path, folder: Path) -> tuple[Any, Path]:
    """Its model at toy size, with weights that are drawn; where its Eagle's configuration and code lie."""
    import transformers
    from transformers.dynamic_module_utils import get_class_from_dynamic_module
    from transformers.modeling_utils import no_init_weights

    sys.path.insert(0, str(clone))
    for name in ("gr00t.model", "gr00t.model.gr00t_n1d6", "gr00t.configs", "gr00t.configs.model"):
        package: Any = ModuleType(name)  # without what its __init__ imports for training
        package.__path__ = [str(clone / name.replace(".", "/"))]
        package.register_model_config = lambda *_: None
        sys.modules[name] = package
    source = clone / "gr00t/model/modules/nvidia/Eagle-Block2A-2B-v2"
    eagle = shutil.copytree(source, folder / "eagle3", ignore=shutil.ignore_patterns("vocab.json", "merges.txt"))
    config = json.loads((source / "config.json").read_text())
    config |= {"_attn_implementation": "eager", "torch_dtype": "float32"}
    config["image_token_index"] = word_tokenizer(WORDS, SPECIAL).token_to_id("<IMG_CONTEXT>")
    config["text_config"] |= TEXT | {"torch_dtype": "float32"}
    config["vision_config"] |= VISION
    (eagle / "config.json").write_text(json.dumps(config))

    import gr00t.model.modules.eagle_backbone as backbone
    from gr00t.configs.model.gr00t_n1d6 import Gr00tN1d6Config
    from gr00t.model.gr00t_n1d6.gr00t_n1d6 import Gr00tN1d6ActionHead

    class Eager:
        @staticmethod
        def from_pretrained(*_: Any, **__: Any) -> Any:
            return transformers.AutoConfig.from_pretrained(str(eagle), trust_remote_code=True)

        @staticmethod
        def from_config(config: Any, trust_remote_code: bool) -> Any:
            def own(name: str) -> Any:
                return get_class_from_dynamic_module(name, str(eagle))

            config.vision_config._attn_implementation = config.text_config._attn_implementation = "eager"
            with no_init_weights():  # theirs names a class that is not there
                tower = OneByOne(own("modeling_siglip2.Siglip2VisionModel")(config.vision_config))
            language = transformers.Qwen3ForCausalLM(config.text_config)
            return own("modeling_eagle3_vl.Eagle3_VLForConditionalGeneration")(config, tower, language)

    backbone.AutoConfig = backbone.AutoModel = Eager
    model: Any = nn.Module()
    model.backbone = backbone.EagleBackbone(select_layer=CONFIG["select_layer"], use_flash_attention=True, load_bf16=True)
    sizes = {key: value for key, value in json.loads(json.dumps(CONFIG)).items() if key != "model_type"}
    model.action_head = Gr00tN1d6ActionHead(Gr00tN1d6Config(**sizes))
    model.eval().load_state_dict(seeded(saved_shapes(model), SEED), strict=False)
    return model, eagle


def seen_by_reference(eagle: Path, images: Tensor, instruction: str) -> tuple[list[Tensor], Tensor]:
    """Its processor: pixels of each camera, [1, 3, H, W], tokens [L]."""
    from PIL import Image
    from transformers import PreTrainedTokenizerFast
    from transformers.dynamic_module_utils import get_class_from_dynamic_module

    def own(name: str) -> Any:
        return get_class_from_dynamic_module(name, str(eagle))

    tokenizer = PreTrainedTokenizerFast(tokenizer_object=word_tokenizer(WORDS, SPECIAL), pad_token="<|endoftext|>")
    fast = own("image_processing_eagle3_vl_fast.Eagle3_VLImageProcessorFast")(
        **json.loads((eagle / "preprocessor_config.json").read_text())
    )
    template = json.loads((eagle / "chat_template.json").read_text())["chat_template"]
    processor = own("processing_eagle3_vl.Eagle3_VLProcessor")(fast, tokenizer, chat_template=template)
    pictures = [{"type": "image", "image": Image.fromarray(each.numpy())} for each in images]
    language = re.sub(r"[^\w\s]", "", instruction.lower())
    conversation = [{"role": "user", "content": [{"type": "text", "text": language}, *pictures]}]
    text = processor.apply_chat_template(conversation, tokenize=False, add_generation_prompt=False)
    found, _ = processor.process_vision_info([conversation])
    both = processor(text=[text], images=found, return_tensors="pt", padding=True)
    return [each.float() for each in both["pixel_values"]], both["input_ids"][0]


@torch.no_grad()
def answers(model: Any, eagle: Path, given: dict[str, Tensor]) -> dict[str, Tensor]:
    """Of each block, rows alone, padded as ours."""
    from transformers.feature_extraction_utils import BatchFeature

    head, image_token = model.action_head, model.backbone.model.image_token_index
    low, high, least, most = (torch.tensor([v for own in SPANS[part].values() for v in own[i]]) for part in SPANS for i in (0, 1))
    state = padded((2 * (given["state"] - low) / (high - low) - 1).clamp(-1, 1), STATE_COLUMNS)
    length, robot = MAX_TOKENS + len(CAMERAS) * (PATCH_TOKENS - 1), torch.tensor([EMBODIMENT])
    blocks: dict[str, list[list[Tensor]]] = {}
    for row, instruction in enumerate(INSTRUCTIONS):
        pixels, ids = seen_by_reference(eagle, given["images"][row], instruction)
        own = one_each(ids, image_token)
        asked = {"input_ids": ids[None], "attention_mask": torch.ones_like(ids)[None], "pixel_values": pixels}
        action_inputs = BatchFeature({"state": state[row][None, None], "embodiment_id": robot})
        features = model.backbone(asked)
        prefix = head.vlln(features.backbone_features)
        kept = [
            each for block in head.model.transformer_blocks[::2] for each in (block.attn1.to_k(prefix), block.attn1.to_v(prefix))
        ]
        kept = [F.pad(each[0].unflatten(-1, (4, 8)).transpose(0, 1), (0, 0, 0, length - len(ids))) for each in kept]
        encoded = head.state_encoder(action_inputs.state, robot)
        own_step = step(head, given["x"][row], 1 - given["time"][row], encoded, prefix, features)
        real, torch.randn = torch.randn, lambda *_, noise=given["noise"][row], **__: noise[None].clone()
        try:
            chunk = head.get_action(model.backbone(asked), action_inputs).action_pred[0]
        finally:
            torch.randn = real
        said = {
            "observation": [
                torch.cat(pixels),
                torch.ones(len(CAMERAS), dtype=torch.bool),
                F.pad(own, (0, MAX_TOKENS - len(own))),
                torch.arange(MAX_TOKENS) < len(own),
                state[row],
            ],
            "image encoder": [model.backbone.model.extract_feature(pixels).unflatten(0, (len(CAMERAS), -1))],
            "prefix": [torch.arange(length) < len(ids), F.pad(ids, (0, length - len(ids))) == image_token, encoded[0], *kept],
            "one step": [-own_step],
            "full loop": [chunk[:, :ACTIONS]],
            "robot space": [(chunk[:, :ACTIONS].clamp(-1, 1) + 1) / 2 * (most - least) + least],
        }
        for block, tensors in said.items():
            blocks.setdefault(block, []).append(tensors)
    return {
        f"said/{block}/{i}": torch.stack(each) for block, rows in blocks.items() for i, each in enumerate(zip(*rows, strict=True))
    }


def step(head: Any, x: Tensor, time: Tensor, state: Tensor, prefix: Tensor, features: Any) -> Tensor:
    """What `get_action` does in one of its steps, [T, W]."""
    bucket, robot = torch.tensor([round(float(time) * 1000)]), torch.tensor([EMBODIMENT])
    actions = head.action_encoder(x[None], bucket, robot) + head.position_embedding.weight[: len(x)]
    masks = {"image_mask": features.image_mask, "backbone_attention_mask": features.backbone_attention_mask}
    said = head.model(hidden_states=torch.cat([state, actions], 1), encoder_hidden_states=prefix, timestep=bucket, **masks)
    return head.action_decoder(said, robot)[0, -len(x) :]


def main() -> int:
    told = options(__doc__, "reference").parse_args()
    without_gpu()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model, eagle = reference(told.reference, folder)
        given = inputs(len(CAMERAS), STATE, LENGTH, COLUMNS, (PIXELS, PIXELS))
        plain = {key.removeprefix("given/"): tensor for key, tensor in given.items()}
        recording = Recording(
            reference=f"NVIDIA/Isaac-GR00T {told.revision}, N1.6; transformers 4.51.3",
            files={
                "config.json": CONFIG,
                "processor_config.json": PROCESSOR,
                "statistics.json": STATISTICS,
                "embodiment_id.json": {TAG: EMBODIMENT, "new_embodiment": 10},
                "tokenizer.json": word_tokenizer(WORDS, SPECIAL).to_str(),
            },
            shapes={"model.safetensors": saved_shapes(model)},
            tensors=given | answers(model, eagle, plain),
        )
        return finished("groot_n1_6", recording, kept=told.write, importer="groot_n1_6")


if __name__ == "__main__":
    sys.exit(main())

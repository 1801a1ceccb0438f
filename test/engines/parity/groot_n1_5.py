"""GR00T N1.5 against NVIDIA's own code: python -m test.engines.parity.groot_n1_5 REFERENCE --revision REV [--write]

REFERENCE is a clone of Isaac-GR00T at 4af2b622892f7dcb5aae5a3fb70bcb02dc217b96, in an environment that has transformers 4.51,
diffusers, timm, peft, accelerate, dm-tree, einops and torchvision. Its attention kernels for GPUs are not called.
"""

from __future__ import annotations

import importlib.machinery
import json
import shutil
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

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
from test.engines.parity.word_tokenizer import word_tokenizer

PIXELS, PATCH_TOKENS, CAMERAS, STATE, ACTIONS, LENGTH, COLUMNS = 28, 4, ("video.front", "video.wrist"), 5, 4, 7, 6
STATE_COLUMNS, MAX_TOKENS, EMBODIMENT = 8, 128, 2
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<img>", "</img>", "<IMG_CONTEXT>")
WORDS = "system You are a helpful assistant. user assistant <image 1> 2> push open the drawer and put cube into it"
HEAD = {
    "hidden_size": 20,
    "input_embedding_dim": 32,
    "backbone_embedding_dim": 24,
    "max_state_dim": STATE_COLUMNS,
    "action_dim": COLUMNS,
    "action_horizon": LENGTH,
    "num_inference_timesteps": 4,
    "max_num_embodiments": 32,
    "num_target_vision_tokens": 3,
    "max_seq_len": 16,
    "num_timestep_buckets": 1000,
    "tune_projector": True,
    "tune_diffusion_model": True,
    "diffusion_model_cfg": {
        "num_attention_heads": 4,
        "attention_head_dim": 8,
        "num_layers": 4,
        "output_dim": 20,
        "cross_attention_dim": 24,
        "interleave_self_attention": True,
        "final_dropout": True,
        "norm_type": "ada_norm",
        "positional_embeddings": None,
    },
    "vl_self_attention_cfg": {
        "num_attention_heads": 3,
        "attention_head_dim": 8,
        "num_layers": 2,
        "final_dropout": True,
        "positional_embeddings": None,
    },
}
CONFIG = {
    "model_type": "gr00t_n1_5",
    "action_horizon": LENGTH,
    "action_dim": COLUMNS,
    "compute_dtype": "float32",
    "backbone_cfg": {"select_layer": 2, "project_to_dim": None},
    "action_head_cfg": HEAD,
}
TEXT = {
    "hidden_size": 24,
    "head_dim": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "vocab_size": 64,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
VISION = {"hidden_size": 32, "image_size": PIXELS, "intermediate_size": 24, "num_attention_heads": 16, "num_hidden_layers": 2}


class ForGpus(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


def without_gpu() -> None:
    """What its files import for GPUs, and none of what runs here calls."""
    for name in ("flash_attn", "flash_attn.flash_attn_interface", "flash_attn.bert_padding", "decord", "lmdb", "cv2", "av"):
        module: Any = ForGpus(name)
        module.__spec__, module.__path__ = importlib.machinery.ModuleSpec(name, None), []
        sys.modules[name] = module
    torch.cuda.get_device_capability = lambda *_: (8, 0)  # type: ignore[assignment]


def reference(clone: Path, folder: Path) -> tuple[Any, Path]:
    """Its model at toy size, with weights that are drawn; where its Eagle's configuration and code lie."""
    import transformers
    from transformers.dynamic_module_utils import get_class_from_dynamic_module

    sys.path.insert(0, str(clone))
    package = ModuleType("gr00t.model")  # without what its __init__ imports for training
    package.__path__ = [str(clone / "gr00t/model")]
    sys.modules["gr00t.model"] = package
    source = clone / "gr00t/model/backbone/eagle2_hg_model"
    eagle = shutil.copytree(source, folder / "eagle", ignore=shutil.ignore_patterns("vocab.json", "merges.txt"))
    config = json.loads((source / "config.json").read_text())
    config |= {"_attn_implementation": "eager", "torch_dtype": "float32", "force_image_size": PIXELS}
    config["image_token_index"] = word_tokenizer(WORDS, SPECIAL).token_to_id("<IMG_CONTEXT>")
    config["text_config"] |= TEXT | {"torch_dtype": "float32"}
    config["vision_config"] |= VISION | {"torch_dtype": "float32"}
    (eagle / "config.json").write_text(json.dumps(config))

    import gr00t.model.backbone.eagle_backbone as backbone
    from gr00t.model.gr00t_n1 import GR00T_N1_5, GR00T_N1_5_Config

    class Eager:
        @staticmethod
        def from_config(config: Any, trust_remote_code: bool) -> Any:
            name = "modeling_eagle2_5_vl.Eagle2_5_VLForConditionalGeneration"
            config.vision_config._attn_implementation = config.text_config._attn_implementation = "eager"
            towers = transformers.SiglipVisionModel(config.vision_config), transformers.Qwen3ForCausalLM(config.text_config)
            return get_class_from_dynamic_module(name, str(eagle))(config, *towers)

    backbone.DEFAULT_EAGLE_PATH, backbone.AutoModel = str(eagle), Eager
    sizes = {key: value for key, value in CONFIG.items() if key != "model_type"}
    model = GR00T_N1_5(GR00T_N1_5_Config(**json.loads(json.dumps(sizes))), local_model_path="").eval()
    model.load_state_dict(seeded(saved_shapes(model), SEED), strict=False)
    return model, eagle


def saved_shapes(model: Any) -> dict[str, list[int]]:
    """`lm_head` is the embedding once more, which is saved once."""
    return {name: list(tensor.shape) for name, tensor in model.state_dict().items() if "lm_head" not in name}


def metadata(rng: np.random.Generator) -> dict[str, Any]:
    def drawn(sizes: dict[str, int]) -> dict[str, Any]:
        return {
            key: {"min": (-1 - rng.random(size)).round(3).tolist(), "max": (1 + rng.random(size)).round(3).tolist()}
            for key, size in sizes.items()
        }

    video = {camera.removeprefix("video."): {"resolution": [64, 48], "channels": 3, "fps": 20.0} for camera in CAMERAS}
    statistics = {"state": drawn({"arm": STATE - 1, "gripper": 1}), "action": drawn({"arm": ACTIONS - 1, "gripper": 1})}
    return {"gr1": {"statistics": statistics, "modalities": {"video": video, "state": {}, "action": {}}, "embodiment_tag": "gr1"}}


def seen_by_reference(eagle: Path, images: Tensor, instruction: str) -> tuple[Tensor, Tensor]:
    """Its transforms of camera images, and its processor: pixels [C, 3, H, W], tokens [L]."""
    import torchvision.transforms.v2 as T
    from PIL import Image
    from transformers import PreTrainedTokenizerFast
    from transformers.dynamic_module_utils import get_class_from_dynamic_module

    def own(name: str) -> Any:
        return get_class_from_dynamic_module(name, str(eagle))

    tokenizer = PreTrainedTokenizerFast(tokenizer_object=word_tokenizer(WORDS, SPECIAL), pad_token="<|endoftext|>")
    settings = json.loads((eagle / "preprocessor_config.json").read_text()) | {"size": {"height": PIXELS, "width": PIXELS}}
    fast = own("image_processing_eagle2_5_vl_fast.Eagle2_5_VLImageProcessorFast")(**settings)
    template = json.loads((eagle / "chat_template.json").read_text())["chat_template"]
    processor = own("processing_eagle2_5_vl.Eagle2_5_VLProcessor")(
        fast, tokenizer, tokens_per_tile=PATCH_TOKENS, chat_template=template
    )
    height, width = images.shape[1:3]
    transform = T.Compose(
        [
            T.ToDtype(torch.float32, scale=True),
            T.CenterCrop((int(height * 0.95), int(width * 0.95))),
            T.Resize((PIXELS, PIXELS), interpolation=T.InterpolationMode.BILINEAR, antialias=True),
        ]
    )
    cut = (transform(images.permute(0, 3, 1, 2)) * 255).to(torch.uint8)
    pictures = [Image.fromarray(each.permute(1, 2, 0).numpy()) for each in cut]
    content = [*({"type": "image", "image": each} for each in pictures), {"type": "text", "text": instruction}]
    conversation = [{"role": "user", "content": content}]
    text = processor.apply_chat_template(conversation, tokenize=False, add_generation_prompt=True)
    both = processor(text=[text], images=pictures, return_tensors="pt", padding=True)
    return both["pixel_values"], both["input_ids"][0]


def one_each(tokens: Tensor, image_token: int) -> Tensor:
    """An image's places as one."""
    kept = [token for i, token in enumerate(tokens) if not (token == image_token == tokens[i - 1])]
    return torch.stack(kept)


@torch.no_grad()
def answers(model: Any, eagle: Path, given: dict[str, Tensor], statistics: dict[str, Any]) -> dict[str, Tensor]:
    """Of each block, rows alone, padded as ours."""
    head, image_token = model.action_head, model.backbone.eagle_model.image_token_index
    state_span, action_span = (spans(statistics["gr1"]["statistics"][key]) for key in ("state", "action"))
    state = padded(2 * (given["state"] - state_span[0]) / (state_span[1] - state_span[0]) - 1, STATE_COLUMNS)
    blocks: dict[str, list[list[Tensor]]] = {}
    for row, instruction in enumerate(INSTRUCTIONS):
        pixels, ids = seen_by_reference(eagle, given["images"][row], instruction)
        own = one_each(ids, image_token)
        words = torch.arange(MAX_TOKENS) < len(own)
        tokens = torch.cat([own, torch.zeros(MAX_TOKENS - len(own), dtype=own.dtype)])
        asked = {
            "eagle_pixel_values": pixels, "eagle_input_ids": ids[None], "eagle_attention_mask": torch.ones_like(ids)[None],
            "eagle_image_sizes": torch.zeros(2, 2), "state": state[row][None, None], "embodiment_id": torch.tensor([24]),
        }  # fmt: skip
        backbone_inputs, action_inputs = model.prepare_input(asked)
        prefix = head.process_backbone_output(model.backbone(backbone_inputs)).backbone_features
        length = MAX_TOKENS + len(CAMERAS) * (PATCH_TOKENS - 1)
        there, images = (
            (torch.arange(length) < len(ids)),
            torch.cat([ids, torch.zeros(length - len(ids), dtype=ids.dtype)]) == image_token,
        )
        first = torch.cat([head.state_encoder(action_inputs.state, action_inputs.embodiment_id)[0], head.future_tokens.weight])
        kept = [
            each for block in head.model.transformer_blocks[::2] for each in (block.attn1.to_k(prefix), block.attn1.to_v(prefix))
        ]
        heads = [each[0].unflatten(-1, (4, 8)).transpose(0, 1) for each in kept]
        heads = [torch.nn.functional.pad(each, (0, 0, 0, length - len(ids))) for each in heads]
        own_step = step(head, given["x"][row], 1 - given["time"][row], action_inputs, prefix)
        real, torch.randn = torch.randn, lambda *_, noise=given["noise"][row], **__: noise[None].clone()
        try:
            chunk = model.get_action(asked).action_pred[0]
        finally:
            torch.randn = real
        robot = (chunk[:, :ACTIONS] + 1) / 2 * (action_span[1] - action_span[0]) + action_span[0]
        said = {
            "observation": [pixels, torch.ones(2, dtype=torch.bool), tokens, words, state[row]],
            "image encoder": [model.backbone.eagle_model.extract_feature(pixels)],
            "prefix": [there, images, first, *heads],
            "one step": [-own_step],
            "full loop": [chunk[:, :ACTIONS]],
            "robot space": [robot],
        }
        for block, tensors in said.items():
            blocks.setdefault(block, []).append(tensors)
    return {
        f"said/{block}/{i}": torch.stack(each) for block, rows in blocks.items() for i, each in enumerate(zip(*rows, strict=True))
    }


def step(head: Any, x: Tensor, time: Tensor, inputs: Any, prefix: Tensor) -> Tensor:
    """What `get_action` does in one of its steps, [T, W]."""
    bucket = torch.tensor([round(float(time) * 1000)])
    actions = head.action_encoder(x[None], bucket, inputs.embodiment_id) + head.position_embedding.weight[: len(x)]
    state = head.state_encoder(inputs.state, inputs.embodiment_id)
    tokens = torch.cat([state, head.future_tokens.weight[None], actions], dim=1)
    said = head.model(hidden_states=tokens, encoder_hidden_states=prefix, timestep=bucket)
    return head.action_decoder(said, inputs.embodiment_id)[0, -len(x) :]


def spans(statistics: dict[str, Any]) -> tuple[Tensor, Tensor]:
    return tuple(torch.tensor([v for each in statistics.values() for v in each[key]]) for key in ("min", "max"))  # type: ignore[return-value]


def main() -> int:
    told = options(__doc__, "reference").parse_args()
    without_gpu()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model, eagle = reference(told.reference, folder)
        statistics = metadata(np.random.default_rng(SEED))
        given = inputs(len(CAMERAS), STATE, LENGTH, COLUMNS)
        plain = {key.removeprefix("given/"): tensor for key, tensor in given.items()}
        recording = Recording(
            reference=f"NVIDIA/Isaac-GR00T {told.revision}, N1.5; transformers 4.51.3",
            files={
                "config.json": CONFIG,
                "experiment_cfg/metadata.json": statistics,
                "tokenizer.json": word_tokenizer(WORDS, SPECIAL).to_str(),
            },
            shapes={"model.safetensors": saved_shapes(model)},
            wishes={"state_keys": ("arm", "gripper"), "action_keys": ("arm", "gripper")},
            tensors=given | answers(model, eagle, plain, statistics),
        )
        return finished("groot_n1_5", recording, kept=told.write, importer="groot")


if __name__ == "__main__":
    sys.exit(main())

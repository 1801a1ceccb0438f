"""Evo-1 against its authors' own code: python -m test.engines.parity.evo1 REFERENCE INTERNVL --revision REV [--write]

REFERENCE is a clone of MINT-SJTU/Evo-1 at 1bf31c43f9cf36aa375f13c68eea991618635248, INTERNVL one of OpenGVLab/InternVL at
2410d1dbf208f0e799459aff9376e5747dbf41a2, whose vision-language model it loads from a hub. In an environment that has transformers
4.51, timm, peft, accelerate, einops and torchvision. Their bfloat16 is read as float32.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

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

PIXELS, PATCH_TOKENS, CAMERAS, STATE, ACTIONS, LENGTH, COLUMNS, TEXT = 56, 4, 3, 5, 4, 6, 6, 40
SPECIAL = ("<|endoftext|>", "<img>", "</img>", "<IMG_CONTEXT>")
WORDS = "Image-1: Image-2: Image-3: push open the drawer and put cube into it"
CONFIG = {
    "action_head": "flowmatching",
    "horizon": LENGTH,
    "per_action_dim": COLUMNS,
    "state_dim": 8,
    "embed_dim": 112,
    "hidden_dim": 20,
    "state_hidden_dim": 20,
    "num_heads": 4,
    "num_layers": 2,
    "num_inference_timesteps": 5,
    "max_text_length": TEXT,
}
STATISTICS = {
    "arm": {
        "observation.state": {"min": [-1.5, -1.0, -2.0, -1.2, -0.5], "max": [1.0, 0.5, 2.0, 1.25, 1.0]},
        "action": {"min": [-1.0, -0.5, -0.25, 0.0], "max": [1.0, 0.75, 0.5, 1.0]},
    }
}
VISION = {
    "hidden_size": 32,
    "image_size": PIXELS,
    "patch_size": 14,
    "intermediate_size": 24,
    "num_attention_heads": 16,
    "num_hidden_layers": 2,
    "qkv_bias": True,
    "norm_type": "layer_norm",
    "use_flash_attn": False,
    "qk_normalization": False,
    "drop_path_rate": 0.0,
}
LANGUAGE = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 112,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "intermediate_size": 40,
    "num_hidden_layers": 15,
    "vocab_size": 64,
    "rope_theta": 1e6,
    "attn_implementation": "eager",
}


class AsFloat32(ModuleType):
    """PyTorch without a half precision."""

    bfloat16 = torch.float32

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def internvl(clone: Path) -> Any:
    """Its model at toy size, of Qwen2; the other language models that it knows are left out."""
    sys.path.insert(0, str(clone / "internvl_chat"))
    missing = {
        "internvl.conversation": "get_conv_template",
        "internvl.model.internlm2.modeling_internlm2": "InternLM2ForCausalLM",
        "internvl.model.internlm2.configuration_internlm2": "InternLM2Config",
        "internvl.model.phi3.modeling_phi3": "Phi3ForCausalLM",
        "internvl.model.phi3.configuration_phi3": "Phi3Config",
    }
    for name, attribute in missing.items():
        module: Any = ModuleType(name)
        setattr(module, attribute, lambda *_: SimpleNamespace(system_message=""))
        sys.modules[name] = module
    for name in ("internvl.model", "internvl.model.internlm2", "internvl.model.phi3"):
        package = ModuleType(name)  # without what its __init__ imports
        package.__path__ = [str(clone / "internvl_chat" / name.replace(".", "/"))]
        sys.modules.setdefault(name, package)
    from internvl.model.internvl_chat.configuration_internvl_chat import InternVLChatConfig
    from internvl.model.internvl_chat.modeling_internvl_chat import InternVLChatModel
    from transformers import Qwen2Config, Qwen2ForCausalLM

    settings = {"downsample_ratio": 0.5, "ps_version": "v2", "force_image_size": PIXELS, "select_layer": -1}
    config = InternVLChatConfig(vision_config=VISION, llm_config=LANGUAGE, template="internvl2_5", **settings)
    return InternVLChatModel(config, language_model=Qwen2ForCausalLM(Qwen2Config(**LANGUAGE)), use_flash_attn=False).eval()


def reference(clone: Path, vision_language: Any) -> Any:
    """Their model at toy size, with weights that are drawn."""
    sys.path.insert(0, str(clone / "Evo_1"))
    import model.internvl3.internvl3_embedder as embedder
    from scripts.Evo1 import EVO1
    from transformers import PreTrainedTokenizerFast

    from config import EvoConfig

    tokenizer = PreTrainedTokenizerFast(tokenizer_object=word_tokenizer(WORDS, SPECIAL), pad_token="<|endoftext|>")

    class Loaded:
        def __init__(self, found: Any) -> None:
            self.from_pretrained = lambda *_, **__: found

    embedder.AutoModel, embedder.AutoTokenizer, embedder.torch = Loaded(vision_language), Loaded(tokenizer), AsFloat32("torch")
    own = EVO1(EvoConfig.from_dict(CONFIG | {"device": "cpu"})).eval()
    own.embedder.image_size, own.embedder.max_text_length = PIXELS, TEXT
    own.load_state_dict(seeded(saved_shapes(own), SEED), strict=False)
    return own


def saved_shapes(model: Any) -> dict[str, list[int]]:
    """Without tables of sines, which follow from their sizes."""
    return {name: list(tensor.shape) for name, tensor in model.state_dict().items() if not name.endswith(".pe")}


@torch.no_grad()
def answers(model: Any, given: dict[str, Tensor]) -> dict[str, Tensor]:
    """Of each block, rows alone."""
    low, high = (torch.tensor(STATISTICS["arm"]["observation.state"][key]) for key in ("min", "max"))
    least, most = (torch.tensor(STATISTICS["arm"]["action"][key]) for key in ("min", "max"))
    state = padded((2 * (given["state"] - low) / (high - low + 1e-8) - 1).clamp(-1, 1), CONFIG["state_dim"])
    mask = torch.cat([torch.ones(ACTIONS), torch.zeros(COLUMNS - ACTIONS)])[None].expand(LENGTH, -1).reshape(1, -1)
    head, blocks = model.action_head, {}
    for row, instruction in enumerate(INSTRUCTIONS):
        images = [each.permute(2, 0, 1).float() / 255 for each in given["images"][row]]
        there = torch.ones(1, CAMERAS, dtype=torch.bool)
        pixels, tiles = model.embedder._preprocess_images([images])
        prompt = model.embedder._build_multimodal_prompt(tiles, [instruction])
        ids = model.embedder.tokenizer(prompt, padding="max_length", max_length=TEXT, return_tensors="pt")
        fused = model.get_vl_embeddings(images=[images], image_mask=there, prompt=[instruction])
        context = torch.cat([fused, head.state_encoder(state[row][None], torch.zeros(1, dtype=torch.long)).unsqueeze(1)], dim=1)
        kept = [each for block in head.transformer_blocks for each in keys_values(block.attn, context)]
        real, torch.rand = torch.rand, lambda *_, noise=given["noise"][row], **__: (noise.reshape(1, -1) + 1) / 2
        try:
            chunk = model.run_inference(images, there, instruction, state[row], action_mask=mask).reshape(LENGTH, COLUMNS)
        finally:
            torch.rand = real
        own, words = one_each(ids["input_ids"][0], ids["attention_mask"][0].bool(), model.embedder.img_context_token_id)
        said = {
            "observation": [pixels, there[0], own, words, state[row]],
            "image encoder": [model.embedder.model.extract_feature(pixels)],
            "prefix": kept,
            "one step": [-step(head, given["x"][row], 1 - given["time"][row], context, mask)],
            "full loop": [chunk[:, :ACTIONS]],
            "robot space": [(chunk[:, :ACTIONS] + 1) / 2 * (most - least + 1e-8) + least],
        }
        for block, tensors in said.items():
            blocks.setdefault(block, []).append(tensors)
    return {
        f"said/{block}/{i}": torch.stack(each) for block, rows in blocks.items() for i, each in enumerate(zip(*rows, strict=True))
    }


def one_each(tokens: Tensor, words: Tensor, image_token: int) -> tuple[Tensor, Tensor]:
    """An image's places as one."""
    kept = torch.tensor([i for i, token in enumerate(tokens) if not (token == image_token == tokens[i - 1])])
    return tokens[kept], words[kept]


def keys_values(attention: Any, context: Tensor) -> list[Tensor]:
    _, key, value = torch.nn.functional.linear(context, attention.in_proj_weight, attention.in_proj_bias).chunk(3, dim=-1)
    return [each[0].unflatten(-1, (attention.num_heads, -1)).transpose(0, 1) for each in (key, value)]


def step(head: Any, x: Tensor, time: Tensor, context: Tensor, mask: Tensor) -> Tensor:
    """What `get_action` does in one of its steps, [T, W]."""
    embodiment = torch.zeros(1, dtype=torch.long)
    encoded = head.time_pos_enc(1000)[:, round(float(time) * 1e6) * 999 // 10**6, :]
    tokens = head._project_actions((x.reshape(1, -1) * mask).reshape(1, LENGTH, COLUMNS), embodiment)
    for block in head.transformer_blocks:
        tokens = block(tokens, context, encoded)
    pooled = head.seq_pool_proj(head.norm_out(tokens).reshape(1, -1))
    return head.mlp_head(pooled, embodiment).reshape(LENGTH, COLUMNS)


def main() -> int:
    told = options(__doc__, "reference", "internvl").parse_args()
    model = reference(told.reference, internvl(told.internvl))
    given = inputs(CAMERAS, STATE, LENGTH, COLUMNS, (PIXELS, PIXELS))
    plain = {key.removeprefix("given/"): tensor for key, tensor in given.items()}
    recording = Recording(
        reference=f"MINT-SJTU/Evo-1 {told.revision}; transformers 4.51.3",
        files={
            "config.json": CONFIG,
            "norm_stats.json": STATISTICS,
            "tokenizer.json": word_tokenizer(WORDS, SPECIAL).to_str(),
        },
        shapes={"model.safetensors": saved_shapes(model)},
        tensors=given | answers(model, plain),
    )
    return finished("evo1", recording, kept=told.write, importer="evo1")


if __name__ == "__main__":
    sys.exit(main())

"""Vision-language models of Qwen2.5-VL's kind with random weights, as `transformers` saves them: as published, and tiny."""

from __future__ import annotations

from pathlib import Path
from typing import Any

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}"
    "{% if 'image' in part['type'] %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PIXELS = 28 * 28 * 16
TINY = "tiny"
TEXT: dict[str, dict[str, Any]] = {
    TINY: {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 4096,
        "rope_scaling": {"type": "mrope", "mrope_section": [4, 6, 6]},
    },
    "qwen2_5_vl_3b": {
        "vocab_size": 151936,
        "hidden_size": 2048,
        "intermediate_size": 11008,
        "num_hidden_layers": 36,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128000,
        "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
        "tie_word_embeddings": True,
    },
    "qwen2_5_vl_7b": {
        "vocab_size": 152064,
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "max_position_embeddings": 128000,
        "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
    },
}
"""Configuration of each language model; the vocabulary of the tiny one is its tokenizer's."""
EYES: dict[str, Any] = {
    "depth": 32,
    "hidden_size": 1280,
    "intermediate_size": 3420,
    "num_heads": 16,
    "fullatt_block_indexes": [7, 15, 23, 31],
}
TINY_EYES: dict[str, Any] = {"depth": 2, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "fullatt_block_indexes": [1]}


def save(folder: Path, kind: str = TINY) -> Path:
    """Save configuration, byte tokenizer, processors and chat template. Only the tiny model's weights are saved: those of others
    are drawn where they are loaded."""
    import torch
    from transformers import Qwen2_5_VLForConditionalGeneration, Qwen2VLImageProcessor

    tokenizer = _tokenizer()
    config = _config(kind, tokenizer)
    if kind == TINY:
        torch.manual_seed(0)
        Qwen2_5_VLForConditionalGeneration(config).to(torch.bfloat16).save_pretrained(folder)
    else:
        config.architectures, config.torch_dtype = ["Qwen2_5_VLForConditionalGeneration"], "bfloat16"
        config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    least, most = (PIXELS // 4, PIXELS) if kind == TINY else (28 * 28 * 4, 28 * 28 * 1280)
    Qwen2VLImageProcessor(min_pixels=least, max_pixels=most).save_pretrained(folder)
    return folder


def parameters_of(kind: str) -> int:
    """Return the number of parameters without allocating memory."""
    import torch
    from transformers import Qwen2_5_VLForConditionalGeneration

    from ros2_rfm_serving.engines.architectures.bundle import Unfilled

    with Unfilled(), torch.device("meta"):
        model = Qwen2_5_VLForConditionalGeneration(_config(kind, _tokenizer()))
    model.tie_weights()
    return sum(parameter.numel() for parameter in model.parameters())


def _tokenizer() -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    named = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "model_input_names": ["input_ids", "attention_mask"]}
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **named)
    fast.add_special_tokens({"additional_special_tokens": list(SPECIAL)})
    fast.chat_template = TEMPLATE
    return fast


def _config(kind: str, tokenizer: Any) -> Any:
    from transformers import Qwen2_5_VLConfig

    ids = {token: tokenizer.convert_tokens_to_ids(token) for token in SPECIAL}
    text = {"vocab_size": len(tokenizer), "bos_token_id": ids["<|endoftext|>"], "eos_token_id": ids["<|im_end|>"], **TEXT[kind]}
    vision = {**(TINY_EYES if kind == TINY else EYES), "out_hidden_size": text["hidden_size"]}
    return Qwen2_5_VLConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        tie_word_embeddings=text.get("tie_word_embeddings", False),
        **{key: text[key] for key in ("bos_token_id", "eos_token_id")},
    )

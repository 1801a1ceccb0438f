"""A tiny vision-language model with random weights in llama.cpp's format: what it says means nothing, all else is real."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

WIDTH, HEADS, LAYERS, FFN, CONTEXT = 64, 4, 2, 128, 4096
IMAGE_PX, PATCH_PX = 64, 16
"""LLaVA's encoder: each of the (64 / 16)^2 patches becomes one token."""
CHAT = (
    "{% for message in messages %}<|{{ message['role'] }}|>"
    "{% if message['content'] is string %}{{ message['content'] }}"
    "{% else %}{% for part in message['content'] if part['type'] == 'text' %}{{ part['text'] }}{% endfor %}{% endif %}"
    "<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SPECIAL = ("<|end|>", "<|system|>", "<|user|>", "<|assistant|>")


def write(folder: Path, seed: int = 0) -> tuple[Path, Path]:
    """The language model and its eyes (`mmproj`)."""
    rng = np.random.default_rng(seed)
    language, vision = folder / "language.gguf", folder / "vision.gguf"
    _language(language, rng)
    _vision(vision, rng)
    return language, vision


def _language(file: Path, rng: np.random.Generator) -> None:
    writer = gguf.GGUFWriter(file, "llama")
    tokens = [*_byte_letters(), *SPECIAL]
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.NORMAL] * 256 + [gguf.TokenType.CONTROL] * len(SPECIAL))
    writer.add_token_merges(["s a", "f e"])
    writer.add_bos_token_id(256)
    writer.add_eos_token_id(256)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT)
    _random(writer, rng, "token_embd.weight", len(tokens), WIDTH)
    _random(writer, rng, "output.weight", len(tokens), WIDTH)
    _ones(writer, "output_norm.weight")
    for i in range(LAYERS):
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            _random(writer, rng, f"blk.{i}.{name}.weight", WIDTH, WIDTH)
        for name in ("ffn_gate", "ffn_up"):
            _random(writer, rng, f"blk.{i}.{name}.weight", FFN, WIDTH)
        _random(writer, rng, f"blk.{i}.ffn_down.weight", WIDTH, FFN)
        for name in ("attn_norm", "ffn_norm"):
            _ones(writer, f"blk.{i}.{name}.weight")
    _finish(writer)


def _vision(file: Path, rng: np.random.Generator) -> None:
    writer = gguf.GGUFWriter(file, "clip")
    writer.add_bool("clip.has_vision_encoder", True)
    writer.add_string("clip.projector_type", "mlp")
    writer.add_bool("clip.use_gelu", True)
    for name, number in {
        "image_size": IMAGE_PX,
        "patch_size": PATCH_PX,
        "embedding_length": WIDTH,
        "feed_forward_length": FFN,
        "projection_dim": WIDTH,
        "block_count": LAYERS,
        "attention.head_count": HEADS,
    }.items():
        writer.add_uint32(f"clip.vision.{name}", number)
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-6)
    writer.add_array("clip.vision.image_mean", [0.5, 0.5, 0.5])
    writer.add_array("clip.vision.image_std", [0.5, 0.5, 0.5])
    _random(writer, rng, "v.patch_embd.weight", WIDTH, 3, PATCH_PX, PATCH_PX)
    _zeros(writer, "v.patch_embd.bias")
    _random(writer, rng, "v.position_embd.weight", (IMAGE_PX // PATCH_PX) ** 2, WIDTH)
    for i in range(LAYERS):
        for name in ("attn_q", "attn_k", "attn_v", "attn_out"):
            _random(writer, rng, f"v.blk.{i}.{name}.weight", WIDTH, WIDTH)
            _zeros(writer, f"v.blk.{i}.{name}.bias")
        _random(writer, rng, f"v.blk.{i}.ffn_up.weight", FFN, WIDTH)
        _zeros(writer, f"v.blk.{i}.ffn_up.bias", FFN)
        _random(writer, rng, f"v.blk.{i}.ffn_down.weight", WIDTH, FFN)
        _zeros(writer, f"v.blk.{i}.ffn_down.bias")
        for name in ("ln1", "ln2"):
            _ones(writer, f"v.blk.{i}.{name}.weight")
            _zeros(writer, f"v.blk.{i}.{name}.bias")
    _ones(writer, "v.post_ln.weight")
    _zeros(writer, "v.post_ln.bias")
    for name in ("mm.0", "mm.2"):
        _random(writer, rng, f"{name}.weight", WIDTH, WIDTH)
        _zeros(writer, f"{name}.bias")
    _finish(writer)


def _byte_letters() -> list[str]:
    """The letter that stands for each byte in GPT-2's vocabulary: printable ones for themselves, the others from 256 up."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    moved = iter(range(256, 512))
    return [chr(byte if byte in printable else next(moved)) for byte in range(256)]


def _random(writer: gguf.GGUFWriter, rng: np.random.Generator, name: str, *shape: int) -> None:
    writer.add_tensor(name, rng.normal(0.0, 0.3, shape).astype(np.float32))


def _ones(writer: gguf.GGUFWriter, name: str, size: int = WIDTH) -> None:
    writer.add_tensor(name, np.ones(size, np.float32))


def _zeros(writer: gguf.GGUFWriter, name: str, size: int = WIDTH) -> None:
    writer.add_tensor(name, np.zeros(size, np.float32))


def _finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

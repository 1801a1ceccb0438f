"""Records pi0's and pi0.5's answers, of openpi's own code: python -m test.engines.parity.openpi REVISION

In an environment with openpi's `src` on PYTHONPATH, transformers 4.53.2 and, copied over it, openpi's
`models_pytorch/transformers_replace`. What openpi does in JAX, and how it downloads, is not asked for, and stands empty here.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import safetensors.torch
import torch
import transformers
from safetensors import safe_open
from tokenizers import Tokenizer
from torch import Tensor

from test.engines.parity.common import (
    INSTRUCTIONS,
    Recording,
    inputs,
    judged,
    padded,
    seeded,
    write,
)
from test.engines.parity.toy_tokenizer import beginning_tokenizer

JAX = ("jax", "jax.numpy", "flax", "flax.traverse_util", "orbax", "orbax.checkpoint", "sentencepiece", "numpydantic")
OWN = (
    "models.gemma",
    "models.utils.fsq_tokenizer",
    "shared.array_typing",
    "shared.download",
    "shared.image_tools",
    "shared.normalize",
)
CAMERAS, STATE_SIZE, CHUNK, WIDTH, SIDE = ("front", "left", "right"), 6, 12, 7, 56
NAMES = ("x", "y", "z", "gripper")
MAX_TOKENS = {"pi0": 48, "pi05": 112}
WEIGHTS, CONFIG, STATS = "model.safetensors", "config.json", "assets/toy/norm_stats.json"


def main(revision: str) -> int:
    for name in (*JAX, "openpi_client", "openpi_client.image_tools"):
        sys.modules[name] = mock.MagicMock()
    for name in OWN:
        room, _, own = f"openpi.{name}".rpartition(".")
        empty = sys.modules[f"openpi.{name}"] = mock.MagicMock()
        setattr(import_module(room), own, empty)
    return _record("pi0", revision) | _record("pi05", revision)


def _record(kind: str, revision: str) -> int:
    model, tokenizer = _model(kind), beginning_tokenizer()
    given = inputs(len(CAMERAS), STATE_SIZE, CHUNK, WIDTH, (SIDE, SIDE))  # of the size that is wanted: no library resizes
    stats = _statistics()
    observation = _observed(kind, given, stats, tokenizer)
    said = {"observation": observation, **_said(model, observation, given)}
    said["robot space"] = [_to_robot(kind, said["full loop"][0], stats)]
    told = {"head_dim": 8, "vision_heads": 2, "max_token_len": MAX_TOKENS[kind], "num_steps": 5}
    config = {"action_dim": WIDTH, "action_horizon": CHUNK, "paligemma_variant": "toy", "action_expert_variant": "toy", **told}
    recording = Recording(
        reference=f"Physical-Intelligence/openpi@{revision}, transformers {transformers.__version__}, torch {torch.__version__}",
        files={CONFIG: config, STATS: {"norm_stats": stats}, "tokenizer.json": json.loads(tokenizer.to_str())},
        shapes={WEIGHTS: _shapes(model)},
        wishes={"kind": kind, "action_names": NAMES, "cameras": CAMERAS},
        tensors=given | {f"said/{block}/{i}": t for block, ts in said.items() for i, t in enumerate(ts)},
    )
    write(f"{kind}_openpi", recording)
    return judged(f"{kind}_openpi", recording, "openpi")


def _model(kind: str) -> Any:
    from openpi.models_pytorch import gemma_pytorch, pi0_pytorch

    def sizes(variant: str) -> Any:
        return SimpleNamespace(width=32 if variant == "vlm" else 16, depth=2, mlp_dim=48, num_heads=2, num_kv_heads=1, head_dim=8)

    def vlm(config: Any) -> Any:
        config.text_config.vocab_size = 128
        vision = config.vision_config
        vision.hidden_size, vision.num_attention_heads, vision.num_hidden_layers, vision.intermediate_size = 24, 2, 1, 32
        vision.image_size, vision.projection_dim = SIDE, config.text_config.hidden_size
        return paligemma(config=config)

    def expert(config: Any) -> Any:
        config.vocab_size = 128
        return gemma(config=config)

    paligemma, gemma = gemma_pytorch.PaliGemmaForConditionalGeneration, gemma_pytorch.GemmaForCausalLM
    config = SimpleNamespace(
        pi05=kind == "pi05",
        paligemma_variant="vlm",
        action_expert_variant="expert",
        dtype="float32",
        action_dim=WIDTH,
        action_horizon=CHUNK,
        pytorch_compile_mode=None,
    )
    small = mock.patch.multiple(gemma_pytorch, PaliGemmaForConditionalGeneration=vlm, GemmaForCausalLM=expert)
    with small, mock.patch.object(pi0_pytorch._gemma, "get_config", sizes):
        model = pi0_pytorch.PI0Pytorch(config).float().eval()
    model.load_state_dict(seeded(_shapes(model)), strict=False)  # one name of those that share a weight
    return model


def _statistics() -> dict[str, Any]:
    def of(size: int) -> dict[str, list[float]]:
        mean, std = np.linspace(-0.3, 0.4, size), np.linspace(0.5, 1.5, size)
        return {"mean": mean.tolist(), "std": std.tolist(), "q01": (mean - std).tolist(), "q99": (mean + 2 * std).tolist()}

    return {"state": of(STATE_SIZE), "actions": of(len(NAMES))}


def _as_arrays(stats: dict[str, Any]) -> Any:
    return SimpleNamespace(**{name: np.array(values) for name, values in stats.items()})


def _observed(kind: str, given: dict[str, Tensor], stats: dict[str, Any], tokenizer: Tokenizer) -> list[Tensor]:
    """By openpi's normalisation and its tokenizer's code around the toy's words."""
    from openpi.models.tokenizer import PaligemmaTokenizer
    from openpi.transforms import Normalize

    words = PaligemmaTokenizer.__new__(PaligemmaTokenizer)
    words._max_len, words._tokenizer = MAX_TOKENS[kind], _Words(tokenizer)
    transform = Normalize(None)
    normalize = transform._normalize_quantile if kind == "pi05" else transform._normalize
    state = normalize(given["given/state"].numpy(), _as_arrays(stats["state"])).astype(np.float32)
    rows = [
        words.tokenize(text, own) if kind == "pi05" else words.tokenize(text) for text, own in zip(INSTRUCTIONS, state, strict=True)
    ]
    images = given["given/images"].permute(0, 1, 4, 2, 3).float() / 255.0 * 2.0 - 1.0
    tokens, mask = (torch.from_numpy(np.stack(part)) for part in zip(*rows, strict=True))
    return [
        images,
        torch.ones(images.shape[:2], dtype=torch.bool),
        tokens.long(),
        mask.bool(),
        padded(torch.from_numpy(state), WIDTH),
    ]


class _Words:
    """What openpi asks a sentencepiece model."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def encode(self, text: str, add_bos: bool = False) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=add_bos).ids
        return ids


@torch.no_grad()
def _said(model: Any, observation: list[Tensor], given: dict[str, Tensor]) -> dict[str, list[Tensor]]:
    from openpi.models_pytorch.pi0_pytorch import make_att_2d_masks

    images, seen, tokens, words, state = observation
    split = list(images.unbind(1)), list(seen.unbind(1)), tokens, words
    embedded, known, later = model.embed_prefix(*split)
    mask = model._prepare_attention_masks_4d(make_att_2d_masks(known, later))
    model.paligemma_with_expert.paligemma.language_model.config._attn_implementation = "eager"
    _, cache = model.paligemma_with_expert.forward(
        attention_mask=mask, position_ids=known.cumsum(1) - 1, past_key_values=None, inputs_embeds=[embedded, None], use_cache=True
    )
    prefix = [tensor.clone() for pair in cache for tensor in pair[:2]]
    step = model.denoise_step(state, known, cache, given["given/x"], given["given/time"])
    whole = (split[0], split[1], tokens, words, state)
    with mock.patch.object(model, "_preprocess_observation", lambda observation, train: whole):
        chunk = model.sample_actions("cpu", SimpleNamespace(state=state), noise=given["given/noise"].clone(), num_steps=5)
    return {
        "image encoder": [torch.stack([model.paligemma_with_expert.embed_image(image) for image in split[0]], dim=1)],
        "prefix": [known, *prefix],
        "one step": [step],
        "full loop": [chunk[..., : len(NAMES)]],
    }


def _to_robot(kind: str, chunk: Tensor, stats: dict[str, Any]) -> Tensor:
    from openpi.transforms import Unnormalize

    transform = Unnormalize(None)
    unnormalize = transform._unnormalize_quantile if kind == "pi05" else transform._unnormalize
    return torch.from_numpy(unnormalize(chunk.numpy(), _as_arrays(stats["actions"])).astype(np.float32))


def _shapes(model: Any) -> dict[str, list[int]]:
    """As its converter saves it."""
    with TemporaryDirectory() as folder:
        safetensors.torch.save_model(model, f"{folder}/{WEIGHTS}")
        with safe_open(f"{folder}/{WEIGHTS}", "pt") as tensors:
            return {name: tensors.get_slice(name).get_shape() for name in tensors.keys()}  # noqa: SIM118


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

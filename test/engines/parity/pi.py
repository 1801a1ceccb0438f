"""Records pi0's and pi0.5's answers, of LeRobot's own code: python -m test.engines.parity.pi REVISION

In an environment with LeRobot at that revision (PYTHONPATH to its `src`; it wants Python 3.12) and what its extra `pi` asks for.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor

from test.engines import operators  # noqa: F401  before anything of LeRobot's
from test.engines.parity import lerobot_side as side
from test.engines.parity.common import INSTRUCTIONS, inputs
from test.engines.parity.toy_vlm import small_gemma

SIZES = {"head_dim": 8, "vision_heads": 2}
"""Told to our importer: published sizes are in the code of both, and no checkpoint says them."""
DELAY = 4


def main(revision: str) -> int:
    return _record("pi0", revision) | _record("pi05", revision, rtc_training_max_delay=DELAY, tokenizer_max_length=112)


def _record(kind: str, revision: str, **changes: Any) -> int:
    with TemporaryDirectory() as name, _small(import_module(f"lerobot.policies.{kind}.modeling_{kind}")):
        folder = Path(name)
        told = {"num_inference_steps": 5, "image_resolution": (56, 56), **changes}
        policy = side.policy(kind, folder, **told)
        given = inputs(len(side.CAMERAS), side.STATE_SIZE, side.CHUNK, policy.config.max_action_dim)
        batch = side.batch(policy, folder, given)
        said = {"observation": side.observed(policy, batch), **_said(kind, policy, batch, given)}
        if kind == "pi05":
            shape = (len(INSTRUCTIONS), DELAY - 1, len(side.NAMES))
            given["given/prefix"] = torch.from_numpy(np.random.default_rng(1).standard_normal(shape, np.float32))
            said["continued"] = [_continued(policy, batch, given)]
        said["robot space"] = [side.to_robot(folder, said["full loop"][0])]
        return side.finish(kind, revision, folder, given, said, **SIZES)


def _small(module: Any) -> Any:
    return mock.patch.multiple(module, **small_gemma(module, "PaliGemmaForConditionalGenerationWithPiGemma", "PiGemmaForCausalLM"))


@torch.no_grad()
def _said(kind: str, policy: Any, batch: dict[str, Tensor], given: dict[str, Tensor]) -> dict[str, list[Tensor]]:
    model = policy.model
    images, seen = policy._preprocess_images(batch)
    tokens, words = batch["observation.language.tokens"], batch["observation.language.attention_mask"].bool()
    embedded, known, later = model.embed_prefix(images, seen, tokens, words)
    mask = side.make_att_2d_masks(known, later)
    _, cache = model.paligemma_with_expert.forward(
        attention_mask=torch.where(mask[:, None], 0.0, -2.3819763e38),
        position_ids=known.cumsum(1) - 1,
        past_key_values=None,
        inputs_embeds=[embedded, None],
        use_cache=True,
    )
    prefix = [tensor.clone() for layer in cache.layers for tensor in (layer.keys, layer.values)]
    state = (policy.prepare_state(batch),) if kind == "pi0" else ()
    told = {"state": state[0]} if state else {}
    step = model.denoise_step(
        prefix_pad_masks=known, past_key_values=cache, x_t=given["given/x"], timestep=given["given/time"], **told
    )
    chunk = model.sample_actions(images, seen, tokens, words, *state, noise=given["given/noise"].clone())
    return {
        "image encoder": [torch.stack([model.paligemma_with_expert.embed_image(image) for image in images], dim=1)],
        "prefix": [known, *prefix],
        "one step": [step],
        "full loop": [chunk[..., : len(side.NAMES)]],
    }


@torch.no_grad()
def _continued(policy: Any, batch: dict[str, Tensor], given: dict[str, Tensor]) -> Tensor:
    """LeRobot's training-time real-time chunking."""
    from lerobot.policies.rtc.configuration_rtc import RTCConfig

    policy.config.rtc_config = RTCConfig(mode="trained")
    policy.init_rtc_processor()
    images, seen = policy._preprocess_images(batch)
    tokens, words = batch["observation.language.tokens"], batch["observation.language.attention_mask"].bool()
    continuing = {"inference_delay": DELAY - 1, "prev_chunk_left_over": given["given/prefix"]}
    chunk: Tensor = policy.model.sample_actions(images, seen, tokens, words, noise=given["given/noise"].clone(), **continuing)
    return chunk[..., : len(side.NAMES)]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

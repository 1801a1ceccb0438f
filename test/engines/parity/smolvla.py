"""Records SmolVLA's answers, of LeRobot's own code: python -m test.engines.parity.smolvla REVISION

In an environment with LeRobot at that revision (PYTHONPATH to its `src`; it wants Python 3.12) and what its extra `smolvla`
asks for.
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from test.engines import operators  # noqa: F401  before anything of LeRobot's
from test.engines.parity import lerobot_side as side
from test.engines.parity.common import inputs
from test.engines.parity.toy_vlm import save_smolvlm

CHANGES: dict[str, Any] = {
    "load_vlm_weights": False,
    "num_vlm_layers": 4,
    "expert_width_multiplier": 0.5,
    "resize_imgs_with_padding": (64, 64),
    "num_steps": 5,
    "pad_language_to": "max_length",
}


def main(revision: str) -> int:
    with TemporaryDirectory() as name:
        folder = Path(name)
        save_smolvlm(folder / "vlm")
        policy = side.policy("smolvla", folder, vlm_model_name=str(folder / "vlm"), **CHANGES)
        given = inputs(len(side.CAMERAS), side.STATE_SIZE, side.CHUNK, policy.config.max_action_dim)
        batch = side.batch(policy, folder, given)
        said = {"observation": side.observed(policy, batch), **_said(policy, batch, given)}
        said["robot space"] = [side.to_robot(folder, said["full loop"][0])]
        return side.finish("smolvla", revision, folder, given, said)


@torch.no_grad()
def _said(policy: Any, batch: dict[str, Tensor], given: dict[str, Tensor]) -> dict[str, list[Tensor]]:
    model, expert = policy.model, policy.model.vlm_with_expert.lm_expert.layers
    images, seen = policy.prepare_images(batch)
    state = policy.prepare_state(batch)
    tokens, words = batch["observation.language.tokens"], batch["observation.language.attention_mask"]
    embedded, known, later = model.embed_prefix(images, seen, tokens, words, state=state)
    mask = side.make_att_2d_masks(known, later)
    _, cache = model.vlm_with_expert.forward(
        attention_mask=mask, position_ids=known.cumsum(1) - 1, past_key_values=None, inputs_embeds=[embedded, None], use_cache=True
    )
    prefix = [known]
    for i, layer in enumerate(cache.layers):
        keys, values = layer.keys, layer.values
        if i % policy.config.self_attn_every_n_layers:
            attention, size = expert[i].self_attn, keys.shape[-1]
            keys, values = (
                projection(part.transpose(1, 2).flatten(2)).unflatten(-1, (-1, size)).transpose(1, 2)
                for projection, part in ((attention.k_proj, keys), (attention.v_proj, values))
            )
        prefix += [keys.clone(), values.clone()]
    step = model.denoise_step(known, cache, given["given/x"], given["given/time"])
    chunk = model.sample_actions(images, seen, tokens, words, state, noise=given["given/noise"].clone())
    return {
        "image encoder": [torch.stack([model.vlm_with_expert.embed_image(image) for image in images], dim=1)],
        "prefix": prefix,
        "one step": [step],
        "full loop": [chunk[..., : len(side.NAMES)]],
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

"""LeRobot checkpoints of a few thousand random weights, written to a folder as LeRobot writes them. Nothing comes from a hub."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from lerobot.configs.policies import PreTrainedConfig
from lerobot.configs.types import FeatureType, PolicyFeature
from lerobot.policies.factory import get_policy_class, make_policy_config, make_pre_post_processors

from ros2_rfm_serving.engines.lerobot import pi_gemma
from test.engines.parity.toy_tokenizer import save_tokenizer
from test.engines.parity.toy_vlm import save_smolvlm, small_gemma

CAMERAS, STATE_SIZE, NUM_ACTIONS, CHUNK = ("front", "wrist"), 6, 4, 12
NAMES = ("x", "y", "z", "gripper")
TASKS = ("pick the red cube", "open the drawer and put the cube into it", "push")

LARGER: dict[str, dict[str, Any]] = {
    "act": {
        "chunk_size": 100,
        "n_action_steps": 100,
        "dim_model": 512,
        "n_heads": 8,
        "dim_feedforward": 3200,
        "n_encoder_layers": 4,
    },
    "smolvla": {
        "num_vlm_layers": 16,
        "chunk_size": 50,
        "n_action_steps": 50,
        "num_steps": 10,
        "resize_imgs_with_padding": (256, 256),
    },
    "pi0": {"chunk_size": 50, "n_action_steps": 50, "num_inference_steps": 10, "image_resolution": (224, 224)},
    "pi05": {"chunk_size": 50, "n_action_steps": 50, "num_inference_steps": 10, "image_resolution": (224, 224)},
}
"""Changes towards the published sizes, for measuring."""
PUBLISHED: dict[str, dict[str, Any]] = {
    "smolvla": LARGER["smolvla"]
    | {
        "resize_imgs_with_padding": (512, 512),
        "expert_width_multiplier": 0.75,
        "max_state_dim": 32,
        "max_action_dim": 32,
        "tokenizer_max_length": 48,
    },
}
"""Those of lerobot/smolvla_base, but for the words that it knows."""
LARGER_VLM = {
    "text": {
        "hidden_size": 240,
        "intermediate_size": 640,
        "num_attention_heads": 15,
        "num_key_value_heads": 5,
        "head_dim": 16,
        "num_hidden_layers": 16,
    },
    "vision": {"hidden_size": 192, "intermediate_size": 768, "num_attention_heads": 12, "num_hidden_layers": 12, "image_size": 256},
}

PUBLISHED_VLM: dict[str, Any] = {
    "text": {
        "hidden_size": 960,
        "intermediate_size": 2560,
        "num_attention_heads": 15,
        "num_key_value_heads": 5,
        "head_dim": 64,
        "num_hidden_layers": 16,
    },
    "vision": {
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_attention_heads": 12,
        "num_hidden_layers": 12,
        "image_size": 512,
    },
    "scale_factor": 4,
}
"""Of SmolVLM2-500M, of whose 32 layers SmolVLA has the first 16."""


def save(kind: str, folder: Path, **changes: Any) -> Path:
    """A checkpoint in `folder`; `changes` to LeRobot's configuration."""
    torch.manual_seed(len(kind))
    config = _config(kind, folder, changes)
    with loading():
        policy = get_policy_class(kind)(config)
    for parameter in policy.parameters():  # LeRobot starts some at zero, which would hide mistakes
        parameter.data = torch.randn_like(parameter) * (0.5 if parameter.ndim < 2 else parameter[0].numel() ** -0.5)
    policy.save_pretrained(folder)
    with _tokenizer_at(folder):
        for pipeline in make_pre_post_processors(config, dataset_stats=_statistics()):
            pipeline.save_pretrained(folder)
    return folder


def _config(kind: str, folder: Path, changes: dict[str, Any]) -> PreTrainedConfig:
    features = {f"observation.images.{camera}": PolicyFeature(FeatureType.VISUAL, (3, 48, 64)) for camera in CAMERAS}
    features["observation.state"] = PolicyFeature(FeatureType.STATE, (STATE_SIZE,))
    common = {
        "device": "cpu",
        "push_to_hub": False,
        "input_features": features,
        "output_features": {"action": PolicyFeature(FeatureType.ACTION, (NUM_ACTIONS,))},
    }
    vlm = {"max_state_dim": 8, "max_action_dim": 7, "chunk_size": CHUNK, "n_action_steps": CHUNK, "tokenizer_max_length": 24}
    own: dict[str, dict[str, Any]] = {
        "act": {
            "chunk_size": CHUNK,
            "n_action_steps": CHUNK,
            "dim_model": 32,
            "n_heads": 2,
            "dim_feedforward": 32,
            "n_encoder_layers": 1,
            "n_vae_encoder_layers": 1,
            "latent_dim": 4,
            "pretrained_backbone_weights": None,
        },
        "diffusion": {
            "pretrained_backbone_weights": None,
            "n_obs_steps": 2,
            "horizon": 16,
            "n_action_steps": 8,
            "down_dims": (16, 32),
            "diffusion_step_embed_dim": 16,
            "num_inference_steps": 3,
            "crop_shape": None,
            "spatial_softmax_num_keypoints": 4,
        },
        "smolvla": vlm
        | {
            "load_vlm_weights": False,
            "vlm_model_name": str(folder / "vlm"),
            "num_vlm_layers": 4,
            "expert_width_multiplier": 0.5,
            "resize_imgs_with_padding": (64, 64),
            "num_steps": 5,
        },
        "pi0": vlm | {"num_inference_steps": 5, "image_resolution": (56, 56)},
        "pi05": vlm | {"num_inference_steps": 5, "image_resolution": (56, 56), "tokenizer_max_length": 240},
        "sac": {},
    }
    if kind in ("smolvla", "pi0", "pi05"):
        save_tokenizer(folder / "vlm")
    if kind == "smolvla":
        size = PUBLISHED_VLM if "max_state_dim" in changes else LARGER_VLM if "num_vlm_layers" in changes else {}
        save_smolvlm(folder / "vlm", **size)
    return make_policy_config(kind, **common | own[kind] | changes)


def _statistics() -> dict[str, dict[str, torch.Tensor]]:
    def of(size: int) -> dict[str, torch.Tensor]:
        mean, std = torch.linspace(-0.3, 0.4, size), torch.linspace(0.5, 1.5, size)
        return {"mean": mean, "std": std, "min": mean - std, "max": mean + std, "q01": mean - std, "q99": mean + std}

    images = {f"observation.images.{c}": {k: v[:, None, None] for k, v in of(3).items()} for c in CAMERAS}
    return {"observation.state": of(STATE_SIZE), "action": of(NUM_ACTIONS), **images}


@contextmanager
def _tokenizer_at(folder: Path) -> Iterator[None]:
    """pi0's preprocessor names a tokenizer of the hub: here, in place of its download, one that is at hand."""
    from transformers import AutoTokenizer

    load = AutoTokenizer.from_pretrained
    with mock.patch.object(AutoTokenizer, "from_pretrained", lambda name, **options: load(folder / "vlm", **options)):
        yield


@contextmanager
def loading() -> Iterator[None]:
    """Around everything that builds a policy: pi0's sizes are in its code, not in its configuration."""
    from lerobot.policies.pi0 import modeling_pi0
    from lerobot.policies.pi05 import modeling_pi05

    for kind in ("pi0", "pi05"):
        pi_gemma.provide(kind)
    names = "PaliGemmaForConditionalGeneration", "GemmaForCausalLM"
    if not hasattr(modeling_pi0, names[0]):  # LeRobot 0.5 and later
        names = "PaliGemmaForConditionalGenerationWithPiGemma", "PiGemmaForCausalLM"
    small = [mock.patch.multiple(module, **small_gemma(module, *names)) for module in (modeling_pi0, modeling_pi05)]
    with small[0], small[1]:
        yield

"""LeRobot's side of a recording: its policy at toy size with drawn weights, its processors, its checkpoint."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import transformers
from lerobot.configs.policies import PreTrainedConfig
from lerobot.configs.types import FeatureType, PolicyFeature
from lerobot.policies.common.vla_utils import make_att_2d_masks as make_att_2d_masks
from lerobot.policies.factory import get_policy_class, make_policy_config, make_pre_post_processors
from safetensors import safe_open
from torch import Tensor

from test.engines.parity.common import INSTRUCTIONS, Recording, judged, seeded, write
from test.engines.parity.toy_tokenizer import save_tokenizer

CAMERAS, STATE_SIZE, CHUNK = ("front", "wrist"), 6, 12
NAMES = ("x", "y", "z", "gripper")
COMMON = {"max_state_dim": 8, "max_action_dim": 7, "chunk_size": CHUNK, "n_action_steps": CHUNK, "tokenizer_max_length": 48}
WEIGHTS, CONFIG = "model.safetensors", "config.json"


def policy(kind: str, folder: Path, **changes: Any) -> Any:
    """With drawn weights; its checkpoint and its processors' are in `folder`, its tokenizer in `folder/vlm`."""
    if not (folder / "vlm").is_dir():
        save_tokenizer(folder / "vlm")
    features = {f"observation.images.{camera}": PolicyFeature(FeatureType.VISUAL, (3, 48, 64)) for camera in CAMERAS}
    features["observation.state"] = PolicyFeature(FeatureType.STATE, (STATE_SIZE,))
    own = {"input_features": features, "output_features": {"action": PolicyFeature(FeatureType.ACTION, (len(NAMES),))}}
    config = make_policy_config(kind, device="cpu", push_to_hub=False, **own, **COMMON | changes)
    made = get_policy_class(kind)(config).float().eval()
    drawn = seeded({name: list(parameter.shape) for name, parameter in made.named_parameters()})
    for name, parameter in made.named_parameters():
        parameter.data = drawn[name]
    made.save_pretrained(folder)
    with tokenizer_at(folder):
        for pipeline in make_pre_post_processors(config, dataset_stats=_statistics()):
            pipeline.save_pretrained(folder)
    return made


def _statistics() -> dict[str, dict[str, Tensor]]:
    def of(size: int) -> dict[str, Tensor]:
        mean, std = torch.linspace(-0.3, 0.4, size), torch.linspace(0.5, 1.5, size)
        return {"mean": mean, "std": std, "min": mean - std, "max": mean + std, "q01": mean - std, "q99": mean + std}

    return {"observation.state": of(STATE_SIZE), "action": of(len(NAMES))}


@contextmanager
def tokenizer_at(folder: Path) -> Iterator[None]:
    """pi0's preprocessor names a tokenizer of the hub: here, in place of its download, one that is at hand."""
    from transformers import AutoTokenizer

    load = AutoTokenizer.from_pretrained
    with mock.patch.object(AutoTokenizer, "from_pretrained", lambda name, **options: load(folder / "vlm", **options)):
        yield


def batch(policy: Any, folder: Path, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What its preprocessor makes of the robots' observations."""
    config = PreTrainedConfig.from_pretrained(folder)
    config.device = "cpu"
    with tokenizer_at(folder):
        before, _ = make_pre_post_processors(config, str(folder))
    images = given["given/images"].float() / 255
    observed: dict[str, Any] = {"observation.state": given["given/state"].clone(), "task": list(INSTRUCTIONS)}
    for i, camera in enumerate(CAMERAS):
        observed[f"observation.images.{camera}"] = images[:, i].permute(0, 3, 1, 2).contiguous()
    prepared: dict[str, Tensor] = before(observed)
    return prepared


def observed(policy: Any, batch: dict[str, Tensor]) -> list[Tensor]:
    """Images, which are seen, tokens, which are words, state: padded as our processing pads them."""
    prepare = policy.prepare_images if hasattr(policy, "prepare_images") else policy._preprocess_images
    images, seen = prepare(batch)
    tokens, words = batch["observation.language.tokens"], batch["observation.language.attention_mask"].bool()
    behind = (0, policy.config.tokenizer_max_length - tokens.shape[1])
    state = torch.nn.functional.pad(batch["observation.state"], (0, COMMON["max_state_dim"] - STATE_SIZE))
    pad = torch.nn.functional.pad
    return [torch.stack(images, 1), torch.stack(seen, 1), pad(tokens, behind), pad(words, behind), state]


def to_robot(folder: Path, chunk: Tensor) -> Tensor:
    config = PreTrainedConfig.from_pretrained(folder)
    config.device = "cpu"
    with tokenizer_at(folder):
        _, after = make_pre_post_processors(config, str(folder))
    robot: Tensor = after(chunk.clone())
    return robot


def finish(name: str, revision: str, folder: Path, given: dict[str, Tensor], said: dict[str, list[Tensor]], **told: Any) -> int:
    """Writes the recording, makes the checkpoint from it again, imports and compares it."""
    recording = Recording(
        reference=f"huggingface/lerobot@{revision}, transformers {transformers.__version__}, torch {torch.__version__}",
        files=_texts(folder) | {CONFIG: json.loads((folder / CONFIG).read_text()) | told},
        shapes={WEIGHTS: _shapes(folder / WEIGHTS)},
        wishes={"tokenizer": "vlm", "action_names": NAMES},
        tensors=given | _statistics_of(folder) | {f"said/{block}/{i}": t for block, ts in said.items() for i, t in enumerate(ts)},
    )
    write(name, recording)
    return judged(name, recording)


def _texts(folder: Path) -> dict[str, Any]:
    """What an importer may read, without paths of the machine that made it."""
    found: dict[str, Any] = {}
    for name in ("policy_preprocessor.json", "policy_postprocessor.json", "vlm/tokenizer.json", "vlm/config.json", CONFIG):
        if (folder / name).is_file():
            found[name] = json.loads((folder / name).read_text().replace(f"{folder}/", ""))
    return found


def _shapes(file: Path) -> dict[str, list[int]]:
    with safe_open(file, "pt") as tensors:
        return {name: tensors.get_slice(name).get_shape() for name in tensors.keys()}  # noqa: SIM118


def _statistics_of(folder: Path) -> dict[str, Tensor]:
    kept: dict[str, Tensor] = {}
    for file in folder.glob("policy_*.safetensors"):
        with safe_open(file, "pt") as tensors:
            kept |= {f"kept/{file.name}//{name}": tensors.get_tensor(name) for name in tensors.keys()}  # noqa: SIM118
    return kept

"""A recording: a checkpoint's shape and seed, what its authors' code was asked, and what it answered, block by block.

Weights are not kept: they are drawn from their names and a seed, here and there, so that the checkpoint can be made again anywhere.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional as F

with contextlib.suppress(ModuleNotFoundError):  # not every environment has torchvision
    from test.engines import operators  # noqa: F401  before transformers, which looks for torchvision

from ros2_rfm_serving.engines.architectures.engine import load_architecture
from ros2_rfm_serving.engines.architectures.importers.base import ImportOptions
from ros2_rfm_serving.engines.architectures.importers.importing import import_checkpoint
from ros2_rfm_serving.engines.architectures.policy import ArchitecturePolicy
from ros2_rfm_serving.engines.base import Parity
from ros2_rfm_serving.engines.flow.parity import compare
from ros2_rfm_serving.engines.flow.sampling import sample
from ros2_rfm_serving.engines.warmup import warmup_request
from ros2_rfm_serving.types import Conditioning, InferenceRequest, ModelContract

HERE = Path(__file__).parent
RECORDED = sorted(file.stem for file in HERE.glob("*.safetensors"))
SEED = 7
INSTRUCTIONS = ("push", "open the drawer and put the cube into it")
"""Of different lengths, so that one is padded more."""
BLOCKS = ("observation", "image encoder", "prefix", "one step", "full loop", "continued", "robot space")
TOLERANCE = 1e-5
"""Below what an activation, the base of a rotation or a norm's epsilon moves at toy size, above what rounding does (3e-6)."""


@dataclass(frozen=True, kw_only=True)
class Recording:
    reference: str
    """Whose code, at which revision, on which libraries"""
    files: Mapping[str, Any]
    """Of the checkpoint: path -> what its JSON says; text for what is no JSON"""
    shapes: Mapping[str, Mapping[str, Sequence[int]]]
    """Of the checkpoint: path of safetensors -> name -> shape, to be drawn"""
    wishes: Mapping[str, Any] = field(default_factory=dict)
    """What the importer is told; paths are relative to the checkpoint"""
    tensors: Mapping[str, Tensor]
    """`given/...`: images [B, C, H, W, 3] uint8, state, noise, x, time; `kept/PATH/NAME`: small weights as they are, statistics;
    `said/BLOCK/I`: of the reference"""

    def given(self, name: str) -> Tensor:
        return self.tensors[f"given/{name}"]

    def said(self, block: str) -> list[Tensor]:
        names = sorted((n for n in self.tensors if n.startswith(f"said/{block}/")), key=lambda n: int(n.rpartition("/")[2]))
        return [self.tensors[name] for name in names]


def seeded(shapes: Mapping[str, Sequence[int]], seed: int = SEED) -> dict[str, Tensor]:
    """Each from its name alone, of a size that keeps a network's signals at about 1."""
    return {name: _drawn(name, shape, seed) for name, shape in shapes.items()}


def _drawn(name: str, shape: Sequence[int], seed: int) -> Tensor:
    rng = np.random.default_rng(int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:8], "little"))
    scale = 0.5 if len(shape) < 2 else float(np.prod(shape[1:])) ** -0.5
    return torch.from_numpy((rng.standard_normal(tuple(shape)) * scale).astype(np.float32))


def inputs(cameras: int, state: int, length: int, columns: int, size_px: tuple[int, int] = (48, 64)) -> dict[str, Tensor]:
    """What is given to both sides; size_px: height and width."""
    rng, rows = np.random.default_rng(SEED), len(INSTRUCTIONS)
    drawn = {
        "images": rng.integers(0, 256, (rows, cameras, *size_px, 3), np.uint8),
        "state": rng.uniform(-1, 1, (rows, state)).astype(np.float32),
        "noise": rng.standard_normal((rows, length, columns), np.float32),
        "x": rng.standard_normal((rows, length, columns), np.float32),
        "time": np.array([0.9, 0.3], np.float32),
    }
    return {f"given/{name}": torch.from_numpy(value) for name, value in drawn.items()}


def write(name: str, recording: Recording) -> None:
    words = {key: getattr(recording, key) for key in ("reference", "wishes", "files", "shapes")}
    (HERE / f"{name}.json").write_text(json.dumps(words, separators=(",", ":")) + "\n")
    save_file({key: tensor.detach().contiguous() for key, tensor in recording.tensors.items()}, HERE / f"{name}.safetensors")


def read(name: str) -> Recording:
    words = json.loads((HERE / f"{name}.json").read_text())
    return Recording(**words, tensors=load_file(HERE / f"{name}.safetensors"))


def said_blocks(name: str) -> list[str]:
    """Those of `BLOCKS` that its authors' code was asked for: not every one continues a chunk."""
    with safe_open(HERE / f"{name}.safetensors", "pt") as tensors:
        said = {key.split("/")[1] for key in tensors.keys() if key.startswith("said/")}  # noqa: SIM118
    return [block for block in BLOCKS if block in said]


def checkpoint(recording: Recording, folder: Path) -> Path:
    """Makes it again."""
    for path, content in recording.files.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content if isinstance(content, str) else json.dumps(content))
    kept: dict[str, dict[str, Tensor]] = {}
    for key, tensor in recording.tensors.items():
        if key.startswith("kept/"):
            path, _, name = key.removeprefix("kept/").partition("//")
            kept.setdefault(path, {})[name] = tensor
    for path in {*recording.shapes, *kept}:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        save_file(seeded(recording.shapes.get(path, {})) | kept.get(path, {}), folder / path)
    return folder


def imported(recording: Recording, source: Path, target: Path, importer: str = "") -> Path:
    """importer: said where a reference wants libraries so old that not all importers run on them."""
    told = dict(recording.wishes)
    if "tokenizer" in told:
        told["tokenizer"] = source / told["tokenizer"]
    told |= {key: tuple(told[key]) for key in ("action_names", "state_keys", "action_keys") if key in told}
    import_checkpoint(source, target, ImportOptions(**told), importer)
    return target


def policy_of(folder: Path) -> ArchitecturePolicy:
    engine = load_architecture("toy", folder)
    policy = engine._model
    assert isinstance(policy, ArchitecturePolicy)
    return policy


def requests_of(recording: Recording, contract: ModelContract) -> list[InferenceRequest]:
    blank, images = warmup_request(contract), recording.given("images").numpy()
    return [
        replace(
            blank,
            instruction=instruction,
            state=recording.given("state").numpy()[row],
            images=dict(zip(contract.cameras, images[row], strict=True)),
        )
        for row, instruction in enumerate(INSTRUCTIONS)
    ]


@torch.inference_mode()
def compared(recording: Recording, policy: ArchitecturePolicy) -> list[Parity]:
    """In the order of computation: the first that fails names the culprit."""
    engine = policy_sampling(policy)
    requests = requests_of(recording, policy.contract)
    observation, context = policy.processor.observation(requests), policy.perceive(requests)
    x, time = recording.given("x"), recording.given("time")[:, None].expand(recording.given("x").shape[:2])
    ours = sample(policy, requests, engine, recording.given("noise").numpy()).chunks
    found = {
        "observation": list(observation),
        "image encoder": [policy.encoded_images(requests)],
        "prefix": list(context),
        "one step": [policy.velocity(x, time, context)],
        "full loop": [ours],
        "continued": [_continued(recording, policy, requests)],
        "robot space": [policy.denormalize(ours)],
    }
    known = context[0] if context[0].dtype == torch.bool else None
    return [_compared(block, found[block], recording.said(block), known) for block in BLOCKS if recording.said(block)]


def _continued(recording: Recording, policy: ArchitecturePolicy, requests: Sequence[InferenceRequest]) -> Any:
    """Of the actions in `given/prefix`, [B, P, A], where the model was trained to; the delay is P, or `given/delay`."""
    if not policy.contract.max_inference_delay_steps:
        return None
    prefix = recording.given("prefix").numpy()
    delay = int(recording.tensors.get("given/delay", torch.tensor(prefix.shape[1])))
    rows = [
        replace(request, conditioning=Conditioning.PREFIX, inference_delay_steps=delay, prefix_model=rows)
        for request, rows in zip(requests, prefix, strict=True)
    ]
    return sample(policy, rows, policy_sampling(policy), recording.given("noise").numpy()).chunks


def _compared(block: str, ours: Sequence[Any], theirs: Sequence[Tensor], known: Tensor | None) -> Parity:
    pairs = list(zip(ours, theirs, strict=True))
    if block == "prefix" and known is not None:
        pairs = [(_read(a, known, b), _read(b, known, b)) for a, b in pairs]
    one, other = ([np.asarray(values, np.float64) for values in side] for side in zip(*pairs, strict=True))
    return replace(compare(block, one, other, torch.float32), tolerance=TOLERANCE)


def _read(tensor: Tensor, known: Tensor, theirs: Tensor) -> Tensor:
    """Without what stands at padding, which nobody reads, and what stands behind theirs: of keys and values [..., N, size]."""
    if tensor.dtype == torch.bool:
        return tensor[:, : theirs.shape[1]]
    length = theirs.shape[-2]
    there = known[:, :length].reshape(len(known), *(1,) * (tensor.ndim - 3), -1, 1)
    return tensor[..., :length, :].masked_fill(~there, 0.0)


def policy_sampling(policy: ArchitecturePolicy) -> Any:
    from ros2_rfm_serving.engines.architectures.engine import sampling_of
    from ros2_rfm_serving.engines.embedded.options import ON_CPU

    return sampling_of(policy._manifest.sampling, policy._network.config.action_columns, ON_CPU)


def padded(values: Tensor, columns: int) -> Tensor:
    return F.pad(values, (0, columns - values.shape[-1]))


def options(doc: str | None, *references: str) -> argparse.ArgumentParser:
    """What a reference's side is told: where each of `references` lies, at which revision."""
    parser = argparse.ArgumentParser(description=doc)
    for reference in references:
        parser.add_argument(reference, type=Path)
    parser.add_argument("--revision", required=True)
    parser.add_argument("--write", action="store_true", help="the recording, beside this file")
    return parser


def judged(name: str, recording: Recording, importer: str = "") -> int:
    """The checkpoint made again, imported, and held against what was recorded; importer as of `imported`."""
    with tempfile.TemporaryDirectory() as folder:
        source = checkpoint(recording, Path(folder) / "checkpoint")
        return report(name, compared(recording, policy_of(imported(recording, source, Path(folder) / "bundle", importer))))


def finished(name: str, recording: Recording, *, kept: bool, importer: str = "") -> int:
    """kept: write the recording, if ours agrees with it."""
    failed = judged(name, recording, importer)
    if kept and not failed:
        write(name, recording)
    return failed


def report(name: str, checks: Sequence[Parity]) -> int:
    """Prints; 1 where a block is further off than it may be."""
    for check in checks:
        print(f"{name:10} {check.block:14} {check.error:9.2e}  {'ok' if check.passes else 'FAILS'}")
    return int(not all(check.passes for check in checks))

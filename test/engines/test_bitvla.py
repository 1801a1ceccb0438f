"""BitVLA's ternary weights bit for bit, what its recording would catch of them, and what its importer refuses."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from safetensors.torch import load_file, save_file
from torch import Tensor

from ros2_rfm_serving.engines.architectures import ternary
from ros2_rfm_serving.engines.architectures.importers import chats
from ros2_rfm_serving.engines.architectures.importers.base import ImportOptions, renamed
from ros2_rfm_serving.engines.architectures.importers.bitvla import RULES
from ros2_rfm_serving.engines.architectures.importers.importing import import_checkpoint
from ros2_rfm_serving.engines.architectures.ternary import in_8_bits, ternary_of, unpacked
from ros2_rfm_serving.errors import ModelError
from test.engines.parity import common

NAME = "bitvla"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return common.checkpoint(common.read(NAME), tmp_path / "source")


def recorded() -> dict[str, tuple[Tensor, Tensor]]:
    """By our names: what their code makes of the weights, -1, 0 or 1, and the step."""
    tensors = common.read(NAME).tensors
    theirs = {f"{key.removeprefix('ternary/')}.weight": tensor for key, tensor in tensors.items() if key.startswith("ternary/")}
    steps = {f"{key.removeprefix('step/')}.weight": tensor for key, tensor in tensors.items() if key.startswith("step/")}
    ours, of = (renamed(each, RULES, Path()) for each in (theirs, steps))
    return {name.removesuffix(".weight"): (ours[name], of[name]) for name in ours}


def test_weights_are_those_of_its_authors_code_bit_for_bit(folders: dict[str, Path]) -> None:
    weights = load_file(folders[NAME] / "bundle" / "model.safetensors")
    found = recorded()
    assert (
        set(found) == {name.removesuffix(".packed") for name in weights if name.endswith(".packed")} and len(found) == 2 * 6 + 2 * 7
    )
    for name, (signs, step) in found.items():
        assert torch.equal(unpacked(weights[f"{name}.packed"], signs.numel()).view_as(signs), signs), name
        assert torch.equal(weights[f"{name}.step"], step) and set(signs.flatten().tolist()) == {-1, 0, 1}, name


def _packed_as_they_do(signs: Tensor) -> Tensor:
    codes = np.append(signs.numpy().ravel() + 1, [0] * (-signs.numel() % 4)).astype(np.uint8).reshape(-1, 4)
    return torch.from_numpy((codes << np.arange(0, 8, 2, dtype=np.uint8)).sum(1).astype(np.uint8))


def test_packed_weights_give_the_bundle_that_master_weights_give(source: Path, folders: dict[str, Path], tmp_path: Path) -> None:
    """As `quantize_weights` leaves them."""
    tensors, file = common.read(NAME).tensors, source / "model.safetensors"
    weights = load_file(file)
    for key in [key for key in tensors if key.startswith("ternary/")]:
        name = key.removeprefix("ternary/")
        del weights[f"{name}.weight"]
        weights |= {f"{name}.q_weight": _packed_as_they_do(tensors[key]), f"{name}.w_step": tensors[f"step/{name}"]}
    save_file(weights, file)
    import_checkpoint(source, tmp_path / "bundle", ImportOptions())
    one, other = (load_file(folder / "model.safetensors") for folder in (tmp_path / "bundle", folders[NAME] / "bundle"))
    assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@given(arrays(np.float32, array_shapes(min_dims=2, max_dims=2), elements=st.floats(-4, 4, width=32)))
def test_what_is_packed_is_unpacked(values: Any) -> None:
    weight = torch.from_numpy(values)
    packed, step = ternary_of(weight)
    theirs = (weight * (1 / weight.abs().mean().clamp_(min=1e-5))).round().clamp(-1, 1)
    assert torch.equal(unpacked(packed, weight.numel()).view_as(weight).float(), theirs) and step >= 0.99e-5


@given(arrays(np.float32, (3, 5), elements=st.floats(-100, 100, width=32)))
def test_activations_have_127_steps_up_to_the_largest_of_a_token(values: Any) -> None:
    x = torch.from_numpy(values)
    rounded, step = in_8_bits(x), x.abs().amax(-1, keepdim=True).clamp(min=1e-5) / 127
    assert ((rounded - x).abs() <= 0.501 * step).all()
    assert torch.allclose(rounded / step, (rounded / step).round(), atol=1e-3)


@pytest.mark.parametrize(
    ("part", "block"), [("vision.encoder.layers.0.self_attn.q_proj", "image encoder"), ("language.blocks.1.mlp.down", "prefix")]
)
def test_one_wrong_byte_of_weights_is_found(part: str, block: str, folders: dict[str, Path]) -> None:
    policy = common.policy_of(folders[NAME] / "bundle")
    policy._network = copy.deepcopy(policy._network)
    linear = policy._network.get_submodule(part)
    assert isinstance(linear, ternary.TernaryLinear)
    packed = linear.packed
    packed[0] = 255 - packed[0] % 255 if packed[0] != 0b10101010 else 0
    checks = common.compared(common.read(NAME), policy)
    assert next(check.block for check in checks if not check.passes) == block


@pytest.mark.parametrize("change", ["not rounded", "127 levels", "a step of all tokens"])
def test_other_activations_are_found(change: str, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    policy = common.policy_of(folders[NAME] / "bundle")
    if change == "not rounded":
        policy._network.round_activations(False)
    other: dict[str, Callable[[Tensor], Tensor]] = {
        "127 levels": lambda x: (x * (s := 126 / x.abs().amax(-1, keepdim=True))).round() / s,
        "a step of all tokens": lambda x: (x * (s := 127 / x.abs().max())).round() / s,
    }
    if change in other:
        monkeypatch.setattr(ternary, "in_8_bits", other[change])
    checks = common.compared(common.read(NAME), policy)
    assert next(check.block for check in checks if not check.passes) == "image encoder"


def test_the_gate_leaves_activations_rounded(folders: dict[str, Path]) -> None:
    policy = common.policy_of(folders[NAME] / "bundle")
    with policy.unrounded():
        assert not any(module.rounds for module in policy._network.modules() if isinstance(module, ternary.TernaryLinear))
    assert all(module.rounds for module in policy._network.modules() if isinstance(module, ternary.TernaryLinear))


def test_it_takes_a_quarter_of_a_byte_for_each_ternary_weight(folders: dict[str, Path]) -> None:
    network = common.policy_of(folders[NAME] / "bundle")._network
    for module in network.modules():
        if isinstance(module, ternary.TernaryLinear):
            assert module.packed.nbytes == -(-module.numbers // 4) and "weight" not in dict(module.named_parameters())


def edited(file: str, **changes: Any) -> Callable[[Path], object]:
    def edit(folder: Path) -> None:
        content = json.loads((folder / file).read_text())
        for key, value in changes.items():
            *path, last = key.split("__")
            place = content
            for name in path:
                place = place[name]
            place[last] = value
        (folder / file).write_text(json.dumps(content))

    return edit


def pickled(folder: Path) -> None:
    (folder / "action_head--10000_checkpoint.pt").write_bytes(b"any")
    (folder / "action_head.safetensors").unlink()


def without(name: str) -> Callable[[Path], object]:
    def drop(folder: Path) -> None:
        weights = load_file(folder / "model.safetensors")
        del weights[name]
        save_file(weights, folder / "model.safetensors")

    return drop


def packed(change: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> Callable[[Path], object]:
    """Of one layer as `quantize_weights` leaves it."""

    def pack(folder: Path) -> None:
        tensors = common.read(NAME).tensors
        key = next(key for key in tensors if key.startswith("ternary/"))
        name = key.removeprefix("ternary/")
        weights = load_file(folder / "model.safetensors")
        del weights[f"{name}.weight"]
        codes, step = change(_packed_as_they_do(tensors[key]), tensors[f"step/{name}"].clone())
        save_file(weights | {f"{name}.q_weight": codes, f"{name}.w_step": step}, folder / "model.safetensors")

    return pack


REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "a pickle": (pickled, "action_head--10000_checkpoint.pt: a pickle can run anything"),
    "no head": (lambda f: (f / "action_head.safetensors").unlink(), "action_head.safetensors: no safetensors"),
    "a weight is missing": (
        without("language_model.model.layers.1.mlp.down_proj.weight"),
        "1 weights are missing: language.blocks.1.mlp.down",
    ),
    "no statistics": (lambda f: (f / "dataset_statistics.json").unlink(), "dataset_statistics.json: no JSON"),
    "another robot": (
        edited("dataset_statistics.json", toy__action__min=[0.0]),
        "actions and state of (1, 8) columns are of no known robot",
    ),
    "other bits": (edited("config.json", vision_config__vit_act_bits=4), "weights and activations of (1, 4) bits"),
    "other patches": (
        edited("config.json", vision_feature_select_strategy="default"),
        "vision_feature_select_strategy is 'default'",
    ),
    "no chat": (edited("tokenizer_config.json", chat_template=None), "tokenizer_config.json: chat_template is missing"),
    "a chat that reaches out": (
        edited("tokenizer_config.json", chat_template="{{ ''.__class__.__mro__[1].__subclasses__() }}"),
        "tokenizer_config.json: chat_template: access to attribute '__class__'",
    ),
    "a chat that takes all memory": (
        edited("tokenizer_config.json", chat_template="{{ 'a' * (10**11) }}"),
        "tokenizer_config.json: chat_template: it takes more than",
    ),
    "a chat without end": (
        edited(
            "tokenizer_config.json",
            chat_template="{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        ),
        "tokenizer_config.json: chat_template: it took more than",
    ),
    "a chat about something else": (
        edited("tokenizer_config.json", chat_template="hello"),
        "tokenizer_config.json: chat_template: it makes a robot's words 0 times, not once",
    ),
    "weights of four values": (packed(lambda codes, step: (torch.full_like(codes, 255), step)), "not ternary"),
    "weights turned round": (packed(lambda codes, step: (codes, -step)), "not ternary"),
    "packed weights that are no bytes": (packed(lambda codes, step: (codes.int(), step)), "packed weights are bytes"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_wrong_with_a_checkpoint_is_said(what: str, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    change, message = REFUSED[what]
    monkeypatch.setattr(chats, "MOST_CPU_S", 2)
    change(source)
    with pytest.raises(ModelError) as error:
        import_checkpoint(source, tmp_path / "bundle", ImportOptions(), NAME)
    assert message in str(error.value) and not (tmp_path / "bundle").exists()


def test_instructions_are_asked_in_small_letters(folders: dict[str, Path]) -> None:
    policy = common.policy_of(folders[NAME] / "bundle")
    one, other = (policy.processor._tokens(words, np.zeros(8, np.float32)) for words in ("Open the DRAWER", "open the drawer"))
    assert one == other

"""Weights of 8 and 4 bits: what is stored, what is computed, what stays exact, and what the gate keeps from being served."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from lab.benchmarks.precision import misplaced
from ros2_rfm_serving.engines.base import require_parity
from ros2_rfm_serving.engines.embedded import bundle
from ros2_rfm_serving.engines.embedded.engine import FlowPolicy, load_embedded
from ros2_rfm_serving.engines.embedded.networks import FlowPolicyNetwork
from ros2_rfm_serving.engines.embedded.options import BundleOptions
from ros2_rfm_serving.engines.flow.engine import FlowEngine
from ros2_rfm_serving.engines.precision import INT4, INT8, num_bytes, precision_of, quantize
from ros2_rfm_serving.engines.warmup import warmup_request
from ros2_rfm_serving.errors import ModelError

from .test_parity import FINE

INTEGERS = [INT8, INT4]


def shipped(repository: Path, dtype: str, **options: Any) -> FlowEngine:
    asked = BundleOptions.model_validate({"device": "cpu", "dtype": dtype, **options})
    engine = load_embedded("m", repository / "models" / "metaworld_flow", asked)
    assert isinstance(engine, FlowEngine)
    return engine


def saved(repository: Path) -> FlowPolicyNetwork:
    network, _ = bundle.load(repository / "models" / "metaworld_flow")
    assert isinstance(network, FlowPolicyNetwork)
    return network


def weights(seed: int, rows: int, columns: int) -> Tensor:
    spread = torch.Generator().manual_seed(seed)
    return torch.randn(rows, columns, generator=spread) * torch.logspace(-6, 3, rows)[:, None]


@given(st.integers(0, 1000), st.integers(1, 9), st.integers(1, 40).map(lambda half: 2 * half), st.sampled_from(INTEGERS))
def test_a_weight_is_off_by_half_a_step_of_its_scale_at_most(seed: int, rows: int, columns: int, precision: str) -> None:
    layer = nn.Linear(columns, rows)
    layer.weight.data = before = weights(seed, rows, columns)
    before[0] = 0  # a row without anything to scale by
    quantize(layer, precision, exact=("other",))
    largest = before.abs().amax(dim=1, keepdim=True)
    steps = 127 if precision == INT8 else 7
    assert ((layer.weight - before).abs() <= largest / steps * 0.5001).all() and not layer.weight[0].any()
    assert precision_of(layer, torch.float32) != torch.float32


@pytest.mark.parametrize("precision", INTEGERS)
def test_weights_take_less_memory_and_a_graph_computes_the_same_bits(repository: Path, precision: str) -> None:
    whole, less = shipped(repository, "float32"), shipped(repository, precision)
    assert 0 < less.weights_bytes <= 0.6 * whole.weights_bytes
    request = warmup_request(less.contract)
    (traced,), (plain,) = less.infer([request]), shipped(repository, precision, trace=False).infer([request])
    assert not isinstance(traced, ModelError) and not isinstance(plain, ModelError)
    np.testing.assert_array_equal(traced.chunk_model, plain.chunk_model)


ROUNDED = """
import sys
import torch
from torch import nn
from lab.benchmarks.footprint.measured import resident_bytes
from ros2_rfm_serving.engines.precision import num_bytes, quantize
before, _ = resident_bytes()
network = nn.Sequential(*(nn.Linear(960, 2560, bias=False) for _ in range(12)))
quantize(network, sys.argv[1], ())
print(num_bytes(network), resident_bytes()[0] - before)
"""


@pytest.mark.parametrize("precision", INTEGERS)
def test_what_weights_took_before_they_were_rounded_is_given_back(precision: str) -> None:
    """Layers of 10 MB, as a large model has them; in a process of its own, where nothing else has memory left over."""
    ran = subprocess.run([sys.executable, "-c", ROUNDED, precision], capture_output=True, text=True, timeout=100, check=True)
    weights, resident = map(int, ran.stdout.split())
    assert resident < weights + 30e6, "before: three times as much, the 118 MB of float32 and more"


def test_a_layer_of_8_bits_is_stored_once_and_nothing_else_of_its_size_is_kept(repository: Path) -> None:
    network = saved(repository)
    before = num_bytes(network)
    quantize(network, INT8, FlowPolicyNetwork.EXACT)
    by_type = dict.fromkeys((torch.int8, torch.float32), 0)
    for tensor in (*network.parameters(), *network.buffers()):
        by_type[tensor.dtype] += tensor.numel() * tensor.element_size()
    assert sum(by_type.values()) == num_bytes(network) and by_type[torch.int8] > 0.15 * before


@pytest.mark.parametrize("precision", INTEGERS)
def test_what_is_no_plain_layer_stays_as_it_was_saved(repository: Path, precision: str) -> None:
    """Statistics, positions, words, norms, biases, times, actions, and the head's last layer."""
    before, network = saved(repository).state_dict(), saved(repository)
    quantize(network, precision, network.EXACT)
    after = network.state_dict()
    same = {name for name in before.keys() & after.keys() if torch.equal(before[name], after[name])}
    assert same >= {
        name for name in before if name.startswith(("time_mlp", "action_", "feature_", "word", "kind", "state_tokens.0"))
    }
    assert same >= {"image_tokens.position", "image_tokens.queries", "head.0.modulation", "encoder.0.norm1.weight"}
    assert "encoder.0.attention.to_query.weight" not in after
    unchanged = {name for name in before if name.endswith("bias") and "norm" not in name}
    assert same >= unchanged


# --- the gate ---


def test_8_bits_agree_with_the_policy_as_it_was_saved(repository: Path) -> None:
    checks = shipped(repository, INT8).check_parity()
    assert all(check.passes for check in checks), checks
    assert {check.precision for check in checks} == {INT8, "float32"}, "statistics are not rounded"
    assert max(check.error for check in checks) > 1e-3, "nothing was rounded"


def test_a_precision_that_is_too_coarse_is_refused_with_block_error_tolerance_and_fix(repository: Path) -> None:
    engine = shipped(repository, INT4)
    said = (
        r"'m' .* image encoder is off by 0\.\d+, it may be by 0\.05; .*; at int4 it is not served: say `options: \{dtype: int8\}`$"
    )
    with pytest.raises(ModelError, match=said):
        require_parity("m", engine.check_parity())


@pytest.mark.parametrize("model", ["metaworld_judge", "metaworld_planner", "metaworld_autoregressive"])
def test_models_that_are_no_flow_policy_are_refused(repository: Path, model: str) -> None:
    with pytest.raises(ModelError, match=r"options.dtype 'int8' is for flow policies and architectures; say `bfloat16`"):
        load_embedded("m", repository / "models" / model, BundleOptions(device="cpu", dtype="int8"))


# --- an index that is computed wrongly (vla.cpp, Table 10) ---


def finely_placed(precision: str, *, wrong: bool) -> FlowEngine:
    """Positions that count as much as what is seen; those of the shipped policy hardly do."""
    torch.manual_seed(0)
    network = FlowPolicyNetwork(FINE).eval().requires_grad_(False)
    network.image_tokens.position.normal_()
    as_saved = copy.deepcopy(network)
    if wrong:
        misplaced(network)
    options = BundleOptions.model_validate({"device": "cpu", "dtype": precision})
    return FlowEngine(FlowPolicy("m", network, "hash", options, saved=lambda: copy.deepcopy(as_saved)))


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16", INT8])
def test_a_wrong_position_index_is_found_in_the_image_encoder(precision: str) -> None:
    wrong, right = (finely_placed(precision, wrong=wrong).check_parity() for wrong in (True, False))
    assert next(check.block for check in wrong if not check.passes) == "image encoder"
    assert all(check.passes for check in right), right


@pytest.mark.parametrize("num_steps", [1, 2, 4, 8])
def test_a_wrong_position_index_moves_the_chunk_at_any_number_of_solver_steps(repository: Path, num_steps: int) -> None:
    network = saved(repository)
    misplaced(network)
    right = shipped(repository, "float32", num_steps=num_steps)
    request = warmup_request(right.contract)
    request.images.update(
        {camera: np.random.default_rng(0).integers(256, size=(96, 96, 3), dtype=np.uint8) for camera in request.images}
    )
    options = BundleOptions(device="cpu", num_steps=num_steps)
    wrong = FlowEngine(FlowPolicy("m", network, "hash", options), right._config)
    one, other = right.infer([request])[0], wrong.infer([request])[0]
    assert not isinstance(one, ModelError) and not isinstance(other, ModelError)
    assert np.abs(one.chunk_robot - other.chunk_robot).max() > 1e-4

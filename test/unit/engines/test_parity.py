"""Parity gates: they pass for what is right in every precision, and name the block of whatever is wrong."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from typer.testing import CliRunner

from ros2_rfm_serving.cli import parity as command
from ros2_rfm_serving.cli.main import app
from ros2_rfm_serving.engines.base import Engine, Parity, Predicts, SamplingConfig, require_parity
from ros2_rfm_serving.engines.embedded.context import ImageTokens
from ros2_rfm_serving.engines.embedded.engine import FlowPolicy, load_embedded
from ros2_rfm_serving.engines.embedded.layers import at_least_float32
from ros2_rfm_serving.engines.embedded.networks import FlowPolicyConfig, FlowPolicyNetwork, JudgeNetwork
from ros2_rfm_serving.engines.embedded.options import BundleOptions
from ros2_rfm_serving.engines.flow import parity
from ros2_rfm_serving.engines.flow.engine import FlowEngine
from ros2_rfm_serving.engines.flow.solvers import Euler
from ros2_rfm_serving.errors import ModelError
from test.unit.fakes import shipped_bundles

from .test_engines import SMALL

FINE = replace(SMALL, image_size_px=96, patch_px=8)
"""12 x 12 patches: thirds and sixths, which half precision rounds."""
BLOCKS = ["image encoder", "prefix: keys and values", "one denoising step", "full loop", "denormalize"]
HALF = ["bfloat16", "float16"]
REDUCED = [*HALF, "int8", "int4"]


def policy(config: FlowPolicyConfig = SMALL, dtype: str = "float32", images: type[ImageTokens] = ImageTokens) -> FlowPolicy:
    torch.manual_seed(0)
    network = FlowPolicyNetwork(config)
    network.image_tokens = images(config)
    for parameter in network.parameters():
        parameter.data.add_(0.05 * torch.randn_like(parameter)).requires_grad_(False)
    network.image_tokens.position.data.normal_()
    network.action_mean, network.action_std = torch.tensor([0.1, -0.2]), torch.tensor([0.5, 2.0])
    return FlowPolicy(
        "small", network.eval(), "hash", BundleOptions.model_validate({"device": "cpu", "dtype": dtype, "trace": False})
    )


def engine(model: FlowPolicy, **config: Any) -> FlowEngine:
    return FlowEngine(model, SamplingConfig(**{"num_steps": 5, **config}))


def failing(checks: Sequence[Parity]) -> list[str]:
    return [check.block for check in checks if not check.passes]


@pytest.mark.parametrize("predicts", Predicts)
def test_every_head_passes_block_by_block(predicts: Predicts) -> None:
    checks = engine(policy(), predicts=predicts, clean_limit=2.0).check_parity()
    assert [check.block for check in checks] == BLOCKS and not failing(checks)


@pytest.mark.parametrize("dtype", HALF)
def test_reduced_precision_passes_with_the_tolerance_of_its_rounding(dtype: str) -> None:
    checks = engine(policy(FINE, dtype)).check_parity()
    assert not failing(checks)
    assert max(check.error for check in checks) > 1e-4, "nothing was rounded"


def test_batches_of_fixed_shape_pass() -> None:
    assert not failing(engine(policy(), fixed_shapes=(1, 4)).check_parity())


@pytest.mark.parametrize("name", shipped_bundles())
def test_the_shipped_bundles_pass(repository: Path, name: str) -> None:
    checks = load_embedded(name, repository / "models" / name).check_parity()
    assert len(checks) >= 2 and not failing(checks)


# --- what must be found --------------------------------------------------------------------------------------------------------


class HalfPrecisionIndices(ImageTokens):
    """The failure of vla.cpp §4.6: a position's index is computed in the precision of the weights."""

    def forward(self, images: Tensor) -> Tensor:
        dtype, side = self.position.dtype, math.isqrt(len(self.position))
        fractions, boundaries = torch.arange(side, dtype=dtype) / side, (torch.arange(1, side) - 1e-3) / side
        nearest = torch.bucketize(fractions.double(), boundaries.double(), right=True)
        index = (side * nearest[:, None] + nearest).flatten()
        pixels = (self.patches(images).to(at_least_float32(dtype)) / 64.0).sub(127.5 / 64.0)
        tokens = self.norm(F.gelu(self.embed(pixels.to(dtype))) + self.position[index])
        out: Tensor = self.attention(self.queries.expand(len(images), -1, -1), self.attention.keys_values(tokens))
        return out


@pytest.mark.parametrize("dtype", HALF)
def test_an_index_in_half_precision_fails_where_it_is_used(dtype: str) -> None:
    assert not failing(engine(policy(FINE, "float32", HalfPrecisionIndices)).check_parity())
    assert failing(engine(policy(FINE, dtype, HalfPrecisionIndices)).check_parity())[0] == "image encoder"


class StaleCache(FlowPolicy):
    """Keys and values of the batch before."""

    def perceive(self, requests: Any) -> Any:
        return tuple(tensor.roll(1, 0) for tensor in super().perceive(requests))


class OffVelocity(FlowPolicy):
    def velocity(self, *arguments: Any) -> Tensor:
        return 1.001 * super().velocity(*arguments)


class WrongStatistics(FlowPolicy):
    def denormalize(self, actions: Any) -> Any:
        return super().denormalize(actions) * np.float32(1.001)


@pytest.mark.parametrize(
    ("fault", "block"), [(StaleCache, BLOCKS[1]), (OffVelocity, BLOCKS[2]), (WrongStatistics, BLOCKS[4])], ids=str
)
def test_the_first_block_that_fails_names_the_fault(fault: type[FlowPolicy], block: str) -> None:
    model = policy()
    model.__class__ = fault
    assert failing(engine(model).check_parity())[0] == block


def test_a_loop_that_steps_wrongly_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    update = Euler.update
    monkeypatch.setattr(Euler, "update", lambda *arguments: 1.01 * update(*arguments))
    assert failing(engine(policy()).check_parity()) == ["full loop"]


def test_a_network_whose_rows_mix_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    encode = FlowPolicyNetwork.encode

    def mixing(self: FlowPolicyNetwork, *arguments: Any) -> Any:
        return [(key + 0.1 * key.mean(0, keepdim=True), value) for key, value in encode(self, *arguments)]

    monkeypatch.setattr(FlowPolicyNetwork, "encode", mixing)  # the reference's, too, which runs rows alone
    assert failing(engine(policy()).check_parity()) == ["full loop"]


def test_nan_and_wrong_shapes_never_pass() -> None:
    one = torch.ones(2, 3)
    assert not parity.compare("b", one * math.nan, one, torch.float32).passes
    assert not parity.compare("b", [one, one[:1]], [one, one], torch.float32).passes
    assert parity.compare("b", [one, one], [one, one], torch.float32).passes


def test_what_fails_is_said_with_error_and_tolerance() -> None:
    checks = [Parity(block="full loop", error=0.32, tolerance=0.003), Parity(block="denormalize", error=0, tolerance=1e-4)]
    with pytest.raises(ModelError, match=r"'m'.*full loop is off by 0.32, it may be by 0.003$"):
        require_parity("m", checks)
    require_parity("m", checks[1:])


# --- indices in reduced precision ----------------------------------------------------------------------------------------------


class Indices(TorchDispatchMode):
    """Every index that selects something, in the order of use."""

    def __init__(self) -> None:
        super().__init__()
        self.used: list[Any] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        flat = [part for arg in args for part in (arg if isinstance(arg, list | tuple) else [arg])]
        indices = [t.tolist() for t in flat if isinstance(t, Tensor) and t.dtype in (torch.int64, torch.int32, torch.bool)]
        if indices and any(name in str(function) for name in ("embedding", "index", "gather", "take", "where")):
            self.used.append((str(function), indices))
        return function(*args, **(kwargs or {}))


def indices_of(run: Callable[[], object]) -> list[Any]:
    with torch.no_grad(), Indices() as indices:
        run()
    assert indices.used
    return indices.used


def inference(model: FlowPolicy) -> Callable[[], object]:
    """Perceives, and takes a step of which some rows are fixed: two distinct times."""
    time = torch.full((parity.NUM_PROBES, model.contract.chunk_length), 0.7)
    time[1, :3] = 0.0

    def run() -> Tensor:
        context = model.perceive(parity.probes(model.contract, model.probe_instruction))
        return model.velocity(torch.zeros(*time.shape, 2), time, context)

    return run


@pytest.mark.parametrize("dtype", REDUCED)
def test_the_same_rows_are_selected_in_reduced_precision(dtype: str) -> None:
    used = indices_of(inference(policy(FINE, dtype)))
    assert used == indices_of(inference(policy(FINE)))
    assert {name.partition(".")[2].partition(".")[0] for name, _ in used} >= {"embedding", "index"}


@pytest.mark.parametrize("dtype", HALF)
def test_an_index_that_is_rounded_selects_other_rows(dtype: str) -> None:
    faulty = [indices_of(inference(policy(FINE, d, HalfPrecisionIndices))) for d in ("float32", dtype)]
    assert faulty[0] != faulty[1]


@pytest.mark.parametrize("dtype", REDUCED)
def test_times_and_statistics_keep_their_precision(dtype: str) -> None:
    network = policy(FINE, dtype)._network
    assert (
        network.kind.dtype == getattr(torch, dtype if dtype in HALF else "float32")
        and network.feature_mean.dtype == network.action_std.dtype == torch.float32
    )
    seen: list[Tensor] = []
    network.time_mlp.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    time = torch.linspace(0.0, 1.0, 37)
    network.modulation(time)
    exact = torch.cat([f(time.double()[:, None] * 1000 ** torch.linspace(0, 1, 32).double()) for f in (torch.sin, torch.cos)], 1)
    assert (seen[0] - exact).abs().max() < 5e-3, "an angle of up to 1000 rad in half precision is off by radians"


def test_the_judge_finds_its_points_in_float32(repository: Path) -> None:
    judge = load_embedded("judge", repository / "models" / "metaworld_judge", BundleOptions(device="cpu", dtype="bfloat16"))
    assert not failing(judge.check_parity())
    network = judge._network  # type: ignore[attr-defined]
    assert isinstance(network, JudgeNetwork)
    assert network.points(torch.zeros(1, 2, 96, 96, 3, dtype=torch.uint8)).dtype == torch.float32


# --- the command ---------------------------------------------------------------------------------------------------------------


def test_the_command_prints_a_table_and_succeeds() -> None:
    result = CliRunner().invoke(app, ["parity"])
    assert result.exit_code == 0, result.output
    assert result.output.count("rfm/metaworld-flow") == len(BLOCKS) and "logits" in result.output


def test_the_command_fails_loudly(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(model: str, **options: Any) -> Engine:
        return engine(policy(FINE, options["options"]["dtype"], HalfPrecisionIndices))

    monkeypatch.setattr(command, "load_engine", load)
    result = CliRunner().invoke(app, ["parity", "m", "--dtype", "bfloat16"])
    assert result.exit_code == 1 and "FAILS" in result.output and "image encoder" in result.output


def test_the_command_names_unknown_models_and_options() -> None:
    for arguments, said in [(["rfm/metaworld-flo"], "did you mean"), (["rfm/metaworld-flow", "--dtype", "int2"], "options.dtype")]:
        result = CliRunner().invoke(app, ["parity", *arguments])
        assert result.exit_code != 0 and said in str(result.exception)

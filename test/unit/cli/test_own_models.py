"""Models that are not ours: what their authors are told about them before a robot is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from ros2_rfm_serving.cli.main import app
from ros2_rfm_serving.engines.base import Engine, SamplingConfig, VelocityModel
from ros2_rfm_serving.engines.flow.engine import FlowEngine
from ros2_rfm_serving.engines.registry import EngineSpec, build_engine
from ros2_rfm_serving.engines.warmup import warm_up, warmup_request
from ros2_rfm_serving.errors import ModelError
from ros2_rfm_serving.factory import CatalogueEntry
from ros2_rfm_serving.profiles import Profile
from ros2_rfm_serving.types import EngineReply, InferenceRequest, empty
from test.unit.fakes import CONTRACT


class Mirror(VelocityModel):
    """Flows to the first number of the state; nothing but what a model must say."""

    contract, max_batch_size = CONTRACT, 4

    def perceive(self, requests: Sequence[InferenceRequest]) -> Tensor:
        return torch.tensor([request.state[0] for request in requests])[:, None, None]

    def velocity(self, x: Tensor, time: Tensor, context: Tensor) -> Tensor:
        return (x - context) / time[..., None].clamp(min=1e-3)


class Leaky(Mirror):
    def perceive(self, requests: Sequence[InferenceRequest]) -> Tensor:
        return super().perceive(requests).mean(0, keepdim=True)


class Narrow(Mirror):
    def velocity(self, x: Tensor, time: Tensor, context: Tensor) -> Tensor:
        return super().velocity(x, time, context)[..., :1]


class Short(FlowEngine):
    """Answers to one request too few, or with half a chunk."""

    def __init__(self, *, rows: int, steps: int) -> None:
        super().__init__(Mirror(), SamplingConfig())
        self._rows, self._steps = rows, steps

    def infer(self, requests: Sequence[InferenceRequest]) -> list[EngineReply]:
        chunk = empty(self._steps, 2)
        return [EngineReply(chunk_model=chunk, chunk_robot=chunk)] * (len(requests) + self._rows)


def bare(spec: EngineSpec) -> Any:
    return Mirror()


def spec(engine: str) -> EngineSpec:
    entry, none = CatalogueEntry(engine=engine), Profile({})
    return EngineSpec(model="mine", entry=entry, models_folder=Path(), profile=none, gpu_type="CPU", wait=lambda seconds: None)


def test_a_model_is_what_it_must_be_and_no_more() -> None:
    engine = FlowEngine(Mirror(), SamplingConfig(num_steps=5))
    warm_up(engine, 4)
    request = replace(warmup_request(CONTRACT), state=np.array([0.5, 0, 0], np.float32))
    (reply,) = engine.infer([request])
    assert np.allclose(reply.chunk_robot, 0.5) and reply.chunk_robot.shape == (4, 2)


@pytest.mark.parametrize("base", [VelocityModel, Engine])
def test_a_forgotten_method_is_an_error_when_it_is_made(base: Any) -> None:
    class Forgetful(base):
        contract, max_batch_size = CONTRACT, 4

    with pytest.raises(TypeError, match="abstract"):
        Forgetful()


def test_rows_that_see_each_other_are_found_without_a_reference() -> None:
    (check,) = FlowEngine(Mirror()).check_parity()
    assert check.passes and check.block == "rows of a batch"
    (check,) = FlowEngine(Leaky()).check_parity()
    assert not check.passes


def test_a_velocity_that_would_be_broadcast_is_refused() -> None:
    with pytest.raises(ModelError, match=r"'fake': velocity gave \[1, 4, 1\] for an x of \[1, 4, 2\]"):
        FlowEngine(Narrow()).warm_up()


def test_answers_that_break_the_contract_are_found_at_the_start() -> None:
    with pytest.raises(ModelError, match="gave 2 answers to 3 requests"):
        warm_up(Short(rows=-1, steps=4), 3)
    with pytest.raises(ModelError, match=r"chunk_model has the shape \(2, 2\); its contract promises \(4, 2\)"):
        warm_up(Short(rows=0, steps=2), 3)


def test_what_is_no_engine_is_told_what_it_lacks() -> None:
    with pytest.raises(ModelError, match=r"gave Mirror, which is no Engine: .* infer.*a VelocityModel into a FlowEngine"):
        build_engine(spec(f"{__name__}:bare"))


def test_a_module_that_is_not_found_may_be_off_the_path() -> None:
    with pytest.raises(ModelError, match="'mine' needs nowhere, which is missing: install it, or put its folder on PYTHONPATH"):
        build_engine(spec("nowhere.models:build"))


def broken(_: EngineSpec) -> Mirror:
    raise ImportError("operator torchvision::nms does not exist")


def test_a_module_that_is_there_and_broken_is_not_called_missing() -> None:
    with pytest.raises(ModelError, match="imports cannot be imported: operator torchvision::nms does not exist"):
        build_engine(spec(f"{__name__}:broken"))


def test_parity_takes_the_folder_that_the_other_commands_take(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["parity", "--profiles", str(tmp_path)])
    assert done.exit_code and str(tmp_path / "models.yaml") in str(done.exception)

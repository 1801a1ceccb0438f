"""An emulated model that batches continuously: what a live server and the simulated factory run in place of a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from ros2_rfm_serving.engines.base import stepping
from ros2_rfm_serving.engines.emulated import build
from ros2_rfm_serving.engines.registry import EngineSpec
from ros2_rfm_serving.engines.warmup import warmup_request
from ros2_rfm_serving.factory import Catalogue
from ros2_rfm_serving.profiles import Profile
from ros2_rfm_serving.types import EngineReply

SHIPPED = Path(__file__).parents[3] / "config" / "profiles" / "models.yaml"
STEPPED = {"nvidia/GR00T-N1.6-3B": 4, "physical-intelligence/pi0.5": 10}


def spec(model: str, spent_s: list[float]) -> EngineSpec:
    entry = Catalogue.load(SHIPPED)[model]
    return EngineSpec(
        model=model, entry=entry, models_folder=Path(), profile=Profile({}), gpu_type="NVIDIA H200", wait=spent_s.append, threads=1
    )


@pytest.mark.parametrize("model", STEPPED)
def test_a_row_is_answered_after_its_steps_and_spends_what_the_law_says(model: str) -> None:
    spent_s: list[float] = []
    emulated = build(spec(model, spent_s))
    engine, request = stepping(emulated), warmup_request(emulated.contract)
    assert engine.enter({1: request, 2: request}) == {}
    assert engine.num_iterations(request) == STEPPED[model] and set(engine.ready()) == {1, 2}
    for _ in range(STEPPED[model] - 1):
        assert engine.iterate([1]) == {}
    answers = engine.iterate([1])
    assert isinstance(answers[1], EngineReply) and set(engine.ready()) == {2}
    engine.leave([2, 7])
    assert not engine.ready()
    service = Catalogue.load(SHIPPED)[model].gpus["NVIDIA H200"].service
    law = service.stepped_law() if service else None
    assert law and sum(spent_s) == pytest.approx(law.perception_s(2) + STEPPED[model] * law.step_s(1), rel=0.15)


@pytest.mark.parametrize("model", STEPPED)
@pytest.mark.parametrize("rows", [1, 2, 4, 8, 16])
def test_both_laws_of_a_shipped_model_agree_on_a_batch_that_nothing_joins(model: str, rows: int) -> None:
    service = Catalogue.load(SHIPPED)[model].gpus["NVIDIA H200"].service
    law = service.stepped_law() if service else None
    assert service and law and law.mean_s(rows) == pytest.approx(service.law().mean_s(rows))

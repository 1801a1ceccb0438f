"""The stand-in for a policy: a small motion to and fro, which ends where it began."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ros2_rfm_serving.engines.registry import EngineSpec, build_engine
from ros2_rfm_serving.engines.warmup import warm_up, warmup_request
from ros2_rfm_serving.errors import ModelError
from ros2_rfm_serving.factory import CatalogueEntry
from ros2_rfm_serving.profiles import Profile


def spec(**options: object) -> EngineSpec:
    entry = CatalogueEntry(engine="wave", action_names=("joint", "speed"), state_size=3, chunk_length=20, options=options)
    return EngineSpec(
        model="w", entry=entry, models_folder=Path(), profile=Profile({}), gpu_type="EMULATED", wait=lambda seconds: None
    )


def test_positions_return_to_where_they_were_measured_and_velocities_add_up_to_nothing() -> None:
    engine = build_engine(spec(amplitudes=[0.2, 0.1], positions=[2, -1]))
    warm_up(engine, 1)
    request = warmup_request(engine.contract)
    request.state[2] = 1.5
    chunk = engine.infer([request])[0].chunk_robot
    assert chunk is not None
    assert chunk.shape == (20, 2)
    assert chunk[-1, 0] == pytest.approx(1.5)
    assert chunk[:, 0].max() == pytest.approx(1.7)
    assert chunk[:, 0].min() >= 1.5
    assert np.abs(chunk[:, 1]).max() <= 0.1
    assert chunk[:, 1].sum() == pytest.approx(0.0, abs=1e-5)
    assert engine.contract.emulated


@pytest.mark.parametrize("options", [{"amplitudes": [0.2], "positions": [0]}, {"amplitudes": [0.2, 0.1], "positions": [3, -1]}])
def test_options_that_do_not_fit_the_actions_are_refused(options: dict[str, list[float]]) -> None:
    with pytest.raises(ModelError, match="one amplitude and one place in the state per action"):
        build_engine(spec(**options))

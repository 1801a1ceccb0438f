"""Columns that never moved, hardly moved or are narrow, held to the functions of openpi and Isaac-GR00T themselves.

`parity/columns.py` records what those functions answer.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from ros2_rfm_serving.engines.architectures.importers import openpi
from ros2_rfm_serving.engines.architectures.importers.files import Json
from ros2_rfm_serving.engines.architectures.importers.groot_columns import Precision, Statistics, joined
from ros2_rfm_serving.engines.architectures.manifest import Affine
from ros2_rfm_serving.engines.architectures.normaliser import Normaliser
from test.engines.parity import columns

RECORDED = json.loads(columns.FILE.read_text())
COUNT = len(columns.LOW)


def affine(library: str, mode: str) -> Affine:
    """Return what the importers make of the statistics."""
    stats = columns.statistics()
    if library == "openpi":
        return openpi.affine_of(
            Json(Path("norm_stats.json"), {"norm_stats": {"state": stats}}), "state", COUNT, quantiles=mode == "q99"
        )
    later = library == "groot"
    precision: Precision = "float64" if later else "float32"
    bounds = ("q01", "q99") if mode == "q99" else ("min", "max")
    key = Statistics(Path("statistics.json"), "arm", stats, precision, close=later).scaled("arm", mode, bounds)
    clip = {"clip": 1.0} if key.clipped and not later else {}  # N1.6 and N1.7 cut afterwards, not in the functions recorded
    back = {"clip_back": 1.0} if later and mode == "min_max" else {}
    return joined([key], precision, "arm").model_copy(update=clip | back)


MODES = [(library, mode) for library, modes in RECORDED.items() for mode in modes]


@pytest.mark.parametrize(("library", "mode"), MODES)
def test_a_state_is_scaled_as_the_library_scales_it(library: str, mode: str) -> None:
    ours = [Normaliser(affine(library, mode), COUNT).normalized(state).astype(np.float32) for state in columns.states()]
    theirs = np.array(RECORDED[library][mode]["model"]).astype(np.float32)
    np.testing.assert_allclose(ours, theirs, rtol=2e-7, atol=2e-7)


@pytest.mark.parametrize(("library", "mode"), MODES)
def test_actions_are_scaled_back_as_the_library_scales_them(library: str, mode: str) -> None:
    ours = Normaliser(affine(library, mode), COUNT).denormalized(columns.outputs())
    theirs = np.array(RECORDED[library][mode]["robot"]).astype(np.float32)
    np.testing.assert_array_equal(ours, theirs)

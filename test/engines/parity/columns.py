"""Columns that never moved, or hardly: python -m test.engines.parity.columns OPENPI GROOT

Clones, bare or not. Their authors' functions that scale a state and scale actions back are run at the revisions below, and
`columns.json` is written.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from test.engines.parity.relative import OPENPI, definitions_of, openpi_transforms, source_of

FILE = Path(__file__).parent / "columns.json"
GROOT = "066d167414aed0c97541274fdb1b06ff36564868"
GROOT_N1_5 = "357f9827d06dce1ae3f9ca16971e3ea0b21196a1"
LOW = (0.5, -1.5708, 0.0, 1.5708, 1.0, 0.3, -2.0)
HIGH = (0.5, -1.5708, 0.0, 1.57081, 1.001, 0.9, 3.0)
"""The first three columns never moved, the next one hardly did, the fifth is narrow"""


def statistics() -> dict[str, list[float]]:
    """Return what a data set of these columns has, with other bounds for quantiles of columns that moved."""
    low, high = np.array(LOW), np.array(HIGH)
    inside = (high - low) / 16
    found = {"min": low, "max": high, "mean": (low + high) / 2, "std": (high - low) / 4, "q01": low + inside, "q99": high - inside}
    return {name: values.tolist() for name, values in found.items()}


def states() -> Any:
    """Return states, [N, columns]: at the bounds and the quantiles, between them and beyond them."""
    stats = {name: np.array(values) for name, values in statistics().items()}
    rows = [stats["min"], stats["max"], stats["q01"], stats["q99"], stats["mean"], stats["min"] - 0.25, stats["max"] + 0.25]
    return np.array(rows, np.float32)


def outputs() -> Any:
    """Return what a network may give, [N, columns]."""
    return np.linspace(-1.25, 1.25, 7 * len(LOW), dtype=np.float32).reshape(7, -1)


def main(openpi: str, groot: str) -> int:
    answers = {
        "openpi": _openpi(source_of(openpi, OPENPI, "src/openpi/transforms.py")),
        "groot_n1_5": _groot_n1_5(source_of(groot, GROOT_N1_5, "gr00t/data/transform/state_action.py")),
        "groot": _groot(source_of(groot, GROOT, "gr00t/data/utils.py")),
    }
    FILE.write_text(json.dumps(answers, separators=(",", ":")) + "\n")
    return 0


def _openpi(source: str) -> dict[str, Any]:
    code, stats = openpi_transforms(source), SimpleNamespace(**{name: np.array(values) for name, values in statistics().items()})
    forth, back = code.Normalize(None), code.Unnormalize(None)
    return {
        "q99": _answers(forth._normalize_quantile, back._unnormalize_quantile, stats),
        "mean_std": _answers(forth._normalize, back._unnormalize, stats),
    }


def _groot_n1_5(source: str) -> dict[str, Any]:
    """Of the file, the class `Normalizer` alone is run: the others want pytorch3d."""
    begin = source.index("class Normalizer")
    end = source.find("\nclass ", begin)
    own = definitions_of(source[begin : end if end > 0 else len(source)], torch=torch).Normalizer
    return {mode: _by_normalizer(own(mode, statistics())) for mode in ("min_max", "q99", "mean_std")}


def _by_normalizer(own: Any) -> dict[str, Any]:
    return {
        "model": own.forward(torch.from_numpy(states())).tolist(),
        "robot": own.inverse(torch.from_numpy(outputs())).tolist(),
    }


def _groot(source: str) -> dict[str, Any]:
    code, stats = definitions_of(source, np=np), {name: np.array(values) for name, values in statistics().items()}
    return {
        "min_max": _answers(code.normalize_values_minmax, code.unnormalize_values_minmax, stats),
        "mean_std": _answers(code.normalize_values_meanstd, code.unnormalize_values_meanstd, stats),
    }


def _answers(forth: Callable[[Any, Any], Any], back: Callable[[Any, Any], Any], stats: Any) -> dict[str, Any]:
    return {"model": forth(states(), stats).tolist(), "robot": back(outputs(), stats).tolist()}


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

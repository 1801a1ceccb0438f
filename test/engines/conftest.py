"""LeRobot's policies, tiny and random, made once; and PyTorch without a GPU beside torchvision's wheel for one: its operators are
declared, and never called."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

if TYPE_CHECKING:
    from ros2_rfm_serving.engines.lerobot.engine import LeRobotEngine

try:
    import torchvision  # noqa: F401
except RuntimeError:
    OPERATORS = torch.library.Library("torchvision", "DEF")
    for operator in ("nms", "qnms"):
        OPERATORS.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    from test.engines import tiny_lerobot as tiny
    from test.engines.lerobot_rig import KINDS

    return {kind: tiny.save(kind, tmp_path_factory.mktemp(kind)) for kind in KINDS}


@pytest.fixture(scope="session")
def engines(checkpoints: dict[str, Path]) -> dict[str, LeRobotEngine]:
    from test.engines.lerobot_rig import built

    return {kind: built(kind, folder) for kind, folder in checkpoints.items()}

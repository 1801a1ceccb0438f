"""PyTorch without a GPU beside torchvision's wheel for one: its operators are declared, and never called."""

from __future__ import annotations

import torch

try:
    import torchvision  # noqa: F401
except RuntimeError:
    OPERATORS = torch.library.Library("torchvision", "DEF")
    for operator in ("nms", "qnms"):
        OPERATORS.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

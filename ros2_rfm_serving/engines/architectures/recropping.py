"""Resize of an image to a square, crop and second resize, as `Recrop` describes.

Torchvision resizes by bilinear interpolation with antialiasing. OpenCV's INTER_AREA (modules/imgproc/src/resize.cpp of 4.x) is here
a linear map of each axis: the mean of the covered pixels if both axes shrink, and steps between pixels otherwise.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ros2_rfm_serving.engines.architectures.manifest import Recrop
from ros2_rfm_serving.errors import BadMessageError


class Axis(NamedTuple):
    """Pixels of one axis of an image, with the black borders before and after them."""

    size: int
    before: int
    whole: int


def recropped(image: Tensor, recrop: Recrop) -> Tensor:
    """Return an image, [3, side, side] float32 with whole numbers of 0 to 255.
    image: [H, W, 3] uint8. Raises: `BadMessageError` for an aspect ratio that the network was not trained for."""
    height, width = image.shape[:2]
    if recrop.shape == "square" and height != width:
        raise BadMessageError(
            "bad_image",
            f"a picture of {width} x {height} pixels: this model's processor keeps a picture's shape (use_albumentations without "
            "letter_box_transform), and square ones alone are served: crop it, or pad it with black",
        )
    longest = max(height, width) if recrop.shape == "letterbox" else 0
    rows, columns = (Axis(size, (longest - size) // 2 if longest else 0, longest or size) for size in (height, width))
    pixels = image.permute(2, 0, 1)
    return _averaged(pixels, rows, columns, recrop) if recrop.area else _interpolated(pixels, rows, columns, recrop)


def _interpolated(pixels: Tensor, rows: Axis, columns: Axis, recrop: Recrop) -> Tensor:
    """Resize as torchvision does: in integers on a CPU, in rounded floats on a GPU."""
    black = [each for axis in (columns, rows) for each in (axis.before, axis.whole - axis.size - axis.before)]
    pixels = F.pad(pixels, black)
    begin, kept = round((recrop.side_px - recrop.crop_px) / 2.0), recrop.crop_px
    for size in (recrop.side_px, recrop.side_px):
        if pixels.shape[1:] != (size, size):
            numbers = pixels if pixels.device.type == "cpu" else pixels.float()
            resized = F.interpolate(numbers[None], (size, size), mode="bilinear", antialias=True, align_corners=False)[0]
            pixels = resized if pixels.device.type == "cpu" else resized.round_().clamp_(0, 255)
        if kept < size:
            pixels, kept = pixels[:, begin : begin + kept, begin : begin + kept], size
    return pixels.float()


def _averaged(pixels: Tensor, rows: Axis, columns: Axis, recrop: Recrop) -> Tensor:
    """Resize as OpenCV's INTER_AREA does, without computing the cropped parts or the black borders."""
    shrinks = rows.whole >= recrop.side_px and columns.whole >= recrop.side_px
    by_row, by_column = (_kept(axis, recrop, shrinks).to(pixels.device) for axis in (rows, columns))
    again = _weights(recrop.crop_px, recrop.side_px, False).to(pixels.device)
    cropped = by_row @ (pixels.float() @ by_column.T)
    return (again @ (cropped.round_() @ again.T)).round_()


@lru_cache(maxsize=64)
def _kept(axis: Axis, recrop: Recrop, shrinks: bool) -> Tensor:
    """Return the weights of the first resize, [crop, size], of which the middle is kept."""
    begin = (recrop.side_px - recrop.crop_px) // 2
    weights = _weights(axis.whole, recrop.side_px, shrinks)
    return weights[begin : begin + recrop.crop_px, axis.before : axis.before + axis.size].contiguous()


@lru_cache(maxsize=64)
def _weights(size: int, wanted: int, shrinks: bool) -> Tensor:
    """Return the weights of a resize, [wanted, size]."""
    if size == wanted:
        return torch.eye(size)
    return _averaging(size, wanted) if shrinks else _stepping(size, wanted)


def _averaging(size: int, wanted: int) -> Tensor:
    """Return weights with which each result is the mean of the pixels that it covers."""
    ratio = size / wanted
    ends = torch.arange(wanted, dtype=torch.float64)[:, None] * ratio
    pixels = torch.arange(size, dtype=torch.float64)
    covered = torch.minimum(ends + ratio, pixels + 1) - torch.maximum(ends, pixels)
    return (covered.clamp_(min=0) / ratio).float()


def _stepping(size: int, wanted: int) -> Tensor:
    """Return weights with which each result is the pixel that it lies in, and a share of the next one if it reaches into that."""
    inverse = wanted / size
    results = torch.arange(wanted, dtype=torch.float64)
    at = (results * (1.0 / inverse)).floor()
    share = ((results + 1) - (at + 1) * inverse).float()  # as in OpenCV, which makes a whole step exactly one
    share = torch.where(share <= 0, 0.0, share - share.floor())
    share[at >= size - 1] = 0.0
    at = at.clamp_(max=size - 1).long()
    weights = torch.zeros(wanted, size)
    weights[torch.arange(wanted), at] = 1 - share
    weights[torch.arange(wanted), (at + 1).clamp_(max=size - 1)] += share
    return weights

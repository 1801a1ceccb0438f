"""Pictures that are not square reach GR00T N1.6 and N1.7 as Isaac-GR00T's processors make them.

What is expected was computed with torchvision 0.28 and OpenCV 5.0.0 by the recipes of NVIDIA/Isaac-GR00T at 1852a8c1
(gr00t/model/gr00t_n1d7/image_augmentations.py). OpenCV's own resizing is written anew here, pixel by pixel.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from ros2_rfm_serving.engines.architectures.importers.files import Json
from ros2_rfm_serving.engines.architectures.importers.groot_pictures import recrop_of
from ros2_rfm_serving.engines.architectures.manifest import Images, Recrop
from ros2_rfm_serving.engines.architectures.processor import fitted
from ros2_rfm_serving.engines.architectures.recropping import recropped
from ros2_rfm_serving.errors import BadMessageError, ModelError

ALBUMENTATIONS = {"use_albumentations": True, "shortest_image_edge": 256}
TORCHVISION = {"use_albumentations": False, "image_target_size": [256, 256], "image_crop_size": [230, 230]}
BOXED = {"letter_box_transform": True}


def recipe(kwargs: dict[str, Any], *, stretches: bool = True) -> Recrop:
    return recrop_of(Json(Path("processor_config.json"), {"processor_kwargs": kwargs}), 256, stretches=stretches)


def black_rows(recrop: Recrop, height: int = 480, width: int = 640) -> int:
    """At the top of a white picture."""
    pixels = recropped(torch.full((height, width, 3), 255, dtype=torch.uint8), recrop)
    assert pixels.shape == (3, recrop.side_px, recrop.side_px)
    return int((pixels.sum(dim=(0, 2)) == 0).int().argmin())


@pytest.mark.parametrize(
    ("kwargs", "rows"),
    [
        (ALBUMENTATIONS | BOXED | {"crop_fraction": 0.9}, 21),
        (ALBUMENTATIONS | BOXED | {"crop_fraction": 0.95}, 27),
        (ALBUMENTATIONS | BOXED, 27),
        (ALBUMENTATIONS | BOXED | {"crop_fraction": 1.0}, 32),
        (ALBUMENTATIONS | BOXED | {"crop_fraction": None, "image_target_size": [256, 256], "image_crop_size": [230, 230]}, 21),
        (TORCHVISION | BOXED, 19),
        (TORCHVISION | BOXED | {"crop_fraction": 0.95}, 19),
        (TORCHVISION | {"crop_fraction": 0.95}, 0),
        (ALBUMENTATIONS | {"shortest_image_edge": None, "crop_fraction": 0.9, "image_target_size": [256, 256]}, 0),
    ],
)
def test_a_picture_is_padded_first_and_then_cropped_as_the_recipe_says(kwargs: dict[str, Any], rows: int) -> None:
    """`crop_fraction` is written in any case, and counts for albumentations alone."""
    assert black_rows(recipe(kwargs)) == rows


def test_albumentations_without_letterbox_keep_a_pictures_shape_so_that_others_than_squares_are_refused() -> None:
    recrop = recipe(ALBUMENTATIONS)
    assert recipe(ALBUMENTATIONS | {"shortest_image_edge": None, "image_target_size": [256, 256]}, stretches=False) == recrop
    assert recropped(torch.zeros(480, 480, 3, dtype=torch.uint8), recrop).shape == (3, 256, 256)
    with pytest.raises(BadMessageError, match=r"a picture of 640 x 480 pixels: .*letter_box_transform.*crop it, or pad it"):
        recropped(torch.zeros(480, 640, 3, dtype=torch.uint8), recrop)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        (
            {"use_albumentations": True, "shortest_image_edge": None},
            "shortest_image_edge and image_target_size: one of them is needed",
        ),
        ({}, "image_target_size and image_crop_size: torchvision's recipe needs both"),
        (TORCHVISION | {"image_crop_size": None}, "torchvision's recipe needs both"),
        (ALBUMENTATIONS | {"crop_fraction": None}, "both are needed where crop_fraction is null"),
    ],
)
def test_a_recipe_without_a_size_is_refused(kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=rf"processor_config\.json: .*{message}"):
        recipe(kwargs)


def resized_by_area(image: NDArray[Any], side: int) -> NDArray[Any]:
    """OpenCV's INTER_AREA: means where both axes shrink, else each pixel that a result lies in, and some of the next."""

    def weights(size: int, mean: bool) -> NDArray[Any]:
        found = np.zeros((side, size))
        for result in range(side):
            if mean:
                low, high = result * size / side, (result + 1) * size / side
                for pixel in range(math.floor(low), min(size, math.ceil(high))):
                    found[result, pixel] = (min(high, pixel + 1) - max(low, pixel)) * side / size
                continue
            pixel = min(size - 1, math.floor(result * size / side))
            share = float(np.float32((result + 1) - (pixel + 1) * side / size))
            share = 0.0 if share <= 0 or pixel >= size - 1 else share - math.floor(share)
            found[result, pixel] += 1 - share
            found[result, min(size - 1, pixel + 1)] += share
        return found

    height, width = image.shape[:2]
    if (height, width) == (side, side):
        return image
    mean = height >= side and width >= side
    return np.rint(np.einsum("rh,hwc,sw->rsc", weights(height, mean), image, weights(width, mean)))


def boxed(image: NDArray[Any]) -> NDArray[Any]:
    height, width = image.shape[:2]
    longest = max(height, width)
    top, left = (longest - height) // 2, (longest - width) // 2
    return np.pad(image, ((top, longest - height - top), (left, longest - width - left), (0, 0)))


def middle(image: NDArray[Any], side: int, *, rounded: bool) -> NDArray[Any]:
    begin = round((len(image) - side) / 2.0) if rounded else (len(image) - side) // 2
    return image[begin : begin + side, begin : begin + side]


def interpolated(image: NDArray[Any], side: int) -> NDArray[Any]:
    """As torchvision resizes a tensor of whole numbers."""
    if image.shape[:2] == (side, side):
        return image
    pixels = torch.from_numpy(np.ascontiguousarray(image)).permute(2, 0, 1)[None]
    found = F.interpolate(pixels, (side, side), mode="bilinear", antialias=True, align_corners=False)
    result: NDArray[Any] = found[0].permute(1, 2, 0).numpy()
    return result


@pytest.mark.parametrize("shape", [(48, 64), (64, 48), (30, 20), (31, 31), (9, 40), (20, 26)])
@pytest.mark.parametrize(("side", "crop"), [(24, 20), (24, 24), (25, 22)])
@pytest.mark.parametrize("area", [True, False])
@pytest.mark.parametrize("letterbox", [True, False])
def test_pixels_are_those_of_the_recipe(shape: tuple[int, int], side: int, crop: int, area: bool, letterbox: bool) -> None:
    image = np.random.default_rng(3).integers(0, 256, (*shape, 3), np.uint8)
    recrop = Recrop(side_px=side, crop_px=crop, shape="letterbox" if letterbox else "stretch", area=area)
    resized = resized_by_area if area else interpolated
    first = resized(boxed(image) if letterbox else image, side)
    theirs = resized(middle(first, crop, rounded=not area), side)
    ours = recropped(torch.from_numpy(image), recrop).permute(1, 2, 0).numpy()
    assert np.abs(ours - theirs.astype(float)).max() <= (1 if area else 0)  # a mean that is half a level may be rounded either way


def test_a_network_of_other_patches_gets_the_picture_resized_once_more() -> None:
    recrop = Recrop(side_px=64, crop_px=60, shape="letterbox", area=True)
    image = torch.from_numpy(np.random.default_rng(1).integers(0, 256, (48, 64, 3), np.uint8))
    pixels = fitted(image, Images(height_px=56, width_px=56, recrop=recrop, whole=True))
    assert pixels.shape == (3, 56, 56) and float(pixels.max()) <= 1.0
    same = fitted(image, Images(height_px=64, width_px=64, recrop=recrop, whole=True))
    np.testing.assert_array_equal((same * 255).round(), recropped(image, recrop))

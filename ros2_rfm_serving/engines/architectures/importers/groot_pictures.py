"""Treatment of a camera's image by the processors of GR00T N1.6 and N1.7, from `processor_config.json`.

Source: NVIDIA/Isaac-GR00T, gr00t/model/gr00t_n1d7/image_augmentations.py at 1852a8c1 and gr00t_n1d6's at 2ce75434. An image is
padded to a square (`letter_box_transform`), resized, cropped around its middle and resized again. Torchvision's recipe stretches to
`image_target_size` and crops to `image_crop_size`; that of albumentations (`use_albumentations`) resizes the shortest edge and
keeps `crop_fraction`, or `image_crop_size` of `image_target_size` if there is none.
"""

from __future__ import annotations

from typing import Any, Literal

from ros2_rfm_serving.engines.architectures.importers.files import Json
from ros2_rfm_serving.engines.architectures.manifest import Recrop
from ros2_rfm_serving.errors import ModelError

CROP_FRACTION = 0.95
"""Default for a `processor_config.json` without such a key."""


def recrop_of(processor: Json, default_edge: int, *, stretches: bool) -> Recrop:
    """Return the recipe for an image. Raises: `ModelError` that names the key.

    default_edge: `shortest_image_edge` if the file has no such key. stretches: whether albumentations stretch if that is null, as
    in N1.7; N1.6 takes the first of `image_target_size` for it.
    """
    kwargs = processor.map("processor_kwargs")
    boxed, albumentations = bool(kwargs.get("letter_box_transform")), bool(kwargs.get("use_albumentations"))
    edge = kwargs.get("shortest_image_edge", default_edge)
    target, crop = (_side(processor, kwargs, key) for key in ("image_target_size", "image_crop_size"))
    if not albumentations:
        side, crop_px = target, crop
        if not side or not crop_px:
            raise ModelError(f"{processor.file}: image_target_size and image_crop_size: torchvision's recipe needs both")
        if crop_px > side:
            raise ModelError(f"{processor.file}: image_crop_size: {crop_px}, of pictures of {side}")
        return Recrop(side_px=side, crop_px=crop_px, shape="letterbox" if boxed else "stretch")
    side = int(edge or target or 0)
    if not side:
        raise ModelError(f"{processor.file}: shortest_image_edge and image_target_size: one of them is needed")
    fraction = kwargs.get("crop_fraction", CROP_FRACTION)
    if fraction is None and not (crop and target):
        raise ModelError(f"{processor.file}: image_target_size and image_crop_size: both are needed where crop_fraction is null")
    if fraction is None:
        fraction = crop / target
    if not 0 < float(fraction) <= 1:
        raise ModelError(f"{processor.file}: crop_fraction: {fraction!r}, above 0 and at most 1 is expected")
    shape: Literal["letterbox", "stretch", "square"] = (
        "letterbox" if boxed else "stretch" if edge is None and stretches else "square"
    )
    return Recrop(side_px=side, crop_px=max(1, int(side * float(fraction))), shape=shape, area=True)


def _side(processor: Json, kwargs: dict[str, Any], key: str) -> int:
    """Return the side of a square; 0 if the key is missing. Raises: `ModelError`."""
    size = kwargs.get(key)
    if size is None:
        return 0
    if not isinstance(size, list) or len(size) != 2 or not all(isinstance(each, int) and each > 0 for each in size):
        raise ModelError(f"{processor.file}: {key}: height and width are expected, it is {size!r}")
    if size[0] != size[1]:
        raise ModelError(f"{processor.file}: {key}: {size!r}: only squares are supported")
    return int(size[0])


def told_of(recrop: Recrop) -> str:
    """Return the importer's note on a recipe."""
    first = {"letterbox": "padded to a square", "stretch": "stretched to a square", "square": "refused"}
    library = "albumentations" if recrop.area else "torchvision"
    return (
        f"pictures that are not square are {first[recrop.shape]}; pictures are resized to {recrop.side_px}, cropped to "
        f"{recrop.crop_px} and resized again, by Isaac-GR00T's recipe for {library}"
    )

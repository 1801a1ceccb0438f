"""`server/images.py`: what cameras send, decoded or only looked at.

Bytes: format, height (2), width (2), the image.
"""

from __future__ import annotations

import io
import struct

import numpy as np
from PIL import Image

from ros2_rfm_serving.errors import BadMessageError
from ros2_rfm_serving.server import images
from ros2_rfm_serving.types import EncodedImage
from test.unit.fakes import JPEG

FORMATS = ("jpeg", "rgb8", "rgb8; jpeg compressed bgr8", "png", "")
HEAD = struct.Struct("<BHH")


def image_of(data: bytes) -> EncodedImage:
    kind, height, width = HEAD.unpack(data[: HEAD.size].ljust(HEAD.size, b"\0"))
    body = memoryview(data)[HEAD.size :]
    return EncodedImage(camera="front", format=FORMATS[kind % len(FORMATS)], data=body, height_px=height, width_px=width)


def seeds() -> list[bytes]:
    picture = Image.fromarray(np.arange(24 * 20 * 3, dtype=np.uint8).reshape(24, 20, 3))
    made = [_jpeg(picture.convert(mode), **options) for mode in ("RGB", "L", "CMYK") for options in ({}, {"progressive": True})]
    made += [_jpeg(picture, restart_marker_rows=1), _jpeg(picture, subsampling=0, quality=95)]
    return [HEAD.pack(0, 0, 0) + jpeg for jpeg in made] + [HEAD.pack(1, 2, 3) + bytes(18), HEAD.pack(3, 0, 0) + b"\x89PNG"]


def _jpeg(picture: Image.Image, **options: object) -> bytes:
    file = io.BytesIO()
    picture.save(file, "jpeg", **options)
    return file.getvalue()


def check(data: bytes) -> None:
    image = image_of(data)
    passes = _passes(image)
    try:
        decoded = images.decode(image)
    except BadMessageError:
        pass
    else:
        assert passes and decoded.dtype == np.uint8
        assert decoded.ndim == 3 and decoded.shape[2] == 3 and 0 < decoded.size <= 3 * images.MAX_PIXELS
    assert images.decode(EncodedImage(camera="front", format="jpeg", data=JPEG)).shape == (16, 16, 3)


def _passes(image: EncodedImage) -> bool:
    try:
        images.check(image)
    except BadMessageError:
        return False
    return True

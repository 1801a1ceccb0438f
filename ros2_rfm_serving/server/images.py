"""Camera images as received: size limits, checks, and a single decoding."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import simplejpeg

from ros2_rfm_serving.errors import BadMessageError
from ros2_rfm_serving.types import MAX_ENCODED_BYTES, EncodedImage, Image

MAX_PIXELS = 2048 * 2048
START_OF_SCAN, SEQUENTIAL_FRAMES = 0xDA, (0xC0, 0xC1)
"""JPEG markers."""
TABLES = frozenset((0xC4, 0xDB, 0xDD, 0xFE, *range(0xE0, 0xF0)))
"""JPEG markers that every decoder skips by their length: Huffman, quantization, restart, comment and application segments."""
MAX_SCANS = 16
"""Maximum number of scans of a JPEG. Progressive ones have about ten; each takes as long as a whole image, and sixteen bytes are
enough for one."""


FACTORS = (8, 4, 2)
"""Factors by which libjpeg reduces an image from its own coefficients, without decoding all pixels."""
MAX_WORK_PX = 4 * MAX_PIXELS
"""Maximum pixels times scans: about 0.1 s of decoding."""
LIGHT_PX = 1 << 20
"""Maximum pixels of one request's images that count as light: about 7 ms of decoding."""


def is_light(images: Sequence[EncodedImage]) -> bool:
    """Return whether decoding is short enough to delay no other request. It reads only headers. Invalid images count as light,
    because they are refused at once."""
    return sum(_num_pixels(image) for image in images) <= LIGHT_PX


def _num_pixels(image: EncodedImage) -> float:
    """Return the pixels to be decoded; inf for a JPEG with several scans, or with an unusual structure."""
    if image.format == "rgb8":
        return 0
    try:
        height, width, _, _ = simplejpeg.decode_jpeg_header(image.data)
    except ValueError:
        return 0
    return int(height * width) if _is_one_scan(image.data) else math.inf


def decode(image: EncodedImage, min_px: tuple[int, ...] = ()) -> Image:
    """Return an image as RGB, [H, W, 3]. min_px: `ModelContract.min_image_px`.
    Raises: `BadMessageError` before anything large is allocated."""
    _check_bytes(image)
    return _raw(image) if image.format == "rgb8" else _jpeg(image, min_px)


def check(image: EncodedImage) -> EncodedImage:
    """Check size and header alone, for an engine that decodes by itself. Raises: `BadMessageError` if it is refused."""
    _check_bytes(image)
    if image.format == "rgb8":
        _check_raw(image)
    else:
        _check_header(image)
    return image


def scaled_px(width: int, height: int, min_px: tuple[int, ...]) -> tuple[int, int, int]:
    """Return (width, height, factor) at which a JPEG is decoded: the smallest of 1/8, 1/4, 1/2 and 1 that `min_px` allows on both
    sides."""
    for factor in FACTORS if min_px else ():
        smaller = -(-width // factor), -(-height // factor)
        if smaller[0] >= min_px[0] and smaller[1] >= min_px[1]:
            return *smaller, factor
    return width, height, 1


def _jpeg(image: EncodedImage, min_px: tuple[int, ...]) -> Image:
    height, width = _check_header(image)
    width, height, factor = scaled_px(width, height, min_px)
    scaled = {"min_width": width, "min_height": height, "min_factor": factor} if factor > 1 else {}
    try:
        decoded: Image = simplejpeg.decode_jpeg(image.data, colorspace="RGB", fastdct=True, **scaled)
    except ValueError as error:
        raise BadMessageError("bad_image", f"camera {image.camera!r}: not a JPEG: {error}") from error
    return decoded


def _raw(image: EncodedImage) -> Image:
    _check_raw(image)
    return np.frombuffer(image.data, np.uint8).reshape(image.height_px, image.width_px, 3)


def _check_bytes(image: EncodedImage) -> None:
    if len(image.data) > MAX_ENCODED_BYTES:
        raise BadMessageError(
            "image_too_large", f"camera {image.camera!r}: {len(image.data) >> 20} MB encoded; at most {MAX_ENCODED_BYTES >> 20} MB"
        )


def _check_header(image: EncodedImage) -> tuple[int, int]:
    """Return height and width of a JPEG. Raises: `BadMessageError` if it is refused."""
    if "jpeg" not in image.format and "jpg" not in image.format:
        raise BadMessageError("bad_image", f"camera {image.camera!r}: format {image.format!r}; send jpeg or rgb8")
    try:
        height, width, _, _ = simplejpeg.decode_jpeg_header(image.data)
    except ValueError as error:
        raise BadMessageError("bad_image", f"camera {image.camera!r}: not a JPEG: {error}") from error
    _check_pixels(image.camera, height, width)
    scans = 1 if _is_one_scan(image.data) else _count_scans(image.data)
    if scans > MAX_SCANS:
        raise BadMessageError("bad_image", f"camera {image.camera!r}: a JPEG of {scans} scans; at most {MAX_SCANS}")
    if scans * height * width > MAX_WORK_PX:
        work = f"{width} x {height} pixels in {scans} scans"
        raise BadMessageError("image_too_costly", f"camera {image.camera!r}: {work}; send a JPEG of one scan, or a smaller one")
    return height, width


def _is_one_scan(data: memoryview | bytes) -> bool:
    """Return whether a JPEG is sequential and its first scan has all components, as images of cameras; decoders read no further.

    It reads only headers. Anything unusual before the scan gives False: a decoder might parse it differently, and find other
    headers.
    """
    at, num_components = 2, 0
    while at + 10 <= len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if marker == START_OF_SCAN:
            return num_components > 0 and data[at + 4] == num_components
        if marker in SEQUENTIAL_FRAMES:
            num_components = data[at + 9]
        elif marker not in TABLES:
            return False
        at += 2 + (data[at + 2] << 8 | data[at + 3])
    return False


def _count_scans(data: memoryview | bytes) -> int:
    octets = np.frombuffer(data, np.uint8)
    return int(np.count_nonzero((octets[:-1] == 0xFF) & (octets[1:] == START_OF_SCAN)))


def _check_raw(image: EncodedImage) -> None:
    height, width = image.height_px, image.width_px
    _check_pixels(image.camera, height, width)
    if len(image.data) != 3 * height * width or not image.data:
        raise BadMessageError("bad_image", f"camera {image.camera!r}: {len(image.data)} bytes are not {height} x {width} x 3")


def _check_pixels(camera: str, height: int, width: int) -> None:
    if height * width > MAX_PIXELS:
        raise BadMessageError("image_too_large", f"camera {camera!r}: {width} x {height} pixels; at most {MAX_PIXELS}")

"""Pixels of `sensor_msgs/Image`: the result of `cv_bridge` for the encodings that cameras send, in numpy, the same on every
machine.

Any other encoding goes to `cv_bridge` itself where ROS has it, and is refused otherwise.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ros2_rfm_serving.errors import BadMessageError
from ros2_rfm_serving.types import Image

MAX_RAW_BYTES = 64 << 20
MAX_PIXELS = 4096 * 4096
"""Maximum size of an image before it is scaled down."""
Range = tuple[float, float] | None
"""(near, far), m: depth that is black and white. None: the camera sends no depth."""


class Pixels(NamedTuple):
    values: Image
    """[H, W, 3] or [H, W]"""
    order: str
    """RGB, BGR or GRAY"""


@dataclass(frozen=True)
class Encoding:
    sample: str
    """numpy's type of one number."""
    samples: int
    """Numbers per pixel."""
    read: Callable[[np.ndarray[Any, Any], Range], Pixels]
    """[H, W * samples] -> pixels"""
    multiple: int = 1
    """Number of which the width has to be a multiple, because pixels share a colour."""

    @property
    def bytes_per_pixel(self) -> int:
        return np.dtype(self.sample).itemsize * self.samples


def check_raw(message: Any, depth_range_m: Range) -> None:
    """Raise `BadMessageError` unless sizes, padding and encoding are consistent."""
    size, height, width, step, name = len(message.data), message.height, message.width, message.step, message.encoding
    if size > MAX_RAW_BYTES or height * width > MAX_PIXELS:
        raise BadMessageError("image_too_large", f"{width} x {height}, {size >> 20} MB")
    encoding = ENCODINGS.get(name)
    if encoding is None and bridge() is None:
        raise BadMessageError("bad_encoding", f"{name[:40]!r} needs cv_bridge; without it, one of {', '.join(ENCODINGS)}")
    if name in DEPTH and depth_range_m is None:
        raise BadMessageError("no_depth_range", f"{name} is depth, and no range was declared for this camera")
    least = width * encoding.bytes_per_pixel if encoding else 1
    if not height or not width or step < least or size != height * step or (encoding and width % encoding.multiple):
        raise BadMessageError("bad_image", _size_problem(message, least, encoding))


def _size_problem(message: Any, least: int, encoding: Encoding | None) -> str:
    """Return which sizes of an image contradict each other."""
    height, width, step = message.height, message.width, message.step
    found = f"{len(message.data)} bytes for {width} x {height} {message.encoding[:40]}"
    if encoding and width % encoding.multiple:
        return f"{found}: the width has to be a multiple of {encoding.multiple}"
    if step < least:
        return f"{found}: rows of {step} bytes, and {least} are needed"
    return f"{found} in rows of {step}: {height * step} are needed"


def read_raw(message: Any, depth_range_m: Range) -> Pixels:
    """Return the pixels of a message that `check_raw` has accepted, without the padding of its rows. Raises: `BadMessageError`."""
    encoding = ENCODINGS.get(message.encoding)
    if encoding is None:
        return _by_cv_bridge(message)
    rows = np.frombuffer(message.data, np.uint8).reshape(message.height, message.step)
    used = rows[:, : message.width * encoding.bytes_per_pixel]
    if encoding.sample == "u1":
        return encoding.read(used, depth_range_m)
    order = ">" if message.is_bigendian else "<"
    return encoding.read(np.ascontiguousarray(used).view(order + encoding.sample), depth_range_m)


def grey_of_depth(depth: np.ndarray[Any, Any], depth_range_m: Range, *, unit_m: float) -> Image:
    """Convert depth [H, W] to grey levels [H, W].
    Missing readings (0, NaN) and too near ones (-inf, REP 117) are black, too far ones (inf) are white."""
    if depth_range_m is None:
        raise BadMessageError("no_depth_range", "depth, and no range was declared for this camera")
    near, far = (end_m / unit_m for end_m in depth_range_m)
    seen = np.where(np.isnan(depth) | (depth == 0), near, np.clip(depth, near, far))
    grey: Image = np.rint((seen - near) * (255.0 / (far - near))).astype(np.uint8)
    return grey


@functools.cache
def bridge() -> Any:
    """Return cv_bridge, which is loaded on first use, because it brings OpenCV. None: this ROS installation lacks it."""
    try:
        from cv_bridge import CvBridge
    except ImportError:
        return None
    return CvBridge()


def _by_cv_bridge(message: Any) -> Pixels:
    try:
        return Pixels(np.asarray(bridge().imgmsg_to_cv2(message, "bgr8")), "BGR")
    except Exception as error:  # any error of cv_bridge, of OpenCV or of numpy
        raise BadMessageError("bad_encoding", f"{message.encoding[:40]!r}: cv_bridge says: {error}") from error


def _colour(samples: int, order: str) -> Callable[[np.ndarray[Any, Any], Range], Pixels]:
    """Return a reader of colour images; it drops a fourth number, alpha."""
    return lambda rows, _: Pixels(_eight_bits(rows).reshape(len(rows), -1, samples)[:, :, :3], order)


def _grey(rows: np.ndarray[Any, Any], _: Range) -> Pixels:
    return Pixels(_eight_bits(rows), "GRAY")


def _depth(unit_m: float) -> Callable[[np.ndarray[Any, Any], Range], Pixels]:
    return lambda rows, depth_range_m: Pixels(grey_of_depth(rows, depth_range_m, unit_m=unit_m), "GRAY")


def _eight_bits(values: np.ndarray[Any, Any]) -> Image:
    """Convert to 8 bits; the full scale of 16 bits becomes that of 8."""
    if values.dtype.itemsize == 1:
        return values
    eight: Image = ((values.astype(np.uint32) + 128) // 257).astype(np.uint8)
    return eight


_LUMA = np.rint(32 * 255 / 219 * (np.maximum(np.arange(256), 16) - 16) + 16).astype(np.int16)
_FROM_CHROMA = {factor: np.rint(32 * factor * (np.arange(256) - 128)).astype(np.int16) for factor in (1.596, -0.813, -0.391, 2.018)}
"""Conversion tables in 1/32 of a grey level."""


def _yuv422(luma: int, chroma: int) -> Callable[[np.ndarray[Any, Any], Range], Pixels]:
    """Return a reader of two pixels in four bytes: each has a luma, both share U and V.
    It is BT.601 with luma from 16 to 235, as webcams send it. luma, chroma: index of the first of each; U comes before V."""

    def read(rows: np.ndarray[Any, Any], _: Range) -> Pixels:
        y = _LUMA[rows[:, luma::2]].reshape(len(rows), -1, 2)  # [H, pairs, 2]
        u, v = rows[:, chroma::4], rows[:, chroma + 2 :: 4]  # [H, pairs]
        red, green, blue = _FROM_CHROMA[1.596][v], _FROM_CHROMA[-0.391][u] + _FROM_CHROMA[-0.813][v], _FROM_CHROMA[2.018][u]
        rgb = np.empty((*y.shape, 3), np.uint8)
        for channel, shift in enumerate((red, green, blue)):
            rgb[..., channel] = np.clip((y + shift[:, :, np.newaxis]) >> 5, 0, 255)
        return Pixels(rgb.reshape(len(rows), -1, 3), "RGB")

    return read


def _bayer(red_row: int, red_column: int) -> Callable[[np.ndarray[Any, Any], Range], Pixels]:
    """Return a reader of one colour per pixel; each of the other two is the mean of the neighbours that have it.
    red_row, red_column: place of the red pixel in each square of four; blue is diagonal to it."""

    def read(rows: np.ndarray[Any, Any], _: Range) -> Pixels:
        height, width = rows.shape
        if min(height, width) < 2:
            raise BadMessageError("bad_image", f"a Bayer pattern of {width} x {height}")
        own = _eight_bits(rows).astype(np.uint16)
        around = np.pad(own, 1, mode="reflect")  # reflection keeps every colour in its place
        vertical = around[:-2, 1:-1] + around[2:, 1:-1]
        horizontal = around[1:-1, :-2] + around[1:-1, 2:]
        diagonal = around[:-2, :-2] + around[:-2, 2:] + around[2:, :-2] + around[2:, 2:]
        cross, across = (vertical + horizontal + 2) >> 2, (diagonal + 2) >> 2
        above, beside = (vertical + 1) >> 1, (horizontal + 1) >> 1
        rgb = np.empty((height, width, 3), np.uint8)
        red = (slice(red_row, None, 2), slice(red_column, None, 2))
        blue = (slice(1 - red_row, None, 2), slice(1 - red_column, None, 2))
        green_by_red, green_by_blue = (red[0], blue[1]), (blue[0], red[1])
        for place, values in (
            (red, (own, cross, across)),
            (blue, (across, cross, own)),
            (green_by_red, (beside, own, above)),
            (green_by_blue, (above, own, beside)),
        ):
            for channel, value in enumerate(values):
                rgb[(*place, channel)] = value[place]
        return Pixels(rgb, "RGB")

    return read


_UYVY = Encoding("u1", 2, _yuv422(luma=1, chroma=0), multiple=2)
_YUYV = Encoding("u1", 2, _yuv422(luma=0, chroma=1), multiple=2)
_RED = {"rggb": (0, 0), "grbg": (0, 1), "gbrg": (1, 0), "bggr": (1, 1)}
ENCODINGS = {
    "rgb8": Encoding("u1", 3, _colour(3, "RGB")),
    "bgr8": Encoding("u1", 3, _colour(3, "BGR")),
    "rgba8": Encoding("u1", 4, _colour(4, "RGB")),
    "bgra8": Encoding("u1", 4, _colour(4, "BGR")),
    "rgb16": Encoding("u2", 3, _colour(3, "RGB")),
    "bgr16": Encoding("u2", 3, _colour(3, "BGR")),
    "mono8": Encoding("u1", 1, _grey),
    "mono16": Encoding("u2", 1, _grey),
    "yuv422": _UYVY,
    "uyvy": _UYVY,
    "yuv422_yuy2": _YUYV,
    "yuyv": _YUYV,
    **{f"bayer_{pattern}8": Encoding("u1", 1, _bayer(*red)) for pattern, red in _RED.items()},
    **{f"bayer_{pattern}16": Encoding("u2", 1, _bayer(*red)) for pattern, red in _RED.items()},
    "16UC1": Encoding("u2", 1, _depth(0.001)),
    "32FC1": Encoding("f4", 1, _depth(1.0)),
}
"""Encodings by their name in `sensor_msgs/image_encodings`."""
DEPTH = {"16UC1", "32FC1"}
"""Encodings of depth in millimetres and in metres (REP 118)."""

"""Pictures whose two halves have different colours, as messages and back."""

from __future__ import annotations

import array
import io
from collections import Counter
from typing import Any

import numpy as np
import PIL.Image
import simplejpeg
from rclpy.serialization import deserialize_message, serialize_message
from sensor_msgs.msg import CompressedImage, Image

from ros2_rfm_serving.ros.robot.cameras import CameraConfig, CameraSet
from ros2_rfm_serving.ros.wire import convert
from ros2_rfm_serving.types import EncodedImage

RED, BLUE = (250, 20, 30), (10, 30, 240)
"""RGB: the left and the right half of every test image."""
HEIGHT, WIDTH = 48, 64


def sent(message: Any) -> Any:
    """As it comes out of the middleware."""
    return deserialize_message(serialize_message(message), type(message))


def scene(height: int = HEIGHT, width: int = WIDTH) -> np.ndarray[Any, Any]:
    pixels = np.empty((height, width, 3), np.uint8)
    pixels[:, : width // 2], pixels[:, width // 2 :] = RED, BLUE
    return pixels


PATTERNS = ("rggb", "bggr", "gbrg", "grbg")


def bayer(pixels: np.ndarray[Any, Any], pattern: str) -> np.ndarray[Any, Any]:
    """What a sensor sees behind that pattern of colour filters, row by row of each two by two."""
    mosaic = np.empty(pixels.shape[:2], np.uint8)
    for place, colour in enumerate(pattern):
        row, column = divmod(place, 2)
        mosaic[row::2, column::2] = pixels[row::2, column::2, "rgb".index(colour)]
    return mosaic


def yuv422(pixels: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """[H, W, 2] of (U or V, Y): UYVY by the definition of BT.601, luma from 16 to 235."""
    red, green, blue = (pixels[:, :, channel] / 255.0 for channel in range(3))
    y = 0.299 * red + 0.587 * green + 0.114 * blue
    u, v = 128 + 224 * 0.564 * (blue - y), 128 + 224 * 0.713 * (red - y)
    chroma = np.where(np.arange(pixels.shape[1]) % 2 == 0, u, v)
    return np.rint(np.stack([chroma, 16 + 219 * y], axis=2)).astype(np.uint8)


def raw(pixels: np.ndarray[Any, Any], encoding: str, *, padding: int = 0, big_endian: bool = False, width: int = 0) -> Any:
    height, width = pixels.shape[0], width or pixels.shape[1]
    rows = np.ascontiguousarray(pixels).view(np.uint8).reshape(height, -1)
    padded = np.concatenate([rows, np.full((height, padding), 0xAA, np.uint8)], axis=1)
    message = Image(height=height, width=width, encoding=encoding, step=padded.shape[1], is_bigendian=int(big_endian))
    convert.put(message, "data", array.array("B", padded.tobytes()))
    return message


def compressed(data: bytes, declared: str) -> Any:
    message = CompressedImage(format=declared)
    convert.put(message, "data", array.array("B", data))
    return message


def png(pixels: np.ndarray[Any, Any]) -> bytes:
    buffer = io.BytesIO()
    PIL.Image.fromarray(pixels).save(buffer, "png")
    return buffer.getvalue()


class Eye:
    """One camera."""

    def __init__(self, *, max_size_px: int = 640, depth: tuple[float, float] | None = (0.0, 2.55)) -> None:
        self.refused: Counter[str] = Counter()
        camera = CameraConfig(name="eye", topic="eye", depth_range_m=depth)
        self.set = CameraSet([camera], self.refused, jpeg_quality=95, max_size_px=max_size_px)

    def see(self, message: Any) -> EncodedImage:
        self.set.take("eye", sent(message), 1.0)
        assert self.set.images, self.refused
        assert self.set.received_s == (1.0,)
        return self.set.images[0]

    def refuse(self, message: Any, counter: str) -> None:
        self.set.take("eye", sent(message), 1.0)
        assert self.set.images is None and self.refused == {counter: 1}


def decoded(image: EncodedImage) -> np.ndarray[Any, Any]:
    assert image.format == "jpeg"
    pixels: np.ndarray[Any, Any] = simplejpeg.decode_jpeg(image.data, colorspace="RGB")
    return pixels


def halves(pixels: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Mean colours, away from the edge."""
    quarter = pixels.shape[1] // 4
    return pixels[:, :quarter].mean((0, 1)), pixels[:, -quarter:].mean((0, 1))

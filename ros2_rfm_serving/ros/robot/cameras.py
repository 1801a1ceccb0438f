"""Cameras of any robot: `Image` or `CompressedImage` in, images for requests out; encoded only when sent, and only when needed."""

from __future__ import annotations

import array
import io
import math
import struct
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import PIL.Image
import simplejpeg
from sensor_msgs.msg import CompressedImage
from sensor_msgs.msg import Image as RawImage

from ros2_rfm_serving.errors import BadMessageError
from ros2_rfm_serving.ros.robot.encodings import DEPTH, ENCODINGS, MAX_PIXELS, Pixels, check_raw, grey_of_depth, read_raw
from ros2_rfm_serving.types import MAX_ENCODED_BYTES, EncodedImage

COMPRESSED_DEPTH, DEPTH_HEADER = "compressedDepth", struct.Struct("<iff")
"""`ConfigHeader` of compressed_depth_image_transport: a kind, and two quantisation parameters."""
GREY = {name: encoding for name, encoding in ENCODINGS.items() if encoding.samples == 1 and name not in DEPTH}
"""Encodings with one number per pixel that is no depth: grey, and colour mosaics."""


@dataclass(frozen=True, kw_only=True)
class CameraConfig:
    name: str
    """The model's name for the camera."""
    topic: str
    """Topic name: absolute, or below the robot's namespace."""
    raw: bool = False
    """True: `sensor_msgs/Image`; False: `CompressedImage`."""
    depth_range_m: tuple[float, float] | None = None
    """Depth that is shown black and white, m, in either encoding; missing readings are black. None: the camera sends no depth."""
    by_arrival: bool = False
    """Arrival counts as the time of its images, whatever their stamps."""

    @property
    def message_type(self) -> type:
        message_type: type = RawImage if self.raw else CompressedImage
        return message_type


class Frame(EncodedImage):
    """Image that is encoded when `data` is first accessed, and never again."""

    def __init__(self, camera: str, encode: Callable[[], bytes]) -> None:
        super().__init__(camera=camera, format="jpeg", data=b"")
        del self.__dict__["data"]
        object.__setattr__(self, "_encode", encode)

    @cached_property
    def data(self) -> memoryview:
        return memoryview(array.array("B", self._encode()))  # type: ignore[attr-defined]


class CameraSet:
    """Newest image of each camera of one robot. An unusable message is counted in `refused` and dropped.
    It is for one thread. `forget` drops all images, because images from before a reset say nothing about the scene after it."""

    def __init__(self, cameras: Sequence[CameraConfig], refused: Counter[str], *, jpeg_quality: int, max_size_px: int) -> None:
        """Create the set. max_size_px: limit of the longer side; a larger image is scaled down with its proportions."""
        self._cameras = {camera.name: camera for camera in cameras}
        self._refused = refused
        self.problems: dict[str, str] = {}
        """Camera -> reason for which its newest message was refused."""
        self.encode(jpeg_quality, max_size_px)
        self.forget()

    def encode(self, jpeg_quality: int, max_size_px: int) -> None:
        """Set quality and size from the next image on."""
        self._quality, self._max_size_px = jpeg_quality, max_size_px

    def forget(self) -> None:
        self._newest: dict[str, tuple[EncodedImage, float]] = {}

    def take(self, camera: str, message: Any, now_s: float) -> None:
        """Process a message of one camera, received now."""
        try:
            self._newest[camera] = (self._frame(self._cameras[camera], message), now_s)
            self.problems.pop(camera, None)
        except BadMessageError as error:
            self._refused[error.kind] += 1
            self.problems[camera] = str(error)

    @property
    def images(self) -> tuple[EncodedImage, ...] | None:
        """One image per camera, in the declared order; None: a camera has sent none yet."""
        if len(self._newest) < len(self._cameras):
            return None
        return tuple(self._newest[camera][0] for camera in self._cameras)

    @property
    def received_s(self) -> tuple[float, ...]:
        """Times at which the existing `images` were received."""
        return tuple(at_s for _, at_s in self._newest.values())

    def ages_s(self, now_s: float) -> dict[str, float]:
        """Return the age of each camera's newest image, s; inf: there is none."""
        never = (None, -math.inf)
        return {camera: now_s - self._newest.get(camera, never)[1] for camera in self._cameras}

    def _frame(self, camera: CameraConfig, message: Any) -> EncodedImage:
        """Return the image of a message. Raises: `BadMessageError`."""
        if isinstance(message, RawImage):
            check_raw(message, camera.depth_range_m)
            return self._lazy(camera, lambda: read_raw(message, camera.depth_range_m))
        data, declared = memoryview(message.data), message.format
        if len(data) > MAX_ENCODED_BYTES:
            raise BadMessageError("image_too_large", f"camera {camera.name!r}: {len(data) >> 20} MB encoded")
        if COMPRESSED_DEPTH in declared:
            check_compressed_depth(data, declared, camera)
            return self._lazy(camera, lambda: read_compressed_depth(data, declared, camera))
        if "png" in declared.lower():
            with open_png(data) as image:
                check_png(image, declared, camera)
            return self._lazy(camera, lambda: read_png(data, declared, camera))
        height, width = jpeg_size(data, declared)
        if max(height, width) <= self._max_size_px:
            return EncodedImage(camera=camera.name, format="jpeg", data=data, height_px=height, width_px=width)
        return self._lazy(camera, lambda: read_jpeg(data, *smaller(height, width, self._max_size_px)))

    def _lazy(self, camera: CameraConfig, read: Callable[[], Pixels]) -> Frame:
        def encode() -> bytes:
            try:
                return encoded(read(), self._quality, self._max_size_px)
            except BadMessageError as error:  # the image is sound at the beginning and broken further on
                self._refused[error.kind] += 1
                self.problems[camera.name] = str(error)
                self._newest.pop(camera.name, None)
                return b""  # which a server refuses

        return Frame(camera.name, encode)


# --- compressed images ----------------------------------------------------------------------------------------------------


def jpeg_size(data: memoryview, declared: str) -> tuple[int, int]:
    """Return (height, width) by the header. Raises: `BadMessageError`."""
    if not any(name in declared.lower() for name in ("jpeg", "jpg")):
        raise BadMessageError("bad_encoding", f"format {declared[:40]!r}; send jpeg or png")
    try:
        height, width, _, _ = simplejpeg.decode_jpeg_header(data)
    except ValueError as error:
        raise BadMessageError("bad_image", f"not a JPEG: {error}") from error
    if height * width > MAX_PIXELS:
        raise BadMessageError("image_too_large", f"{width} x {height} pixels")
    return height, width


def read_jpeg(data: memoryview, height: int, width: int) -> Pixels:
    """Decode at the smallest size that JPEG offers and that is no smaller than this one. Raises: `BadMessageError`."""
    try:
        return Pixels(simplejpeg.decode_jpeg(data, min_height=height, min_width=width, min_factor=1), "RGB")
    except ValueError as error:
        raise BadMessageError("bad_image", f"a broken JPEG: {error}") from error


def open_png(data: memoryview) -> PIL.Image.Image:
    """Open a PNG by its header; nothing is decoded yet. Raises: `BadMessageError`."""
    try:
        image = PIL.Image.open(io.BytesIO(data), formats=["PNG"])
    except PIL.UnidentifiedImageError as error:  # its text has an address, which differs for every image
        raise BadMessageError("bad_image", f"not a PNG, in {len(data)} bytes") from error
    except (OSError, SyntaxError, ValueError, PIL.Image.DecompressionBombError) as error:
        raise BadMessageError("bad_image", f"not a PNG: {error}") from error
    if image.width * image.height > MAX_PIXELS:
        raise BadMessageError("image_too_large", f"{image.width} x {image.height} pixels")
    return image


def check_png(image: PIL.Image.Image, declared: str, camera: CameraConfig) -> None:
    """Raise `BadMessageError` for depth from a camera without a declared range."""
    if _is_wide(image) and declared_encoding(declared) not in GREY and camera.depth_range_m is None:
        problem = f"camera {camera.name!r} sends {declared[:40]!r} with 16 bits, which is depth, and has no range"
        raise BadMessageError("no_depth_range", problem)


def declared_encoding(declared: str) -> str:
    """Return the encoding of the image before its compression, such as mono16 of "mono16; png compressed "; empty: unknown.
    `compressed_image_transport` writes it so (ros-perception/image_transport_plugins 7404d772, compressed_publisher.cpp)."""
    before, found, _ = declared.partition(";")
    return before.strip() if found else ""


def read_png(data: memoryview, declared: str, camera: CameraConfig) -> Pixels:
    """Decode a PNG. Raises: `BadMessageError`."""
    with open_png(data) as image:
        try:
            image.load()
        except (OSError, SyntaxError, ValueError) as error:
            raise BadMessageError("bad_image", f"a broken PNG: {error}") from error
        if _is_wide(image):
            values: np.ndarray[Any, Any] = np.asarray(image).astype(np.uint16)
            grey = GREY.get(declared_encoding(declared))
            return grey.read(values, None) if grey else Pixels(grey_of_depth(values, camera.depth_range_m, unit_m=0.001), "GRAY")
        if image.mode == "L":
            values = np.asarray(image)
            mosaic = GREY.get(declared_encoding(declared))
            return mosaic.read(values, None) if mosaic else Pixels(values, "GRAY")
        return Pixels(np.asarray(image.convert("RGB")), "RGB")


def _is_wide(image: PIL.Image.Image) -> bool:
    """Return whether the image has one 16-bit number per pixel."""
    return image.mode.startswith("I")


# --- depth as compressed_depth_image_transport sends it -------------------------------------------------------------------


def check_compressed_depth(data: memoryview, declared: str, camera: CameraConfig) -> None:
    """Check a message of compressed depth without decoding it. Raises: `BadMessageError`."""
    if declared_encoding(declared) not in ("16UC1", "mono16", "32FC1") or "rvl" in declared:
        raise BadMessageError("bad_encoding", f"format {declared[:40]!r}; send 16UC1 or 32FC1 with compressedDepth png")
    if camera.depth_range_m is None:
        raise BadMessageError("no_depth_range", f"camera {camera.name!r} sends depth, and has no range")
    if len(data) <= DEPTH_HEADER.size:
        raise BadMessageError("bad_image", f"{len(data)} bytes of compressedDepth")
    with open_png(data[DEPTH_HEADER.size :]) as image:
        if not _is_wide(image):
            raise BadMessageError("bad_image", f"compressedDepth with a PNG of mode {image.mode}")


def read_compressed_depth(data: memoryview, declared: str, camera: CameraConfig) -> Pixels:
    """Decode compressed depth: a header, then a PNG with millimetres, or for `32FC1` quantised inverse depth (codec.cpp, same
    commit). Raises: `BadMessageError`."""
    _, scale, offset = DEPTH_HEADER.unpack_from(data)
    with open_png(data[DEPTH_HEADER.size :]) as image:
        try:
            values = np.asarray(image)
        except (OSError, SyntaxError, ValueError) as error:
            raise BadMessageError("bad_image", f"a broken PNG: {error}") from error
    if declared_encoding(declared) != "32FC1":
        return Pixels(grey_of_depth(values, camera.depth_range_m, unit_m=0.001), "GRAY")
    if not (math.isfinite(scale) and math.isfinite(offset)):
        raise BadMessageError("bad_image", "compressedDepth whose quantisation is no number")
    with np.errstate(divide="ignore"):
        metres = np.where(values == 0, np.nan, scale / (values.astype(np.float64) - offset))
    return Pixels(grey_of_depth(metres, camera.depth_range_m, unit_m=1.0), "GRAY")


# --- what travels ---------------------------------------------------------------------------------------------------------


def smaller(height: int, width: int, max_size_px: int) -> tuple[int, int]:
    """Return (height, width) with the same proportions and no side longer than the maximum."""
    factor = min(1.0, max_size_px / max(height, width))
    return max(1, round(height * factor)), max(1, round(width * factor))


def encoded(pixels: Pixels, quality: int, max_size_px: int) -> bytes:
    """Encode pixels as a JPEG no larger than the maximum; pixels are averaged over their area."""
    values, order = pixels
    height, width = values.shape[:2]
    size = smaller(height, width, max_size_px)
    if size != (height, width):
        values = np.asarray(PIL.Image.fromarray(values).resize(size[::-1], PIL.Image.Resampling.BOX))
    grey = order == "GRAY"
    if grey:
        values = values[:, :, np.newaxis]
    jpeg: bytes = simplejpeg.encode_jpeg(
        np.ascontiguousarray(values), quality=quality, colorspace=order, colorsubsampling="Gray" if grey else "444"
    )
    return jpeg
